"""How an accelerator runs matrix products: in tiles, and in waves over the cores.

Every term is in seconds at the device's peaks: a weight of 1 means "as fast as the data sheet states", and
one set of weights can serve several devices. Tiles and waves are those of blocked matrix products (NVIDIA,
"Matrix Multiplication Background User's Guide", sections on tile and wave quantisation).
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers import Described, KindLaw, Layer, View, Views
from neuralpower.layers.terms import CALL_CYCLES, LINE, SECTOR, aligned, beyond_launch, past
from neuralpower.layers.traits import Traits, of_product, steps
from neuralpower.layers.views import peak_flops

# ---- The tile that a library chooses for a product of 8 bits: least time for traffic of the caches ----
# The rule is DeepGEMM's for NVIDIA's Hopper (deepseek-ai/DeepGEMM, MIT licence). It compares all tiles that
# fit a core's registers, alone or with a neighbour that shares what both read: least traffic and fullest
# waves win.


TALL, WIDE = (64, 128, 16, 32, 256), (*range(16, 161, 16), 192)
LARGEST = 128  # of one side at least, so that the sums stay in registers
SHARING = ((1, 1), (1, 2), (2, 1))  # neighbours that share the columns, and the rows, that they read
OPERATION = 64  # rows that a core multiplies at a time, filled or not; smaller tiles are for fewer rows
OUTER, INNER = 64.0, 128.0  # bytes a cycle for each core from the cache of all, and from its own
OUTER_IN_ALL = 6154.0  # bytes a cycle
WRITTEN = 2  # bytes of a result
MOST_WAVES = 64
CHUNK = 4096  # products at a time, so that all tiles of them stay in the cache

CANDIDATES = np.array(
    [(*shared, x, y) for shared, x, y in itertools.product(SHARING, TALL, WIDE) if min(x, y) <= LARGEST],
    dtype=float,
)


def chosen_tile(hardware: Hardware, m: Any, n: Any, k: Any) -> dict[str, Any]:
    """Sides of the tile for products [m, k] x [k, n] of 8 bits, who shares it, and its waves."""
    sides = np.stack([np.ravel(side).astype(float) for side in np.broadcast_arrays(m, n, k)])
    chunks = range(0, max(sides.shape[1], 1), CHUNK)
    best = np.concatenate([np.argmin(_cycles(hardware, *sides[:, i : i + CHUNK]), axis=0) for i in chunks])
    down, right, x, y = CANDIDATES[best].T
    tiles = np.ceil(sides[0] / x) * np.ceil(sides[1] / y)
    waves = np.ceil(tiles / hardware.cores)
    return {
        "tile_rows": x,
        "tile_columns": y,
        "tile_shared": down + 2 * right,
        "tile_waves": np.minimum(waves, MOST_WAVES),
        "tile_fill": tiles / waves / hardware.cores,
        "tile_last": (tiles - 1) % hardware.cores,
    }


def _cycles(hardware: Hardware, m: Any, n: Any, k: Any) -> Any:
    """Cycles with each candidate, up to a factor, [candidates, products]; infinite where it is unfit."""
    down, right, x, y = CANDIDATES.T[:, :, None]
    tiles = np.ceil(m / x) * np.ceil(n / y)
    waves = np.ceil(tiles / hardware.cores)
    outer = k * (x / right + y / down) + x * y * WRITTEN
    inner = k * (x + y) + k * (np.maximum(x, OPERATION) + y) + 2 * x * y * WRITTEN
    slower = np.maximum(outer / min(OUTER * hardware.cores, OUTER_IN_ALL), inner / (INNER * hardware.cores))
    unfit = ((x < OPERATION) & (m > x)) | ((down * right > 1) & (waves == 1))
    return np.where(unfit, np.inf, slower * waves * hardware.cores)


# Rows and columns of the product that one core computes at a time, as in the common libraries' kernels.
# ---- Views of products: tiles and waves as terms ----

TILES = ((32, 32), (64, 32), (32, 64), (64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256))
WHOLE_TILES = (64, 128, 256)
ALIGNED_DTYPES = ("float32", "float64")
FEATURED = ((32, 32), (64, 64), (128, 64), (128, 128), (256, 128))
BEYOND_LAUNCH = ((64, 64), (128, 128))  # tiles whose time is compared with a launch
CACHE_STEPS = (1, 4, 16, 64, 256, 1024)  # sizes of an operand, in caches
INNER_STEPS = (256, 1024, 4096, 16384)
FEW_ROWS = 16
# Beyond such an inner side a P100 falls from 65 to 25 % of its peak, T4, V100 and A100 hardly or not at all.
# Today only gradients through a vocabulary have one.
COMMON_INNER = 8192
CACHE_BYTES_PER_CYCLE = 64  # that the cache of all hands to a core, by NVIDIA's white papers since 2020
SHORT_CALL_CYCLES = 4000  # of a short kernel, up to a factor
ROWS = (0, 3, 5, 7, 9)  # exponents of steps of a product's rows: traits
WORK_STEPS = (34, 36, 38, 40)  # log2 of FLOP: libraries take other kernels for very large products


def _kernel_terms(layer: TiledProduct, hardware: Hardware) -> Described:
    """FLOP, bytes, whole tiles, whole waves, what no cache holds."""
    (b, m, n, k), peak, memory = layer.sides(), peak_flops(layer, hardware), hardware.memory_bytes_per_s
    moved = layer.bytes()
    total = sum(moved)
    work = 2 * b * m * n * k
    short, scaled = layer.itemsize < 2, _scaling_s(layer, hardware)
    at_once = _in_one_call(layer)
    terms = {
        "flops": work / peak,
        "flops_at_base_clock": work / peak / hardware.base_clock,
        "bytes": total / memory * at_once,
        "output_bytes": moved.output / memory,
        "bytes_past_l2": past(total, hardware.l2_bytes) / memory * at_once,
        "scaled_bytes": scaled,
        "scaled_calls": 1.0 * short,
        "scaled_calls_many_rows": 1.0 * short * (m > FEW_ROWS),
        "scaled_calls_padded": 1.0 * short * (m > FEW_ROWS) * (m % 4 > 0),
        **beyond_launch(work / peak + total / memory + scaled),
    }
    for x, y in TILES:
        tiles, waves = layer.tiles(hardware, x, y)
        name = f"{x}x{y}"
        terms[f"tiles_{name}"] = tiles * x * y * 2 * k / peak
        terms[f"waves_{name}"] = waves * hardware.cores * x * y * 2 * k / peak
    return terms


def _pooled_terms(layer: TiledProduct, hardware: Hardware) -> Described:
    """Terms of bytes at the last-level cache's bandwidth, and of a call's cycles.

    Both distinguish devices that memory and peaks do not. Held out, with the peaks that power allows,
    bfloat16 products are off by 18.8 % for 27.4 on an L40S, by 14.6 for 32.3 on an RTX PRO 6000.
    """
    cached = CACHE_BYTES_PER_CYCLE * hardware.cores * hardware.clock()
    return {
        **layer.views.kernels.terms(layer, hardware),
        "bytes_from_cache": sum(layer.bytes()) / cached,
        CALL_CYCLES: SHORT_CALL_CYCLES / hardware.clock() * np.ones_like(layer.flops(), dtype=float),
    }


def _own_terms(layer: TiledProduct, hardware: Hardware) -> Described:
    """Terms of tiles' loads and stores, the power limit, and sizes at which libraries change kernels.

    No data sheet can weigh these: energy per FLOP differs sixfold between GPUs of one year, and a library
    chooses kernels for one device.
    """
    (b, m, n, k), size, (left, right, product) = layer.sides(), layer.itemsize, _itemsizes(layer)
    peak, memory, at_once = peak_flops(layer, hardware), hardware.memory_bytes_per_s, _in_one_call(layer)
    work, moved = 2 * b * m * n * k, sum(layer.bytes())
    terms = {"flops_at_power_limit": hardware.flops_at_power_limit(work)}
    for x, y in TILES:
        tiles, waves = layer.tiles(hardware, x, y)
        terms[f"loads_{x}x{y}"] = tiles * k * (x * left + y * right) / memory * at_once
        terms[f"stores_{x}x{y}"] = waves * hardware.cores * x * y * product / memory * at_once
    # 8-bit products are several calls, whose launches hide the device's work up to then: with few rows
    # the tiles' walk along k or the weights' way from memory, whichever is longer, not their sum.
    short, scaled = (size < 2) * (m > 1), _scaling_s(layer, hardware)  # one row has no tiles
    for x, y in BEYOND_LAUNCH:
        _, waves = layer.tiles(hardware, x, y)
        busy = np.maximum(waves * hardware.cores * x * y * 2 * k / peak, moved / memory)
        for name, seconds in beyond_launch((busy + scaled) * short).items():
            terms[f"tiles_{x}x{y}_{name}"] = seconds
    for name, held in {**_held(layer), "all": moved}.items():
        for step in CACHE_STEPS:
            terms[f"flops_{name}_past_{step}_l2"] = work / peak * (held > step * hardware.l2_bytes)
    terms |= {f"flops_inner_past_{step}": work / peak * (k > step) for step in INNER_STEPS}
    return terms | {f"flops_past_2^{step}": work / peak * (work > 2.0**step) for step in WORK_STEPS}


def _traits(layer: TiledProduct) -> Traits:
    """Columns and inner side; few rows; sides that no vector fits."""
    b, m, n, k = layer.sides()
    rows = steps("rows", m, ROWS)
    return Traits(of_product(layer.itemsize, b, m, n, k) | rows | {"batched": 1.0 * (np.asarray(b) > 1)})


def _kernel_features(layer: TiledProduct, hardware: Hardware) -> Described:
    """How products fill tiles and waves, what the caches hold of them, how their sides are aligned."""
    b, m, n, k = layer.sides()
    features = {"intensity": np.log2(m * n * k / (m * k + k * n + m * n))}
    for x, y in FEATURED:
        tiles, waves = layer.tiles(hardware, x, y)
        name = f"{x}x{y}"
        features[f"fill_{name}"] = tiles / (waves * hardware.cores)
        features[f"padding_{name}"] = b * m * n / (tiles * x * y)
        features[f"waves_{name}"] = np.minimum(np.log2(waves), 6)
    for name, held in _held(layer).items():
        features[f"{name}_in_l2"] = np.log2(held / hardware.l2_bytes)
    for name, side in (("rows", m), ("columns", n), ("inner", k)):
        features[f"{name}_aligned"] = sum((side % step == 0) * 1.0 for step in (2, 4, 8, 16))
    return features


def _alignment(layer: TiledProduct) -> Described:
    """How rows of length k (left operand, weights) and n (product) begin, and how full tiles are.

    Libraries choose smaller and slower tiles where the last one would be at most half full. Nothing is
    known of tensor cores' kernels, which are others: their shares are 0.
    """
    (_, m, n, k), known = layer.sides(), np.isin(layer.dtype, ALIGNED_DTYPES)
    left, _, product = _itemsizes(layer)
    shares = aligned("inner_bytes", k * left, SECTOR, LINE)
    shares |= aligned("column_bytes", n * product, SECTOR, LINE)
    for name, side in (("rows", m), ("columns", n)):
        for tile in WHOLE_TILES:
            halves = np.ceil(np.asarray(side) * 2 / tile)  # a single one: not known
            shares[f"{name}_fill_{tile}"] = np.where(halves > 1, halves % 2 == 0, 0.5)
    return {name: share * known for name, share in shares.items()}


def _itemsizes(layer: TiledProduct) -> tuple[Any, Any, Any]:
    """Bytes of one number of the left factor, the right one and the product."""
    operands = layer.operand_types
    return operands.input.itemsize, operands.weights.itemsize, operands.output.itemsize


def _held(layer: TiledProduct) -> Described:
    (_, m, n, k), (left, right, product) = layer.sides(), _itemsizes(layer)
    return {"left": m * k * left, "right": k * n * right, "product": m * n * product}


def _in_one_call(layer: TiledProduct) -> Any:
    """1, or 0 for products of 8 bits: several calls, whose launches hide the bytes."""
    return 1.0 * (layer.itemsize >= 2)


def _scaling_s(layer: TiledProduct, hardware: Hardware) -> Any:
    """Seconds before a product of 8 bits, in which its left operand is read wide, scaled and written."""
    b, m, _, k = layer.sides()
    return 4 * b * m * k * (layer.itemsize < 2) / hardware.memory_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class TiledProduct(Layer):
    """Products of matrices of the same sizes in `dtype`, and what they cost in tiles."""

    views = Views(
        kernels=View(
            terms=_kernel_terms, own_terms=_own_terms, alignment=_alignment, features=_kernel_features
        ),
        # GPUs differ where the inner side is long
        pooled=View(terms=_pooled_terms, tells_of_others=lambda layer: layer.sides()[3] <= COMMON_INNER),
    )
    law = KindLaw(traits=_traits, on_cpu=lambda layer: 13.0)

    @abstractmethod
    def sides(self) -> tuple[Any, Any, Any, Any]:
        """(b, m, n, k) of b products [m, k] x [k, n]."""

    def tiles(self, hardware: Hardware, x: int, y: int) -> tuple[Any, Any]:
        """(tiles, waves) of all products in tiles of x x y."""
        b, m, n, _ = self.sides()
        tiles = b * np.ceil(m / x) * np.ceil(n / y)
        return tiles, np.ceil(tiles / hardware.cores)
