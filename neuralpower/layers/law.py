"""Laws: what bounds the time of a kind's calls on any device, besides their FLOP and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.traits import Traits


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
    # What a program may run in its place, where that is faster; None: nothing.
    instead: Callable[[Any], Any] = lambda layer: None
    # (Rows, shares of the way, the next smaller size, the next larger) where a time runs straight, among the
    # rows that are marked, bool [rows]; None: there are none.
    between: Callable[[Any, Any], tuple[Any, Any, Any, Any] | None] = lambda columns, marked: None
    # Seconds at the device's peaks of what neither memory nor FLOP bounds; None: they bound it.
    bound_s: Callable[[Any, Hardware], Any] = lambda layer, hardware: None
    # The part of the device that bounds it instead, as text; "" where `bound_s` is None.
    bound_by: Callable[[Any, Hardware], str] = lambda layer, hardware: ""
    # By what devices run a kind alike, given its name of a type; None: by nothing.
    alike_by: Callable[[Any, Hardware, str], float | None] = lambda kind, hardware, dtype: (
        hardware.width(dtype) if kind.multiplies and dtype in hardware.peak_flops_per_s else None
    )
