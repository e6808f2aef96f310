"""Timelines in Chrome's trace format: calls at given times, nested in modules, and counters."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from neuralpower.devices.hardware import Hardware
from neuralpower.errors import DatasetError, InputError
from neuralpower.files.atomic import check_place
from neuralpower.layers import Layer
from neuralpower.learn.estimates import BASES, IN_RANGE, Estimates, Roofline
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.launch_overhead import Cost, Dispatch
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import Phase
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.compose import compose, question_of
from neuralpower.prediction.memory.peak import forward_memory, memory_of
from neuralpower.prediction.request import Request
from neuralpower.prediction.timeline import UNPLACED, Omitted, Stage, memory_bytes, timed
from neuralpower.report.perfetto import (
    WAIT,
    Counter,
    Leaf,
    Process,
    Row,
    Slice,
    document,
    microseconds,
    nested,
    predicted,
    write,
)
from neuralpower.trace.passes import applied
from neuralpower.trace.recipe import RECIPE, Recipe
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace
from tests.program import done, run

LLAMA = (
    "transformers:llama?num_hidden_layers=2&hidden_size=64&num_attention_heads=4&num_key_value_heads=4"
    "&intermediate_size=128&vocab_size=500&max_position_embeddings=64"
)


@dataclasses.dataclass(frozen=True)
class Known(Predictor):
    """A device whose calls take some microseconds by kind, `hidden` ones on the host, at some watts."""

    us: dict[str, float] = dataclasses.field(default_factory=dict)
    hidden_us: dict[str, float] = dataclasses.field(default_factory=dict)
    watts: dict[str, float] = dataclasses.field(default_factory=dict)

    def estimate(self, layers: Sequence[Layer]) -> Estimates:
        """What was said."""
        seconds = np.array([self.us[layer.kind] for layer in layers]) / 1e6
        hidden = np.array([self.hidden_us.get(layer.kind, 0.0) for layer in layers]) / 1e6
        watts = np.array([self.watts.get(layer.kind, np.nan) for layer in layers])
        zero, basis = np.zeros(len(layers)), np.full(len(layers), BASES.index(IN_RANGE))
        return Estimates(
            seconds,
            seconds / 2,
            2 * seconds,
            zero,
            hidden,
            zero,
            basis * 0,
            zero,
            basis,
            watts,
            watts * 0.9,
            watts * 1.1,
            np.isfinite(watts).astype(float),
            zero,
        )

    def estimate_network(self, layers: Sequence[Layer], counts: np.ndarray) -> Estimates:
        """The same in any network."""
        return self.estimate(layers)

    def check(self, dtype: str, phase: str) -> None:
        """Everything is known."""

    def knows(self, kind: str, phase: str) -> bool:
        """Everything is known."""
        return True


def known(
    us: dict[str, float], *, accelerator: bool = False, idle_w: float | None = None, **other: Any
) -> Known:
    hardware = Hardware(platform="accelerator" if accelerator else "cpu", idle_w=idle_w)
    return Known("Device", hardware, {}, {"float32": Roofline(1e9, 1e9, 1e9)}, {}, us=us, **other)


class Net(nn.Module):
    """A block of linear and relu, then a linear; the block is in a list, which is never called."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU())])
        self.middle = middle or nn.Identity()
        self.head = nn.Linear(8, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.blocks[0](x)))


