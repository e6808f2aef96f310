"""The input of a fit: rows with their dimensions, special terms, features and targets."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuralpower.data.schema import FEWEST_ROWS as FEWEST_ROWS
from neuralpower.devices.hardware import Hardware
from neuralpower.layers.base import Layer
from neuralpower.layers.columns import fingerprint
from neuralpower.layers.rows import plain_dimensions
from neuralpower.layers.views import DEGREES, peak_flops
from neuralpower.platforms import View, platform_of

Array = np.ndarray
FEWEST_FOR_RESIDUAL = 60
LARGEST_SHARE = 0.15  # of the rows, held out together to see how a fit extrapolates
# Weight of an error beyond the sampled rows, or on a new device, relative to one among them.
BEYOND, NEW_DEVICE = 0.5, 2.0
FEWEST_FOR_BOUND = 20
FAR = 0.1  # octaves away from the sampled rows
FLOOR = 0.5  # of the least row: no prediction is below it; all of it where the device bounds the target
WORST = 2.0  # a row's error counts for no more where something is chosen
BY_ROW = (
    *("dimensions", "special", "features", "axes"),
    *("target", "slowdown", "config", "shape", "size", "device"),
)


@dataclass(frozen=True)
class Term:
    """One function of a layer: a product of dimensions' powers, or a special term by name."""

    powers: tuple[tuple[str, int], ...] = ()
    special: str = ""

    def __str__(self) -> str:
        if self.special:
            return self.special
        return " ".join(name if power == 1 else f"{name}^{power}" for name, power in self.powers) or "1"


@dataclass(frozen=True)
class Problem:
    """Rows to fit."""

    dimensions: Mapping[str, Array]  # those of the box, and the `plain` ones
    special: Mapping[str, Array]
    features: Array  # [rows, features]
    feature_names: tuple[str, ...]
    axes: Mapping[str, Array]  # octaves of the box
    target: Array  # what is fitted, above 0: seconds or watts
    slowdown: Array  # of the machine while each row was taken
    config: Array  # a number without order for each configuration
    size: Array  # what "largest" means
    device: Array  # a number per device
    shape: Array  # as `config`, for each shape, whose rows share a fold: some nearly repeat each other
    degrees: tuple[int, ...] = DEGREES  # of the polynomial, to choose from
    bounded: bool = False  # by the device, as idle and limit bound watts: no residual is too large to be true
    shares: tuple[str, ...] = ()  # special columns that are no terms: how well a row fits the device, 0 to 1
    optional: tuple[str, ...] = ()  # special terms tried with and without: they can mislead beyond the rows
    apart: frozenset[int] = frozenset()  # devices whose level gives no information on a new one's
    # Two features: the residual is a curve along the first, one for each value of the second.
    curve: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()  # the table's own dimensions, for a polynomial besides the kind's terms

    def __len__(self) -> int:
        return len(self.target)

    def at(self, index: Array) -> Problem:

        def some(values: Any) -> Any:
            return {n: v[index] for n, v in values.items()} if isinstance(values, Mapping) else values[index]

        return replace(self, **{name: some(getattr(self, name)) for name in BY_ROW})

    def on(self, device: int, slowdown: Array) -> Problem:
        """The rows as those of that device, taken while it was so much slower, [rows]."""
        apart = frozenset({device}) if self.apart else frozenset[int]()
        return replace(self, device=np.full(len(self), device), slowdown=slowdown, apart=apart)

    def certain(self) -> Problem:
        """The same without the optional terms."""
        return replace(self.without(self.optional), optional=())

    def without(self, names: Collection[str]) -> Problem:
        special = {name: values for name, values in self.special.items() if name not in names}
        return replace(self, special=special)

    def sides(self) -> tuple[str, ...]:
        """The dimensions of the kind's own polynomial."""
        return tuple(name for name in self.dimensions if name in self.axes)

    def special_terms(self) -> list[Term]:
        """One for each special column that is a cost."""
        return [Term(special=name) for name in self.special if name not in self.shares]

    def matrix(self, terms: Sequence[Term]) -> Array:
        """Values of the terms, [rows, len(terms)]."""
        matrix = np.ones((len(self), len(terms)))
        for j, term in enumerate(terms):
            for name, power in term.powers:
                matrix[:, j] *= self.dimensions[name] ** power
            if term.special:
                matrix[:, j] = self.special[term.special]
        return matrix


def join(problems: Sequence[Problem]) -> Problem:
    """The rows of several problems of the same terms and features."""
    first = problems[0]
    if len(problems) == 1:
        return first

    def stacked(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Mapping):
            return {name: np.concatenate([v[name] for v in values]) for name in values[0]}
        return np.concatenate(values)

    changes = {name: stacked([getattr(problem, name) for problem in problems]) for name in BY_ROW}
    return replace(first, apart=frozenset().union(*(p.apart for p in problems)), **changes)


# ---- Layers of one kind on a device as inputs of a fit: table columns + hardware -> Problem ----


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
