"""Explanations of made-up traces: totals, causes, gaps, and what must not be lost."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

import neuralpower
from neuralpower.errors import InputError
from neuralpower.learn.files.predictor_lookup import chosen
from neuralpower.learn.predictor import Predictor
from neuralpower.report.grid import at_most
from neuralpower.report.page import html_text
from neuralpower.report.results.traces import explanation_page, explanation_table
from neuralpower.traces import calls, stream
from neuralpower.traces.causes import CAUSES
from neuralpower.traces.explanation import COLUMNS, Explanation, explained, predictor_for
from tests.traces.made import BF16, NONE, Inputs, exchanged, kernel, operator, written

F32, F64 = "float", "double"
SCALED: tuple[str, Any, Any, str] = ("Scalar", [], [], "1")


@functools.cache
def h100() -> Predictor:
    return chosen(None, "h100")


def asked(folder: Path, events: list[dict[str, Any]], **more: Any) -> Explanation:
    return explained(written(folder, events), lambda recording: h100(), **more)


def tensor(dtype: str, *sizes: int, steps: list[int] | None = None) -> tuple[str, Any, Any, str]:
    rising, by = 1, list[int]()
    for size in reversed(sizes):
        by.insert(0, rising)
        rising *= size
    return dtype, [*sizes], by if steps is None else steps, ""


class Made:
    """Events of a GPU that runs one call after the other, without gaps."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.at = 100.0

    def call(self, name: str, took: float, *inputs: Any, gap: float = 0.0, kernel_name: str = "k") -> Made:
        number = len(self.events) + 1
        self.events.append(operator(f"aten::{name}", 10 + 5 * number, 4, [*inputs]))
        self.at += gap
        ran = kernel(number, 11 + 5 * number, took, name=kernel_name)
        ran[0]["ts"] = self.at + 1000
        self.events += ran
        self.at += took
        return self


def linear(made: Made, took: float, rows: int, inside: int, out: int, dtype: str = BF16, **more: Any) -> Made:
    given = tensor(dtype, rows, inside), tensor(dtype, out, inside), NONE
    return made.call("linear", took, *given, **more)


def norm(training: str) -> Inputs:
    x, c = tensor(F32, 8, 64, 56, 56), tensor(F32, 64)
    numbers: Inputs = [("Scalar", [], [], text) for text in (training, "0.1", "1e-05", "True")]
    return [x, c, c, c, c, *numbers]


def planted() -> dict[str, Made]:
    """A made-up trace for each cause."""
    found = {}
    base = functools.partial(linear, took=100, rows=4096, inside=4096, out=4096)
    made = base(Made())
    made.call("contiguous", 80, tensor(BF16, 4096, 4096, steps=[1, 4096]), ("Scalar", [], [], "0"))
    found["copy next to a product"] = base(made)
    found["float64 island"] = base(Made()).call("relu", 40, tensor(F64, 1024, 1024))
    found["float32 island"] = linear(base(base(Made()), took=900), 400, 2048, 2048, 2048, F32)
    found["norm in training mode"] = base(Made()).call("batch_norm", 50, *norm("True"))
    made = base(Made())
    scores = tensor(BF16, 64, 512, 512)
    made.call("bmm", 60, tensor(BF16, 64, 512, 64), tensor(BF16, 64, 64, 512))
    for _ in range(5):  # as a scale, a bias and a mask
        made.call("neg", 5, scores)
    made.call("softmax", 60, scores, ("Scalar", [], [], "-1"), NONE)
    found["unfused attention"] = made.call("bmm", 60, scores, tensor(BF16, 64, 512, 64))
    found["unaligned sides"] = linear(Made(), 900, 4096, 4095, 4093)
    found["TF32 off"] = linear(Made(), 9000, 4096, 4096, 4096, F32, kernel_name="ampere_sgemm_128x64_tn")
    found["split-K"] = linear(Made(), 9000, 64, 4096, 4096, kernel_name="splitKreduce_kernel")
    strided: Inputs = [tensor(BF16, 4096, 4096, steps=[1, 4096]), tensor(BF16, 4096, 4096), SCALED]
    made = base(Made())
    made.events += exchanged(900, 400, 1200, 500, 2**20)
    found["waiting in exchanges"] = made
    found["operands out of order"] = base(Made()).call("add", 900, *strided)
    return found