class Fourier(nn.Module):
    """An operator that no kind knows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).real


US = {"linear": 10.0, "activation": 5.0, "optimizer": 7.0, "elementwise": 2.0, "reduction": 3.0}


def stage(
    predictor: Predictor, model: nn.Module | None = None, phase: str = "forward", recipe: Recipe = RECIPE
) -> Stage:
    model = model or Net()
    x = torch.empty(2, 4)
    training = phase != "forward"
    traced = trace(model, (x,), training=training, loss=(lambda y: y.square().mean()) if training else None)
    prediction = compose(traced, predictor, model="net", batch_size=2, phase=phase, recipe=recipe)
    question = question_of(predictor, phase=phase, recipe=recipe)
    return Stage(
        phase, applied(traced, question), prediction, training_lifetimes(model, (x,)) if training else None
    )


def drawn(predictor: Predictor, *stages: Stage | Omitted) -> Process:
    first = next(one for one in stages if isinstance(one, Stage))
    return predicted(first.prediction, stages, predictor)


def times(row: Row) -> list[tuple[str, str, float, float]]:
    """(category, name, begin, end) in microseconds."""
    return [(s.category, s.name, s.start_ns / 1e3, s.end_ns / 1e3) for s in row.slices]


def events(data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in data["traceEvents"] if event["ph"] == kind]


def sound(data: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The slices by (process, row), after a check of all that the format asks for."""
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events(data, "X"):
        assert event["name"] and event["cat"] and event["ts"] >= 0 and event["dur"] >= 0
        rows.setdefault((event["pid"], event["tid"]), []).append(event)
    named = {
        (e["pid"], e["tid"]) for e in events(data, "M") if e["name"] == "thread_name" and e["args"]["name"]
    }
    assert set(rows) <= named
    assert {pid for pid, _ in rows} == {e["pid"] for e in events(data, "M") if e["name"] == "process_name"}
    for some in rows.values():
        inside: list[int] = []  # ends of what is open
        last = 0
        for event in some:
            start, length = int(event["ts"] * 1000), int(event["dur"] * 1000)  # as Perfetto reads it
            assert start >= last
            last = start
            while inside and inside[-1] <= start and length:
                inside.pop()
            assert not inside or start + length <= inside[-1], event
            inside.append(start + length)
    return rows


def leaves_us(some: list[dict[str, Any]]) -> float:
    """What the innermost slices take together."""
    return sum(event["dur"] for event in some if event["cat"] in ("layer", "idle", "steps"))


# ---- in time ----


def test_calls_stand_back_to_back_within_their_modules() -> None:
    # 10 + 5 + 10 us; the block holds the first two, the head the last; the list, never called, has no slice
    predictor = known(US)
    (row,) = drawn(predictor, stage(predictor)).rows
    assert row.name == "modules and operators"
    assert times(row) == [
        ("stage", "forward", 0, 25),
        ("module", "blocks.0", 0, 15),
        ("module", "0", 0, 10),
        ("layer", "aten.linear", 0, 10),
        ("module", "1", 10, 15),
        ("layer", "aten.relu", 10, 15),
        ("module", "head", 15, 25),
        ("layer", "aten.linear", 15, 25),
    ]


def test_slices_say_what_is_known_of_them() -> None:
    # x [2, 4] times [4, 8]: 2 * 2 * 4 * 8 = 128 FLOP; 4 B * (8 + 32 + 16) = 224 B; 3 W for 10 us are 30 uJ
    predictor = known(US, watts={"linear": 3.0, "activation": 1.0})
    (row,) = drawn(predictor, stage(predictor)).rows
    assert row.slices[3].args == {
        "call": 0,
        "kind": "linear",
        "path": "blocks.0.0",
        "runtime_s": 1e-5,
        "low_s": 5e-6,
        "high_s": 2e-5,
        "energy_j": 3e-5,
        "flops": 128,
        "bytes": 224,
        "basis": "in-range",
        "power_w": 3.0,
    }
    block = row.slices[1].args
    assert (block["path"], block["calls"]) == ("blocks.0", 2)
    assert block["flops"] == 128 + 16 and block["energy_j"] == pytest.approx(3e-5 + 5e-6)
    assert (block["runtime_s"], block["low_s"], block["high_s"]) == (1.5e-5, 7.5e-6, 3e-5)
    whole = row.slices[0].args
    assert whole["energy_j"] == pytest.approx(6.5e-5) and whole["runtime_s"] == 2.5e-5


