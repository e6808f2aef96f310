"""A prior: levels of factors on physics, trained through sums of calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neuralpower.devices.spec import find_spec
from neuralpower.layers import Layer, columns_of
from neuralpower.layers.activation import Activation
from neuralpower.layers.base import BACKWARD, GRADIENT
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.linear import Linear
from neuralpower.layers.matmul import Matmul
from neuralpower.learn.regressor import NINETY
from neuralpower.learn.unmeasured import laws
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.learn.unmeasured.law_estimates import by_law, faded, seconds_by_law
from neuralpower.learn.unmeasured.prior import (
    FEWEST,
    STEEPEST,
    Doubt,
    Law,
    Level,
    Prior,
    family_of,
    gentle,
)
from neuralpower.learn.unmeasured.prior_files import shipped_prior, write_prior
from neuralpower.learn.unmeasured.prior_fit import DEVICE, EVERYWHERE, Observation, fit_factors, predicted
from tests.layers.made import conv3x3

SPEC = find_spec("nvidia-rtx-4090")
HARDWARE = SPEC.hardware()
DOUBT = Doubt(call=0.3, network=0.1)
LAUNCH_S = 2e-6


def law(**factors: float) -> Law:
    return Law(
        "",
        HARDWARE,
        {name.replace("_", " "): value for name, value in factors.items()},
        LAUNCH_S,
        DOUBT,
        True,
    )


def linear(rows: int, columns: int = 1024, inner: int = 1024) -> Linear:
    return Linear(dtype="float16", rows=rows, in_features=inner, out_features=columns, bias=False)


def relu(elements: int) -> Activation:
    return Activation(dtype="float16", function="relu", elements=elements)


def seconds(by: Law, layer: Layer) -> float:
    return float(by.seconds(columns_of(type(layer), [layer]))[0])


def test_without_factors_a_call_takes_what_its_sheet_allows_and_a_launch() -> None:
    large = relu(2**28)
    assert seconds(law(), large) == pytest.approx(
        2 * 2 * 2**28 / HARDWARE.memory_bytes_per_s + LAUNCH_S, rel=1e-4
    )
    product = linear(2**16)
    compute = product.flops() / HARDWARE.peak("float16")
    memory = sum(product.bytes()) / HARDWARE.memory_bytes_per_s
    assert seconds(law(), product) == pytest.approx(
        (compute**laws.POWER + memory**laws.POWER) ** (1 / laws.POWER) + LAUNCH_S
    )


def test_a_call_that_does_no_work_takes_no_time() -> None:
    assert seconds(law(), relu(0)) == 0


def test_factors_of_part_kind_and_trait_multiply() -> None:
    more = law(memory=0.1, activation_memory=0.2)
    more = replace(more, factors={**more.factors, "activation memory: cheap": 0.3})
    busy = seconds(law(), relu(2**26)) - LAUNCH_S
    assert seconds(more, relu(2**26)) - LAUNCH_S == pytest.approx(busy * np.exp(0.6), rel=1e-3)


def test_gradients_have_factors_of_their_own_and_forward_passes_none_of_them() -> None:
    product = linear(2**16)
    slower = law(linear_compute_gradient=0.5)
    assert seconds(slower, product) == seconds(law(), product)
    again = replace(product, phase=GRADIENT)
    assert seconds(law(), again) == seconds(law(), product)
    assert seconds(slower, again) > 1.4 * seconds(law(), product)
    whole = columns_of(Linear, [replace(product, phase=BACKWARD)])
    assert seconds_by_law(whole, slower)[0] == pytest.approx(2 * seconds(slower, again), rel=1e-6)


def test_steps_of_training_move_gradients_and_no_forward_pass() -> None:
    def step(one: Observation) -> Observation:
        product = one.layers[0]
        layers = (*one.layers, replace(product, phase=GRADIENT))
        more = 3 * one.counts[0] * seconds(law(), product)  # twice the work, in three times the time
        return replace(
            one, layers=layers, counts=np.append(one.counts, 2.0 * one.counts[0]), seconds=one.seconds + more
        )

    steps = [step(one) for one in observed(law(), 60)]
    known = dict.fromkeys(("compute", "memory", "linear compute", "linear memory", "activation memory"), 0.0)
    found = fit_factors(steps, LAUNCH_S, known, (EVERYWHERE,))[EVERYWHERE]
    assert not found.keys() & known.keys()
    there = law().times(found)
    product = steps[0].layers[0]
    assert seconds(there, steps[0].layers[1]) == pytest.approx(seconds(law(), steps[0].layers[1]), rel=0.05)
    assert seconds(there, replace(product, phase=GRADIENT)) == pytest.approx(
        1.5 * seconds(law(), product), rel=0.1
    )


def test_a_device_has_the_factors_of_its_levels() -> None:
    levels = [Level({"memory": value}, networks=FEWEST) for value in (0.1, 0.2, 0.4)]
    family = family_of(HARDWARE, SPEC.chip)
    device = {SPEC.slug: levels[2]}
    prior = Prior("made up", LAUNCH_S, levels[0], {family: levels[1]}, device, DOUBT, DOUBT, DOUBT, DOUBT)
    here = prior.on(HARDWARE, SPEC.slug, SPEC.chip)
    assert here.factors["memory"] == pytest.approx(0.7) and here.taught
    sibling = find_spec("nvidia-rtx-4080")
    there = prior.on(sibling.hardware(), sibling.slug, sibling.chip)
    assert there.factors["memory"] == pytest.approx(0.3) and not there.taught
    other = find_spec("nvidia-t4")
    assert prior.on(other.hardware(), other.slug, other.chip).factors["memory"] == pytest.approx(0.1)


def test_gradients_are_less_in_doubt_where_steps_of_training_taught_them() -> None:
    taught, other = (find_spec(name) for name in ("nvidia-rtx-3090", "nvidia-rtx-3080"))
    layer = relu(2**24)
    for spec, narrower in ((taught, True), (other, False)):
        here = shipped_prior().on(spec.hardware(), spec.slug, spec.chip)
        back, forward = (
            replace(for_device(spec), law=here).of_torch().estimate([one])
            for one in (replace(layer, phase=GRADIENT), layer)
        )
        assert (back.shared[0] < forward.shared[0]) == narrower


def test_what_a_law_takes_from_a_call_may_be_needed() -> None:
    columns, power = columns_of(Linear, [linear(2**14)]), (np.full(1, np.nan),) * 4
    slow = replace(law(), factors={"compute": 5.0})
    held, freely = seconds_by_law(columns, slow), slow.seconds(columns)
    found = by_law(columns, slow, np.zeros(1), power, held)
    assert found.withheld_s[0] == freely[0] - held[0] > 0
    total, once = found.totals(np.ones((1, 1))), np.exp(NINETY * found.deviation[0])
    assert total.value[0] == held[0] and total.high[0] == pytest.approx(freely[0] * once)
    assert total.low[0] == pytest.approx(held[0] / once)


def observed(by: Law, count: int, noise: float = 0.0) -> list[Observation]:
    """Networks of two products and three passes, as long as a law says."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(count):
        layers = (linear(int(random.integers(2**12, 2**16))), relu(int(random.integers(2**22, 2**27))))
        counts = random.integers(1, 5, size=2).astype(float)
        total = sum(n * seconds(by, layer) for n, layer in zip(counts, layers, strict=True))
        found.append(
            Observation(
                SPEC.slug, HARDWARE, layers, counts, total * np.exp(noise * random.normal()), chip=SPEC.chip
            )
        )
    return found


