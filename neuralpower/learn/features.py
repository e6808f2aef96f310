"""What the learner sees of layers of one kind on a device: table columns + hardware -> Problem."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from neuralpower.layers.base import Hardware, Layer, fingerprint, peak_flops
from neuralpower.learn.fit import DEGREES, Problem

Array = np.ndarray


def describe(
    columns: Layer,
    hardware: Hardware,
    *,
    portable: bool = False,
    target: Array | None = None,
    slowdown: Array | None = None,
    device: int = 0,
    featured: bool = True,
    also: Collection[str] | None = None,
) -> Problem:
    """Dimensions, special terms, features and axes of the box, each [rows]; `target` is what is to be learnt of them.

    Portable: only what is relative to the device's peaks, so that rows of several devices can be learnt from together; the
    device's own numbers are axes of the box, too. Without `featured` the residual's features, [rows, 0], are left out.
    `also`: the plain dimensions that are wanted; None: all, to learn from.
    """
    rows = len(np.atleast_1d(columns.dtype))
    apart = portable and columns.multiplies and hardware.held_by_power  # its level tells how warm it got
    hardware = hardware.sustained() if portable else hardware

    def full(value: Any) -> Array:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (rows,))

    degrees = (0,) if portable else columns.accelerator_degrees if hardware.accelerator else DEGREES
    plain = columns.plain_dimensions() if max(degrees) and also is None else ()
    dimensions = {name: full(getattr(columns, name)) for name in columns.dimensions}
    flops, size = full(columns.flops()), full(sum(columns.bytes()))
    axes = {name: np.log2(np.maximum(value, 1)) for name, value in dimensions.items()}
    special = columns.accelerator_terms(hardware) if hardware.accelerator else columns.terms(hardware)
    special.setdefault("flops", flops)
    if portable and hardware.accelerator and not columns.multiplies:
        del special["flops"]  # a pass waits for its bytes; what FLOP would say of it, they say of other devices' peaks
    own, shares = {}, {}
    if hardware.accelerator and not portable:
        own, shares = columns.own_terms(hardware), columns.alignment()
    special |= own | shares | (columns.portable_terms(hardware) if portable and hardware.accelerator else {})
    if portable:
        peak, memory = full(peak_flops(columns, hardware)), hardware.memory_bytes_per_s
        axes |= {
            "device_flops_per_s": np.log2(peak),
            "device_bytes_per_s": full(np.log2(memory)),
            "device_cores": full(np.log2(hardware.cores)),
            "device_l2_bytes": full(np.log2(hardware.l2_bytes)),
        }
    seen = _features(columns, hardware, axes, flops, size, portable) if featured else {}
    return Problem(
        dimensions={} if portable else dimensions | {n: full(getattr(columns, n)) for n in (*plain, *(also or ()))},
        special={name: full(value) for name, value in special.items()},
        features=np.column_stack([full(value) for value in seen.values()]) if seen else np.empty((rows, 0)),
        feature_names=tuple(seen),
        axes=axes,
        target=full(0.0 if target is None else target),
        slowdown=full(1.0 if slowdown is None else slowdown),
        config=fingerprint(columns),
        size=flops + size,
        device=np.full(rows, device),
        apart=frozenset({device}) if apart else frozenset(),
        shares=tuple(shares),
        optional=tuple(name for name in own if "_past_" in name),
        degrees=degrees,
        plain=plain,
    )


def _features(
    columns: Layer, hardware: Hardware, axes: dict[str, Array], flops: Array, size: Array, portable: bool
) -> dict[str, Any]:
    """What the residual sees, by name."""
    own = columns.accelerator_features(hardware) if hardware.accelerator else columns.features()
    if not portable:
        return {**axes, "flops": np.log2(flops + 1), "bytes": np.log2(size + 1), **own}
    compute, memory = flops / peak_flops(columns, hardware), size / hardware.memory_bytes_per_s
    return {"flops": np.log2(compute + 1e-9), "bytes": np.log2(memory + 1e-9), **own}


def describe_power(columns: Layer, hardware: Hardware, runtime_s: Array, target: Array | None = None) -> Problem:
    """The same for watts: how far a layer of that runtime uses the device's units and its memory."""
    problem = describe(columns, hardware, target=target)
    compute = np.asarray(columns.flops() / peak_flops(columns, hardware) / runtime_s)
    memory = np.asarray(sum(columns.bytes()) / hardware.memory_bytes_per_s / runtime_s)
    use = {"compute": compute, "memory": memory, "both": compute * memory}
    use |= {"root_compute": np.sqrt(compute), "root_memory": np.sqrt(memory)}
    seen = {"runtime": np.log2(runtime_s), "compute": compute, "memory": memory}
    seen |= columns.power_features(hardware) if hardware.accelerator else {}
    return replace(
        problem,
        dimensions={},
        special=use,
        shares=(),
        optional=(),
        features=np.column_stack([problem.features, *seen.values()]),
        feature_names=(*problem.feature_names, *seen),
        degrees=(0,),
        plain=(),
        bounded=True,
    )
