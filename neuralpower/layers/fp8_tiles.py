"""The tile that a library chooses for a product of 8 bits: the one whose cache traffic takes fewest cycles.

The rule is DeepGEMM's for NVIDIA's Hopper (deepseek-ai/DeepGEMM, MIT licence). It compares all tiles that fit
a core's registers, alone or with a neighbour that shares what both read: least traffic and fullest waves win.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from neuralpower.devices.hardware import Hardware

ROWS, COLUMNS = (64, 128, 16, 32, 256), (*range(16, 161, 16), 192)
LARGEST = 128  # of one side at least, so that the sums stay in registers
SHARING = ((1, 1), (1, 2), (2, 1))  # neighbours that share the columns, and the rows, that they read
OPERATION = 64  # rows that a core multiplies at a time, filled or not; smaller tiles are for fewer rows
OUTER, INNER = 64.0, 128.0  # bytes a cycle for each core from the cache of all, and from its own
OUTER_IN_ALL = 6154.0  # bytes a cycle
WRITTEN = 2  # bytes of a result
MOST_WAVES = 64
CHUNK = 4096  # products at a time, so that all tiles of them stay in the cache

CANDIDATES = np.array(
    [(*shared, x, y) for shared, x, y in itertools.product(SHARING, ROWS, COLUMNS) if min(x, y) <= LARGEST],
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