@pytest.mark.parametrize("cause", [cause.name for cause in CAUSES])
def test_each_cause_is_named_first_where_it_is_planted(tmp_path: Path, cause: str) -> None:
    found = asked(tmp_path, planted()[cause].events)
    assert [one.cause for one in found.findings][:1] == [cause], explanation_table(found)
    assert found.findings[0].saving_s > 0
    assert any(row.cause == cause for row in found.rows)


def test_nothing_is_named_where_nothing_is_planted(tmp_path: Path) -> None:
    made = Made()
    for _ in range(3):
        linear(made, 300, 4096, 4096, 4096)
        made.call("batch_norm", 40, *norm("False"))
        made.call("relu", 20, tensor(BF16, 4096, 4096))
        made.call("contiguous", 1, tensor(BF16, 64, 64, steps=[1, 64]), ("Scalar", [], [], "0"))
        last = [64 * 56 * 56, 1, 64 * 56, 64]  # channels
        made.call("mul", 900, tensor(BF16, 8, 64, 56, 56, steps=last), tensor(BF16, 8, 64, 1, 1), NONE)
    found = asked(tmp_path, made.events)
    assert found.findings == (), explanation_table(found)


def test_a_norm_of_a_training_step_is_no_fault(tmp_path: Path) -> None:
    made = Made().call("batch_norm", 50, *norm("True"))
    made.call("threshold_backward", 10, tensor(F32, 64, 64), tensor(F32, 64, 64), ("Scalar", [], [], "0"))
    assert not asked(tmp_path, made.events).findings


def test_three_totals_add_up_to_the_span(tmp_path: Path) -> None:
    made = linear(Made(), 100, 512, 512, 512)
    made.call("relu", 30, tensor(BF16, 512, 512), gap=50)
    [run, _] = kernel(77, 40, 200, name="ncclDevKernel_AllReduce_Sum_bf16", tid=9)
    run["ts"] = 1150
    found = asked(tmp_path, [*made.events, run])
    # 100 us, a gap of 50 and 30 more, from 1100 on; a sum over devices from 1150 to 1350
    assert found.span_s == pytest.approx(250e-6)
    assert found.priced_s == pytest.approx(130e-6)
    assert found.unpriced_s == pytest.approx(120e-6)  # of the sum, what nothing hides
    assert found.idle_s == 0
    assert (found.exposed_s, found.overlapped_s) == pytest.approx((120e-6, 80e-6))
    assert found.unpriced[0].name.endswith("communication")


def sync(start: float, took: float) -> dict[str, Any]:
    about = {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 7, "tid": 1}
    return {"ph": "X", **about, "ts": start, "dur": took, "args": {}}


def late(cause: str) -> list[dict[str, Any]]:
    """Ten kernels of 40 us, 100 us apart, each launched late for a cause."""
    events: list[dict[str, Any]] = []
    for i in range(10):
        start = 1000.0 + 140 * i
        events.append(operator("aten::relu", start - 6, 5, [tensor(BF16, 512, 512)]))
        [run, launch] = kernel(i + 1, start - 3, 40.0)
        run["ts"] = start
        events += [run, launch]
        if cause == "synchronisation":
            events.append(sync(start + 20, 60))
        elif cause == "waiting for data":
            about = {"cat": "user_annotation", "name": "enumerate(DataLoader)#_Next", "pid": 7, "tid": 1}
            events.append({"ph": "X", **about, "ts": start + 42, "dur": 80, "args": {}})
    return events


