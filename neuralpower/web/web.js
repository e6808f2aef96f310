"use strict";
// Each change asks for the parts of the new view; an older question is dropped, so the last change wins.
(() => {
  const PAUSE_MS = 15, THEN_MS = 400, SIMULATE_MS = 2000, SLOW_MS = 700;
  const at = id => document.getElementById(id);
  const form = at("controls"), answer = at("answer"), status = at("status");
  const names = new Set([...at("models").options].map(option => option.value));
  let waiting = 0, asked = 0, asking = null, settled = answer.dataset.wait ? "" : query();

  function query() {
    const pairs = [...new FormData(form)].map(([name, value]) => [name, String(value).trim()]);
    return new URLSearchParams(pairs).toString();
  }

  // the controls as the answer has them: a model that does not decode is shown with a forward pass
  function follow(view) {
    const shown = new URLSearchParams(view);
    for (const id of ["phase", "context", "shape", "resolution", "steps", "frames"]) {
      if (shown.has(id) && document.activeElement !== at(id)) at(id).value = shown.get(id);
    }
    return query();
  }

  async function part(place, path, signal) {
    const reply = await fetch(path, {signal, headers: {"Accept": "text/html"}});
    const text = await reply.text();
    if (signal.aborted) return null;
    place.innerHTML = reply.headers.get("content-type")?.startsWith("text/html") ? text : "";
    if (!place.innerHTML) place.textContent = text;
    return place;
  }

  function pause(ms, signal) {
    return new Promise((done, gone) => {
      const timer = setTimeout(done, ms);
      signal.addEventListener("abort", () => { clearTimeout(timer); gone(new DOMException("", "AbortError")); });
    });
  }

  async function rest(now, signal) {
    await pause(THEN_MS, signal);
    await part(at("details"), `/details?${now}`, signal);
    const language = ["prefill", "decode", "generate"].includes(at("phase").value);
    at("traffic").hidden = !language;
    if (!language) return;
    await part(at("traffic"), `/traffic?${now}`, signal);
    if (at("refined")?.dataset.refined !== "no") return;
    await pause(SIMULATE_MS, signal);
    await part(at("traffic"), `/traffic?${now}&refined=1`, signal);
  }

  async function change(begun) {
    const now = query(), number = ++asked;
    asking?.abort();
    const own = asking = new AbortController();
    const slow = setTimeout(() => { status.textContent = "Tracing the model; this takes some seconds the first time."; }, SLOW_MS);
    answer.setAttribute("aria-busy", "true");
    try {
      await part(answer, `/answer?${now}`, own.signal);
      if (number !== asked) return;
      settled = follow(at("said")?.dataset.view ?? now);
      answer.dataset.query = settled;
      delete answer.dataset.wait;
      history.replaceState(null, "", `/?${settled}`);
      document.title = `neuralpower: ${at("model").value}`;
      status.textContent = at("said")?.dataset.said ?? "";
      performance.measure("change", {start: begun});
      answer.removeAttribute("aria-busy");
      clearTimeout(slow);
      await rest(settled, own.signal);
      answer.dataset.all = settled;
    } catch (error) {
      if (error.name === "AbortError") return;
      status.textContent = "The server does not answer: start neuralpower web again.";
    } finally {
      clearTimeout(slow);
      if (number === asked) answer.removeAttribute("aria-busy");
    }
  }

  function changed() {
    if (!form.checkValidity()) { status.textContent = "A number is out of its range."; return; }
    const begun = performance.now();
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (query() !== settled || asking) change(begun); }, PAUSE_MS);
  }

  // a slider beside each size, in doublings
  for (const id of ["batch", "context"]) {
    const field = at(id), slider = document.createElement("input");
    const label = document.querySelector(`label[for="${id}"]`).textContent;
    Object.assign(slider, {type: "range", min: 0, max: id === "batch" ? 9 : 17, step: id === "batch" ? 1 : .5});
    slider.id = `${id}-slider`;
    slider.setAttribute("aria-label", `${label}, slider`);
    slider.value = Math.log2(Number(field.value) || 1);
    slider.addEventListener("input", event => {
      event.stopPropagation();
      field.value = Math.round(2 ** Number(slider.value));
      slider.setAttribute("aria-valuetext", field.value);
      changed();
    });
    field.addEventListener("input", () => { slider.value = Math.log2(Number(field.value) || 1); });
    field.after(slider);
  }

  // what the commands print is computed when somebody looks
  document.addEventListener("toggle", event => {
    const place = event.target.querySelector?.("div");
    if (event.target.dataset?.path && event.target.open && !event.target.dataset.done) {
      event.target.dataset.done = "yes";
      place.textContent = "Computing.";
      part(place, event.target.dataset.path, new AbortController().signal).catch(() => { place.textContent = "The server does not answer."; });
    }
  }, true);

  form.addEventListener("input", event => {
    if (event.target.id !== "model" || names.has(event.target.value.trim())) changed();
  });
  form.addEventListener("change", changed);
  form.addEventListener("submit", event => { event.preventDefault(); settled = ""; change(performance.now()); });
  at("upload").addEventListener("submit", event => {
    const file = at("file").files[0], most = file && file.name.toLowerCase().endsWith(".onnx") ? 256 : 4;
    if (file && file.size > most * 2 ** 20) {
      event.preventDefault();
      status.textContent = `${file.name} is larger than ${most} MiB: give its path to neuralpower predict.`;
    }
  });
  if (settled && !document.querySelector("#answer > .failure:only-child")) {
    asking = new AbortController();
    rest(settled, asking.signal).then(() => { answer.dataset.all = settled; }, () => {});
  }
})();