def test_energy_that_is_not_known_of_one_call_is_not_known_of_its_module() -> None:
    predictor = known(US, watts={"linear": 3.0})
    (row,) = drawn(predictor, stage(predictor)).rows
    assert row.slices[1].args["energy_j"] is None
    assert row.slices[3].args["energy_j"] == 3e-5 and row.slices[5].args["power_w"] is None


def dispatch(linear_us: float, activation_us: float, other_us: float = 4.0) -> Dispatch:
    costs = {"linear": linear_us, "activation": activation_us}
    return Dispatch(
        {(k, "forward", ""): Cost(us / 1e6, 0.0, 9) for k, us in costs.items()}, other_us / 1e6, 0.1
    )


def test_host_and_device_have_a_row_each_with_waits_between_kernels() -> None:
    # host issues until 9, 14, 23; kernels of 2, 1, 2 start when they are issued: 9-11, 14-15, 23-25
    predictor = known({"linear": 2, "activation": 1}, accelerator=True, dispatch=dispatch(9, 5))
    made = stage(predictor)
    host, device = drawn(predictor, made).rows
    assert (host.name, device.name) == ("host: modules and launches", "device: modules and kernels")
    assert [t for t in times(host) if t[0] != "module"] == [
        ("stage", "forward", 0, 23),
        ("launch", "aten.linear", 0, 9),
        ("launch", "aten.relu", 9, 14),
        ("launch", "aten.linear", 14, 23),
    ]
    assert times(device) == [
        ("stage", "forward", 0, 25),
        ("idle", WAIT, 0, 9),
        ("module", "blocks.0", 9, 15),
        ("module", "0", 9, 11),
        ("layer", "aten.linear", 9, 11),
        ("idle", WAIT, 11, 14),
        ("module", "1", 14, 15),
        ("layer", "aten.relu", 14, 15),
        ("idle", WAIT, 15, 23),
        ("module", "head", 23, 25),
        ("layer", "aten.linear", 23, 25),
    ]
    assert made.prediction.runtime_s.value == pytest.approx(25e-6)


def test_a_busy_device_waits_for_the_first_call_alone() -> None:
    # issued by 9, 14, 23; kernels of 20, 5, 20: 9-29, 29-34, 34-54
    predictor = known({"linear": 20, "activation": 5}, accelerator=True, dispatch=dispatch(9, 5))
    _, device = drawn(predictor, stage(predictor)).rows
    layers = [t[2:] for t in times(device) if t[0] == "layer"]
    assert layers == [(9, 29), (29, 34), (34, 54)]
    assert [t[2:] for t in times(device) if t[0] == "idle"] == [(0, 9)]


def test_what_a_queue_hides_is_left_out_of_the_slower_side() -> None:
    # device: 10 - 4, 5 - 1, 10 - 4 = 6 + 4 + 6 = 16 us; host: 4 + 1 + 4 = 9 us
    predictor = known(US, accelerator=True, hidden_us={"linear": 4, "activation": 1})
    made = stage(predictor)
    assert [(c.start_s * 1e6, c.end_s * 1e6) for c in timed(made, predictor)] == [
        pytest.approx(pair) for pair in ((0, 6), (6, 10), (10, 16))
    ]
    # hidden 9 and 4: the host takes 22 us, the device 1 + 1 + 1
    predictor = known(US, accelerator=True, hidden_us={"linear": 9, "activation": 4})
    made = stage(predictor)
    assert (
        timed(made, predictor)[-1].end_s
        == pytest.approx(22e-6)
        == pytest.approx(made.prediction.runtime_s.value)
    )


