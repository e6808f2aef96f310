"""Watts by kind of work, and what limits and clocks do to them."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from neuralpower.devices.spec import find_spec
from neuralpower.layers import KINDS, Layer, columns_of
from neuralpower.layers.base import Draw
from neuralpower.layers.rows import defaults
from neuralpower.learn.estimates import Estimates
from neuralpower.learn.unmeasured.laws import floors
from neuralpower.learn.watts import (
    ATTENTION,
    CACHE,
    PASSES,
    PRODUCTS,
    WEIGHTS,
    Demand,
    Setting,
    as_set,
    drawn_at,
    idle_power,
    law_power,
    longer,
    shipped_watts,
)
from neuralpower.prediction.costs.energy import mean_power, with_time
from neuralpower.prediction.rows import Interval

H100 = find_spec("h100-sxm").hardware()
SLUG = "nvidia-h100-sxm5-80gb"
LIMIT_W = 700.0


def product(rows: int, columns: int = 8192, inner: int = 8192) -> Layer:
    kind = KINDS["linear"]
    fields = {"dtype": "bfloat16", "rows": rows, "in_features": inner, "out_features": columns}
    return columns_of(kind, [kind(**{**defaults(kind), **fields, "bias": False})])


def addition(elements: int) -> Layer:
    kind = KINDS["elementwise"]
    fields = {"dtype": "bfloat16", "function": "add", "operands": 2, "elements": elements, "broadcast": False}
    return columns_of(kind, [kind(**{**defaults(kind), **fields})])


def estimated(columns: Layer, seconds: float) -> Estimates:
    """Estimates at the law's watts."""
    t = np.array([seconds])
    power = (*law_power(columns, H100, t, SLUG), np.zeros(1))
    return Estimates.untrained(t, np.zeros(1), np.zeros(1), np.zeros(1, dtype=bool), power)


def test_each_kind_of_work_has_constants_and_says_its_rows() -> None:
    law = shipped_watts()
    assert law.works.keys() == {PRODUCTS, WEIGHTS, ATTENTION, CACHE, PASSES}
    assert all(work.rows for work in law.works.values()) and law.source


def test_a_product_at_its_peak_draws_the_limit_and_no_layer_more() -> None:
    flops = product(8192).flops()
    at_peak = np.asarray(flops, dtype=float).reshape(-1) / H100.peak("bfloat16")
    value, low, high = law_power(product(8192), H100, at_peak, SLUG)
    assert value[0] > 0.9 * LIMIT_W
    assert low[0] <= value[0] <= high[0] <= LIMIT_W


def test_a_pass_over_memory_draws_most_of_the_limit() -> None:
    columns = addition(2**28)
    seconds = np.asarray(sum(columns.bytes()), dtype=float).reshape(-1) / (0.85 * H100.memory_bytes_per_s)
    value, _, _ = law_power(columns, H100, seconds, SLUG)
    assert 0.75 * LIMIT_W <= value[0] <= LIMIT_W


def test_a_slower_call_draws_less() -> None:
    watts = [law_power(product(64), H100, np.array([t]), SLUG)[0][0] for t in (5e-5, 2e-4, 1e-3)]
    assert watts[0] > watts[1] > watts[2]


def test_compute_follows_the_clock_and_memory_does_not() -> None:
    assert longer(Demand.of(product(8192), H100), shipped_watts())(0.5)[0] == pytest.approx(2.0, rel=0.01)
    assert longer(Demand.of(addition(2**28), H100), shipped_watts())(0.9)[0] < 1.05


def test_a_lower_limit_makes_products_longer_and_keeps_its_watts() -> None:
    before = estimated(product(8192), 1.5e-3)
    after = as_set(before, product(8192), H100, SLUG, Setting(limit_w=400.0))
    assert after.runtime_s[0] > 1.1 * before.runtime_s[0]
    assert after.power_w[0] == pytest.approx(400.0, rel=0.01)
    assert after.power_high_w[0] <= 400.0


def test_a_limit_above_what_a_call_draws_changes_nothing() -> None:
    before = estimated(product(1), 4.5e-5)
    after = as_set(before, product(1), H100, SLUG, Setting(limit_w=690.0))
    assert after.runtime_s[0] == before.runtime_s[0]
    assert after.power_w[0] == pytest.approx(before.power_w[0])