def test_totals_alone_tell_what_products_and_what_passes_take() -> None:
    truth = replace(law(), factors={"compute": 0.5, "memory": 0.25})
    networks = observed(truth, 60, noise=0.03)
    found = fit_factors(networks, LAUNCH_S, levels=(EVERYWHERE,))[EVERYWHERE]
    trained = replace(law(), factors=found)
    for layer in (linear(2**14), relu(2**25)):
        assert seconds(trained, layer) == pytest.approx(seconds(truth, layer), rel=0.1)
    said = predicted(networks, {SPEC.slug: trained})
    assert np.median(np.abs(said / [one.seconds for one in networks] - 1)) < 0.04


def test_a_limit_that_holds_a_board_is_no_factor_of_its_kernels() -> None:
    a10 = find_spec("a10")
    truth = replace(law(compute=0.3, memory=0.2), device=a10.slug, hardware=a10.hardware())
    held = [
        replace(
            one,
            device=a10.slug,
            hardware=truth.hardware,
            chip=a10.chip,
            seconds=sum(n * seconds(truth, layer) for n, layer in zip(one.counts, one.layers, strict=True)),
        )
        for one in observed(law(), 60)
    ]
    found = fit_factors(held, LAUNCH_S, levels=(EVERYWHERE,))[EVERYWHERE]
    trained = replace(truth, factors=found)
    free = replace(truth, device="")
    for layer in (linear(2**14), relu(2**25)):
        assert seconds(truth, layer) > 1.01 * seconds(free, layer)
        assert seconds(trained, layer) == pytest.approx(seconds(truth, layer), rel=0.05)
        assert seconds(replace(free, factors=found), layer) == pytest.approx(seconds(free, layer), rel=0.05)