@pytest.mark.parametrize("cause", ["synchronisation", "waiting for data", "host-bound"])
def test_gaps_have_causes(tmp_path: Path, cause: str) -> None:
    found = asked(tmp_path, late(cause))
    assert found.findings[0].cause == cause
    assert found.findings[0].saving_s == pytest.approx(9 * 100e-6, rel=0.01)
    assert found.idle_s == pytest.approx(9 * 100e-6)


def test_a_call_that_cannot_be_made_again_loses_no_other(tmp_path: Path) -> None:
    made = linear(Made(), 100, 512, 512, 512).call("mm", 50, tensor(BF16, 3, 4), tensor(BF16, 9, 8))
    made.call("__import__('os')", 20, tensor(BF16, 3, 4)).call("relu", 10, (BF16, [10**18], [1], ""))
    found = asked(tmp_path, made.events)
    assert (found.priced_s, found.unpriced_s) == pytest.approx((100e-6, 80e-6))
    assert sum(bool(row.reason) for row in found.rows) == 3


def test_a_window_that_begins_in_mid_pass_is_named_and_like_kernels_have_their_calls(tmp_path: Path) -> None:
    made = linear(Made(), 100, 512, 512, 512, kernel_name="gemm_a")
    before = [kernel(900, None, 100.0, name="gemm_a")[0] | {"ts": 500.0}]
    before.append(kernel(901, None, 30.0, name="other")[0] | {"ts": 650.0})
    found = asked(tmp_path, [*made.events, *before])
    assert found.before_s == pytest.approx(130e-6)
    assert found.priced_s == pytest.approx(200e-6)
    assert any("mid-pass: 0.13 ms" in note for note in found.notes)
    assert found.rows[0].calls == 2


def test_several_kernels_without_operators_are_together_a_call(tmp_path: Path) -> None:
    made = linear(Made(), 100, 512, 512, 512, kernel_name="gemm").call(
        "neg", 5, tensor(BF16, 4, 8), kernel_name="fill"
    )
    [fill, launch] = kernel(800, made.events[0]["ts"] + 2, 5.5, name="fill")
    before = [
        graph(name, 200.0 + i, took) for i, (name, took) in enumerate([("fill", 5.0), ("gemm", 100.0)] * 3)
    ]
    for one in before:
        one["args"]["correlation"] = 900
    found = asked(tmp_path, [*made.events, fill | {"ts": 999.0}, launch, *before])
    assert {row.operator: (row.calls, row.kernels) for row in found.rows} == {"linear": (4, 8), "neg": (1, 1)}


def graph(name: str, start: float, took: float) -> dict[str, Any]:
    about = {"cat": "kernel", "name": name, "pid": 0, "tid": 3, "ts": start, "dur": took}
    return {"ph": "X", **about, "args": {"correlation": 5}}


def test_kernels_of_a_graph_get_the_operators_of_its_capture(tmp_path: Path) -> None:
    launch = {"cat": "cuda_runtime", "name": "hipGraphLaunch", "pid": 7, "tid": 1, "ts": 10, "dur": 1}
    events = [
        {"ph": "X", **launch, "args": {"correlation": 5}},
        graph("gemm", 100, 40),
        graph("tiny", 150, 5),
    ]
    without = asked(tmp_path, events)
    assert [part.name for part in without.unpriced] == ["graph: product", "graph: tiny"]
    inputs = [tensor(BF16, 512, 512), tensor(BF16, 512, 512), NONE]
    captured = [operator("aten::linear", 10, 20, inputs), *kernel(1, 12, 3.0)[1:]]
    captured[-1]["args"]["kernel"] = "gemm"
    captured += [operator("aten::relu", 50, 5, [tensor(BF16, 8, 8)]), *kernel(2, 51, 1.0)]
    folder = tmp_path / "capture"
    folder.mkdir()
    found = asked(tmp_path, events, capture=written(folder, captured))
    assert found.priced_s == pytest.approx(40e-6)
    assert found.rows[0].operator == "linear"