def test_a_call_without_a_kind_stands_where_it_is_made() -> None:
    predictor = known(US)
    made = stage(predictor, Net(Fourier()))
    calls = timed(made, predictor)
    names = [call.name for call in calls]
    assert (
        names[:3] == ["aten.linear", "aten.relu", made.trace.unmodelled[0].operator]
        and names[-1] == "aten.linear"
    )
    assert calls[2].basis == "roofline" and calls[2].flops == 0 and calls[2].path == "middle"
    assert calls[-1].end_s == pytest.approx(made.prediction.runtime_s.value)


def test_on_two_clocks_a_call_without_a_kind_comes_last_as_in_the_sum() -> None:
    predictor = known(US, accelerator=True, dispatch=dispatch(9, 5))
    made = stage(predictor, Net(Fourier()))
    assert [call.step for call in timed(made, predictor)] == ["forward"] * 3 + [UNPLACED] * len(
        made.trace.unmodelled
    )
    host, device = drawn(predictor, made).rows
    assert [s.name for s in device.slices if s.category == "part"] == ["forward", UNPLACED]
    assert device.slices[0].end_ns / 1e9 == pytest.approx(made.prediction.runtime_s.value, abs=1e-9)
    assert len(memory_bytes(made, timed(made, predictor))) == len(timed(made, predictor)) + 1


def test_a_training_step_is_forward_then_backward_then_the_optimizer() -> None:
    # forward 10 + 5 + 10, then the loss; the optimizer takes the last 7 us
    predictor = known(US)
    made = stage(predictor, phase="training")
    (row,) = drawn(predictor, made).rows
    parts = [t[1:] for t in times(row) if t[0] == "part"]
    assert [name for name, *_ in parts] == ["forward", "backward", "optimizer"]
    assert parts[0][1] == 0 and parts[0][2] == parts[1][1] and parts[1][2] == parts[2][1]
    assert parts[2][2] - parts[2][1] == pytest.approx(7, abs=1e-3)
    assert parts[2][2] / 1e6 == pytest.approx(made.prediction.runtime_s.value, abs=1e-9)
    assert made.prediction.training is not None
    for name, start, end in parts:
        assert (end - start) / 1e6 == pytest.approx(made.prediction.training.steps[name].value, abs=2e-9)


def test_micro_batches_follow_each_other_and_unmodelled_gradients_stand_backward() -> None:
    predictor = known({**US, "movement": 1.0})
    made = stage(predictor, Net(Fourier()), "training", Recipe(accumulation=2))
    calls = timed(made, predictor)
    blocks = [
        c.step
        for c, before in zip(calls, [None, *calls], strict=False)
        if before is None or before.step != c.step
    ]
    assert blocks == ["forward", "backward", "forward", "backward", "optimizer"]
    apart = [list(block) for _, block in itertools.groupby(calls, key=lambda c: c.step)]
    each = len(made.trace.unmodelled) // 4  # in every pass of two micro-batches
    assert [sum(c.basis == "roofline" for c in block) for block in apart] == [each, each, each, each, 0]
    assert calls[-1].end_s == pytest.approx(made.prediction.runtime_s.value)


def test_stages_follow_each_other_and_omitted_steps_are_one_slice() -> None:
    # 25 us, 60 us that are not drawn at 0.3 mJ: 5 W, 25 us
    predictor = known(US)
    one = stage(predictor)
    process = drawn(predictor, one, Omitted("4 steps that are not drawn", 6e-5, 3e-4), one)
    (row,) = process.rows
    outer = [t for t in times(row) if t[0] in ("stage", "steps")]
    assert [t[2:] for t in outer] == [(0, 25), (25, 85), (85, 110)]
    power = next(counter for counter in process.counters if counter.name == "power")
    assert list(power.points) == [(25_000, 5.0)]


# ---- counters ----