def test_few_networks_move_factors_less_than_many() -> None:
    truth = replace(law(), factors={"compute": 0.6, "memory": 0.6})
    gaps = []
    for count in (2, 60):
        found = fit_factors(observed(truth, count), LAUNCH_S, {"memory": 0.0}, (DEVICE,))[
            f"{DEVICE} {SPEC.slug}"
        ]
        trained = replace(law(), factors=found)
        gaps.append(np.log(seconds(truth, relu(2**26)) / seconds(trained, relu(2**26))))
    assert gaps[0] > 2 * gaps[1] > 0


def test_a_strange_network_bends_nothing() -> None:
    truth = replace(law(), factors={"memory": 0.3})
    networks = observed(truth, 40)
    strange = replace(networks[0], seconds=50 * networks[0].seconds)
    plain, bent = (
        fit_factors(some, LAUNCH_S, levels=(EVERYWHERE,))[EVERYWHERE]
        for some in (networks, [*networks, strange])
    )
    assert abs(plain["memory"] - bent["memory"]) < 0.02


def test_the_fit_hears_sizes_that_may_not_be_cheap_through_their_kind() -> None:
    # large calls alone; smaller ones take long by the levels above, and let no size be much cheaper
    fixed = {f"activation memory: bytes {2**24}": 2.0}
    calls = [relu(2**power) for power in (27, 28, 29)] * 20
    given = [Observation(SPEC.slug, HARDWARE, (one,), np.ones(1), 1.5 * seconds(law(), one)) for one in calls]
    found = fit_factors(given, LAUNCH_S, fixed, (DEVICE,))[f"{DEVICE} {SPEC.slug}"]
    every = {name: fixed.get(name, 0.0) + found.get(name, 0.0) for name in {**fixed, **found}}
    said = predicted(given, {SPEC.slug: replace(law(), factors=gentle(every), exempt=True)})
    assert np.median(said / [one.seconds for one in given]) < 1.6  # 2.1 where the fit does not know it


def test_no_kind_was_left_behind_as_strange_by_a_step_too_long() -> None:
    # torch MPS on an M1 took 25.9 ms; a fit whose steps were let raise its sum left Apple's products at 186
    spec = find_spec("apple-m1")
    there = shipped_prior().on(spec.hardware(), spec.slug, spec.chip)
    product = Matmul(dtype="float32", batch=1000, rows=1024, inner=64, columns=256)
    assert 0.013 < seconds(there, product) < 0.052


def test_no_factor_falls_faster_than_a_size_grows() -> None:
    steep = {
        "x memory: width 32": 1.0,
        "x memory: width 128": -3.0,
        "x memory: width 512": -3.0,
        "x memory": 0.2,
    }
    held = gentle(steep)
    assert held["x memory: width 128"] == pytest.approx(1.0 - 2 * STEEPEST)
    assert held["x memory: width 512"] == pytest.approx(1.0 - 4 * STEEPEST)
    assert held["x memory"] == 0.2


def test_sixteen_bits_are_never_slower_than_thirty_two() -> None:
    worse = replace(law(), factors={"linear compute: odd sides": 3.0})
    odd = columns_of(Linear, [linear(4097, 1023, 1025)])
    wide = columns_of(Linear, [replace(linear(4097, 1023, 1025), dtype="float32")])
    assert seconds_by_law(odd, worse)[0] <= seconds_by_law(wide, worse)[0]


