"""Watts and joules of the user's own run, measured by a made-up meter next to the predicted ones."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import pytest
from torch import nn

import neuralpower
from neuralpower.measure.meters import Description, MeterUnavailable, NullMeter, Reading
from tests.program import done, run

NET = "zoo:deep_mnist"
CLASSES = 10
PASS_J = 0.02


@dataclass
class Steady:
    """A counter of `watts`, that moves every millisecond; lost after `reads` of them."""

    watts: float = 50.0
    reads: int = 10**9
    closed: bool = False

    def open(self) -> None:
        """Nothing to find."""

    def read(self) -> list[Reading]:
        self.reads -= 1
        if self.reads < 0:
            raise MeterUnavailable("meter_lost", "it is gone")
        now = time.perf_counter_ns()
        return [Reading("package-0", self.watts * (now // 10**6) / 1e3, None, now)]

    def describe(self) -> Description:
        return Description("made_up", "package", 200.0)

    def close(self) -> None:
        self.closed = True


@dataclass
class Counting(Steady):
    """A counter of PASS_J for each pass, however long the machine takes for it."""

    passes: int = 0

    def hook(self, module: nn.Module, *_: object) -> None:
        """Count a pass when its last layer ends."""
        self.passes += isinstance(module, nn.Linear) and module.out_features == CLASSES

    def read(self) -> list[Reading]:
        return [Reading("package-0", PASS_J * self.passes, None, time.perf_counter_ns())]


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Steady:
    found = Steady()
    monkeypatch.setattr("neuralpower.prediction.evaluation.evaluate.open_meter", lambda choice, device: found)
    return found


def test_measured_watts_and_joules_stand_next_to_the_predicted(meter: Steady) -> None:
    (found,) = neuralpower.evaluate(NET, rounds=1, energy=True)
    assert found.drawn is not None and found.drawn.power_w == pytest.approx(50, rel=0.05)
    assert found.drawn.energy_j is not None and found.drawn.energy_j > 0
    assert (found.drawn.source, found.drawn.scope, found.drawn.reason) == ("made_up", "package", None)
    assert meter.closed
    (without,) = neuralpower.evaluate(NET, rounds=1)
    assert without.drawn is None


def test_joules_are_of_one_pass_and_not_of_all_that_were_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting()
    monkeypatch.setattr(
        "neuralpower.prediction.evaluation.evaluate.open_meter", lambda choice, device: counting
    )
    hook = nn.modules.module.register_module_forward_hook(counting.hook)
    try:
        (found,) = neuralpower.evaluate(NET, rounds=1, energy=True)
    finally:
        hook.remove()
    # the first and the last pass of the window lie partly outside it
    assert counting.passes > 10
    assert found.drawn is not None and found.drawn.energy_j == pytest.approx(PASS_J, rel=0.5)


def test_the_command_prints_and_writes_them(meter: Steady) -> None:
    table = done("evaluate", NET, "--energy", "--rounds", "1")
    assert "W measured" in table and "made_up, package" in table
    (told,) = json.loads(done("evaluate", NET, "--energy", "--rounds", "1", "--json"))["networks"]
    assert told["measured_w"] == pytest.approx(50, rel=0.05) and told["measured_j"] > 0
    assert told["power_source"] == "made_up" and told["power_reason"] is None
    assert "W measured" not in done("evaluate", NET, "--rounds", "1")


def test_a_meter_that_is_lost_meanwhile_is_a_reason(meter: Steady) -> None:
    meter.reads = 20
    assert "meter_lost" in done("evaluate", NET, "--energy", "--rounds", "1")


def test_without_a_meter_the_times_are_there_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    null = NullMeter("no_rapl", "rapl: no package zone; --power none measures runtime alone")
    monkeypatch.setattr("neuralpower.prediction.evaluation.evaluate.open_meter", lambda choice, device: null)
    ran = run("evaluate", NET, "--energy", "--rounds", "1")
    assert ran.code == 0 and "Warning: no energy is measured: rapl: no package zone\n" in ran.err
    assert "no_rapl" in ran.out and NET in ran.out


def test_energy_belongs_to_a_run_here() -> None:
    assert "--energy: is measured in a run here" in run("evaluate", "--measured", "x.csv", "--energy").err
