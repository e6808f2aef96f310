"""Memory over time: it agrees with the peak, names what made each storage, and PyTorch's reader takes it."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz

from neuralpower.devices.spec import spec_of
from neuralpower.platforms import CPU, Platform, platform_of
from neuralpower.prediction.memory.over_time import KEPT, Lived, fullest, lived, over_time
from neuralpower.prediction.memory.peak import forward_memory, training_memory
from neuralpower.prediction.memory.snapshot import snapshot, write_snapshot
from neuralpower.trace.lifetimes import StepLifetimes
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace

GPU = platform_of(spec_of("h100").hardware())


def network() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def inputs() -> tuple[torch.Tensor]:
    return (torch.empty(16, 3, 64, 64),)


def step_of(platform: Platform, **settings: Any) -> StepLifetimes:
    return training_lifetimes(network(), inputs(), platform=platform, **settings)


@pytest.mark.parametrize("platform", [CPU, GPU])
def test_parts_at_the_peak_are_those_of_the_prediction(platform: Platform) -> None:
    step = step_of(platform)
    found, memory = (
        over_time(lived("net", "training", step, platform)),
        training_memory(step, platform=platform),
    )
    shown = {name: int(size[found.at]) for name, size in found.parts.items() if name != KEPT}
    parts = {name: size for name, size in memory.parts.items() if name not in ("framework", "heap")}
    assert shown == {name: size for name, size in parts.items() if name in shown}
    assert sum(shown.values()) == sum(parts.values())
    if platform is GPU:
        assert found.peak_bytes == memory.value_bytes - memory.framework_bytes
        assert len(set(found.total)) == 1, "nothing goes back to the driver"


def test_a_forward_pass_has_its_own_peak() -> None:
    traced = trace(network().to("meta"), (inputs()[0].to("meta"),))
    found, memory = over_time(lived("net", "forward", traced, CPU)), forward_memory(traced)
    assert found.peak_bytes == memory.needed_bytes - memory.framework_bytes
    made = {one.origin for one in found.alive if one.part == "activations"}
    assert ("0.1", "aten.batch_norm") in made or ("0.0", "aten.conv2d") in made


def test_the_step_names_modules_forward_and_backward() -> None:
    step = step_of(CPU)
    by_part = {
        part: {one.origin for one in step.storages if one.part == part}
        for part in ("activations", "gradients")
    }
    assert ("0.0", "aten.convolution") in by_part["activations"]
    assert ("0.0", "aten.convolution_backward") in by_part["gradients"]
    assert {path for path, _ in by_part["gradients"]} == {"0.0", "0.1", "3"}
    assert {one.name for one in step.storages if one.part == "weights"} >= {"0.0.weight", "3.bias"}


def test_marks_name_forward_backward_and_step() -> None:
    one = lived("net", "training", step_of(CPU, accumulation=2), CPU)
    assert [name for _, name in one.marks] == ["forward", "backward"] * 2 + ["step"]
    begins = [begin for begin, _ in one.marks]
    assert begins == sorted(begins)
    assert one.part_at(1) == "forward"
    assert one.part_at(one.calls) == "step"


def test_the_fullest_pass_is_drawn() -> None:
    small, large = (
        lived("net", name, training_lifetimes(network(), (torch.empty(size, 3, 64, 64),)), CPU)
        for name, size in (("small", 1), ("large", 16))
    )
    assert fullest([small, large, small]) is large


@pytest.fixture(scope="module")
def stepped() -> Lived:
    return lived("net", "training", step_of(GPU), GPU)


def test_pytorch_reads_the_snapshot(stepped: Lived, tmp_path: Path) -> None:
    file = tmp_path / "memory.pickle"
    write_snapshot(stepped, file)
    found = pickle.loads(file.read_bytes())
    assert f"segments: {len(found['segments'])}" in _memory_viz.segsum(found)  # it checks every segment's sum
    for page in (_memory_viz.trace_plot(found), _memory_viz.segment_plot(found)):
        assert "MemoryViz.js" in page
    assert f"{len(found['device_traces'][0])} entries" in _memory_viz.trace(found)
    assert "0.0.weight (weights)" in _memory_viz.memory(found, format_flamegraph=str)


def test_the_snapshot_adds_up(stepped: Lived) -> None:
    found, shown = snapshot(stepped), over_time(stepped)
    assert sum(one["total_size"] for one in found["segments"]) == shown.peak_bytes
    live: dict[int, int] = {}
    peak = 0
    events = found["device_traces"][0]
    for event in events:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]
        peak = max(peak, sum(live.values()))
    kept = sum(int(size[shown.at]) for name, size in shown.parts.items() if name != KEPT)
    assert kept <= peak <= 1.02 * kept  # the work space counts as its largest block
    active = [b for one in found["segments"] for b in one["blocks"] if b["state"] == "active_allocated"]
    assert {block["address"]: block["requested_size"] for block in active} == live
    assert Counter(event["action"] for event in events)["segment_alloc"] == len(found["segments"])


def test_frames_name_operator_module_and_part(stepped: Lived) -> None:
    events = snapshot(stepped)["device_traces"][0]
    frames = {tuple(frame["name"] for frame in event["frames"]) for event in events}
    assert ("aten.convolution (activations)", "0.0", "0", "forward") in frames
    assert ("aten.convolution_backward (gradients)", "0.0", "0", "backward") in frames
    assert ("0.0.weight (weights)", "0.0", "0", "before") in frames
    assert [one["name"] for one in snapshot(stepped)["external_annotations"] if one["stage"] == "START"] == [
        f"{part} {step}" for step in (1, 2) for part in ("forward", "backward", "step")
    ]