def test_the_law_is_held_between_its_bounds() -> None:
    columns = columns_of(Linear, [linear(2**14)])
    least, most = laws.least_s(columns, HARDWARE)[0], laws.most_s(columns, HARDWARE)[0]
    assert seconds_by_law(columns, replace(law(), factors={"compute": 5.0}))[0] == most
    fastest = replace(law(), factors={"compute": -5.0, "memory": -5.0})  # than any kernel can be
    plain = replace(law(), factors={})
    assert seconds_by_law(columns, fastest)[0] == seconds_by_law(columns, plain)[0] >= least


def test_on_lanes_a_convolution_takes_as_long_in_any_type() -> None:
    here = shipped_prior().on(HARDWARE, SPEC.slug, SPEC.chip)
    narrow, wide, short = (
        conv3x3(256, 256, batch=64, size=28, groups=256, dtype=dtype)
        for dtype in ("float16", "float32", "float8_e4m3fn")
    )
    compute = [
        laws.floors(columns, HARDWARE, columns.law.traits(columns))[0][0]
        for columns in map(row, (narrow, wide, short))
    ]
    assert compute[0] == compute[1] == compute[2]
    assert seconds(here, short) <= seconds(here, narrow) <= seconds(here, wide)
    assert seconds(here, short) <= laws.most_s(row(short), HARDWARE)[0]


def row(layer: Layer) -> Layer:
    """A table of the one layer."""
    return columns_of(type(layer), [layer])


def test_a_carried_regressor_fades_into_the_law() -> None:
    said = faded(np.full(3, 8e-3), np.full(3, 2e-3), np.array([0.0, 1.0, 100.0]))
    assert said.tolist() == pytest.approx([8e-3, 4e-3, 2e-3], rel=1e-3)


def test_a_prior_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "prior.json"
    write_prior(shipped_prior(), file)
    import msgspec

    assert msgspec.json.decode(file.read_bytes(), type=Prior) == shipped_prior()


def test_the_shipped_prior_says_what_it_was_trained_on() -> None:
    prior = shipped_prior()
    assert prior.source and prior.devices["nvidia-rtx-4090"].networks > FEWEST
    assert all(
        abs(factor) < 3
        for level in (prior.everywhere, *prior.devices.values())
        for factor in level.factors.values()
    )


@pytest.mark.parametrize("name", ["a100-pcie-40gb", "v100-pcie-32gb", "p100-pcie-16gb", "t4", "p4"])
def test_a_large_pass_takes_little_more_than_its_bytes_where_tables_include_the_host(name: str) -> None:
    spec = find_spec(name)
    here = shipped_prior().on(spec.hardware(), spec.slug, spec.chip)
    for elements in (2**22, 2**26):
        layer = Elementwise(dtype="float16", function="add", operands=2, elements=elements, broadcast=False)
        least = sum(layer.bytes()) / here.hardware.memory_bytes_per_s
        assert seconds(here, layer) < 1.6 * least


def test_a_family_of_another_maker_has_its_own_launch_and_reads_weights_at_its_bandwidth() -> None:
    spec = find_spec("amd-instinct-mi300x")
    here = shipped_prior().on(spec.hardware(), spec.slug, spec.chip)
    assert here.launch_s > shipped_prior().launch_s
    assert shipped_prior().on(HARDWARE, SPEC.slug, SPEC.chip).launch_s == shipped_prior().launch_s
    few_rows = Linear(
        dtype="bfloat16", rows=46, in_features=2880, out_features=201088, bias=False, transposed=False
    )
    assert 1 < seconds(here, few_rows) / 347e-6 < 1.8  # a kernel of vLLM


def test_what_a_host_takes_is_no_part_of_a_factor() -> None:
    calls = [replace(one, seconds=one.seconds + 1e-3, rest_s=1e-3) for one in observed(law(), 40)]
    plain = fit_factors(observed(law(), 40), LAUNCH_S)
    for level, factors in fit_factors(calls, LAUNCH_S).items():
        for name, value in factors.items():
            assert value == pytest.approx(plain[level][name], abs=0.02)
    assert predicted(calls, {SPEC.slug: law()}) == pytest.approx([one.seconds for one in calls])
