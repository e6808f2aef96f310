"""Views: how the layers of a kind are described to the regressors of a platform.

A kind has a table of three. `cpu` counts FLOP and bytes; `kernels` gives seconds at the peaks of a device
that runs kernels over many cores; `pooled` is of several such devices. What a view leaves out, it has from
the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.operands import Bytes, by_dtype
from neuralpower.layers.terms import MAPPED_BYTES, beyond_launch, past

Described = dict[str, Any]  # numbers by name, or arrays [rows] of a table's columns


def unsaid(*_: Any) -> Any:
    """Stand in a view for what the more general view says."""
    raise NotImplementedError("the more general view says it")


@dataclass(frozen=True, kw_only=True)
class View:
    """Functions of a layer or of a table's columns, most of them of the device, too."""

    # Calls of one kind that run different code are fitted apart, by this name.
    group: Callable[[Any], Any] = unsaid
    # Special terms besides the polynomial, none below 0; of kernels in seconds at the device's peaks.
    terms: Callable[[Any, Hardware], Described] = unsaid
    # More terms, which only the device's own rows can weigh; `..._past_...` are thresholds.
    own_terms: Callable[[Any, Hardware], Described] = unsaid
    # Fit to kernels, as shares from 0 to 1: rows that begin aligned, how full tiles are.
    alignment: Callable[[Any], Described] = unsaid
    # Features of the residual, besides the logarithms of the dimensions.
    features: Callable[[Any, Hardware], Described] = unsaid
    # More of them for power, besides the use of the units.
    power_features: Callable[[Any, Hardware], Described] = unsaid
    # B as terms and features take them: not `bytes` where predictors were trained on another number.
    moved: Callable[[Any], Bytes] = unsaid
    # Whether a layer's time on one device helps on another, which may choose other code for its size.
    tells_of_others: Callable[[Any], Any] = unsaid
    # Degrees of the polynomial that are tried. Where kernels run, most networks exceed measured shapes.
    degrees: tuple[int, ...] = ()
    # Features: the residual is a curve along the first, one for each value of the second.
    curve: tuple[str, ...] = ()

    def over(self, general: View) -> View:
        """This view, with what it leaves out from a more general one."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(general, **{name: value for name, value in said.items() if value not in (unsaid, ())})


LEFT = View()  # all to the more general view
DEGREES = (1, 2, 3)  # of a polynomial in a layer's sizes


class Views:
    """The table of a kind; `of`: that of the kind that it derives from."""

    def __init__(
        self, *, cpu: View = LEFT, kernels: View = LEFT, pooled: View = LEFT, of: Views | None = None
    ) -> None:
        general = GENERAL if of is None else of.said
        self.said: tuple[View, ...] = tuple(map(View.over, (cpu, kernels, pooled), general))
        self.cpu = self.said[0]
        self.kernels = self.said[1].over(self.cpu)
        self.pooled = self.said[2].over(self.kernels)


def bytes_terms(layer: Any, hardware: Hardware) -> Described:
    """Bytes, and bytes beyond the caches."""
    moved = layer.views.cpu.moved(layer)
    total = sum(moved)
    return {
        "bytes": total,
        "output_bytes": moved.output,
        "bytes_past_l2": past(total, hardware.l2_bytes * hardware.cores),
        "bytes_past_llc": past(total, hardware.llc_bytes),
        "output_bytes_mapped": moved.output * (moved.output >= MAPPED_BYTES),
    }


def seconds_terms(layer: Any, hardware: Hardware) -> Described:
    """Seconds of FLOP and bytes at the device's peaks, and bytes beyond its cache."""
    moved, memory = layer.views.kernels.moved(layer), hardware.memory_bytes_per_s
    total = sum(moved)
    return {
        "flops": layer.flops() / peak_flops(layer, hardware),
        "bytes": total / memory,
        "output_bytes": moved.output / memory,
        "bytes_past_l2": past(total, hardware.l2_bytes) / memory,
        **beyond_launch(total / memory),
    }


def as_one(layer: Any) -> str:
    """No groups: all calls run the same code."""
    return "all"


def by_function(layer: Any) -> Any:
    """Each function is code of its own."""
    return np.asarray(layer.function)


def nothing(*_: Any) -> Described:
    """No terms or features."""
    return {}


def peak_flops(layer: Any, hardware: Hardware) -> Any:
    """FLOP/s of the layer's dtype at best; an array where the layer is a table's columns."""
    return by_dtype(layer.dtype, hardware.peak)


def most_flops(layer: Any, hardware: Hardware) -> Any:
    """FLOP/s that no such layer can exceed: its dtype's own peak, infinite where that is not known."""
    return by_dtype(layer.dtype, lambda dtype: hardware.peak_flops_per_s.get(dtype, math.inf))


GENERAL = (
    View(
        group=as_one,
        terms=bytes_terms,
        own_terms=nothing,
        alignment=nothing,
        features=nothing,
        power_features=nothing,
        moved=lambda layer: layer.bytes(),
        tells_of_others=lambda layer: True,
        degrees=DEGREES,
    ),
    View(terms=seconds_terms, degrees=(0,)),
    View(own_terms=nothing, alignment=nothing),
)
"""The defaults of a kind, from the most general view on."""
