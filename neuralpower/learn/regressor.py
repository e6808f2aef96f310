"""The result of a fit: terms with weights, trees for the residual, bounds and scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from neuralpower.learn.files.file_struct import Deviation, Log, Octaves, Part
from neuralpower.learn.fitting.problem import Array, Problem, Term
from neuralpower.learn.fitting.slopes import Alignment
from neuralpower.learn.fitting.trees import Trees

BASE_FEATURE = "log2_base"  # of the residual, the last: the base's logarithm
NINETY = 1.645  # standard deviations of a normal distribution to either side of which 5 % lie
PLAIN_DEGREE, PLAIN_WORK = 2, ("flops", "bytes")


class Spread(Part, frozen=True):
    """How far measurements lie from predictions, as log(measured / predicted), from rows held out."""

    edges: list[Octaves]  # [bins - 1], log2 of predicted times
    low: list[Log]  # [bins], below which ONE_SIDE of the measurements lie
    high: list[Log]  # [bins]
    growth: Deviation  # of an interval to each side, times the root of the octaves away from the sampled rows
    common: Deviation  # of what all layers of the regressor have in common
    common_growth: Deviation  # and how much that grows, times the same root
    tail: Octaves = 1e3  # log2 of a time that few sampled rows exceed: beyond, they are thin

    def away(self, predicted: Array, outside: Array) -> Array:
        """Octaves outside the box, and beyond the tail, [rows]."""
        return np.asarray(outside + np.maximum(_octaves(predicted) - self.tail, 0))

    def bounds(self, predicted: Array, outside: Array) -> tuple[Array, Array]:
        """Logarithms of the 90 % bounds relative to the prediction, each [rows]."""
        bin_ = np.searchsorted(self.edges, _octaves(predicted))
        wider = self.growth * np.sqrt(self.away(predicted, outside))
        return np.asarray(self.low)[bin_] - wider, np.asarray(self.high)[bin_] + wider

    def widened(self, deviation: float) -> Spread:
        """The same with one more source of error, of that standard deviation, that all layers share."""
        more = NINETY * deviation
        low, high = (np.sqrt(np.square(side) + more**2).tolist() for side in (self.low, self.high))
        common = float(np.hypot(self.common, deviation))
        return replace(self, low=[-width for width in low], high=high, common=common)

    def shared(self, predicted: Array, outside: Array) -> Array:
        """Standard deviation of the common part of log(measured / predicted), [rows]."""
        return np.asarray(self.common + self.common_growth * np.sqrt(self.away(predicted, outside)))


@dataclass(frozen=True)
class Scores:
    """Errors on rows that the fit had not seen (ten folds): shares, not percent."""

    rows: int
    mape: float
    rmspe: float
    median_base: float
    median: float
    bias: float  # of the rows' sum: positive where predictions are too high
    beyond: float  # mean error where the largest or farthest rows, or a whole device, are held out together
    inside: float  # share of held-out rows within their 90 % interval


@dataclass(frozen=True)
class Regressor:
    """The trained model of one group of layers."""

    terms: tuple[Term, ...]
    weights: Array
    degree: int
    alpha: float  # of the first where the base is a mean of several
    box: Mapping[str, tuple[float, float]]  # octaves of each axis that were sampled
    trees: Trees | None
    reach: float  # octaves outside the box at which half of the residual is applied
    spread: Spread
    scores: Scores
    exponent: float = 0.0  # layers take s^exponent times as long while the machine is s times slower
    alignment: Alignment | None = None  # what is saved where sizes fit memory and tiles; None: not known
    factor: float = 1.0  # of every prediction: from whole networks, or from a few layers of another device
    short: float = 0.0  # as `factor`, added to it for the first `short_s` of each call
    short_s: float = 0.0
    launch_s: float = 0.0  # the host's part of each time, which the device's work hides in a queue of calls
    measured: Array | None = None  # upper halves of the training configurations' numbers, sorted
    least: float = 0.0  # no base is below it
    levels: tuple[
        float | None, ...
    ] = ()  # of several devices, each one's times over predictions; None: few rows

    def dimensions(self) -> set[str]:
        return {name for term in self.terms for name, _ in term.powers}

    def basis(self) -> str:
        """The form of its base: with the kind's special terms, a polynomial alone, or a constant."""
        if any(term.special not in ("", *PLAIN_WORK) for term in self.terms):
            return "special"
        return "polynomial" if any(term.powers or term.special for term in self.terms) else "constant"

    @property
    def unlisted(self) -> bool:
        """Whether it names none of the calls that it was fitted on, as of totals or of a large table."""
        return self.measured is None or not len(self.measured)

    @property
    def of_sums(self) -> bool:
        """Whether it was fitted on no calls, but on networks' totals alone: it has two terms and a constant.

        Regressors of many calls remember none of them.
        """
        plain = all(term.special in (None, "", "flops", "bytes") for term in self.terms)
        return self.unlisted and self.trees is None and self.degree == 0 and plain

    def has_measured(self, config: Array) -> Array:
        """Whether it was fitted on each configuration, [rows], bool."""
        if self.measured is None or not len(self.measured):
            return np.zeros(len(config), dtype=bool)
        asked = upper_half(config)
        at = np.minimum(np.searchsorted(self.measured, asked), len(self.measured) - 1)
        return np.asarray(self.measured[at] == asked)

    def base(self, problem: Problem) -> Array:
        """t0 [rows], before the factors and what alignment saves; never 0 once it is fitted."""
        return np.asarray(np.maximum(problem.matrix(self.terms) @ self.weights, self.least))

    def outside(self, axes: Mapping[str, Array]) -> Array:
        """Octaves outside the sampled box, summed over the axes, [rows]."""
        box = self.box.items()
        parts = [np.maximum(low - axes[n], 0) + np.maximum(axes[n] - high, 0) for n, (low, high) in box]
        return np.asarray(np.sum(parts, axis=0))

    def predict(self, problem: Problem, alike: Problem | None = None) -> tuple[Array, Array]:
        """(t, d), each [rows]: the target, and octaves outside the box.

        `alike`: the rows whose residual, alignment and distance count, where they are not the rows' own.
        """
        t0 = self.base(problem)
        alike, usual = (problem, t0) if alike is None else (alike, self.base(alike))
        d = self.outside(alike.axes)
        if self.trees is not None:
            r = self.trees.predict(np.column_stack([alike.features, np.log2(usual)]))
            t0 = t0 * np.exp(r * say(d, self.reach))
        if self.alignment:
            t0 = t0 * np.exp(-self.alignment.saved(alike.special, t0))
        t0 = np.maximum(t0, self.least)
        return t0 * self.factor + np.minimum(t0, self.short_s) * self.short, d


def _octaves(times: Array) -> Array:
    """Their log2; layers of networks known in total alone may take no time."""
    return np.asarray(np.log2(np.maximum(times, np.finfo(float).tiny)))


def upper_half(config: Array) -> Array:
    """32 of 64 bits: enough to distinguish tens of thousands of configurations."""
    return np.asarray((config >> np.uint64(32)).astype(np.uint32))


def say(outside: Array, reach: float) -> Array:
    """Share of the residual that is applied at a distance outside the box."""
    return np.asarray(1 / (1 + (outside / reach) ** 2)) if reach else np.zeros(len(outside))
