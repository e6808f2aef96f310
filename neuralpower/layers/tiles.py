"""How an accelerator runs matrix products: in tiles, one per core at a time, in waves over the cores.

Every term is in seconds at the device's peaks, so that a weight of 1 means "as fast as the data sheet says" and one set of
weights can serve several devices. Tiles and waves are those of blocked matrix products (NVIDIA, "Matrix Multiplication
Background User's Guide", sections on tile and wave quantisation).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.base import KEEPS_INPUTS, peak_flops
from neuralpower.layers.quantised import OwnOperands
from neuralpower.layers.terms import LINE, SECTOR, aligned, beyond_launch, past

# rows x columns of the product that one core computes at a time, as the common libraries' kernels have them
TILES = ((32, 32), (64, 32), (32, 64), (64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256))
WHOLE_TILES = (64, 128, 256)
ALIGNED_DTYPES = ("float32", "float64")
FEATURED = ((32, 32), (64, 64), (128, 64), (128, 128), (256, 128))
BEYOND_LAUNCH = ((64, 64), (128, 128))  # tiles whose time is compared with a launch
CACHE_STEPS = (1, 4, 16, 64, 256, 1024)  # an operand of so many times the cache
INNER_STEPS = (256, 1024, 4096, 16384)
FEW_ROWS = 16
# Beyond such an inner side a P100 falls from 65 to 25 % of its peak, T4, V100 and A100 hardly or not at all; networks of our
# days have none, but for gradients through a vocabulary.
COMMON_INNER = 8192
WORK_STEPS = (34, 36, 38, 40)  # log2 of FLOP: libraries take other kernels for very large products


@dataclass(frozen=True, kw_only=True)
class MatrixProduct(OwnOperands):
    """Products of matrices, all of the same sizes."""

    multiplies = True

    @abstractmethod
    def sides(self) -> tuple[Any, Any, Any, Any]:
        """(b, m, n, k) of b products [m, k] x [k, n]."""

    def keeps(self) -> str:
        """The factors."""
        return KEEPS_INPUTS

    def kernel_terms(self, hardware: Hardware) -> dict[str, Any]:
        """FLOP, bytes, whole tiles, whole waves, what no cache holds."""
        (b, m, n, k), peak, memory = self.sides(), peak_flops(self, hardware), hardware.memory_bytes_per_s
        moved = self.bytes()
        total = sum(moved)
        work = 2 * b * m * n * k
        short, scaled = self.itemsize < 2, self._scaling_s(hardware)
        at_once = self._in_one_call
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
            tiles, waves = self._tiles(hardware, x, y)
            name = f"{x}x{y}"
            terms[f"tiles_{name}"] = tiles * x * y * 2 * k / peak
            terms[f"waves_{name}"] = waves * hardware.cores * x * y * 2 * k / peak
        return terms

    def own_terms(self, hardware: Hardware) -> dict[str, Any]:
        """What tiles load and store, the power limit, sizes at which libraries change kernels: no data sheet can weigh these.

        Energy per FLOP differs by a factor of six between GPUs of one year; a library's choice of kernels is one device's.
        """
        (b, m, n, k), size, (left, right, product) = self.sides(), self.itemsize, self._itemsizes()
        peak, memory, at_once = peak_flops(self, hardware), hardware.memory_bytes_per_s, self._in_one_call
        work = 2 * b * m * n * k
        operands = (
            ("left", m * k * left),
            ("right", k * n * right),
            ("product", m * n * product),
            ("all", sum(self.bytes())),
        )
        terms = {"flops_at_power_limit": hardware.flops_at_power_limit(work)}
        for x, y in TILES:
            tiles, waves = self._tiles(hardware, x, y)
            terms[f"loads_{x}x{y}"] = tiles * k * (x * left + y * right) / memory * at_once
            terms[f"stores_{x}x{y}"] = waves * hardware.cores * x * y * product / memory * at_once
        # 8-bit products are several calls: what the host takes to launch them hides the device's work up to then, and with few
        # rows that is the tiles' walk along k or the weights' way from memory, whichever is longer, not their sum
        short, scaled = (size < 2) * (m > 1), self._scaling_s(hardware)  # one row has no tiles
        for x, y in BEYOND_LAUNCH:
            _, waves = self._tiles(hardware, x, y)
            busy = np.maximum(waves * hardware.cores * x * y * 2 * k / peak, sum(self.bytes()) / memory)
            for name, seconds in beyond_launch((busy + scaled) * short).items():
                terms[f"tiles_{x}x{y}_{name}"] = seconds
        for name, held in operands:
            for step in CACHE_STEPS:
                terms[f"flops_{name}_past_{step}_l2"] = work / peak * (held > step * hardware.l2_bytes)
        for step in INNER_STEPS:
            terms[f"flops_inner_past_{step}"] = work / peak * (k > step)
        for step in WORK_STEPS:
            terms[f"flops_past_2^{step}"] = work / peak * (work > 2.0**step)
        return terms

    def kernel_features(self, hardware: Hardware) -> dict[str, Any]:
        """How the products fill tiles and waves, what the caches hold of them, and how their sides are aligned."""
        (b, m, n, k), (left, right, product) = self.sides(), self._itemsizes()
        features = {"intensity": np.log2(m * n * k / (m * k + k * n + m * n))}
        for x, y in FEATURED:
            tiles, waves = self._tiles(hardware, x, y)
            name = f"{x}x{y}"
            features[f"fill_{name}"] = tiles / (waves * hardware.cores)
            features[f"padding_{name}"] = b * m * n / (tiles * x * y)
            features[f"waves_{name}"] = np.minimum(np.log2(waves), 6)
        for name, held in (("left", m * k * left), ("right", k * n * right), ("product", m * n * product)):
            features[f"{name}_in_l2"] = np.log2(held / hardware.l2_bytes)
        for name, side in (("rows", m), ("columns", n), ("inner", k)):
            features[f"{name}_aligned"] = sum((side % step == 0) * 1.0 for step in (2, 4, 8, 16))
        return features

    def alignment(self) -> dict[str, Any]:
        """How rows begin that are k long (of the left operand, of weights) and n long (of the product); how it fills tiles.

        Libraries choose tiles by what the last of them would waste: where it is at most half full, smaller and slower ones. Of
        tensor cores' kernels, which are others, nothing is known: their shares are 0.
        """
        (_, m, n, k), known = self.sides(), np.isin(self.dtype, ALIGNED_DTYPES)
        left, _, product = self._itemsizes()
        shares = aligned("inner_bytes", k * left, SECTOR, LINE)
        shares |= aligned("column_bytes", n * product, SECTOR, LINE)
        for name, side in (("rows", m), ("columns", n)):
            for tile in WHOLE_TILES:
                halves = np.ceil(np.asarray(side) * 2 / tile)
                shares[f"{name}_fill_{tile}"] = np.where(
                    halves > 1, halves % 2 == 0, 0.5
                )  # of half a tile: not known
        return {name: share * known for name, share in shares.items()}

    def tells_of_others(self) -> Any:
        """Not where the inner side is so long that GPUs go apart."""
        return self.sides()[3] <= COMMON_INNER

    def _itemsizes(self) -> tuple[Any, Any, Any]:
        """Bytes of one number of the left factor, the right one and the product."""
        operands = self.operand_types()
        return operands.input.itemsize, operands.weights.itemsize, operands.output.itemsize

    @property
    def _in_one_call(self) -> Any:
        """1, or 0 for products of 8 bits: several calls, whose launches hide bytes, so that only those beyond a launch count."""
        return 1.0 * (self.itemsize >= 2)

    def _scaling_s(self, hardware: Hardware) -> Any:
        """Seconds before a product of 8 bits, by calls that outlast small ones: its left operand is read wide, scaled, written."""
        b, m, _, k = self.sides()
        return 4 * b * m * k * (self.itemsize < 2) / hardware.memory_bytes_per_s

    def _tiles(self, hardware: Hardware, x: int, y: int) -> tuple[Any, Any]:
        """(tiles, waves) of all products in tiles of x x y."""
        b, m, n, _ = self.sides()
        tiles = b * np.ceil(m / x) * np.ceil(n / y)
        return tiles, np.ceil(tiles / hardware.cores)
