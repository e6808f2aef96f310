"""Power of a window: the arithmetic, its refusals, and the measuring loop, on devices of known power."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuralpower.layers import Call
from neuralpower.measure.calls import call_bytes
from neuralpower.measure.cpu.timer import copies_of, power_columns, steady_load
from neuralpower.measure.meters import NullMeter, Reading
from neuralpower.measure.power.counter import Power, Unreliable, ticking, ticks_of, window_power
from neuralpower.measure.power.energy import Clock, Known, PowerWindow, measure_power, watch
from tests.simulated import Counter, Device, Queue, SimulatedMeter, Time, simulated_rapl

MS = 1_000_000  # ns


def stream(energies_j: Sequence[float | None], step_ms: int = 10, domain: str = "board") -> list[Reading]:
    """Readings `step_ms` apart."""
    return [Reading(domain, energy_j, None, i * step_ms * MS) for i, energy_j in enumerate(energies_j)]


def sampled(powers_w: Sequence[float | None], step_ms: int = 10) -> list[Reading]:
    return [Reading("board", None, power_w, i * step_ms * MS) for i, power_w in enumerate(powers_w)]


# ---- arithmetic ----


def test_power_runs_from_the_first_tick_to_the_last() -> None:
    # the counter moves at 20, 50 and 80 ms (seen up to 10 ms late): 5 J + 7 J in 60 ms are 200 W
    power = window_power(stream([100, 100, 103, 103, 103, 108, 108, 108, 115, 115]))
    assert power.power_w == pytest.approx(12 / 0.06)
    assert (power.ticks, power.start_j, power.end_j) == (3, 103, 115)
    # in the middle between the two reads around each change
    assert (power.start_ns, power.end_ns) == (15 * MS, 75 * MS)


def test_the_scatter_of_the_stretches_is_the_uncertainty() -> None:
    # a read per tick, dated to the nanosecond: 9, 11, 9, 11 J in 0.1 s each: 90, 110, 90, 110 W, mean 100 W
    # sd = sqrt(4 * 10^2 / 3) = 11.547 W; of the mean: / sqrt(4) = 5.774 W; t(3, 95 %) = 3.1824: 18.37 W
    power = window_power(stream([1, 10, 19, 30, 39, 50], step_ms=100), period_s=1e-9)
    assert power.power_w == pytest.approx(100)
    assert power.sd_w == pytest.approx(11.547, rel=1e-4)
    assert power.u_rel == pytest.approx(0.1837, rel=1e-3)


def test_what_is_not_known_of_the_time_stamps_is_in_the_uncertainty() -> None:
    # no scatter; both stamps within 100 ms: sqrt(2) * 0.1 / sqrt(12) s over 0.4 s = 10.206 %, times
    # t(3) = 3.1824: 32.48 %
    power = window_power(stream([1, 11, 21, 31, 41, 51], step_ms=100))
    assert power.u_rel == pytest.approx(0.3248, rel=1e-3)
    # a counter that moves every 10 ms moved within the last 10 ms
    better = window_power(stream([1, 11, 21, 31, 41, 51], step_ms=100), period_s=0.01)
    assert better.u_rel == pytest.approx(0.03248, rel=1e-3)


def test_two_ticks_give_power_without_an_uncertainty() -> None:
    power = window_power(stream([1, 1, 3, 3, 5, 5]))
    assert power.power_w == pytest.approx(100)
    assert (power.sd_w, power.u_rel) == (None, None)


def test_packages_add_up_and_dram_stays_apart() -> None:
    readings = [
        *stream([1, 2, 3, 4, 5], domain="package-0"),
        *stream([9, 11, 13, 15, 17], domain="package-1"),
        *stream([1, 1.1, 1.2, 1.3, 1.4], domain="dram-0"),
        *stream([1, 1.2, 1.4, 1.6, 1.8], domain="dram-1"),
    ]
    # 1 J and 2 J in 10 ms: 100 W + 200 W; 0.1 J and 0.2 J: 10 W + 20 W
    power = window_power(readings)
    assert power.power_w == pytest.approx(300)
    assert power.dram_w == pytest.approx(30)
    assert (power.start_j, power.end_j) == (2 + 11, 5 + 17)


def test_a_dram_that_is_not_known_leaves_the_packages() -> None:
    power = window_power([*stream([1, 2, 3, 4], domain="package-0"), *stream([7, 7, 7, 7], domain="dram-0")])
    assert power.dram_w is None
    assert power.power_w == pytest.approx(100)


def test_a_package_that_is_not_known_leaves_nothing() -> None:
    with pytest.raises(Unreliable, match="stands still"):
        window_power([*stream([1, 2, 3, 4], domain="package-0"), *stream([7, 7, 7, 7], domain="package-1")])


def test_idle_energy_of_the_pauses_is_taken_off() -> None:
    # 40 ms from the first tick to the last, 20 ms of them idle at 50 W = 1 J: (5 - 1) J in 20 ms are 200 W
    power = window_power(
        stream([1, 2, 4, 5, 6, 7], step_ms=10), period_s=1e-9, pauses=[(20 * MS, 40 * MS)], idle_w=50.0
    )
    assert power.power_w == pytest.approx(200)
    # a pause outside of the ticks changes nothing
    assert window_power(
        stream([1, 2, 3, 4]), period_s=1e-9, pauses=[(90 * MS, 99 * MS)]
    ).power_w == pytest.approx(100)


def test_samples_are_integrated_where_there_is_no_counter() -> None:
    # trapezoids of 10 ms: (100 + 200) / 2, (200 + 300) / 2, (300 + 200) / 2: mean 216.67 W
    power = window_power(sampled([100, 200, 300, 200]))
    assert power.power_w == pytest.approx(650 / 3)
    assert power.sampled
    assert (power.start_j, power.end_j, power.ticks) == (None, None, 4)


def test_a_counter_that_disagrees_is_left_aside_when_asked() -> None:
    readings = [Reading("board", 1.0 + i, 50.0 + i % 2, i * 10 * MS) for i in range(6)]
    assert window_power(readings).power_w == pytest.approx(100)
    assert window_power(readings, counter=False).power_w == pytest.approx(50.5)


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ([], "no_readings"),
        (stream([None, None, None, None]), "no_counter"),
        (stream([1, 2, None, 4, 5]), "counter_anomaly: unreadable"),
        (stream([0, 0, 0, 0]), "counter_anomaly: unreadable"),
        (stream([0, 1, 2, 3]), "counter_anomaly: unreadable"),
        (stream([-4, -3, -2, -1]), "counter_anomaly: unreadable"),
        (stream([1, 2, math.nan, 4]), "counter_anomaly: unreadable"),
        (stream([1, 2, math.inf, math.inf]), "counter_anomaly: unreadable"),
        (stream([5, 5, 5, 5, 5]), "counter_anomaly: stands still"),
        (stream([1, 2, 3, 4, *[5] * 9]), "counter_anomaly: stands still"),
        (stream([5, 6, 7, 6, 7, 8]), "counter_anomaly: runs backwards"),
        (stream([5, 6, 7, 1, 2, 3]), "counter_anomaly: runs backwards"),
        (stream([1, 2, 3, 90_000, 90_001]), "counter_anomaly: jumps"),
        (stream([5]), "too_few_ticks"),
        (stream([5, 5, 6, 6]), "too_few_ticks"),
        (sampled([100, 100, 100]), "power_anomaly: stands still"),
        (sampled([100, 0, 100]), "power_anomaly: unreadable"),
        (sampled([100, -1, 100]), "power_anomaly: unreadable"),
        (sampled([100, None, 100]), "power_anomaly: unreadable"),
        (sampled([100, 1e6, 100]), "power_anomaly: jumps"),
        (sampled([100]), "too_few_ticks"),
    ],
)
def test_readings_that_mean_nothing_become_a_reason_and_no_number(
    readings: list[Reading], reason: str
) -> None:
    with pytest.raises(Unreliable, match=f"^{reason}"):
        window_power(readings)


def test_more_than_three_times_the_power_limit_is_a_jump() -> None:
    readings = stream([100, 101, 102, 103, 104, 105])  # 100 W
    assert window_power(readings, limit_w=34).power_w == pytest.approx(100)
    with pytest.raises(Unreliable, match="jumps, 100 W"):
        window_power(readings, limit_w=33)


def test_pauses_that_leave_no_energy_leave_no_number() -> None:
    with pytest.raises(Unreliable, match="no energy"):
        window_power(stream([1, 2, 3, 4]), period_s=1e-9, pauses=[(10 * MS, 29 * MS)], idle_w=500.0)


def test_period_and_size_of_a_tick_are_seen() -> None:
    # 2 J at 30, 60, 90, 120 ms
    found = ticking(stream([1, 1, 1, 3, 3, 3, 5, 5, 5, 7, 7, 7, 9]))
    assert found is not None
    assert (found.period_s, found.period_p95_s, found.tick_j) == pytest.approx((0.03, 0.03, 2))
    assert ticking(stream([1, 1, 3, 3, 5])) is None
    assert ticking([]) is None
    assert ticks_of([]) == []


# ---- windows of simulated devices ----


@dataclass(frozen=True)
class Case:
    """One seeded device, counter and load."""

    window: PowerWindow
    true_w: float
    call_s: float


def seeded_case(seed: int, root: Path) -> Case:
    """A GPU behind a queue (even seeds), or a CPU whose RAPL counter wraps around in it (odd ones)."""
    draw = random.Random(seed)
    time, range_j = Time(), 262_143.328850
    device = Device(time, idle_w=draw.uniform(20, 80))
    busy_w, call_s = draw.uniform(100, 600), math.exp(draw.uniform(math.log(1e-3), math.log(0.02)))
    period_s = math.exp(draw.uniform(math.log(1e-3), math.log(0.1)))
    counter = Counter(
        device,
        period_s,
        phase_s=draw.uniform(0, period_s),
        part_s=draw.choice([None, period_s / 4]),
        noise=draw.choice([0, 0.005, 0.01, 0.02]),
        start_j=range_j - draw.uniform(0, 0.5 * busy_w) if seed % 2 else 1000.0,
        seed=seed,
    )
    known_s = period_s if draw.random() < 0.5 else None
    start = time.now
    if seed % 2:
        rapl = simulated_rapl({"package-0": counter}, range_j, root)
        rapl.open()
        scatter = draw.choice([0, 0.02])
        window = measure_power(
            lambda: device.work(call_s, busy_w * (1 + draw.gauss(0, scatter))),
            rapl,
            time.clock,
            known=Known(period_s=known_s),
        )
        end = float(time.now)
    else:
        queue = Queue(device, call_s, busy_w)
        meter = SimulatedMeter(counter)
        window = measured(time, queue, meter, period_s=known_s)
        end = window.power.end_ns if window.power else 0.0
    begin = start + (window.settle_s or 0.0) * 1e9
    return Case(window, (device.energy_j(end) - device.energy_j(begin)) / ((end - begin) / 1e9), call_s)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    root = tmp_path_factory.mktemp("powercap")
    return [seeded_case(seed, root) for seed in range(1000)]


def test_the_known_power_lies_within_the_stated_uncertainty(cases: list[Case]) -> None:
    powers = [case.window.power for case in cases]
    errors = np.array(
        [abs(p.power_w / case.true_w - 1) for p, case in zip(powers, cases, strict=True) if p is not None]
    )
    stated = np.array([p.u_rel for p in powers if p is not None])
    assert len(errors) == len(cases)
    assert np.mean(errors <= stated) >= 0.94
    # and what is stated says something: on a GPU mostly below 1 %
    assert np.median(stated[::2]) < 0.01
    assert np.median(stated / np.maximum(errors, 1e-4)) < 8


def test_energy_is_power_times_the_time_of_a_call(cases: list[Case]) -> None:
    for case in cases:
        row = case.window.to_row()
        assert row["energy_j"] == pytest.approx(row["power_w"] * row["window_runtime_s"])
    # a CPU's call is made longer by the reads between calls, of 20 us each
    assert all(case.window.runtime_s == pytest.approx(case.call_s, rel=0.025) for case in cases)


def windows_of(window_s: float, count: int, period_s: float = 0.1) -> np.ndarray:
    """Relative errors of windows of 300 W, sensor noise 1 %, power looked at a quarter of the time."""
    errors = []
    for seed in range(count):
        time = Time()
        device = Device(time)
        phase_s = random.Random(seed).uniform(0, period_s)
        meter = SimulatedMeter(Counter(device, period_s, phase_s, part_s=period_s / 4, noise=0.01, seed=seed))
        queue = Queue(device, 0.0015, 300.0)
        window = measured(time, queue, meter, window_s, period_s=period_s)
        assert window.power_w is not None
        errors.append(window.power_w / 300 - 1)
    return np.array(errors)


def test_half_a_second_of_a_slow_counter_is_within_one_per_cent() -> None:
    errors = windows_of(0.5, 200)
    assert np.std(errors) <= 0.01
    assert abs(np.mean(errors)) <= 0.002


# ---- the loop ----


def gpu(
    busy_w: float = 300.0, call_s: float = 0.002, period_s: float = 0.02, **flaws: Any
) -> tuple[Any, ...]:
    """Time, queue and meter of a GPU that idles at 50 W."""
    time = Time()
    device = Device(time, idle_w=50.0)
    queue = Queue(device, call_s, busy_w)
    return time, queue, SimulatedMeter(Counter(device, period_s), **flaws)


def measured(time: Time, queue: Queue, meter: Any, window_s: float = 0.5, **known: Any) -> PowerWindow:
    how: dict[str, Any] = {"drain": queue.drain, "window_s": window_s, "known": Known(**known)}
    return measure_power(queue.run_once, meter, time.clock, **how)


def test_a_row_has_the_power_columns_and_nothing_else() -> None:
    row = measured(*gpu(), idle_w=50.0, period_s=0.02).to_row()
    columns = (
        "power_w power_sd_w energy_j energy_u_rel window_runtime_s window_s settle_s ticks "
        "counter_start_j counter_end_j idle_w_used power_dyn_w power_source power_scope dram_power_w "
        "power_reason"
    )
    assert list(row) == columns.split()
    assert row["power_w"] == pytest.approx(300, rel=0.01)
    assert row["window_runtime_s"] == pytest.approx(0.002, rel=0.01)
    assert row["energy_j"] == pytest.approx(0.6, rel=0.01)
    assert row["power_dyn_w"] == pytest.approx(250, rel=0.01)
    assert 0 < row["energy_u_rel"] < 0.05
    assert 0.4 < row["window_s"] <= 0.6
    assert 0.2 <= row["settle_s"] < 0.25
    assert row["counter_end_j"] - row["counter_start_j"] == pytest.approx(row["power_w"] * row["window_s"])
    assert (row["power_source"], row["power_scope"], row["idle_w_used"]) == (
        "nvml_energy_counter",
        "board",
        50.0,
    )
    assert (row["dram_power_w"], row["power_reason"]) == (None, None)


def test_a_run_of_many_calls_counts_each() -> None:
    time, queue, meter = gpu(call_s=0.004)
    queue.calls = 8
    assert measured(time, queue, meter).runtime_s == pytest.approx(0.0005, rel=0.01)


def test_the_device_never_waits_for_a_read() -> None:
    time, queue, meter = gpu()
    measured(time, queue, meter, period_s=0.02)
    device = queue.device
    gaps = [start - end for start, end in zip(device.starts[1:], device.ends, strict=False)]
    assert max(gaps) <= 1e-3  # ns
    assert len(queue.ends) == 0  # and it is left empty


def test_two_ticks_of_a_slow_counter_are_settling_time() -> None:
    time, queue, meter = gpu(period_s=0.25)
    window = measured(time, queue, meter, period_s=0.25)
    assert window.settle_s == pytest.approx(0.5, abs=0.01)
    # half a second holds two or three ticks: it goes on until there were five
    assert window.power is not None
    assert window.power.ticks == 5


def test_without_an_idle_power_there_is_no_dynamic_one() -> None:
    row = measured(*gpu()).to_row()
    assert (row["idle_w_used"], row["power_dyn_w"]) == (None, None)
    assert row["power_w"] is not None


def test_no_meter_is_a_reason_and_nothing_is_run() -> None:
    row = measure_power(lambda: pytest.fail("run"), NullMeter("no_rapl")).to_row()
    assert (row.pop("power_source"), row.pop("power_reason")) == ("none", "no_rapl")
    assert set(row.values()) == {None}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda read, energy_j: 1234.5 if read > 100 else energy_j, "counter_anomaly: stands still"),
        (lambda read, energy_j: energy_j - 50 if read > 400 else energy_j, "counter_anomaly: runs backwards"),
        (lambda read, energy_j: energy_j + 1e5 if read > 400 else energy_j, "counter_anomaly: jumps"),
        (lambda read, energy_j: None if read == 400 else energy_j, "counter_anomaly: unreadable"),
        (lambda read, energy_j: 0.0, "counter_anomaly: unreadable"),
        (lambda read, energy_j: -energy_j, "counter_anomaly: unreadable"),
    ],
)
def test_a_faulty_counter_leaves_the_time_and_no_power(
    fault: Callable[[int, float], float | None], reason: str
) -> None:
    row = measured(*gpu(fault=fault), idle_w=50.0).to_row()
    assert row["power_reason"] == reason
    assert row["power_source"] == "none"
    assert row["window_runtime_s"] == pytest.approx(0.002, rel=0.01)
    nothing = ("power_w", "energy_j", "energy_u_rel", "power_sd_w", "ticks", "power_dyn_w", "idle_w_used")
    assert {row[name] for name in nothing} == {None}


@pytest.mark.parametrize("lost_at", [1, 50, 400])
def test_a_meter_that_is_lost_says_so_and_leaves_the_queue_empty(lost_at: int) -> None:
    time, queue, meter = gpu(lost_at=lost_at)
    window = measured(time, queue, meter)
    assert (window.power_w, window.reason) == (None, "gpu_lost")
    assert len(queue.ends) == 0


def test_a_meter_of_another_package_may_raise_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    time, queue, meter = gpu()
    monkeypatch.setattr(meter, "read", lambda: int("NVML_ERROR_NOT_SUPPORTED"))
    assert measured(time, queue, meter).reason == "plugin" and len(queue.ends) == 0


def test_a_meter_without_a_counter_is_integrated_and_labelled() -> None:
    noise = random.Random(0)
    time, queue, meter = gpu(
        fault=lambda *_: None, sample_w=lambda _, power_w: power_w * noise.gauss(1, 0.01)
    )
    row = measured(time, queue, meter).to_row()
    assert row["power_source"] == "nvml_power_integrated"
    assert row["window_s"] == pytest.approx(0.5, abs=0.01)
    assert row["power_w"] == pytest.approx(300, rel=0.01)
    assert (row["counter_start_j"], row["counter_end_j"]) == (None, None)


def swinging(seed: int, idle_w: float | None) -> tuple[float, PowerWindow]:
    """Calls of 100 ms, 390 W in one half and 210 W in the other, on a counter that sees 25 of each 100 ms."""
    time = Time()
    device = Device(time, idle_w=50.0)
    phase_s = random.Random(seed).uniform(0, 0.1)

    def call() -> None:
        device.work(0.05, 390.0)
        device.work(0.05, 210.0)

    meter = SimulatedMeter(Counter(device, 0.1, phase_s, part_s=0.025))
    window = measure_power(
        call,
        meter,
        time.clock,
        known=Known(idle_w, 0.1),
        window_s=4.0,
        drain=lambda: None,
    )
    assert window.power_w is not None
    return window.power_w / 300 - 1, window


def test_calls_that_beat_against_the_counter_are_paused_at_random() -> None:
    steady = [swinging(seed, None) for seed in range(12)]
    paused = [swinging(seed, 50.0) for seed in range(12)]
    assert np.std([error for error, _ in steady]) > 0.1
    assert np.std([error for error, _ in paused]) < 0.08
    assert all(window.flags == ["alias_risk"] for _, window in steady + paused)
    # pauses are no time of the call
    assert all(window.runtime_s == pytest.approx(0.1, rel=0.01) for _, window in paused)


def test_the_pauses_of_a_queued_device_are_no_time_of_its_calls() -> None:
    time, queue, meter = gpu(call_s=0.06, period_s=0.1)
    window = measured(time, queue, meter, idle_w=50.0, period_s=0.1, window_s=1.0)
    assert window.runtime_s == pytest.approx(0.06, rel=0.02)
    assert window.power_w == pytest.approx(300, rel=0.05)
    assert window.flags == ["alias_risk"]


@pytest.mark.parametrize(("call_s", "period_s"), [(0.01, 0.1), (0.3, 0.1), (0.1, 0.001)])
def test_short_calls_long_calls_and_fast_counters_do_not_beat(call_s: float, period_s: float) -> None:
    time, queue, meter = gpu(call_s=call_s, period_s=period_s)
    assert measured(time, queue, meter, idle_w=50.0, period_s=period_s).flags == []


def test_an_idle_device_is_watched_without_a_call() -> None:
    time, _, meter = gpu()
    readings = watch(meter, time.clock, 0.5)
    assert window_power(readings).power_w == pytest.approx(50, rel=0.01)
    assert 1.5e9 <= time.now_ns() < 1.52e9
    assert meter.reads < 100


def test_the_clock_of_the_process_is_the_default() -> None:
    clock = Clock()
    before = clock.now_ns()
    clock.sleep(0)
    assert clock.now_ns() >= before


# ---- a layer on a CPU ----


@pytest.mark.parametrize(
    ("bytes_held", "memory_bytes", "copies"),
    [
        (2**20, None, 128),  # 4 * 32 MiB / 1 MiB
        (2**20, 2**28, 64),  # a quarter of 256 MiB
        (2**30, None, 1),
        (2**30, 2**30, 1),  # a quarter is too small, but one there must be
        (100, None, 512),
    ],
)
def test_copies_fill_the_cache_four_times_where_memory_allows(
    bytes_held: int, memory_bytes: int | None, copies: int
) -> None:
    assert copies_of(bytes_held, 32 * 2**20, memory_bytes) == copies


def test_memory_that_two_tensors_share_is_counted_once_and_a_modules_is_counted() -> None:
    x = torch.zeros(10)  # 40 B
    assert call_bytes(Call(torch.add, (x, x[2:]), {"out": torch.zeros(3)})) == 40 + 12
    # 2 * 3 weights and 3 biases of 4 B
    assert call_bytes(Call(torch.nn.Linear(2, 3), (torch.zeros(1, 2),))) == 36 + 8
    assert call_bytes(Call(torch.zeros, ((3,),))) == 0


def test_an_optimizers_memory_is_weights_gradients_and_moments() -> None:
    weight = torch.nn.Parameter(torch.zeros(5))
    weight.grad = torch.ones(5)
    adam = torch.optim.Adam([weight])
    adam.step()
    # 5 weights, gradients, first and second moments of 4 B, and a step count of 4 B
    assert call_bytes(Call(adam.step, ())) == 4 * 20 + 4


def test_a_layers_power_comes_from_calls_on_rotated_tensors(tmp_path: Path) -> None:
    time = Time()
    device = Device(time, idle_w=30.0)
    meter = simulated_rapl({"package-0": Counter(device, 0.001)}, 65_532.0, tmp_path)
    meter.open()
    used: list[int] = []

    def layer(x: torch.Tensor, weight: torch.Tensor) -> None:
        assert not weight.is_contiguous()
        used.append(weight.data_ptr())
        device.work(0.003, 90.0)

    # 2 * 16 * 32 * 4 B = 4 KiB; four times 4 KiB are four sets
    call = Call(layer, (torch.zeros(16, 32), torch.zeros(16, 32).t()))
    columns = power_columns(call, meter, llc_bytes=4096, known=Known(30.0, 0.001), clock=time.clock)
    assert columns["power_w"] == pytest.approx(90, rel=0.01)
    assert columns["energy_j"] == pytest.approx(0.27, rel=0.01)
    assert (columns["power_source"], columns["power_scope"]) == ("rapl", "package")
    assert columns["flags"] == []
    assert len(set(used)) == 4
    assert used[-8:-4] == used[-4:]


def test_the_clock_is_not_looked_at_after_every_short_call() -> None:
    time = Time()
    device = Device(time)
    looks: list[int] = []
    clock = Clock(lambda: looks.append(1) or time.now_ns(), time.clock.sleep)
    call = Call(lambda _: device.work(1e-5, 90.0), (torch.zeros(64),))
    meter = SimulatedMeter(Counter(device, 0.001))
    columns = power_columns(call, meter, llc_bytes=64, known=Known(period_s=0.001), clock=clock)
    assert columns["window_runtime_s"] == pytest.approx(1e-5, rel=0.01)
    assert len(looks) < 0.7 / 1e-5 / 10  # 0.7 s of calls


def test_without_a_meter_a_layer_has_a_reason() -> None:
    columns = power_columns(Call(torch.relu, (torch.ones(4),)), NullMeter("no_rapl"), llc_bytes=2**20)
    assert (columns["power_w"], columns["power_reason"], columns["flags"]) == (None, "no_rapl", [])


def test_the_steady_load_can_be_run() -> None:
    assert steady_load(8)() is None


def test_a_window_without_power_has_no_energy() -> None:
    window = PowerWindow(None, "too_few_ticks", runtime_s=0.1)
    assert (window.energy_j, window.energy_u_rel, window.power_dyn_w) == (None, None, None)
    untimed = PowerWindow(Power(100.0, None, None, 2, 0, 1), None)
    assert (untimed.energy_j, untimed.energy_u_rel) == (None, None)