def test_memory_is_what_is_alive_during_each_call() -> None:
    # weights 4 * (32 + 16) = 192 B, x 32 B; h [2, 8] 64 B, relu's 64 B, y [2, 2] 16 B
    # linear: 192 + 32 + 64 = 288; relu: h is alive until it returns, 352; head: h is gone, 288 + 16 = 304
    predictor = known(US)
    made = stage(predictor)
    sizes = memory_bytes(made, timed(made, predictor))
    assert sizes[:2] == [288, 352]
    counter = next(c for c in drawn(predictor, made).counters if c.name == "memory")
    assert counter.points[:2] == [(0, 288), (10_000, 352)] and counter.points[-1][0] <= 25_000
    assert max(sizes) == forward_memory(made.trace).tensor_bytes == 352


def test_memory_of_a_step_of_training_peaks_at_what_is_predicted() -> None:
    predictor = known(US)
    made = stage(predictor, phase="training")
    assert made.memory is not None
    sizes = memory_bytes(made, timed(made, predictor))
    assert max(sizes) == memory_of(made.memory.storages, "training").tensor_bytes
    # weights 192 B, their gradients, AdamW's two moments and two counters of 4 B, the input: 4 * 192 + 8 + 32
    assert sizes[-1] == 4 * 192 + 8 + 32


def test_there_is_no_memory_row_of_a_step_whose_memory_is_not_known() -> None:
    predictor = known(US)
    made = stage(predictor, phase="training")
    assert drawn(predictor, Stage(made.name, made.trace, made.prediction)).counters == []


def test_memory_on_two_clocks_follows_the_host_who_asks_for_it() -> None:
    predictor = known({"linear": 2, "activation": 1}, accelerator=True, dispatch=dispatch(9, 5))
    counter = next(c for c in drawn(predictor, stage(predictor)).counters if c.name == "memory")
    assert [time for time, _ in counter.points[:3]] == [0, 9_000, 14_000]  # as the host begins with each call


def test_power_is_drawn_where_it_is_known_and_idle_in_between() -> None:
    # kernels at 9, 14 and 23; idle power of 50 W before, between them
    watts = {"linear": 300.0, "activation": 200.0}
    predictor = known(
        {"linear": 2, "activation": 1}, accelerator=True, idle_w=50.0, watts=watts, dispatch=dispatch(9, 5)
    )
    counters = {c.name: c for c in drawn(predictor, stage(predictor)).counters}
    assert (counters["power"].unit, counters["memory"].unit) == ("W", "bytes")
    assert [(time / 1e3, watts) for time, watts in counters["power"].points] == [
        *((0, 50.0), (9, 300.0), (11, 50.0), (14, 200.0), (15, 50.0), (23, 300.0))
    ]


def test_there_is_no_power_row_where_power_is_not_trained() -> None:
    predictor = known(US)
    assert [c.name for c in drawn(predictor, stage(predictor)).counters] == ["memory"]


# ---- the format ----


def test_times_lose_no_nanosecond_when_they_are_cut_off() -> None:
    assert int(1.001 * 1000) == 1000  # what a reader makes of a plain 1.001
    assert all(int(microseconds(ns) * 1000) == ns for ns in [*range(3000), 10**9 + 1, 357_810_023_931])


def test_a_document_has_names_slices_and_counters_in_the_order_of_time() -> None:
    inner, outer = Slice("inner", "x", 0, 1500, {"a": 1}), Slice("outer", "x", 0, 1500)
    data = document(
        [Process("p", [Row("r", [outer, inner])], [Counter("power", "W", [(500, 3.5)])])], {"b": 2}
    )
    assert data["traceEvents"][:4] == [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "p"}},
        {"name": "process_sort_index", "ph": "M", "pid": 1, "tid": 0, "args": {"sort_index": 1}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "r"}},
        {"name": "thread_sort_index", "ph": "M", "pid": 1, "tid": 1, "args": {"sort_index": 1}},
    ]
    assert data["traceEvents"][4:] == [
        {"name": "outer", "cat": "x", "ph": "X", "pid": 1, "tid": 1, "ts": 0.0, "dur": 1.5},
        {"name": "inner", "cat": "x", "ph": "X", "pid": 1, "tid": 1, "ts": 0.0, "dur": 1.5, "args": {"a": 1}},
        {"name": "power", "ph": "C", "pid": 1, "tid": 0, "ts": 0.5, "args": {"W": 3.5}},
    ]
    assert data["otherData"] == {"b": 2}