def test_the_same_calls_of_two_traces_stand_beside(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    second = written(other, linear(linear(Made(), 50, 512, 512, 512), 70, 512, 512, 512).events)
    found = asked(tmp_path, linear(Made(), 100, 512, 512, 512).events, against=second)
    assert found.rows[0].other_s == pytest.approx(60e-6)
    assert "other" in explanation_table(found)


def test_columns_are_one_list_for_every_form(tmp_path: Path) -> None:
    found = asked(tmp_path, linear(Made(), 100, 512, 512, 512).events)
    names = [column.name for column in COLUMNS]
    assert [*found.to_pandas().columns] == names
    assert [*found.to_json()["rows"][0]] == names
    json.dumps(found.to_json())


def test_tables_fit_80_letters_and_keep_the_causes(tmp_path: Path) -> None:
    made = planted()["copy next to a product"]
    made.call("mine::" + "a_long_name_" * 6, 500, *[tensor(BF16, 4096, 4096)] * 4)
    made.events.append({"cat": "python_function", "name": "nn.Module: " + "Block_0" * 9, "ts": 1, "dur": 1e6})
    made.events[-1] |= {"pid": 7, "tid": 1}
    found = asked(tmp_path, made.events)
    lines = explanation_table(found).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.startswith("contiguous")]
    assert rows and rows[0].endswith("copy next to a product")
    [header] = [line for line in lines if line.startswith("operator")]
    assert header.split() == ["operator", "calls", "measured", "expected", "saves", "cause"]
    with at_most(None):
        wide = explanation_table(found)
    assert all(word in wide for word in ("basis", "low", "module", "a_long_name"))
    assert "(2 more)" in explanation_table(found, 1)


def test_markup_in_names_is_text_on_the_page(tmp_path: Path) -> None:
    made = linear(Made(), 100, 512, 512, 512)
    made.call("relu<script>alert(1)</script>", 10, tensor(BF16, 8, 8))
    text = html_text(explanation_page(asked(tmp_path, made.events)))
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_no_shapes_says_how_to_record_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="record_shapes=True"):
        asked(tmp_path, Made().call("relu", 10).events)


def test_no_operators_leaves_a_table_of_kernels(tmp_path: Path) -> None:
    found = asked(tmp_path, [*kernel(1, None, 5.0, name="sm90_gemm"), *kernel(2, None, 3.0, name="odd_one")])
    assert found.priced_s == 0 and found.unpriced_s > 0
    assert any("ProfilerActivity.CPU" in note for note in found.notes)


def test_a_block_is_recorded_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    model = torch.nn.Linear(256, 256).eval()
    with torch.inference_mode(), neuralpower.explain() as run:
        model(torch.zeros(64, 256))
    assert run.explanation is not None
    assert [row.operator for row in run.explanation.rows if row.operator == "linear"] == ["linear"]
    assert "priced" in capsys.readouterr().out
    assert "Explanation(" in repr(run.explanation)


def test_a_profiler_that_has_not_run_is_refused() -> None:
    with pytest.raises(InputError, match="neither a file"):
        neuralpower.explain(3)


def raw(folder: Path, data: bytes) -> Path:
    file = folder / "trace.json"
    file.write_bytes(data)
    return file


