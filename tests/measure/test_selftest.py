"""The self-test finds out what a simulated meter is made of, and what is wrong with it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuralpower.measure.meters import NullMeter
from neuralpower.measure.power.selftest import Durations, SelfTest, deep_idle_w, run_self_test
from tests.simulated import Counter, Device, Queue, SimulatedMeter, Time, simulated_rapl

SHORT = Durations(idle_s=0.5, spin_s=0.3, agreement_s=0.5, square_s=0.6, windows_s=(0.5, 0.7))


class Rig:
    """A GPU that idles at 30 W asleep and 80 W awake, draws 400 W under load, and has a flawed meter."""

    def __init__(
        self,
        period_s: float = 0.02,
        part_s: float | None = None,
        gain: float = 1.0,
        sample_w: Callable[[int, float], float | None] = lambda _, power_w: power_w,
        **flaws: Any,
    ) -> None:
        self.time = Time()
        self.device = Device(self.time, idle_w=30.0)
        self.queue = Queue(self.device, 0.002, 400.0)
        counter = Counter(self.device, period_s, part_s=part_s, gain=gain, noise=0.002)
        self.meter = SimulatedMeter(counter, sample_w=lambda read, w: sample_w(read, w / gain), **flaws)

    def wake(self) -> None:
        # from now on it draws 80 W when idle; what it drew before stays as it was
        slept_j = (80.0 - 30.0) * self.time.now / 1e9
        self.device.idle_w = 80.0
        self.device.extra_j = [joules - slept_j for joules in self.device.extra_j]

    def run(self, durations: Durations | None = SHORT) -> SelfTest:
        queue, clock = self.queue, self.time.clock
        return run_self_test(
            self.meter, queue.run_once, self.wake, clock, drain=queue.drain, durations=durations
        )


@pytest.fixture(scope="module")
def good() -> tuple[SelfTest, float]:
    """A sound meter's result, and how long it took (s)."""
    rig = Rig()
    start = rig.time.now
    return rig.run(durations=None), (rig.time.now - start) / 1e9


def test_a_sound_meter_is_described(good: tuple[SelfTest, float]) -> None:
    found, _ = good
    assert found.reason is None
    assert found.source == "nvml_energy_counter"
    assert found.update_period_s == pytest.approx(0.02, rel=0.02)
    assert found.update_period_p95_s == pytest.approx(0.02, rel=0.05)
    assert found.tick_j == pytest.approx(0.02 * 400, rel=0.02)
    assert found.read_s == pytest.approx(3e-5, rel=0.01)
    assert found.read_p95_s == pytest.approx(3e-5, rel=0.01)


def test_idle_power_is_taken_asleep_and_awake(good: tuple[SelfTest, float]) -> None:
    found, _ = good
    assert found.idle_deep_w == pytest.approx(30, rel=0.01)
    assert found.idle_w == pytest.approx(80, rel=0.01)


def test_a_sound_meter_agrees_with_itself(good: tuple[SelfTest, float]) -> None:
    found, _ = good
    assert found.busy_w == pytest.approx(400, rel=0.01)
    assert found.busy_sampled_w == pytest.approx(400, rel=0.01)
    assert (found.meter_quality, found.use_counter) == ("ok", True)
    assert found.part_time is False
    assert found.linear is True
    # half of the time at 400 W and half at 80 W
    assert found.square_w == pytest.approx([240] * 4, rel=0.1)


def test_it_takes_less_than_half_a_minute(good: tuple[SelfTest, float]) -> None:
    _, seconds = good
    assert 20 < seconds < 30


def test_its_json_holds_fields_and_verdicts(good: tuple[SelfTest, float]) -> None:
    found, _ = good
    written = json.loads(json.dumps(found.to_json()))
    assert written["meter_quality"] == "ok"
    assert written["linearity_w"] == list(found.linearity_w)
    assert set(written) > {field.name for field in dataclasses.fields(SelfTest)}


def test_a_counter_that_looks_part_of_the_time_is_found_out() -> None:
    # 25 ms in every 100 ms: a square wave of 100 ms is seen on, off, or in between, whenever it began
    found = Rig(period_s=0.1, part_s=0.025).run()
    assert found.part_time is True
    assert found.square_spread is not None
    assert found.square_spread > 0.5
    assert found.meter_quality == "ok"


def test_a_counter_of_the_same_period_that_never_looks_away_passes() -> None:
    assert Rig(period_s=0.1).run().part_time is False


@pytest.mark.parametrize(
    ("gain", "quality"), [(1.04, "ok"), (0.96, "ok"), (1.07, "inconsistent"), (0.93, "inconsistent")]
)
def test_more_than_five_per_cent_between_counter_and_samples_is_inconsistent(
    gain: float, quality: str
) -> None:
    found = Rig(gain=gain).run()
    assert found.meter_quality == quality
    assert found.use_counter == (quality == "ok")


