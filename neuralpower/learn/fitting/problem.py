"""The input of a fit: rows with their dimensions, special terms, features and targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuralpower.data.schema import FEWEST_ROWS as FEWEST_ROWS
from neuralpower.layers.views import DEGREES

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
        """The same without some special terms."""
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