def test_a_module_that_is_entered_again_is_a_slice_again() -> None:
    def leaf(path: str, start: int) -> Leaf:
        return Leaf((("module", path),), Slice("op", "layer", start, start + 1))

    found = nested([leaf("a", 0), leaf("a", 1), leaf("b", 2), leaf("a", 3)])
    assert [(s.name, s.start_ns, s.end_ns) for s in found if s.category == "module"] == [
        ("a", 0, 2),
        ("b", 2, 3),
        ("a", 3, 4),
    ]


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    write(file, {"traceEvents": []})
    with pytest.raises(InputError, match=r"traceEvents\[0\] is nan: the sizes"):
        write(file, {"traceEvents": [float("nan")]})
    assert json.loads(file.read_text()) == {"traceEvents": []}
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    with pytest.raises(DatasetError, match="cannot be written"):
        write(file / "t.json", {})


def test_a_place_that_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    check_place(tmp_path / "t.json", "trace.json")
    assert not list(tmp_path.iterdir())  # nothing is left behind
    with pytest.raises(InputError, match="cannot be written .Not a directory"):
        check_place(Path("/dev/null/t.json"), "trace.json")
    with pytest.raises(InputError, match="is not a file; choose a file's name"):
        check_place(tmp_path, "trace.json")
    with pytest.raises(InputError, match="is not a file"):
        check_place(Path("/dev/null"), "trace.json")
    (tmp_path / "t.json").write_text("old")
    check_place(tmp_path / "t.json", "trace.json")
    assert (tmp_path / "t.json").read_text() == "old"


# ---- real networks ----


@pytest.fixture(scope="module")
def cpu() -> Predictor:
    return load("amd-epyc-2c")


@pytest.mark.parametrize(
    "phase", [Phase.prefill(9), Phase.decode(context=20), Phase.generate(9, 8), Phase.generate(9, 4)]
)
def test_a_language_models_phases_add_up_to_the_prediction(cpu: Predictor, phase: Phase) -> None:
    stages: list[Stage | Omitted] = []
    prediction, _ = predict_request(Request(LLAMA, phase=phase), cpu, seen=stages.append)
    data = document([predicted(prediction, stages, cpu)])
    (row,) = sound(data).values()
    assert leaves_us(row) / 1e6 == pytest.approx(prediction.runtime_s.value, rel=1e-6)
    names = [event["name"] for event in row if event["cat"] in ("stage", "steps")]
    if phase.name != "generate":
        assert names == [phase.name]
        assert prediction.memory is not None
        sizes = [event["args"]["bytes"] for event in events(data, "C")]
        assert max(sizes) == prediction.memory.tensor_bytes
    elif phase.new_tokens == 8:  # seven steps after the prefill: three, three that are not drawn, the last
        firsts = [f"decode step {n}, context {8 + n}" for n in (1, 2, 3)]
        assert names == ["prefill", *firsts, "3 steps that are not drawn", "decode step 7, context 15"]
    else:  # three steps: all are drawn
        assert names == ["prefill", *(f"decode step {n}, context {8 + n}" for n in (1, 2, 3))]


def test_a_generation_of_one_token_is_its_prefill(cpu: Predictor) -> None:
    stages: list[Stage | Omitted] = []
    predict_request(Request(LLAMA, phase=Phase.generate(9, 1)), cpu, seen=stages.append)
    assert [one.name for one in stages] == ["prefill"]