@pytest.mark.parametrize(
    ("idle_w", "sampled_w", "consistent"), [(37.0, 41.9, True), (37.0, 42.1, False), (90, 98.9, True)]
)
def test_idle_power_may_differ_by_a_tenth_or_five_watts(
    idle_w: float, sampled_w: float, consistent: bool
) -> None:
    found = SelfTest(idle_w=idle_w, idle_sampled_w=sampled_w, busy_w=400.0, busy_sampled_w=400.0)
    assert found.consistent is consistent


def test_a_slow_average_counts_as_well_as_a_fast_sample() -> None:
    assert SelfTest(busy_w=400.0, busy_sampled_w=400.0, busy_average_w=430.0).meter_quality == "inconsistent"
    assert SelfTest(busy_w=400.0, busy_average_w=410.0).meter_quality == "ok"


def test_power_that_depends_on_the_windows_length_is_not_linear() -> None:
    # (404 - 397) / 400 = 1.75 %; (410 - 400) / 405 = 2.5 %
    assert SelfTest(linearity_w=(397.0, 399.0, 404.0)).linear is True
    assert SelfTest(linearity_w=(400.0, 405.0, 410.0)).linear is False
    assert SelfTest(linearity_w=(400.0,)).linear is None


def test_a_meter_of_counters_alone_is_unchecked(tmp_path: Path) -> None:
    time = Time()
    device = Device(time, idle_w=30.0)
    meter = simulated_rapl({"package-0": Counter(device, 0.001)}, 262_143.0, tmp_path)
    meter.open()
    woken: list[bool] = []
    found = run_self_test(
        meter, lambda: device.work(0.004, 120.0), lambda: woken.append(True), time.clock, durations=SHORT
    )
    assert found.meter_quality == "unchecked"
    assert found.use_counter
    assert woken == [True]
    assert found.update_period_s == pytest.approx(0.001, rel=0.05)
    assert found.idle_w == pytest.approx(30, rel=0.01)
    assert found.busy_w == pytest.approx(120, rel=0.01)
    assert found.linear is True


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda read, energy_j: 1234.5, "counter_anomaly: stands still"),
        (lambda read, energy_j: 1e9 - energy_j, "counter_anomaly: runs backwards"),
        (lambda read, energy_j: 0.0, "counter_anomaly: unreadable"),
        (lambda read, energy_j: None, "no_counter"),
    ],
)
def test_a_counter_that_is_no_use_leaves_samples(
    fault: Callable[[int, float], float | None], reason: str
) -> None:
    found = Rig(fault=fault).run()
    assert found.reason == reason
    assert (found.busy_w, found.idle_deep_w) == (None, None)
    assert (found.meter_quality, found.use_counter) == ("no_counter", False)
    assert found.busy_sampled_w == pytest.approx(400, rel=0.01)
    assert (found.square_w, found.square_spread, found.part_time) == ((), None, None)


def test_samples_that_are_zero_are_no_power() -> None:
    found = Rig(sample_w=lambda *_: 0.0).run()
    assert (found.busy_sampled_w, found.busy_average_w, found.idle_sampled_w) == (None, None, None)
    assert found.meter_quality == "unchecked"


def test_a_meter_that_is_lost_keeps_what_was_found_before() -> None:
    # half a second of idle is some 50 reads, 10 ms apart; it is lost while awake
    rig = Rig(lost_at=75)
    found = rig.run()
    assert found.reason == "gpu_lost"
    assert found.idle_deep_w == pytest.approx(30, rel=0.01)
    assert (found.idle_w, found.busy_w, found.update_period_s) == (None, None, None)
    assert (found.meter_quality, len(rig.queue.ends)) == ("none", 0)


def test_deep_idle_can_be_asked_for_before_the_test() -> None:
    rig = Rig()
    start = rig.time.now
    assert deep_idle_w(rig.meter, rig.time.clock, SHORT) == pytest.approx(30, rel=0.01)
    seconds = (rig.time.now - start) / 1e9
    assert 0.5 <= seconds < 0.6
    rig.wake()
    found = run_self_test(
        rig.meter,
        rig.queue.run_once,
        lambda: None,
        rig.time.clock,
        drain=rig.queue.drain,
        durations=SHORT,
        asleep=False,
    )
    assert (found.idle_deep_w, found.meter_quality) == (None, "ok")
    assert found.idle_w == pytest.approx(80, rel=0.01)
    assert deep_idle_w(Rig(lost_at=3).meter, rig.time.clock, SHORT) is None
    assert deep_idle_w(NullMeter("no_rapl")) is None


def test_without_a_meter_the_device_is_woken_all_the_same() -> None:
    woken: list[bool] = []
    found = run_self_test(NullMeter("no_rapl"), lambda: pytest.fail("run"), lambda: woken.append(True))
    assert found == SelfTest("no_rapl")
    assert woken == [True]
    assert found.meter_quality == "none"
