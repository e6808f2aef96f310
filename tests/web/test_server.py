"""`neuralpower web`: what its server answers, whom it refuses, and what it takes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl

import pytest

pytest.importorskip("starlette")
pytest.importorskip("multipart", reason="no python-multipart")

from starlette.testclient import TestClient

from neuralpower import predict
from neuralpower.errors import DeviceError, InputError, NeuralPowerError
from neuralpower.report.number_format import plain, quantity
from neuralpower.web.answers import Answer
from neuralpower.web.server import Guard, application, bound
from neuralpower.web.site import Site
from neuralpower.web.traffic import curve_of
from neuralpower.web.view import Uploads, View, view_of
from tests.program import done

PORT = 8421
HERE = f"http://127.0.0.1:{PORT}"
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
VISION: dict[str, Any] = {"model": "zoo:deep_mnist", "device": "nvidia-t4", "phase": "forward", "batch": 4}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Uploads() as uploads:
        yield Site(uploads)


@pytest.fixture(scope="module")
def client(site: Site) -> TestClient:
    return TestClient(application(site, PORT), base_url=HERE)


@pytest.fixture(scope="module")
def tiny(client: TestClient) -> dict[str, Any]:
    """The query of a small language model, uploaded."""
    sent = client.post("/upload", files={"file": ("config.json", json.dumps(TINY))}, follow_redirects=False)
    assert sent.status_code == 303
    model = view_of([("model", _value(sent.headers["location"], "model"))]).model
    return {"model": model, "device": "nvidia-h100-sxm5-80gb", "phase": "decode", "batch": 4, "context": 512}


def _value(address: str, name: str) -> str:
    return parse_qs(address.partition("?")[2])[name][0]


def test_a_browser_without_scripts_has_controls_a_table_and_the_command(client: TestClient) -> None:
    page = client.get("/", params=VISION).text
    assert "neuralpower predict zoo:deep_mnist --phase forward --batch-size 4 --device nvidia-t4" in page
    assert re.search(r"<td>Tesla T4</td><td class=number>\d", page)
    assert '<form id="controls" action="/" method="get"' in page and ">Show</button>" in page
    fields = re.findall(r'<(?:input|select)[^>]* name="(\w+)"', page)
    assert {"model", "device", "price", "phase", "batch", "context", "ranks", "weights", "file"} <= {*fields}
    for name in {*fields} - {"device", "price"}:
        assert f'<label for="{name}">' in page, name
    assert fields.count("device") == 4 and page.count('aria-label="Device ') == 4


def test_an_input_shape_is_asked_as_the_command_asks_it(client: TestClient) -> None:
    page = client.get(
        "/", params={**VISION, "model": "zoo:resnet18", "shape": "3x96x96", "context": 512}
    ).text
    command = "neuralpower predict zoo:resnet18 --phase forward --batch-size 4 --input-shape 3x96x96 --device"
    assert command in page and "--seq-len" not in page
    assert (
        "write positive sizes without the batch"
        in client.get("/answer", params={**VISION, "shape": "3xlarge"}).text
    )


def test_lines_have_their_bounds_as_bands(client: TestClient) -> None:
    chart = client.get("/saved/charts-latency-over-the-batch-size.svg", params=VISION).text
    band = re.search(r'<path d="M([^"]+)z" fill="#0072B2" fill-opacity=".16"', chart)
    assert band is not None and len(band[1].split("L")) == 2 * 9  # both ends of nine batch sizes
    energy = client.get("/saved/charts-energy-per-sample.svg", params=VISION).text
    kinds = client.get("/saved/charts-time-by-kind-of-layer-batch-4.svg", params=VISION).text
    assert 'fill-opacity=".16"' in energy and kinds.count('class="w"') > 4  # whiskers besides the axis


def test_a_link_opens_the_same_view(client: TestClient) -> None:
    view = View(devices=("nvidia-l4", "nvidia-t4"), prices=(0.8, None), phase="prefill", weights="int4")
    link = re.search(r'<a id="link" href="/\?([^"]+)"', client.get("/", params=VISION).text)
    assert link is not None
    assert view_of(parse_qsl(view.query, keep_blank_values=True)) == view
    shown = view_of(parse_qsl(link[1].replace("&amp;", "&"), keep_blank_values=True))
    assert (shown.model, shown.batch, shown.context) == ("zoo:deep_mnist", 4, None)


@pytest.mark.parametrize("phase", ["decode", "prefill", "generate"])
def test_the_page_has_the_figures_of_the_command(
    client: TestClient, site: Site, tiny: dict[str, Any], phase: str
) -> None:
    answer = client.get("/answer", params={**tiny, "phase": phase, "new": 16}).text
    path = site.uploads.path(tiny["model"])
    view = View(model=str(path), phase=phase, batch=4, context=512, new=16)
    device, *_ = view.devices
    given = {name: value for name, value in view.options(device).items() if value is not None}
    expected = predict(str(path), **given)
    value, low, high = (quantity(getattr(expected.runtime_s, end), "s") for end in ("value", "low", "high"))
    assert f"<td class=number>{value}</td>" in answer and f"{low} to {high}" in answer
    command = re.search(r"neuralpower predict ([^<\n]+)", answer)
    assert command is not None
    words = shlex.split(command[1])
    assert words[0] == "config.json"
    assert dict(zip(words[1::2], words[2::2], strict=True))["--phase"] == phase


def test_the_memory_is_that_of_the_command(site: Site, tiny: dict[str, Any]) -> None:
    path = str(site.uploads.path(tiny["model"]))
    for view in (
        View(model=path, batch=3, context=300),
        View("zoo:deep_mnist", phase="training", context=None),
    ):
        (found,) = site.answers.each(view, view.model)
        given = {n: v for n, v in view.options(view.devices[0]).items() if v is not None}
        expected = predict(view.model, **given)
        assert expected.memory is not None and isinstance(found, Answer)
        assert found.here.memory == (
            expected.memory.value_bytes,
            expected.memory.low_bytes,
            expected.memory.high_bytes,
        )
        assert found.here.seconds.value == pytest.approx(expected.runtime_s.value, rel=1e-6)


def test_traffic_has_a_knee_and_its_command(client: TestClient, tiny: dict[str, Any]) -> None:
    found = client.get("/traffic", params={**tiny, "input": 256, "output": 64}).text
    assert found.count('fill-opacity=".16"') == 2 * 2  # two drawings: whole answer, first token
    assert "knee at" in found and "first estimate" in found
    assert "--input 256 --output 64 --rate" in found and "--curve auto" in found


def test_layers_and_what_the_command_prints(client: TestClient, tiny: dict[str, Any]) -> None:
    assert "Layers on the roofline" in client.get("/details", params=tiny).text
    assert "expect" in client.get("/printed", params=tiny).text
    opened = client.get("/details", params=tiny, headers={"accept": "text/html,application/xhtml+xml"}).text
    assert opened.startswith("<!doctype html>") and "Layers on the roofline" in opened


def test_results_can_be_saved(client: TestClient) -> None:
    page = client.get("/", params={**VISION, "price": "2.5"}).text
    links = [link.replace("&amp;", "&") for link in re.findall(r'href="(/saved/[^"]+)"', page)]
    assert {link.partition("?")[0].rpartition(".")[2] for link in links} == {"csv", "svg"}
    for link in links:
        saved = client.get(link)
        assert saved.status_code == 200 and "attachment" in saved.headers["content-disposition"]
        assert saved.text.startswith("<?xml") or saved.text.startswith("device,")
    assert client.get("/saved/none.svg", params=VISION).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": f"evil.example:{PORT}"},
        {"host": "127.0.0.1:1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
    ],
)
def test_other_hosts_and_origins_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    for path in ("/", "/answer", "/web.js"):
        assert client.get(path, params=VISION, headers=headers).status_code == 403
    sent = client.post("/upload", files={"file": ("config.json", "{}")}, headers=headers)
    assert sent.status_code == 403


def test_a_form_of_another_site_cannot_upload(client: TestClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    sent = client.post("/upload", files={"file": ("config.json", "{}")}, headers=headers)
    assert sent.status_code == 403


def test_a_link_from_another_site_computes_nothing(client: TestClient, monkeypatch: Any) -> None:
    monkeypatch.setattr(Site, "answer", lambda *_: pytest.fail("computed"))
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    page = client.get("/", params=VISION, headers=headers)
    assert page.status_code == 200 and "Press Show" in page.text and 'value="zoo:deep_mnist"' in page.text


def test_the_policy_lets_nothing_in(client: TestClient) -> None:
    policy = client.get("/web.css").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    page = client.get("/", params=VISION).text
    assert not re.findall(r'(?:src|href)="(?!/|#|data:,)[^"]+"', page) and " style=" not in page


def test_an_upload_of_code_is_refused(client: TestClient) -> None:
    for name, content in (
        ("net.py", "import os"),
        ("net.pt2", "PK"),
        ("config.json", "import os"),
        ("c.json", "[1]"),
    ):
        sent = client.post("/upload", files={"file": (name, content)})
        assert sent.status_code == 400 and "error: " in sent.text, name
    assert client.post("/upload", data={"other": "1"}).status_code == 400


def test_a_large_upload_is_refused_before_it_is_read(client: TestClient) -> None:
    sent = client.post("/upload", files={"file": ("config.json", b" " * (5 * 2**20))})
    assert sent.status_code == 400 and "at most 4 MiB" in sent.text
    headers = {"content-length": str(2**30), "expect": "100-continue", "content-type": "multipart/form-data"}
    sent = client.post("/upload", content=b"", headers=headers)
    assert sent.status_code == 413 and "256 MiB" in sent.text


def test_a_body_that_lies_about_its_size_is_cut_off(client: TestClient, monkeypatch: Any) -> None:
    monkeypatch.setattr("neuralpower.web.server.MOST_BYTES", {".json": 1000})

    def body() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="config.json"\r\n\r\n'
        for _ in range(100):
            yield b" " * 10_000

    sent = client.post("/upload", content=body(), headers={"content-type": "multipart/form-data; boundary=x"})
    assert sent.status_code == 413


def test_uploads_are_bounded_in_number_and_gone_at_the_end() -> None:
    with Uploads() as uploads:
        models = [uploads.add("config.json", b'{"n": %d}' % i) for i in range(20)]
        assert len([*uploads.folder.iterdir()]) == 16
        assert uploads.path(models[-1]).read_bytes() == b'{"n": 19}'
        with pytest.raises(InputError, match="upload it again"):
            uploads.path("upload:0123456789abcdef/../../etc/passwd")
    assert not uploads.folder.exists()


def test_a_path_is_read_only_where_the_server_trusts_code(client: TestClient, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("from torch import nn\ndef net():\n    return nn.Linear(8, 8), None\n")
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    for model in (f"{file}:net", str(tmp_path), str(tmp_path / "config.json"), "os:getcwd"):
        answer = client.get("/answer", params={**VISION, "model": model}).text
        assert "--trust-code" in answer and "<svg" not in answer, model
    with Uploads() as uploads:
        trusting = TestClient(application(Site(uploads, trust_code=True), PORT), base_url=HERE)
        assert (
            "<svg" in trusting.get("/answer", params={**VISION, "model": str(tmp_path), "context": 64}).text
        )


def test_a_model_that_fails_is_shown_as_the_command_shows_it(client: TestClient) -> None:
    with pytest.raises(NeuralPowerError) as raised:
        predict("zoo:deep_mnits", device="nvidia-t4")
    answer = client.get("/answer", params={**VISION, "model": "zoo:deep_mnits"})
    assert answer.status_code == 200
    text = answer.text.replace("&#39;", "'").replace("&#34;", '"')
    assert f"error: {raised.value}" in text and 'role="alert"' in text
    answer = client.get("/answer", params={**VISION, "shape": "5x7x7"})
    assert "error: " in answer.text and "neuralpower predict" in answer.text


def test_a_model_is_shown_with_what_it_takes(client: TestClient, site: Site, tiny: dict[str, Any]) -> None:
    page = client.get("/", params={**VISION, "phase": "decode", "context": 16}).text
    assert "<option selected>forward</option>" in page and 'id="context" name="context"' in page
    assert "neuralpower predict zoo:deep_mnist --phase forward --batch-size 4 --device nvidia-t4" in page
    assert "phase=forward" in re.findall(r'data-view="([^"]+)"', page)[0]
    sized = site.fitted(View(model="zoo:resnet18", resolution="96x64"))
    assert (sized.shape, sized.resolution, sized.context) == ("3x64x96", "", None)
    longest = site.fitted(View(model=tiny["model"], phase="generate", context=10**5, new=96))
    assert longest.context == 4096 - 96
    asked = View(model=tiny["model"], context=16, steps=20, resolution="512x512")
    assert site.fitted(asked) == View(model=tiny["model"], context=16)
    pipeline = site.fitted(View(model="flux.1-dev", steps=20, resolution="512x512", frames=9))
    assert (pipeline.phase, pipeline.context, pipeline.steps) == ("forward", None, 20)
    assert site.fitted(View(model="zoo:deep_mnits")).phase == "decode"  # the answer says what is wrong


def test_money_and_carbon_are_those_of_the_command(client: TestClient) -> None:
    page = client.get("/", params={**VISION, "price": "2.5", "region": "DEU"}).text
    command = re.search(r"neuralpower (predict [^<\n]+)", page)
    assert command is not None and command[1].endswith("--price 2.5/h --region DEU")
    said = {
        line["name"]: line for line in json.loads(done(*command[1].split(), "--json"))["footprint"]["lines"]
    }
    for name in ("price", "carbon"):
        each = said[f"{name} per million samples"]["value"]["value"]
        assert f">{plain(each)}<" in page, name
    assert "kWh per million samples" in page and "g CO2e per million samples" in page


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": "0"},
        {"batch": "1e3"},
        {"batch": "9" * 40},
        {"context": "-1"},
        {"phase": "dream"},
        {"dtype": "int3"},
        {"weights": "x;y"},
        {"ranks": "3"},
        {"steps": "0"},
        {"resolution": "huge"},
        {"region": "atlantis"},
        {"price": "free"},
        {"device": "h1000"},
        {"device": ["nvidia-t4", "nvidia-l4", "nvidia-a100-sxm4-80gb", "h200", "b200"]},
        {"model": "m" * 600},
    ],
)
def test_a_wrong_value_gives_one_line(client: TestClient, wrong: dict[str, Any]) -> None:
    for path in ("/", "/answer"):
        found = client.get(path, params={**VISION, **wrong})
        assert found.status_code in (200, 400)
        (text,) = re.findall(r'role="alert"><code>(error: [^<]+)</code>', found.text)
        assert "\n" not in text


def test_markup_in_a_query_stays_text(client: TestClient) -> None:
    page = client.get("/", params={**VISION, "model": '"><script>alert(1)</script>'}).text
    assert "<script>alert" not in page


def test_questions_that_nobody_waits_for_are_not_answered(site: Site) -> None:
    import asyncio

    from neuralpower.web.server import Gone, Worker

    class Left:
        async def is_disconnected(self) -> bool:
            return True

    class Here:
        async def is_disconnected(self) -> bool:
            return False

    async def asked() -> list[int]:
        worker, begun, answered = Worker(), threading.Event(), list[int]()
        first = asyncio.ensure_future(worker(Here(), lambda: begun.wait(10)))
        later = [asyncio.ensure_future(worker(Left(), partial(answered.append, n))) for n in range(10)]
        for one in later:
            with pytest.raises(Gone):
                await one
        last = asyncio.ensure_future(worker(Here(), lambda: answered.append(10)))
        begun.set()
        await asyncio.gather(first, last)
        return answered

    assert asyncio.run(asked()) == [10]


def test_the_guard_speaks_of_its_own_port() -> None:
    assert (
        "127.0.0.1:80" in Guard(lambda *_: None, 80).hosts and "127.0.0.1" in Guard(lambda *_: None, 80).hosts
    )


def test_a_port_in_use_is_one_line() -> None:
    with bound(0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DeviceError, match=f"port {port} is in use; choose --port {port + 1}"):
            bound(port)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_it_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    program = subprocess.Popen(
        [sys.executable, "-m", "neuralpower", "web", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert program.stderr is not None
    line = program.stderr.readline()
    assert re.fullmatch(r"Open http://127\.0\.0\.1:\d+/ in a browser; Ctrl-C ends it\.\n", line)
    assert len([*tmp_path.glob("neuralpower-web-*")]) == 1
    program.send_signal(signal.SIGINT)
    assert program.wait(10) == 130
    assert program.stderr.read() == "" and not [*tmp_path.glob("neuralpower-web-*")]
    program.stderr.close()


def test_a_simulated_curve_has_the_bounds_of_its_simulations() -> None:
    def load(rate: float, seconds: float) -> dict[str, Any]:
        waits = {name: {"mean": seconds} for name in ("ttft_s", "tpot_s", "latency_s")}
        return {"rate": rate, "tokens_per_s": 100 * rate, **waits}

    points = [
        {**load(rate, seconds), "low": load(rate, 0.8 * seconds), "high": load(rate, 1.5 * seconds)}
        for rate, seconds in ((1.0, 2.0), (4.0, 6.0))
    ]
    curve = curve_of({"curve": points})
    assert curve.refined and [one.rate for one in curve.points] == [1.0, 4.0]
    bounds = [curve.between(one, lambda seen: seen.whole_s) for one in curve.points]
    assert bounds == [pytest.approx((1.6, 3.0)), pytest.approx((4.8, 9.0))]
