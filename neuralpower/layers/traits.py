"""Traits and laws: what changes the share of the peaks that a kernel reaches, and what else bounds it.

Each trait is a share from 0 to 1, by name. A prior (`neuralpower.learn.unmeasured.prior`) has a factor for
each, raised to the power of the share. Sizes are traits of neighbouring powers of 2, whose shares add up
to 1: between them a factor changes gradually.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.terms import ceil_to

VECTOR_BYTES = 16  # that one thread loads at once
PAIR_BYTES = 4  # of two numbers of 16 bits, or one of 32


class Traits(NamedTuple):
    """The traits of calls, as plain numbers or arrays [rows]."""

    compute: Mapping[str, Any] = {}  # of the time that FLOP take
    memory: Mapping[str, Any] = {}  # of the time that bytes take
    lanes: Any = False  # whether the FLOP run on float32 lanes, whatever the type: no tensor core does them
    passes: Any = 1  # over the bytes, at most, of code that passes over them more than once, such as a sort


def steps(name: str, size: Any, exponents: Sequence[int]) -> dict[str, Any]:
    """Shares of `size` between neighbouring powers of 2: 48 is 0.42 of 32 and 0.58 of 64.

    Sizes beyond the first or last power count as that one.
    """
    at = np.clip(np.log2(np.maximum(np.asarray(size, dtype=float), 1)), exponents[0], exponents[-1])
    unit = np.eye(len(exponents))  # each step's share at the steps themselves
    return {
        f"{name} {2**one}": np.interp(at, exponents, share)
        for one, share in zip(exponents, unit, strict=True)
    }


def sides_of(itemsize: Any, *sides: Any) -> dict[str, Any]:
    """How sides of matrices lie in memory: in whole vectors, in pairs of 16-bit numbers, or in neither.

    Numbers of less than a byte make a vector of as many as those of one byte.
    """
    whole, vector = [np.asarray(side) * itemsize for side in sides], VECTOR_BYTES * np.minimum(itemsize, 1)
    vectors = functools.reduce(np.logical_and, [size % vector == 0 for size in whole])
    pairs = functools.reduce(np.logical_and, [size % PAIR_BYTES == 0 for size in whole])
    return {"sides in pairs": 1.0 * (pairs & ~vectors), "odd sides": 1.0 * ~pairs}


def only(condition: Any, shares: Mapping[str, Any]) -> dict[str, Any]:
    """The shares where a condition holds, else 0."""
    return {name: share * np.asarray(condition) for name, share in shares.items()}


WIDTHS = (5, 7, 9, 11, 13)  # exponents of steps of a row that is reduced
PADDED = "padded columns"  # octaves by which whole tiles have more columns, one at most
TILE = 64  # rows and columns of a product that a core computes at a time, about
TILES = (0, 2, 4, 6, 8, 10)  # exponents of steps of tiles: few leave cores without work
SIZES = (12, 15, 18, 21, 24, 27)  # of bytes: what is over soon reaches no full bandwidth
OUTPUTS = (3, 4, 5, 6, 7, 8, 9)  # exponents of steps: columns of a product
INNER = (4, 5, 6, 7, 8, 9, 10, 11)  # and its inner side


def of_product(itemsize: Any, batch: Any, rows: Any, columns: Any, inner: Any) -> dict[str, Any]:
    """Traits of `batch` products [rows, inner] x [inner, columns]: narrow ones fill no tile, few no GPU."""
    tiles = batch * np.ceil(rows / TILE) * np.ceil(columns / TILE)
    return {
        **steps("tiles", tiles, TILES),
        PADDED: np.minimum(np.log2(ceil_to(columns, TILE) / np.maximum(columns, 1)), 1.0),
        **steps("columns", columns, OUTPUTS),
        **steps("inner", inner, INNER),
        **sides_of(itemsize, columns, inner),
    }


DENSE_ON_CPU = 3.0


def by_code(usual: float, factors: Mapping[str, float]) -> Callable[[Any], Any]:
    """A factor by function, or by the group of a CPU's code: what no vector instruction does takes long."""

    def factor(layer: Any) -> Any:
        names, found = (layer.views.cpu.group(layer), getattr(layer, "function", "")), np.asarray(usual)
        for name, times in factors.items():
            is_so = functools.reduce(np.logical_or, [np.asarray(own) == name for own in names])
            found = np.where(is_so, times, found)
        return found

    return factor


# ---- Laws: what bounds the time of a kind's calls on any device, besides their FLOP and bytes ----


@dataclass(frozen=True, kw_only=True)
class KindLaw:
    """Functions of a layer or of a table's columns."""

    # The name under which a prior knows the kind, "" for its own: kinds that run the same code share one.
    alike: str = ""
    # FLOP that kernels cannot pass by, where `flops` counts more by convention.
    needed_flops: Callable[[Any], Any] = lambda layer: layer.flops()
    # What changes the share of a device's peaks that its kernels reach (`neuralpower.layers.traits`).
    traits: Callable[[Any], Traits] = lambda layer: Traits()
    # Steps that the host issues in a row for a call, up to a factor: its time grows with them.
    launches: Callable[[Any], Any] = lambda layer: 1
    # Bytes of weights that steps in a row read again.
    again_bytes: Callable[[Any], Any] = lambda layer: 0
    # What a program may run in its place, where that is faster; None: nothing.
    instead: Callable[[Any], Any] = lambda layer: None
    # (Rows, shares of the way, the next smaller size, the next larger) where a time runs straight, among the
    # rows that are marked, bool [rows]; None: there are none.
    between: Callable[[Any, Any], tuple[Any, Any, Any, Any] | None] = lambda columns, marked: None
    # Seconds at the device's peaks of what neither memory nor FLOP bounds; None: they bound it.
    bound_s: Callable[[Any, Hardware], Any] = lambda layer, hardware: None
    # The part of the device that bounds it instead, as text; "" where `bound_s` is None.
    bound_by: Callable[[Any, Hardware], str] = lambda layer, hardware: ""
    # Times its law that a CPU takes for a large forward call at most (`learn/unmeasured/laws.py`).
    on_cpu: Callable[[Any], Any] = lambda layer: DENSE_ON_CPU
    # Times a forward call that stands for a gradient on a CPU, where no backward pass was measured.
    gradient_on_cpu: Callable[[Any], Any] = lambda layer: 1.0
    # By what devices run a kind alike, given its name of a type; None: by nothing.
    alike_by: Callable[[Any, Hardware, str], float | None] = lambda kind, hardware, dtype: (
        hardware.width(dtype) if kind.multiplies and hardware.on_tensor_cores(dtype) else None
    )