def test_a_generation_is_cast_as_its_passes_are(cpu: Predictor) -> None:
    stages: list[Stage | Omitted] = []
    predict_request(Request(LLAMA, phase=Phase.generate(9, 2), autocast="bfloat16"), cpu, seen=stages.append)
    products = {
        layer.dtype
        for one in stages
        if isinstance(one, Stage)
        for layer in one.trace.layers
        if layer.multiplies
    }
    assert products == {"bfloat16"}


# ---- the commands ----


@pytest.mark.parametrize("phase", ["forward", "training", "backward"])
def test_predict_writes_a_timeline_beside_its_json(tmp_path: Path, phase: str) -> None:
    file = tmp_path / "t.json"
    arguments = ("--predictor", "amd-epyc-2c", "--phase", phase, "--json", "--trace-file", file)
    said = json.loads(done("predict", "zoo:deep_mnist", "--batch-size", 2, *arguments))
    data = json.loads(file.read_text())
    (row,) = sound(data).values()
    assert leaves_us(row) / 1e6 == pytest.approx(said["runtime_s"]["value"], rel=1e-6)
    assert row[0]["name"] == phase and row[0]["dur"] / 1e6 == pytest.approx(
        said["runtime_s"]["value"], rel=1e-6
    )
    assert sum(e["args"]["flops"] for e in row if e["cat"] == "layer") == said["flops"]
    (about,) = data["otherData"]["predicted"]
    assert about["runtime_s"] == said["runtime_s"] and about["phase"] == phase and about["stages"] == [phase]
    tensors = said["memory_bytes"]["low"]
    largest = max(e["args"]["bytes"] for e in events(data, "C"))
    assert largest == tensors if phase != "backward" else largest <= tensors


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_trace_file_that_cannot_be_written_ends_the_command_before_it_begins(
    command: str,
) -> None:
    file = "/dev/null/t.json"
    ran = run(command, "zoo:deep_mnist", "--predictor", "amd-epyc-2c", "--trace-file", file)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"error: {file}: cannot be written (Not a directory); choose another place\n"


SMALL = """
import torch
from torch import nn


def small():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def example_inputs(batch_size):
    return (torch.empty(batch_size, 8),)
"""


@pytest.mark.parametrize(
    "arguments",
    [("small",), (LLAMA, "--phase", "decode", "--context", 9), ("small", "--phase", "training")],
    ids=["forward", "decode", "training"],
)
def test_evaluate_puts_the_measured_timeline_beside(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    (tmp_path / "net.py").write_text(SMALL)
    file = tmp_path / "t.json"
    given = [f"{tmp_path / 'net.py'}:small" if word == "small" else word for word in arguments]
    said = json.loads(
        done("evaluate", *given, "--rounds", 2, "--predictor", "amd-epyc-2c", "--json", "--trace-file", file)
    )
    data = json.loads(file.read_text())
    rows = sound(data)
    assert sorted(rows) == [(1, 1), (2, 1)]
    ours, real = rows[1, 1], rows[2, 1]
    names = [e["args"]["name"] for e in events(data, "M") if e["name"] == "process_name"]
    assert names[0].startswith("predicted: ") and names[1].startswith("measured: ")
    assert (ours[0]["ts"], real[0]["ts"]) == (0, 0)
    forward = [e["name"] for e in real if e["cat"] == "forward"]
    if "training" not in arguments:  # each call of the prediction was made, in this order
        remaining = iter(forward)
        assert all(name in remaining for name in [e["name"] for e in ours if e["cat"] == "layer"])
        tops = [max(e["args"]["bytes"] for e in events(data, "C") if e["pid"] == pid) for pid in (1, 2)]
        kept = (
            0.02 if "decode" in arguments else 0.01
        )  # beside what is measured lies the cache from before the step
        assert tops[0] == pytest.approx(tops[1], rel=kept)
    else:
        assert [e["name"] for e in real if e["cat"] == "phase"] == ["forward", "backward", "optimizer"]
    (measured,) = data["otherData"]["measured"]
    assert measured["runtime_s"] > 0 and measured["profiled_s"] > 0 and said
