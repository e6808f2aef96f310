"""No answer breaks a law of its device: a seeded sample of devices, kinds and types."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.laws import FALLS, NARROW, accelerators, apart, breaches, drawn, longer, without_clamps
from neuralpower.devices.spec import find_spec
from neuralpower.dtypes import floats_of
from neuralpower.layers import KINDS, Layer, columns_of
from neuralpower.layers.attention import Attention
from neuralpower.layers.columns import in_tiles
from neuralpower.layers.experts import Experts
from neuralpower.layers.linear import Linear
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.recurrent import Recurrent
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.traits import sides_of
from neuralpower.learn.estimates import HELD
from neuralpower.learn.unmeasured import laws
from neuralpower.learn.unmeasured.any_device import for_device
from tests.layers.made import conv3x3
from tests.sampled import some_always

DRAWS = range(5)
SAMPLED = ("nvidia-rtx-4090", "nvidia-h800-sxm5-80gb", "nvidia-t4", "amd-instinct-mi300x", "apple-m2-max")
STEM = {
    f"{name}_{axis}": size
    for name, size in (("kernel", 7), ("stride", 2), ("padding", 3))
    for axis in ("height", "width")
}
PLACES = [(spec.slug, dtype) for spec in accelerators() for dtype in floats_of(spec.peak_flops)]


@pytest.mark.parametrize(("device", "dtype"), some_always(PLACES, lambda place: place[0] in SAMPLED))
def test_no_answer_breaks_a_law(device: str, dtype: str) -> None:
    spec = find_spec(device)
    predictor = for_device(spec).of_torch()
    kinds = [kind for kind in KINDS.values() if kind.by_default]
    layers = [drawn(kind, dtype, DRAWS) for kind in kinds]
    network = [some[0] for some in layers if some]
    found = [one for some in layers for one in breaches(predictor, some)]
    assert [*found, *longer(predictor, network), *apart(spec, network)] == []


@pytest.mark.parametrize(
    ("device", "layer"),
    [
        ("nvidia-rtx-4090-d", Matmul(dtype="bfloat16", batch=105, rows=5, inner=232, columns=64)),
        (
            "nvidia-gb200",
            Attention(
                dtype="bfloat16",
                batch=1,
                query_heads=16,
                key_heads=2,
                query_length=298,
                key_length=298,
                head_size=16,
                causal=True,
                masked=False,
            ),
        ),
        ("nvidia-b200", Linear(dtype="float32", rows=309, in_features=4064, out_features=5440, bias=False)),
        ("nvidia-l40s", Linear(dtype="mxfp8", rows=17, in_features=384, out_features=11410, bias=True)),
        (
            "nvidia-h100-nvl",
            Recurrent(
                dtype="float32",
                function="lstm",
                batch=1,
                steps=43,
                input_size=136,
                hidden_size=128,
                num_layers=2,
                bidirectional=False,
            ),
        ),
        (
            "nvidia-h800-sxm5-80gb",
            replace(conv3x3(1, 288, size=111, dtype="bfloat16"), **STEM),
        ),
    ],
    ids=[
        "carried batch",
        "split keys",
        "wider type",
        "warm rows of another type",
        "many launches",
        "narrower tiles",
    ],
)
def test_clamps_hold_after_all_else(device: str, layer: Layer) -> None:
    assert list(breaches(for_device(find_spec(device)).of_torch(), [layer])) == []


@pytest.mark.parametrize("device", ["nvidia-h100-sxm5-80gb", "nvidia-l40s"])
def test_no_answer_about_an_engine_breaks_a_law(device: str) -> None:
    predictor = for_device(find_spec(device))
    kinds = [KINDS[name] for name in ("attention", "latent_attention", "linear", "matmul")]
    assert [one for kind in kinds for one in breaches(predictor, drawn(kind, "bfloat16", DRAWS))] == []


def test_without_the_clamps_laws_are_broken() -> None:
    predictor = for_device(find_spec("nvidia-h100-sxm5-80gb")).of_torch()
    layers = [drawn(KINDS[name], "bfloat16", DRAWS) for name in ("softmax", "conv2d", "attention")]
    with without_clamps():
        broken = {rule for some in layers for rule, _ in breaches(predictor, some)}
    assert {FALLS, NARROW} <= broken


@pytest.mark.parametrize("device", ["nvidia-rtx-4090", "nvidia-a40", "amd-instinct-mi350x"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_device_without_rows_needs_hardly_a_clamp(device: str, dtype: str) -> None:
    predictor = for_device(find_spec(device)).of_torch()
    layers = [drawn(kind, dtype, DRAWS) for kind in KINDS.values() if kind.by_default]
    with without_clamps():
        broken = [one for some in layers for one in breaches(predictor, some)]
    assert len(broken) <= 0.01 * sum(map(len, layers))


@pytest.mark.parametrize("device", ["nvidia-a100-sxm4-80gb", "nvidia-b200"])
def test_a_type_that_no_row_tells_follows_the_rows_of_another(device: str) -> None:
    predictor = for_device(find_spec(device)).of_torch()
    layers = drawn(Attention, "bfloat16", range(8))
    with without_clamps():
        narrow = predictor.estimate(layers)
        wide = predictor.estimate([replace(one, dtype="float32") for one in layers])
    assert (wide.runtime_s >= narrow.runtime_s).all()


@pytest.mark.parametrize("device", ["nvidia-h100-sxm5-80gb", "nvidia-l40s", "nvidia-b200"])
def test_the_time_of_a_step_runs_straight_along_its_cache(device: str) -> None:
    step = Attention(
        dtype="bfloat16",
        batch=16,
        query_heads=32,
        key_heads=8,
        query_length=1,
        key_length=1,
        head_size=128,
        causal=False,
        masked=False,
    )
    lengths = np.arange(3500, 9000, 11)
    t = for_device(find_spec(device)).estimate([replace(step, key_length=int(n)) for n in lengths]).runtime_s
    assert np.all(np.diff(t) > 0)
    assert np.max(t[1:] / t[:-1]) < 1.01  # no kink at 4,096 or 8,192


@pytest.mark.parametrize(
    ("dtype", "stand"),
    [
        ("float16", [64, 65, 65, 128, 72, 128, 4096, 4097, 4097, 4104, 4352, 4608]),
        ("float32", [64, 65, 65, 96, 104, 128, 4096, 4097, 4097, 4104, 4352, 4608]),
    ],
)
def test_sizes_of_a_tile_and_an_alignment_stand_together(dtype: str, stand: list[int]) -> None:
    sizes = [64, 65, 81, 96, 104, 128, 4096, 4097, 4103, 4104, 4112, 4608]
    layers = [Linear(dtype=dtype, rows=size, in_features=64, out_features=64, bias=False) for size in sizes]
    tiles, differs = in_tiles(columns_of(Linear, layers))
    rows = np.asarray(tiles.rows).tolist()
    assert rows == stand
    assert differs.tolist() == [stands != size for stands, size in zip(rows, sizes, strict=True)]


@pytest.mark.parametrize("device", ["nvidia-h20", "nvidia-t4"])
def test_a_product_more_in_a_batch_begins_no_wave(device: str) -> None:
    predictor = for_device(find_spec(device)).of_torch()
    first = Matmul(dtype="float32", batch=65, rows=256, inner=64, columns=256)
    times = predictor.estimate([replace(first, batch=batch) for batch in range(65, 260)]).runtime_s
    assert (np.diff(times) >= 0).all() and (np.diff(times) < 0.02 * times[:-1]).all()


def test_a_short_product_in_torch_takes_what_its_table_says_and_a_long_one_what_lasts() -> None:
    engine = for_device(find_spec("nvidia-h100-sxm5-80gb"))
    sizes = {"bias": False, "transposed": False, "dtype": "bfloat16"}
    short, long = (
        Linear(rows=m, in_features=k, out_features=n, **sizes)
        for m, k, n in ((141, 2048, 512), (8944, 1024, 2816))
    )
    table, torchs = (one.estimate([short, long]).runtime_s for one in (engine, engine.of_torch()))
    assert torchs[0] == pytest.approx(table[0]) and torchs[1] > 1.2 * table[1]


def test_eight_bits_are_no_slower_than_sixteen_where_nothing_is_scaled() -> None:
    predictor = for_device(find_spec("nvidia-h100-sxm5-80gb"))
    pixels = conv3x3(64, 64, batch=64, size=56, dtype="bfloat16")
    found = predictor.estimate([pixels, replace(pixels, dtype="float8_e4m3fn")]).runtime_s
    assert found[1] <= found[0]


@pytest.mark.parametrize("device", ["nvidia-rtx-4090", "nvidia-rtx-3090", "nvidia-rtx-pro-6000-max-q"])
def test_a_convolution_in_sixteen_bits_is_faster_than_in_thirty_two(device: str) -> None:
    layers = [conv3x3(64, 64, batch=256, size=56, dtype=dtype) for dtype in ("float16", "float32")]
    found = for_device(find_spec(device)).of_torch().estimate(layers)
    assert found.runtime_s[0] < found.runtime_s[1] / 1.5


def test_a_long_inner_side_with_few_outputs_is_not_a_thousand_times_its_bytes() -> None:
    spec = find_spec("nvidia-a100-pcie-40gb")
    layers = [Matmul(dtype="float32", batch=1, rows=15, inner=98304, columns=side) for side in (15, 512)]
    found = for_device(spec).of_torch().estimate(layers)
    columns = columns_of(Matmul, layers)
    assert np.all(found.runtime_s >= laws.least_s(columns, spec.hardware()))
    assert found.runtime_s[0] < 3e-4 and found.runtime_s[0] < found.runtime_s[1]


def test_odd_sides_take_longer_and_their_neighbours_little() -> None:
    predictor = for_device(find_spec("nvidia-rtx-4090")).of_torch()
    even, odd, neighbour = (
        Linear(dtype="float16", rows=8192, in_features=side, out_features=4096, bias=False)
        for side in (4096, 4097, 4099)
    )
    found = predictor.estimate([even, odd, neighbour]).runtime_s
    assert found[0] < found[1] and abs(found[2] / found[1] - 1) < 0.02


def test_tables_that_read_one_cache_again_do_not_beat_the_memory() -> None:
    predictor = for_device(find_spec("nvidia-rtx-pro-6000-server"))
    assert predictor.hardware is not None
    caches = [
        Attention(
            dtype="bfloat16",
            batch=8,
            query_heads=40,
            key_heads=8,
            query_length=1,
            key_length=length,
            head_size=128,
            causal=False,
            masked=False,
        )
        for length in (2047, 2710, 3000, 4095)  # of 67 to 134 MB; the L2 holds 128
    ]
    found = predictor.estimate(caches)
    read_s = [sum(one.bytes()) / predictor.hardware.memory_bytes_per_s for one in caches]
    assert (found.runtime_s >= np.array(read_s) * 0.999).all()


def test_what_a_causal_mask_hides_is_not_needed() -> None:
    hardware = find_spec("nvidia-h100-sxm5-80gb").hardware()
    sizes = {"batch": 1, "query_heads": 32, "key_heads": 8, "head_size": 128, "masked": False}

    def least(queries: int, keys: int, causal: bool) -> float:
        call = Attention(dtype="bfloat16", query_length=queries, key_length=keys, causal=causal, **sizes)
        return float(laws.least_s(columns_of(Attention, [call]), hardware)[0])

    assert least(8192, 8192, True) == pytest.approx(least(8192, 8192, False) / 2, rel=1e-3)
    assert least(64, 8192, True) == pytest.approx(least(64, 8192, False), rel=0.01)
    assert least(1, 8192, True) == least(1, 8192, False)


@pytest.mark.parametrize("device", ["nvidia-h100-sxm5-80gb", "nvidia-l40s"])
def test_the_basis_says_which_answers_a_law_holds(device: str) -> None:
    predictor = for_device(find_spec(device)).of_torch()
    layers = [
        one for name in ("conv3d", "attention", "linear") for one in drawn(KINDS[name], "bfloat16", range(20))
    ]
    found = predictor.estimate(layers)
    with without_clamps(tiles=False):
        free = predictor.estimate(layers)
    held = np.array(found.basis) == HELD
    assert held.any() and not held.all() and HELD not in free.basis
    assert (held == (found.runtime_s != free.runtime_s)).all()


@pytest.mark.parametrize("device", ["nvidia-t4", "nvidia-p100-pcie-16gb", "nvidia-a100-pcie-40gb"])
def test_types_that_a_predictor_was_not_trained_on_have_the_peaks_of_its_sheet(device: str) -> None:
    spec = find_spec(device)
    hardware = for_device(spec).hardware
    assert hardware is not None and hardware.peak("float16") == spec.peak_flops["float16"]


def test_a_board_with_the_chip_of_a_table_is_held_to_its_own_memory() -> None:
    layer = Linear(dtype="bfloat16", rows=905, in_features=64, out_features=3936, bias=True)
    least_s = laws.least_s(columns_of(Linear, [layer]), find_spec("nvidia-l40").hardware())
    warm, held = (for_device(find_spec(name)).estimate([layer]) for name in ("nvidia-l40s", "nvidia-l40"))
    assert warm.runtime_s < least_s  # its table found weights in the cache
    assert held.runtime_s == least_s and held.basis == (HELD,)


def test_results_of_a_tile_do_not_share_the_work_of_a_sum() -> None:
    predictor = for_device(find_spec("nvidia-h100-sxm5-80gb")).of_torch()
    sums = [
        Reduction(dtype="float32", function="sum", elements=2**15, outputs=outputs) for outputs in (81, 113)
    ]
    found = predictor.estimate(sums).runtime_s
    assert found[1] >= found[0]


def test_sixteen_numbers_of_four_bits_are_a_vector() -> None:
    for itemsize, numbers in ((0.5, 16), (1, 16), (2, 8)):
        assert sides_of(itemsize, numbers) == {"sides in pairs": 0.0, "odd sides": 0.0}
        assert sides_of(itemsize, numbers // 2)["sides in pairs"] == 1.0


def test_sizes_that_a_load_ties_together_keep_no_other_from_its_tile() -> None:
    load = {"tokens": 352, "experts": 8, "top_k": 1, "pairs": 352, "hit": 8, "fullest": 44}
    layers = [
        Experts(dtype="bfloat16", hidden=2096, intermediate=wide, gated=True, **load) for wide in (2224, 2240)
    ]
    tiles, _ = in_tiles(columns_of(Experts, layers))  # 8 experts of 44 tokens share no 384 pairs
    assert np.asarray(tiles.pairs).tolist() == [352, 352]
    assert np.asarray(tiles.intermediate).tolist() == [2304, 2304]
    found = for_device(find_spec("nvidia-h100-sxm5-80gb")).estimate(layers).runtime_s
    assert found[1] >= found[0]


def test_boards_of_one_chip_agree_in_few_bits_where_one_was_measured_with_its_hosts_launches() -> None:
    few = [
        Linear(dtype="float16", rows=rows, in_features=inner, out_features=outer, bias=False)
        for rows, inner, outer in ((2, 8, 3), (3, 968, 64), (2, 5792, 3))
    ]
    assert list(apart(find_spec("nvidia-v100-pcie-16gb"), few)) == []


def test_experts_stand_for_themselves_where_no_kernel_cuts_them() -> None:
    load = {"tokens": 96, "top_k": 8, "experts": 160, "pairs": 768, "hit": 126, "fullest": 90}
    wide = Experts(dtype="bfloat16", hidden=2048, intermediate=96, gated=True, **load)
    tiles, _ = in_tiles(columns_of(Experts, [wide]))
    stands = {name: int(getattr(tiles, name)[0]) for name in (*load, "intermediate")}
    assert stands == {**load, "hit": 128, "intermediate": 128}


def test_keys_of_a_prompt_stand_in_tiles() -> None:
    keys = [15, 17, 64, 65, 208, 1000]
    prompts = [
        Attention(
            batch=1,
            query_heads=1,
            key_heads=1,
            query_length=1,
            key_length=one,
            head_size=64,
            causal=False,
            masked=False,
        )
        for one in keys
    ]
    tiles, _ = in_tiles(columns_of(Attention, prompts))
    assert np.asarray(tiles.key_length).tolist() == [15, 32, 64, 128, 256, 1024]