LATE = [
    event
    for i in range(30)
    for event in [
        operator("aten::relu", 1000 * i, 900, [tensor(BF16, 8, 8)]),
        *({**one, "ts": 1e6 + 5e4 * i, "dur": 4e4} for one in kernel(i + 1, 1000.0 * i, 1.0)),
    ]
]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SQLite format 3\0 and more", "a database of Nsight Systems"),
        (b"\x0a\x8b\x01protobuf", "a protobuf of Perfetto"),
        (b'{"traceEvents": [{"ph": "X", "na', "cut off"),
        (b'{"traceEvents": [{"ph": "X"}', "cut off"),
        (b'{"traceEvents": [{"ph": "X"]}', "is not a trace"),
        (b'{"traceEvents": []}', "neither kernels nor operators"),
        (json.dumps({"traceEvents": LATE}).encode(), "are nanoseconds"),
        (
            json.dumps({"traceEvents": [operator("aten::record_stream", 1, 2, [tensor(BF16, 8)])]}).encode(),
            "no kernels are in it",
        ),
    ],
)
def test_what_is_no_trace_is_refused_in_a_line(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        explained(raw(tmp_path, data), lambda recording: h100())
    assert "\n" not in str(caught.value)


def test_a_device_without_a_name_or_a_sheet_is_asked_for(tmp_path: Path) -> None:
    events = linear(Made(), 100, 512, 512, 512).events
    for name, said in ((None, "add --device"), ("Imaginary X1", "say the nearest with --device")):
        trace: dict[str, Any] = {"traceEvents": events}
        if name is not None:
            trace["deviceProperties"] = [{"id": 0, "name": name}]
        with pytest.raises(InputError, match=said):
            explained(raw(tmp_path, json.dumps(trace).encode()), predictor_for)


def test_of_several_devices_the_busiest_is_explained(tmp_path: Path) -> None:
    made = linear(Made(), 100, 512, 512, 512)
    other = kernel(50, None, 30.0)[0] | {"pid": 1}
    other["args"]["device"] = 1
    found = asked(tmp_path, [*made.events, other])
    assert found.priced_s + found.unpriced_s == pytest.approx(100e-6)
    assert any("2 devices" in note for note in found.notes)


def test_clocks_that_differ_are_named_and_gaps_then_have_no_cause(tmp_path: Path) -> None:
    events = late("host-bound")
    for one in events:
        if one["cat"] == "cuda_runtime":
            one["ts"] += 5000
    for one in events:
        if one["cat"] == "cpu_op":
            one["ts"] += 5000
    found = asked(tmp_path, events)
    assert any("clocks differ" in note for note in found.notes)
    assert [part.name for part in found.gaps] == ["of unknown cause"]


def test_events_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STEP", 7)  # bytes at once: each value is cut
    found = asked(tmp_path, linear(Made(), 100, 512, 512, 512).events)
    assert found.priced_s == pytest.approx(100e-6)
    monkeypatch.setattr(stream, "MOST_BYTES", 100)
    with pytest.raises(InputError, match="more than the 100 bytes"):
        asked(tmp_path, linear(Made(), 100, 512, 512, 512).events)


def test_different_calls_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_REPLAYED", 2)
    made = Made()
    for size in range(8, 13):
        made.call("relu", 10, tensor(BF16, size, size))
    found = asked(tmp_path, made.events)
    assert (found.priced_s, found.unpriced_s) == pytest.approx((20e-6, 30e-6))
    assert any("different calls" in row.reason for row in found.rows)


def test_the_command_writes_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, linear(Made(), 100, 512, 512, 512).events, packed=True)
    for ending in ("json", "csv", "md", "html", "txt"):
        assert program("explain", str(file), "--out", str(tmp_path / f"out.{ending}")) == 0
        assert "linear" in (tmp_path / f"out.{ending}").read_text(encoding="utf-8")
    assert program("explain", str(tmp_path / "gone.json")) == 2
    assert "gone.json" in capsys.readouterr().err


def program(*arguments: str) -> int:
    """How the command line ends."""
    from neuralpower.cli import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["neuralpower", *arguments])
        try:
            return int(main() or 0)
        except SystemExit as stop:
            return int(stop.code or 0)


def test_a_call_whose_numbers_were_not_recorded_is_priced_by_its_tensors(tmp_path: Path) -> None:
    made = Made().call("clamp", 10, tensor(F32, 1024, 1024), NONE, NONE)
    del made.events[0]["args"]["Concrete Inputs"]
    found = asked(tmp_path, made.events)
    assert found.priced_s == pytest.approx(10e-6)
    assert found.rows[0].basis == "roofline" and "recorded" in found.rows[0].reason