def test_a_lower_clock_saves_more_energy_than_time_in_a_pass_over_memory() -> None:
    columns = addition(2**28)
    before = estimated(columns, 9e-4)  # below the limit
    after = as_set(before, columns, H100, SLUG, Setting(clock=0.8))
    time, watts = after.runtime_s[0] / before.runtime_s[0], after.power_w[0] / before.power_w[0]
    assert time < 1.1 and time * watts < 0.95


def test_tighter_limits_never_make_a_call_faster() -> None:
    columns = product(512)
    before = estimated(columns, 1.2e-4)
    times = [
        as_set(before, columns, H100, SLUG, Setting(limit_w=w)).runtime_s[0] for w in range(700, 299, -50)
    ]
    assert times == sorted(times)


def test_idle_power_is_the_sheets_and_falls_with_the_clock() -> None:
    assert idle_power(H100)[0] == H100.idle_w
    assert idle_power(H100, 0.5)[0] < 0.8 * idle_power(H100)[0]
    value, low, high = idle_power(dataclasses.replace(H100, idle_w=None))
    assert low < value < high < LIMIT_W


def test_a_gpu_on_a_module_has_its_own_limit() -> None:
    module = find_spec("gh200").hardware()
    assert module.limit_w == 900 and module.board_w == 700
    value, _, high = law_power(product(8192), module, np.array([1.2e-3]), "nvidia-gh200-96gb")
    assert value[0] <= high[0] <= 700


def test_a_lower_voltage_takes_less_for_a_byte_but_in_the_dram() -> None:
    law, memory = shipped_watts(), Demand(np.zeros(1), np.ones(1), np.zeros(1, dtype=int))
    full, cores = np.array([500.0]), np.zeros(1)

    def watts(dram: float) -> float:
        changed = msgspec.structs.replace(law, dram=dram)
        return float(drawn_at(full, cores, longer(memory, changed), 100.0, changed)(np.array([0.7]))[0])

    assert 0 < law.dram < 1
    assert watts(0.0) < watts(law.dram) < watts(1.0)


@pytest.mark.parametrize("device", ["h100-sxm", "rtx-4090", "t4", "mi300x"])
@pytest.mark.parametrize("name", ["linear", "attention", "softmax", "conv2d", "experts"])
def test_no_draw_leaves_idle_and_limit_or_draws_more_at_a_lower_setting(name: str, device: str) -> None:
    spec, draw = find_spec(device), Draw(name)
    hardware, kind = spec.hardware(), KINDS[name]
    limit = hardware.board_w
    assert limit is not None
    columns = columns_of(kind, [dataclasses.replace(kind.sample(draw), dtype="bfloat16") for _ in range(20)])
    floor = np.maximum(*floors(columns, hardware, columns.law.traits(columns)))
    t = np.maximum(floor * np.exp(np.random.default_rng(0).uniform(0.05, 2, 20)), 2e-6)
    power = law_power(columns, hardware, t, spec.slug)
    before = Estimates.untrained(
        t, np.zeros(20), np.zeros(20), np.zeros(20, dtype=bool), (*power, np.zeros(20))
    )
    slower = law_power(columns, hardware, 1.5 * t, spec.slug)[0]
    assert np.all(slower <= power[0]) and np.all(1.5 * slower >= power[0] * (1 - 1e-9))
    for settings in (
        [Setting(clock=clock) for clock in (0.3, 0.5, 0.7, 0.9, 1.0)],
        [Setting(limit_w=share * limit) for share in (0.5, 0.7, 0.9, 1.0)],
    ):
        found = [as_set(before, columns, hardware, spec.slug, one) for one in settings]
        watts = np.array([one.power_w for one in found])
        assert np.all(np.diff(watts, axis=0) >= -1e-6 * limit)
        assert np.all(np.diff([one.runtime_s for one in found], axis=0) <= 1e-9)
        for one, setting in zip(found, settings, strict=True):
            assert np.all(one.power_high_w <= (setting.limit_w or limit) + 1e-6)
            assert np.all(one.power_w >= idle_power(hardware, setting.clock)[1] - 1e-6)


def test_the_power_of_passes_after_each_other_has_the_bounds_of_their_powers() -> None:
    power, runtime = Interval(300.0, 250.0, 390.0), Interval(1.0, 0.8, 1.2)
    joined = mean_power(with_time(power, runtime).times(3), runtime.times(3), [power])
    assert (joined.value, joined.low, joined.high) == pytest.approx((300.0, 250.0, 390.0))
