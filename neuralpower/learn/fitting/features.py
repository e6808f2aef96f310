"""Layers of one kind on a device as inputs of a fit: table columns + hardware -> Problem."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.base import Layer
from neuralpower.layers.columns import fingerprint
from neuralpower.layers.rows import plain_dimensions
from neuralpower.layers.views import peak_flops
from neuralpower.learn.fitting.problem import Problem
from neuralpower.platforms import View, platform_of

Array = np.ndarray


def describe(
    columns: Layer,
    hardware: Hardware,
    view: View | None = None,
    *,
    target: Array | None = None,
    featured: bool = True,
    also: Collection[str] | None = None,
) -> Problem:
    """Dimensions, special terms, features and axes of the box, each [rows]; `target` is what to fit.

    `view`: how layers are described; by default that of the device's platform alone. Without `featured` the
    residual has no features, [rows, 0]. `also`: plain dimensions to add; None: all, for training.
    """
    rows = len(np.atleast_1d(columns.dtype))
    view = view or platform_of(hardware).alone
    apart, row = view.held_by_power(columns, hardware), view.of(columns)
    hardware = view.hardware(hardware)
    full = functools.partial(_full, rows)
    degrees = view.degrees(columns)
    plain = plain_dimensions(type(columns)) if max(degrees) and also is None and not view.kernels else ()
    dimensions = {name: full(getattr(columns, name)) for name in columns.dimensions}
    flops, size = full(columns.flops()), full(sum(row.moved(columns)))
    axes = {name: np.log2(np.maximum(value, 1)) for name, value in dimensions.items()}
    own, shares = row.own_terms(columns, hardware), row.alignment(columns)
    special = view.terms(columns, hardware) | own | shares
    axes |= {name: full(value) for name, value in view.axes(columns, hardware).items()}
    seen = view.features(columns, hardware, axes, flops, size) if featured else {}
    names = () if view.pooled else (*dimensions, *plain, *(also or ()))
    return Problem(
        dimensions={name: full(getattr(columns, name)) for name in names},
        special={name: full(value) for name, value in special.items()},
        features=np.column_stack([full(value) for value in seen.values()]) if seen else np.empty((rows, 0)),
        feature_names=tuple(seen),
        axes=axes,
        target=full(0.0 if target is None else target),
        slowdown=full(1.0),
        config=(config := fingerprint(columns)),
        shape=config if target is None else fingerprint(columns.shape()),
        size=flops + size,
        device=np.zeros(rows, dtype=int),
        apart=frozenset({0}) if apart else frozenset(),
        shares=tuple(shares),
        optional=tuple(name for name in own if "_past_" in name),
        degrees=degrees,
        curve=row.curve if seen else (),
        plain=plain,
    )


def _full(rows: int, value: Any) -> Array:
    found = np.asarray(value, dtype=np.float64)
    return found if found.shape == (rows,) else np.broadcast_to(found, (rows,))


def describe_power(
    columns: Layer, hardware: Hardware, runtime_s: Array, target: Array | None = None
) -> Problem:
    """The same for watts: how far a layer of that runtime uses the device's units and its memory."""
    row = platform_of(hardware).alone.of(columns)
    problem = describe(columns, hardware, target=target)
    compute = np.asarray(columns.flops() / peak_flops(columns, hardware) / runtime_s)
    memory = np.asarray(sum(row.moved(columns)) / hardware.memory_bytes_per_s / runtime_s)
    use = {"compute": compute, "memory": memory, "both": compute * memory}
    use |= {"root_compute": np.sqrt(compute), "root_memory": np.sqrt(memory)}
    seen = {"runtime": np.log2(runtime_s), "compute": compute, "memory": memory}
    seen |= row.power_features(columns, hardware)
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
