/* Draws the charts of the page: those in sight first, the others when there is time; all of them before it is printed. */
(() => {
  "use strict";
  const root = document.documentElement;
  const charts = [...document.querySelectorAll("div.chart")];
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const NARROW = 620;
  /* Nothing of the page leaves it: the buttons that would send a chart away are gone. */
  const gone = ["lasso2d", "select2d", "sendChartToCloud", "sendDataToCloud"];
  const config = { responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtonsToRemove: gone };

  /* What all charts of a kind have in common, but for the colours of the page. */
  const bar = { title: { side: "right" }, thickness: 14 };
  const pattern = { fillmode: "overlay", fgcolor: "rgba(255,255,255,0.75)", size: 6, solidity: 0.2 };
  const template = {
    data: {
      scatter: [{ marker: { size: 9 }, line: { width: 2 }, hovertemplate: "%{text}<br>%{x:.4s}, %{y:.4s}" }],
      bar: [{ marker: { pattern }, hovertemplate: "%{x}<br>%{y:.4s}" }],
      heatmap: [{ texttemplate: "%{text}", hovertemplate: "%{y}, %{x}: %{text}<extra></extra>", xgap: 1, ygap: 1 }],
      pie: [{
        sort: false, direction: "clockwise", marker: { line: { color: "white", width: 1 } },
        textinfo: "label+percent", textposition: "inside", insidetextorientation: "horizontal",
        hovertemplate: "%{label}: %{percent}<extra></extra>",
      }],
    },
    layout: {
      hovermode: "closest", bargap: 0.25, uniformtext: { minsize: 9, mode: "hide" },
      coloraxis: { colorscale: "Cividis", colorbar: bar },
      xaxis: { automargin: true, zeroline: false, title: { standoff: 10 } },
      yaxis: { automargin: true, zeroline: false, title: { standoff: 10 } },
      annotationdefaults: {
        showarrow: true, arrowhead: 0, arrowcolor: "rgba(128,128,128,0.7)",
        standoff: 5, opacity: 0.9, borderpad: 0, font: { size: 10.5 },
      },
    },
  };

  function colours() {
    const style = getComputedStyle(root);
    const of = (name) => style.getPropertyValue(name).trim();
    return { ink: of("--ink"), grid: of("--grid"), paper: of("--paper"), line: of("--line"), panel: of("--panel") };
  }

  /* Pies: three beside each other, two where it is narrow. */
  function domains(count, columns) {
    const rows = Math.ceil(count / columns);
    return Array.from({ length: count }, (_, i) => {
      const x = i % columns, y = rows - 1 - Math.floor(i / columns);
      return { x: [(x + 0.04) / columns, (x + 0.96) / columns], y: [(y + 0.03) / rows, (y + 0.86) / rows] };
    });
  }

  function arranged(spec, width) {
    const c = colours(), narrow = width < NARROW;
    const layout = {
      ...spec.layout, template,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: c.ink },
      margin: { l: 56, r: 16, t: 28, b: 64 },
      hoverlabel: { bgcolor: c.panel, bordercolor: c.line, font: { color: c.ink }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: c.line, activecolor: c.ink },
    };
    for (const axis of ["xaxis", "yaxis"])
      if (layout[axis]) layout[axis] = { ...layout[axis], gridcolor: c.grid, linecolor: c.line, zerolinecolor: c.grid };
    let height = spec.height, data = spec.data;
    if (spec.kind === "pies") {
      const columns = Math.min(narrow || data.length === 4 ? 2 : 3, data.length), places = domains(data.length, columns);
      data = data.map((pie, i) => ({ ...pie, domain: places[i] }));
      layout.annotations = data.map((pie, i) => ({
        text: pie.name, showarrow: false, xref: "paper", yref: "paper", xanchor: "center", yanchor: "bottom", yshift: 4,
        x: (places[i].x[0] + places[i].x[1]) / 2, y: places[i].y[1], font: { size: narrow ? 11 : 13 },
      }));
      height = 80 + Math.ceil(data.length / columns) * (narrow ? 210 : 250);
      layout.margin = { l: 8, r: 8, t: 24, b: 8 };
    }
    const wide = spec.data.reduce((most, trace) => Math.max(most, (trace.name || "").length), 0);
    if (narrow || spec.kind === "pies" || wide > 34) {
      layout.legend = { orientation: "h", x: 0, xanchor: "left", y: spec.kind === "pies" ? -0.02 : -0.22, yanchor: "top" };
      if (spec.kind !== "pies") height += spec.legend * (narrow ? 20 : 12);
    } else layout.legend = { x: 1.02, xanchor: "left", y: 1, yanchor: "top" };
    if (narrow && spec.kind !== "pies") delete layout.annotations;
    layout.height = height;
    return { data, layout, height };
  }

  function draw(element) {
    const made = arranged(specs[charts.indexOf(element)], element.clientWidth);
    element.style.height = made.height + "px";
    Plotly.react(element, made.data, made.layout, config);
    element.dataset.drawn = "yes";
    root.dataset.drawn = document.querySelectorAll("div.chart[data-drawn]").length;
  }

  const waiting = new Set(charts);
  function next(element) {
    if (waiting.delete(element)) draw(element);
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); next(entry.target); }
  }, { rootMargin: "300px" });
  charts.forEach((element) => seen.observe(element));

  function idle() {
    const [first] = waiting;
    if (first) { next(first); setTimeout(idle, 30); }
  }
  setTimeout(idle, 400);

  const again = () => charts.forEach((element) => { if (element.dataset.drawn) draw(element); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  matchMedia(`(max-width: ${NARROW + 40}px)`).addEventListener("change", again);
  window.addEventListener("beforeprint", () => charts.forEach(next));
})();
