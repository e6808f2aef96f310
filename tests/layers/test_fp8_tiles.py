"""Which tile a library takes for a product of 8 bits."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.aiconfigurator import compiled
from neuralpower.data.screening import screen
from neuralpower.devices.hardware import Hardware
from neuralpower.layers.columns import columns_of
from neuralpower.layers.linear import Linear
from neuralpower.layers.tiles import CHUNK, chosen_tile
from neuralpower.learn.fitting.problem import describe_power

H200 = Hardware(
    platform="accelerator",
    cores=132,
    l2_bytes=50 * 2**20,
    peak_flops_per_s={"float8_e4m3fn": 2e15, "bfloat16": 1e15},
    memory_bytes_per_s=4.8e12,
)


def tile(m: int, n: int, k: int) -> list[float]:
    """[rows, columns, waves, share of the cores that work] for one product."""
    found = chosen_tile(H200, m, n, k)
    return [float(found[name][0]) for name in ("tile_rows", "tile_columns", "tile_waves", "tile_fill")]


def test_a_product_of_few_rows_takes_narrow_tiles_that_leave_no_second_wave() -> None:
    # 8 rows: tiles of 16 rows; 4096 columns in 32s are 128 tiles, in 16s they were 256 and two waves
    assert tile(8, 4096, 16384) == pytest.approx([16, 32, 1, 128 / 132])


def test_a_large_product_takes_the_largest_tiles() -> None:
    # for each step along k, 256 x 128 reads 384 numbers for 32,768 sums; 128 x 128 reads 256 for 16,384
    rows, columns, waves, fill = tile(32768, 65536, 8192)
    assert rows * columns == 256 * 128
    assert waves == 64  # 65,536 tiles are 497 waves; at most 64 are distinguished
    assert fill == pytest.approx(1, abs=0.01)


def test_narrow_tiles_are_for_products_of_no_more_rows() -> None:
    assert [tile(m, 512, 4096)[0] for m in (16, 17, 33)] == [16, 32, 64]


def test_many_products_are_chosen_for_as_one_is() -> None:
    m = np.arange(1, CHUNK + 200)
    found = chosen_tile(H200, m, 7168, 2048)
    assert {len(values) for values in found.values()} == {len(m)}
    for at in (0, 63, CHUNK - 1, CHUNK, CHUNK + 150):
        alone = chosen_tile(H200, m[at], 7168, 2048)
        assert {name: values[at] for name, values in found.items()} == {
            name: v[0] for name, v in alone.items()
        }


def test_the_residual_of_a_products_power_sees_its_tile() -> None:
    layer = Linear(dtype="float8_e4m3fn", rows=8, in_features=16384, out_features=4096, bias=False)
    problem = describe_power(columns_of(Linear, [layer]), H200, np.array([5e-5]))
    assert problem.features.shape == (1, len(problem.feature_names))
    assert problem.features[0, problem.feature_names.index("tile_columns")] == 32


def test_a_kernel_is_compiled_where_its_tile_is_first_met_from_the_largest_product_down() -> None:
    # of 512 columns, 17 and 32 rows share the tile of 32 rows, and 32 came first; bfloat16 is not compiled
    shape = {
        "in_features": 4096,
        "out_features": 512,
        "bias": False,
        "transposed": True,
        "runtime_s": 1e-3,
        "power_w": 300.0,
    }
    sizes = [("float8_e4m3fn", m) for m in (16, 17, 32)] + [("bfloat16", 32)]
    table = pd.DataFrame([{"dtype": dtype, "rows": m, **shape} for dtype, m in sizes])
    assert compiled(screen("linear", table, hardware=H200), H200).tolist() == [True, False, True, False]
