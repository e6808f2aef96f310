"""The learner: a Lasso of non-negative weights on relative error, then a gated residual of boosted trees.

    base      t0(x) = sum_j w_j phi_j(x), w_j >= 0     minimise  mean_i (t0(x_i)/t_i - 1)^2 + alpha |w|_1
    residual  r(x)  = boosted trees on log(t / t0)
    predict   t1(x) = t0(x) exp(r(x) / (1 + (d(x)/reach)^2))      d: octaves outside the sampled box, summed over its axes
              t(x)  = t1(x) exp(-(1 - (floor / t1(x))^4) sum_k c_k a_k(x))

with a_k how well x fits an accelerator's memory and tiles, from 0 to 1 (neuralpower/learn/slopes.py): sizes of networks are round,
those of a sweep are not, and what that saves holds outside the box as well.

It knows arrays and names only. The polynomial with a Lasso and ten-fold cross-validation is NeuralPower's (Cai et al.,
arXiv:1710.05420, section 3.2); dividing each row by its time makes the error relative, non-negative weights keep every
prediction positive and growing. Intervals are split-conformal (Vovk et al.; Lei et al., arXiv:1604.04173), on the errors
of rows that the fit had not seen.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from neuralpower.learn.slopes import OUTLIER, Alignment, learn_alignment, robust_deviation, speed_exponents
from neuralpower.learn.trees import Trees, boost

Array = np.ndarray

FOLDS = 10
DEGREES = (1, 2, 3)
ALPHAS = tuple(10.0 ** (-exponent / 2) for exponent in range(3, 13))
FEWEST_ROWS = 10  # for a base
FEWEST_FOR_RESIDUAL = 60
LARGEST_SHARE = 0.15  # of the rows, held out together to see how the learner goes beyond them
FARTHEST_SHARE = 0.3  # of the rows, outside the box of the others on at least one axis
FAR_KNOWN, FAR_ASKED = 0.7, 0.9  # quantiles of the size: rows up to the one predict those above the other
SURELY = 0.99  # of the cost of a mean of bases: less is better than it, by more than chance
BEYOND, NEW_DEVICE = 0.5, 2.0  # what an error beyond the sampled rows, or on a new device, counts beside one among them
REACHES = (0.0, 0.25, 1.0, 4.0, float("inf"))  # octaves outside the box at which the residual has half its say; 0: none
FEWEST_FOR_BOUND = 20
BASE_FEATURE = "log2_base"  # of the residual, the last: the base's logarithm
FAR = 0.1  # octaves away from the sampled rows
IMPORTANCE, MOST_IMPORTANT = 0.25, 5.0  # a row's weight grows with this power of its time, up to this factor
IMPOSSIBLE = 1e-3  # of a plausible row's weight: one below, some 60 times too fast, must not set the terms' scales
PRIOR = (0.4, 0.2)  # of the exponent with which layers follow the machine's speed: mean, standard deviation
SCREENING_ALPHA, SCREENING_TREES = 1e-3, (40, 12, 0.12)  # of the quick fit that finds rows which contradict the others
STRUCTURE = 0.7  # of log(t / t0): up to this a residual may be structure, however good the base is elsewhere
FEWEST_FOR_TERM = 10  # rows in which a term is above 0
CONTRADICTS = (12.0, 2.5)  # a row is left out when it is so many spreads, and this factor, from what the others say
# The same of fewer than three times FEWEST_ROWS rows, in standard deviations of the others without it, and as much again for each
# octave outside of their box; of a target that the device bounds the factor is that of many rows. Of 72 tables of 10 to 24 rows of
# a CPU's sweep none lost a row; of 144 with one time 20 times too high or too low 74 % lost that one, and none another.
CONTRADICTS_FEW = (4.0, 5.0)
BINS = 6  # of predicted time, each with its own interval
# What an octave away from the sampled rows adds to log(t), whatever a table says: to an interval, and as a standard deviation of
# what its layers have in common. Errors of different octaves are taken as independent: their root counts (docs/method.md).
PER_OCTAVE, COMMON_PER_OCTAVE = 0.05, 0.03
ONE_SIDE = 0.05  # of measurements may lie below a layer's interval, and as many above
NINETY = 1.645  # standard deviations of a normal distribution to either side of which 5 % lie
LEVELLING_ALPHA, LEVELLING_ROUNDS = (1e-4,), 4  # of the fits that find each device's level
FLOOR = 0.5  # of the least row: no layer is predicted to take less, whatever the terms say; all of it for what a device bounds
# Of the least error of the kind's own terms: a plain polynomial, or a constant, must err less to be taken instead, as it knows
# less of what lies beyond the rows.
SURELY_PLAIN = 0.95
WORST = 2.0  # a row's error counts for no more where something is chosen
PLAIN_DEGREE, PLAIN_WORK = 2, ("flops", "bytes")
PLATEAU = 0.3  # share of the learner's error that is common to all layers of one regressor, where nothing else is known


@dataclass(frozen=True)
class Term:
    """One function of a layer: a product of dimensions' powers, or a special term by name."""

    powers: tuple[tuple[str, int], ...] = ()
    special: str = ""

    def __str__(self) -> str:
        """As it stands in a formula."""
        if self.special:
            return self.special
        return " ".join(name if power == 1 else f"{name}^{power}" for name, power in self.powers) or "1"


def polynomial(dimensions: Sequence[str], degree: int) -> list[Term]:
    """All products of up to `degree` different dimensions, the constant first.

    No squares: nothing takes longer than in proportion to each of its sides, and beyond the sampled box a small weight on
    a square or cube of one would outgrow all else.
    """
    chosen = (names for total in range(degree + 1) for names in itertools.combinations(dimensions, total))
    return [Term(tuple((name, 1) for name in names)) for names in chosen]


def evaluate_terms(
    terms: Sequence[Term], dimensions: Mapping[str, Array], special: Mapping[str, Array], rows: int
) -> Array:
    """[rows, len(terms)]."""
    matrix = np.empty((rows, len(terms)))
    for j, term in enumerate(terms):
        if term.special:
            matrix[:, j] = special[term.special]
        else:
            column = np.ones(rows)
            for name, power in term.powers:
                column = column * dimensions[name] ** power
            matrix[:, j] = column
    return matrix


def plain_terms(problem: Problem) -> list[Term]:
    """Those of an ordinary quadratic polynomial of the table's own dimensions, FLOPs and bytes; alike columns [rows] once.

    With squares, which the kind's own polynomial has none of: rows held out must speak for them.
    """
    names = problem.plain
    pairs = itertools.combinations_with_replacement(names, 2)
    terms = [Term(), *(Term(special=name) for name in PLAIN_WORK if name in problem.special)]
    terms += [Term(((name, 1),)) for name in names]
    terms += [Term(((one, 1), (other, 1))) if one != other else Term(((one, 2),)) for one, other in pairs]
    matrix = problem.matrix(terms)
    different: dict[bytes, Term] = {}
    for term, column in zip(terms, (matrix / np.maximum(matrix.max(axis=0), 1)).T, strict=True):
        if column.any():
            different.setdefault(column.round(9).tobytes(), term)
    return list(different.values())


@dataclass(frozen=True)
class Spread:
    """How far measurements lie from predictions, as log(measured / predicted): from rows that the fit had not seen."""

    edges: Array  # [bins - 1], log2 of predicted times
    low: Array  # [bins], below which ONE_SIDE of the measurements lie
    high: Array  # [bins]
    growth: float  # what an interval widens by to each side, times the root of the octaves away from what was sampled
    common: float  # standard deviation of what all layers of the regressor have in common
    common_growth: float  # and how much that grows, times the same root
    tail: float = 1e3  # log2 of a time that few sampled rows exceed: beyond, they are thin

    def away(self, predicted: Array, outside: Array) -> Array:
        """Octaves outside the box, and beyond the tail, [rows]."""
        return np.asarray(outside + np.maximum(_octaves(predicted) - self.tail, 0))

    def bounds(self, predicted: Array, outside: Array) -> tuple[Array, Array]:
        """Logarithms of the 90 % bounds relative to the prediction, each [rows]."""
        bin_ = np.searchsorted(self.edges, _octaves(predicted))
        wider = self.growth * np.sqrt(self.away(predicted, outside))
        return self.low[bin_] - wider, self.high[bin_] + wider

    def widened(self, deviation: float) -> Spread:
        """The same with one more source of error, of that standard deviation, that all layers share."""
        more = NINETY * deviation
        low, high = -np.sqrt(self.low**2 + more**2), np.sqrt(self.high**2 + more**2)
        return replace(self, low=low, high=high, common=float(np.hypot(self.common, deviation)))

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
    beyond: float  # mean error where the largest rows, those farthest out, or a whole device are held out together
    inside: float  # share of held-out rows within their 90 % interval


@dataclass(frozen=True)
class Regressor:
    """What was learnt of one group of layers."""

    terms: tuple[Term, ...]
    weights: Array
    degree: int
    alpha: float  # of the first where the base is a mean of several
    box: Mapping[str, tuple[float, float]]  # octaves of each axis that were sampled
    trees: Trees | None
    reach: float  # octaves outside the box at which the residual has half its say
    spread: Spread
    scores: Scores
    exponent: float = 0.0  # when the machine is s times slower than usual, these layers take s^exponent times as long
    alignment: Alignment | None = None  # what is saved where sizes fit memory and tiles; None: not known
    factor: float = 1.0  # corrects every prediction: learnt from whole networks, or from a few layers of another device
    short: float = 0.0  # as `factor`, added to it for the first `short_s` of each call
    short_s: float = 0.0
    launch_s: float = 0.0  # part of each time that is the host's, which the device's work hides in a queue of calls
    measured: Array | None = None  # the upper halves of the configurations' numbers that it was fitted on, sorted
    least: float = 0.0  # no base is below it

    def dimensions(self) -> set[str]:
        """Names of those that its terms need."""
        return {name for term in self.terms for name, _ in term.powers}

    def basis(self) -> str:
        """What its base is made of: the kind's special terms, too, a polynomial alone, or a constant."""
        if any(term.special not in ("", *PLAIN_WORK) for term in self.terms):
            return "special"
        return "polynomial" if any(term.powers or term.special for term in self.terms) else "constant"

    def has_measured(self, config: Array) -> Array:
        """Whether each configuration is one of those that it was fitted on, [rows], bool."""
        if self.measured is None or not len(self.measured):
            return np.zeros(len(config), dtype=bool)
        asked = upper_half(config)
        at = np.minimum(np.searchsorted(self.measured, asked), len(self.measured) - 1)
        return np.asarray(self.measured[at] == asked)

    def base(self, dimensions: Mapping[str, Array], special: Mapping[str, Array], rows: int) -> Array:
        """t0 [rows], before the factors and what alignment saves; never 0 once it is fitted."""
        return np.asarray(np.maximum(evaluate_terms(self.terms, dimensions, special, rows) @ self.weights, self.least))

    def outside(self, axes: Mapping[str, Array]) -> Array:
        """Octaves outside the sampled box, summed over the axes, [rows]."""
        parts = [np.maximum(low - axes[n], 0) + np.maximum(axes[n] - high, 0) for n, (low, high) in self.box.items()]
        return np.asarray(np.sum(parts, axis=0))

    def predict(
        self, dimensions: Mapping[str, Array], special: Mapping[str, Array], features: Array, axes: Mapping[str, Array]
    ) -> tuple[Array, Array]:
        """(t, d), each [rows]: the target, and octaves outside the box; features [rows, features] without log t0."""
        t0, d = self.base(dimensions, special, len(features)), self.outside(axes)
        if self.trees is not None:
            r = self.trees.predict(np.column_stack([features, np.log2(t0)]))
            t0 = t0 * np.exp(r * _say(d, self.reach))
        if self.alignment:
            t0 = t0 * np.exp(-self.alignment.saved(special, t0))
        t0 = np.maximum(t0, self.least)
        return t0 * self.factor + np.minimum(t0, self.short_s) * self.short, d


def _octaves(times: Array) -> Array:
    """Their log2; of what takes no time, as some layers of networks known in total alone, that of next to nothing."""
    return np.asarray(np.log2(np.maximum(times, np.finfo(float).tiny)))


def upper_half(config: Array) -> Array:
    """32 of 64 bits: enough to tell tens of thousands of configurations apart."""
    return np.asarray((config >> np.uint64(32)).astype(np.uint32))


def _say(outside: Array, reach: float) -> Array:
    """How much the residual has to say so far outside the box."""
    return np.asarray(1 / (1 + (outside / reach) ** 2)) if reach else np.zeros(len(outside))


@dataclass(frozen=True)
class Problem:
    """Rows to learn from."""

    dimensions: Mapping[str, Array]  # those of the box, and the `plain` ones
    special: Mapping[str, Array]
    features: Array  # [rows, features]
    feature_names: tuple[str, ...]
    axes: Mapping[str, Array]  # octaves of the box
    target: Array  # what is learnt, above 0: seconds or watts
    slowdown: Array  # of the machine while each row was taken
    config: Array  # a number without order for each configuration, whose rows share a fold
    size: Array  # what "largest" means
    device: Array  # a number per device
    degrees: tuple[int, ...] = DEGREES  # of the polynomial, to choose from
    bounded: bool = False  # by the device, as idle and limit do watts: no residual is too large to be true
    shares: tuple[str, ...] = ()  # special columns that say how well it fits the device, from 0 to 1: no terms
    optional: tuple[str, ...] = ()  # special terms that are tried with and without: they can mislead beyond the rows
    apart: frozenset[int] = frozenset()  # devices whose level says nothing of a new one's
    plain: tuple[str, ...] = ()  # dimensions as a table has them, whose polynomial stands beside the kind's own terms

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.target)

    def at(self, index: Array) -> Problem:
        """Some of the rows."""
        return replace(
            self,
            dimensions={n: v[index] for n, v in self.dimensions.items()},
            special={n: v[index] for n, v in self.special.items()},
            features=self.features[index],
            axes={n: v[index] for n, v in self.axes.items()},
            target=self.target[index],
            slowdown=self.slowdown[index],
            config=self.config[index],
            size=self.size[index],
            device=self.device[index],
        )

    def certain(self) -> Problem:
        """The same without the optional terms."""
        special = {name: values for name, values in self.special.items() if name not in self.optional}
        return replace(self, special=special, optional=())

    def sides(self) -> tuple[str, ...]:
        """The dimensions of the kind's own polynomial."""
        return tuple(name for name in self.dimensions if name in self.axes)

    def special_terms(self) -> list[Term]:
        """One for each special column that is a cost."""
        return [Term(special=name) for name in self.special if name not in self.shares]

    def matrix(self, terms: Sequence[Term]) -> Array:
        """[rows, len(terms)]."""
        return evaluate_terms(terms, self.dimensions, self.special, len(self))


def join(problems: Sequence[Problem]) -> Problem:
    """The rows of several problems of the same terms and features."""
    first = problems[0]
    if len(problems) == 1:
        return first

    def stacked(name: str) -> Array:
        return np.concatenate([getattr(p, name) for p in problems])

    def columns(name: str) -> dict[str, Array]:
        return {n: np.concatenate([getattr(p, name)[n] for p in problems]) for n in getattr(first, name)}

    changes: dict[str, Any] = {name: columns(name) for name in ("dimensions", "special", "axes")}
    changes |= {name: stacked(name) for name in ("features", "target", "slowdown", "config", "size", "device")}
    changes["apart"] = frozenset().union(*(p.apart for p in problems))
    return replace(first, **changes)


class Part(NamedTuple):
    """What a non-negative Lasso is fitted with; a base is one of them or the mean of several."""

    terms: Sequence[Term]
    alpha: float
    degree: int


@dataclass(frozen=True)
class Fitted:
    """A regressor, and the rows that contradict their neighbours and were left out."""

    regressor: Regressor
    contradicting: Array  # [rows], bool
    parts: Sequence[Part]  # whose mean the base is


def fit(problem: Problem, learner: str = "hybrid") -> Fitted:
    """Degree, alpha, residual and reach by folds, then weights, box and intervals; `lasso` leaves the residual out.

    Bases with the doubtful terms, without, and the mean of both are tried. Targets are learnt as they are at the machine's
    usual speed and where nothing is aligned: how far these layers follow both is learnt, too.
    The same rows give the same regressor.
    """
    contradicting = _contradicting(problem)
    problem = problem.at(~contradicting)  # nothing that follows knows of them: a corrupt row more changes nothing
    choices = [_choose(problem, learner)]
    if problem.optional:
        choices.append(_choose(problem.certain(), learner))
        mean = _choose(problem, learner, [*choices[0].parts, *choices[1].parts])
        choices.append(replace(mean, cost=SURELY * mean.cost))
    best = min(choices, key=lambda choice: choice.cost)
    base = _base(best.problem, best.parts)
    spread = _spread(best.problem, best.tests, best.reach, _far(best))
    regressor = replace(
        base,
        trees=_residual(best.problem, base) if best.reach else None,
        reach=best.reach,
        spread=spread,
        scores=_scores(best.problem.target, best.tests, best.reach, spread),
        exponent=best.exponent,
        alignment=best.alignment,
        measured=np.unique(upper_half(problem.config)),
    )
    return Fitted(regressor, contradicting, best.parts)


@dataclass(frozen=True)
class _Choice:
    """What folds say is best for a problem, and how it errs on the rows that they held out."""

    problem: Problem  # targets at the machine's usual speed, and as if no row were aligned
    parts: Sequence[Part]
    exponent: float
    alignment: Alignment | None
    tests: Sequence[HeldOut]
    reach: float
    cost: float


def _choose(problem: Problem, learner: str, parts: Sequence[Part] = ()) -> _Choice:
    """The base's parts unless they are given, what speed and alignment do to the rows, and how far the residual reaches."""
    folds, beyond = _folds(problem.config), _beyond(problem)
    parts = parts or [_select(problem, folds, beyond)]
    with_trees = learner == "hybrid" and len(problem) >= FEWEST_FOR_RESIDUAL
    exponent, alignment = 0.0, None
    if np.ptp(problem.slowdown) > 0:
        base = _held_out(problem, parts, folds, with_trees=False).base
        whole = np.ones((len(problem), 1))
        exponent = min(float(speed_exponents(problem.slowdown, problem.target / base, whole, [PRIOR])[0]), 1.0)
        problem = replace(problem, target=problem.target / problem.slowdown**exponent)
    if problem.shares:
        base = _held_out(problem, parts, folds, with_trees=False).base
        problem, alignment = _unaligned(problem, base, folds)
    tests = [_held_out(problem, parts, held, with_trees) for held in (folds, *beyond)]
    costs = {reach: _cost(problem, tests, reach) for reach in (REACHES if with_trees else (0.0,))}
    reach = min(costs, key=lambda reach: costs[reach])
    return _Choice(problem, parts, exponent, alignment, tests, reach, costs[reach])


def _far(choice: _Choice) -> list[tuple[Array, HeldOut]]:
    """(targets, predictions) of small rows and of the largest, by a fit to the small ones: only intervals need to know."""
    problem = choice.problem
    low, high = np.quantile(problem.size, (FAR_KNOWN, FAR_ASKED))
    small, large = problem.size <= low, problem.size > max(low, high)
    if len(np.unique(problem.device)) > 1 or small.sum() < FEWEST_FOR_RESIDUAL or not large.any():
        return []
    part, folds = problem.at(small | large), np.where(large, 0, -1)[small | large]
    return [(part.target, _held_out(part, choice.parts, folds, with_trees=choice.reach > 0))]


def refit(problem: Problem, like: Fitted) -> Regressor:
    """A regressor of the same parts and reach, fitted to other rows; its intervals, scores and alignment are the old ones."""
    old = like.regressor
    base = _base(problem, like.parts)
    if old.alignment:
        t0 = base.base(problem.dimensions, problem.special, len(problem))
        problem = replace(problem, target=problem.target * np.exp(old.alignment.saved(problem.special, t0)))
        base = _base(problem, like.parts)
    trees = _residual(problem, base) if old.trees is not None else None
    return replace(base, trees=trees, reach=old.reach, alignment=old.alignment, spread=old.spread, scores=old.scores)


def _base(problem: Problem, parts: Sequence[Part]) -> Regressor:
    """The mean of the parts' non-negative Lassos; terms of weight 0 are left out."""
    weights: dict[Term, float] = {}
    for terms, alpha, _ in parts:
        found = _weights(problem, terms, problem.matrix(terms), [alpha])[0] / len(parts)
        for term, weight in zip(terms, found.tolist(), strict=True):
            if weight > 0:
                weights[term] = weights.get(term, 0.0) + weight
    nothing = np.zeros(1)
    return Regressor(
        tuple(weights),
        np.array(list(weights.values())),
        max(part.degree for part in parts),
        parts[0].alpha,
        {name: (float(values.min()), float(values.max())) for name, values in problem.axes.items()},
        None,
        0.0,
        Spread(nothing[:0], nothing, nothing, 0.0, 0.0, 0.0),
        Scores(len(problem), *[float("nan")] * 7),
        least=float(problem.target.min()) * (1.0 if problem.bounded else FLOOR),
    )


def _weights(problem: Problem, terms: Sequence[Term], matrix: Array, alphas: Sequence[float]) -> Array:
    """Weights [alphas, terms] of the non-negative Lasso, for the usual one of the rows' devices.

    Devices differ by a factor, and hosts in what they take to launch, for reasons that no term says. Left to the terms,
    that ends in weights that mean something else; so each device has both for itself, and a new one has their medians:
    of levels those of devices that do not stand apart, if there are any.
    """
    devices, device = np.unique(problem.device, return_inverse=True)
    varies = np.array([bool(term.powers or term.special) for term in terms])
    if len(devices) == 1 or varies.all():
        return non_negative_lasso(matrix, problem.target, alphas)
    matrix, split = matrix[:, varies], int(varies.sum())
    launches = np.equal.outer(device, np.arange(len(devices))).astype(float)  # a constant for each device
    level = np.ones(len(devices))
    telling = np.array([number not in problem.apart for number in devices])
    telling |= not telling.any()
    for step in (*[LEVELLING_ALPHA] * LEVELLING_ROUNDS, alphas):
        found = non_negative_lasso(np.hstack([matrix * level[device, None], launches]), problem.target, step)
        work, launch_s = matrix @ found[:, :split].T * level[device, None], found[:, split:].T[device]
        rest = np.maximum(problem.target[:, None] - launch_s, problem.target[:, None] / 10)
        ratio = np.where(work > launch_s, rest / np.maximum(work, 1e-30), np.nan)
        usual = (
            np.array([_medians(ratio[device == i]) for i in range(len(devices))]) * level[:, None]
        )  # [devices, step]
        middle = np.exp(np.median(np.log(usual[telling]), axis=0))
        level = usual[:, -1] / middle[-1]
    weights = np.zeros((len(alphas), len(terms)))
    weights[:, varies] = found[:, :split] * middle[:, None]
    weights[:, ~varies] = np.median(found[:, split:], axis=1)[:, None]
    return weights


def _medians(ratio: Array) -> Array:
    """Of each column [rows, columns], NaN left out; 1 where too few are known."""
    return np.array([np.nanmedian(c) if np.isfinite(c).sum() >= FEWEST_ROWS else 1.0 for c in ratio.T])


def _unaligned(problem: Problem, base: Array, folds: Array) -> tuple[Problem, Alignment | None]:
    """Targets as if nothing were aligned, each by slopes that its fold had no part in; and the slopes of all rows.

    `base` [rows], which had not seen them either, stands for what they take then.
    """
    importance, target = _importance(problem.target), problem.target.copy()

    def learnt(rows: Array) -> Alignment | None:
        some = problem.at(rows)
        shares = {name: some.special[name] for name in problem.shares}
        return learn_alignment(shares, some.axes, base[rows], some.target, importance[rows])

    for fold in np.unique(folds):
        held, found = np.flatnonzero(folds == fold), learnt(folds != fold)
        if found:
            target[held] *= np.exp(found.saved(problem.at(held).special, base[held]))
    return replace(problem, target=target), learnt(np.full(len(problem), True))


def _folds(config: Array) -> Array:
    """A fold per row, from the configuration alone: another row more or less leaves all others in their folds."""
    fold = (config % np.uint64(FOLDS)).astype(int)
    return fold if len(np.unique(fold)) > 1 else np.unique(config, return_inverse=True)[1] % FOLDS


def _beyond(problem: Problem) -> list[Array]:
    """More ways to hold rows out, 0 where held out, else -1: the largest, and those farthest along an axis.

    Where there are several devices, each of them in turn: a new device is what such a regressor is for.
    """
    devices = np.unique(problem.device)
    if len(devices) > 1:
        return [np.where(problem.device == device, 0, -1) for device in devices]
    largest = problem.size >= np.quantile(problem.size, 1 - LARGEST_SHARE)
    ranks = [_rank(axis) for axis in problem.axes.values() if np.ptp(axis) > 0]
    extreme = np.max(ranks, axis=0) if ranks else _rank(problem.size)
    farthest = extreme > np.quantile(extreme, 1 - FARTHEST_SHARE)
    few = (len(problem) - np.array([largest.sum(), farthest.sum()])) < FEWEST_ROWS / 2
    return [np.where(held & ~skip, 0, -1) for held, skip in zip((largest, farthest), few, strict=True)]


def _rank(values: Array) -> Array:
    """Share of the rows that lie below each, equal values alike."""
    return np.searchsorted(np.sort(values), values) / len(values)


def non_negative_lasso(matrix: Array, target: Array, alphas: Sequence[float]) -> Array:
    """Weights [alphas, terms] of the non-negative Lasso on relative error; rows far off lose weight in a second pass."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import lasso_path

    relative = matrix / target[:, None]
    plausible = _plausible(relative)
    scale = np.sqrt(np.mean(relative[plausible > IMPOSSIBLE] ** 2, axis=0))
    used = (scale > 0) & (np.count_nonzero(relative, axis=0) >= min(FEWEST_FOR_TERM, len(relative) // 2))
    scaled = np.asfortranarray(relative[:, used] / scale[used])
    weights = np.zeros((len(alphas), matrix.shape[1]))
    plausible = emphasis = plausible * _importance(target)
    for _ in range(2):
        root = np.sqrt(emphasis)[:, None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the polynomial's columns are nearly collinear
            _, path, _ = lasso_path(
                scaled * root, root[:, 0], alphas=sorted(alphas, reverse=True), positive=True, tol=1e-5, max_iter=3000
            )
        residual = scaled @ path[:, -1] - 1
        spread = max(1.4826 * float(np.median(np.abs(residual))), 0.02)
        emphasis = plausible * np.minimum(1.0, (OUTLIER * spread / np.maximum(np.abs(residual), 1e-12)) ** 2)
    order = np.argsort(np.argsort(-np.asarray(alphas)))
    # Levelled by the median row. Squares of relative errors are least where predictions are too low: by exp(-1.5 s^2) under
    # log-normal noise s. Layers' noise cancels in a network, such a bias does not. A mean would follow the rows that the terms
    # do not describe, most of them slower than the terms say; so would a median in which long rows count for more.
    path = path[:, order]
    level = np.median(scaled @ path, axis=0)
    weights[:, used] = (path / np.where(level > 0, level, 1.0) / scale[used][:, None]).T
    return weights


def _importance(target: Array) -> Array:
    """Weight per row: a network's time is made of its long layers, so they count for more, within bounds."""
    return np.asarray(np.clip((target / np.median(target)) ** IMPORTANCE, 1 / MOST_IMPORTANT, MOST_IMPORTANT))


def _plausible(relative: Array) -> Array:
    """Weight per row: below 1 where a term per second exceeds what nearly all other rows reach.

    With weights that are not negative, phi_j(x) / t is at most 1 / w_j: a row far above that for any j is too fast to be
    true, and would pull the whole fit to itself.
    """
    emphasis = np.ones(len(relative))
    for column in relative.T:
        rows = np.flatnonzero(column)
        if len(rows) >= FEWEST_FOR_BOUND:
            beyond = len(rows) // 100 + 2
            bound = 2 * np.partition(column[rows], -beyond)[-beyond]
            emphasis[rows] = np.minimum(emphasis[rows], (bound / column[rows]) ** 2)
    return emphasis


def _select(problem: Problem, folds: Array, beyond: Sequence[Array]) -> Part:
    """The terms, alpha and degree with the least mean absolute relative error on rows held out, among the rest and beyond."""
    held = [(folds == fold, 1.0 / len(problem)) for fold in np.unique(folds)]
    held += [(b == 0, _weight(problem) / len(beyond) / np.sum(b == 0)) for b in beyond if (b == 0).any()]

    def tried(terms: list[Term], degree: int) -> tuple[Part, Array]:
        """With the best alpha; its relative error, and the same of too low as of too high, which nothing gains by being low."""
        matrix = problem.matrix(terms)
        errors = np.zeros((2, len(ALPHAS)))
        for test, weight in held:
            weights = _weights(problem.at(np.flatnonzero(~test)), terms, matrix[~test], ALPHAS)
            ratio = matrix[test] @ weights.T / problem.target[test][:, None]
            either = np.maximum(ratio, 1 / np.maximum(ratio, 1 / (1 + WORST)))
            errors += weight * np.sum(np.minimum([np.abs(ratio - 1), either - 1], WORST), axis=1)
        index = int(np.argmin(errors[0]))
        return Part(terms, ALPHAS[index], degree), errors[:, index]

    many = len(problem) >= 3 * FEWEST_ROWS
    sides, special = problem.sides(), problem.special_terms()
    best, *others = [
        tried([*polynomial(sides, degree), *special], degree)
        for degree in (problem.degrees if many else problem.degrees[:1])
    ]
    for part, errors in others:
        if errors[0] < 0.99 * best[1][0]:
            best = part, errors
    plain = [([Term()], 0), *([(plain_terms(problem), PLAIN_DEGREE)] if many else [])] if problem.plain else []
    for part, errors in itertools.starmap(tried, plain):
        if (errors < SURELY_PLAIN * best[1]).all():
            best = part, errors
    return best[0]


def _residual(problem: Problem, base: Regressor, size: tuple[int, int, float] | None = None) -> Trees:
    t0 = base.base(problem.dimensions, problem.special, len(problem))
    target = np.log(problem.target / t0)
    if not problem.bounded:
        spread, middle = max(robust_deviation(target), 0.02), float(np.median(target))
        widest = max(OUTLIER * spread, STRUCTURE)
        target = np.clip(target, middle - widest, middle + widest)  # no row may make a leaf of its own
    x = np.column_stack([problem.features, np.log2(t0)])
    return boost(x, target, _importance(problem.target), (*problem.feature_names, BASE_FEATURE), size)


@dataclass(frozen=True)
class HeldOut:
    """Predictions of rows by fits that had not seen them; NaN for rows that were not held out. Each [rows]."""

    base: Array
    residual: Array  # log, 0 without trees
    outside: Array  # octaves outside the box of the rows that the fit had seen

    def predicted(self, reach: float) -> Array:
        """Base and residual together."""
        return np.asarray(self.base * np.exp(self.residual * _say(self.outside, reach)))


def _held_out(
    problem: Problem,
    parts: Sequence[Part],
    folds: Array,
    with_trees: bool,
    size: tuple[int, int, float] | None = None,
) -> HeldOut:
    """Every row's prediction by a fit that has not seen its fold; fold -1 is never held out."""
    base, outside = np.full(len(problem), np.nan), np.full(len(problem), np.nan)
    residual = np.zeros(len(problem))
    for fold in np.unique(folds[folds >= 0]):
        known, asked = problem.at(np.flatnonzero(folds != fold)), problem.at(folds == fold)
        regressor = _base(known, parts)
        t0 = regressor.base(asked.dimensions, asked.special, len(asked))
        base[folds == fold], outside[folds == fold] = t0, regressor.outside(asked.axes)
        if with_trees:
            trees = _residual(known, regressor, size)
            residual[folds == fold] = trees.predict(np.column_stack([asked.features, np.log2(t0)]))
    return HeldOut(base, residual, outside)


def _cost(problem: Problem, tests: Sequence[HeldOut], reach: float) -> float:
    """The error among the sampled rows, and what counts of that beyond them."""
    among, *beyond = (_mean_error(problem.target, test.predicted(reach)) for test in tests)
    far = _mean(beyond)
    return among + _weight(problem) * (far if np.isfinite(far) else 0.0)


def _weight(problem: Problem) -> float:
    """What an error beyond the sampled rows counts beside one among them, when a learner is chosen."""
    return BEYOND if len(np.unique(problem.device)) == 1 else NEW_DEVICE


def _mean(errors: Sequence[float]) -> float:
    known = [error for error in errors if np.isfinite(error)]
    return sum(known) / len(known) if known else float("nan")


def _mean_error(target: Array, predicted: Array) -> float:
    """Mean absolute relative error of the rows that were held out, each at most WORST."""
    held = np.isfinite(predicted)
    if not held.any():
        return float("nan")
    return float(np.mean(np.minimum(np.abs(predicted[held] / target[held] - 1), WORST)))


def _contradicting(problem: Problem) -> Array:
    """Rows so far from what all others say of them that they cannot be of the same kind, [rows], bool."""
    if len(problem) < 3 * FEWEST_ROWS:
        return _contradicting_few(problem)
    others = _quick(problem, _folds(problem.config) // 2, len(problem) >= FEWEST_FOR_RESIDUAL)  # five will do
    return far_off(_log_error(problem, others))


def _contradicting_few(problem: Problem) -> Array:
    def compared(others: Array, row: int) -> tuple[float, Array, float]:
        known, both = problem.at(others), problem.at(np.append(others, row))
        error = _log_error(known, _quick(known, np.unique(_folds(known.config), return_inverse=True)[1] % 5))
        alone = _quick(both, np.append(np.full(len(others), -1), 0))
        return float(_log_error(both, alone)[-1]), error, float(alone.outside[-1])

    return contradicting_few(len(problem), compared, CONTRADICTS[1] if problem.bounded else CONTRADICTS_FEW[1])


def contradicting_few(
    rows: int, compared: Callable[[Array, int], tuple[float, Array, float]], factor: float = CONTRADICTS_FEW[1]
) -> Array:
    """Which of a few rows contradict the others, [rows], bool: one after the other, as a wrong one spoils all fits it is in.

    Good ones may be taken for wrong before it is found; they are let back in.
    `compared(others, row)`: the row's error of log(t) by a fit to the others, set against those that these make among
    themselves, without it (externally studentized residuals), and how many octaves it lies outside of their box.
    """
    found = np.zeros(rows, dtype=bool)

    def far(row: int) -> float:
        own, errors, outside = compared(np.flatnonzero(~found & (np.arange(rows) != row)), row)
        allowed = max(CONTRADICTS_FEW[0] * float(np.std(errors)), np.log(factor)) * (1 + outside)
        return float(abs(own - np.median(errors)) / allowed)

    while len(kept := np.flatnonzero(~found)) > FEWEST_ROWS / 2:
        apart = [far(row) for row in kept.tolist()]
        if max(apart) <= 1:
            break
        found[kept[np.argmax(apart)]] = True
    while len(left := np.flatnonzero(found)):
        apart = [far(row) for row in left.tolist()]
        if min(apart) > 1:
            break
        found[left[np.argmin(apart)]] = False
    return found


def _quick(problem: Problem, folds: Array, with_trees: bool = False) -> HeldOut:
    """Every row by a quick fit to the other folds; fold -1 is never held out."""
    terms = [*polynomial(problem.sides(), problem.degrees[0]), *problem.special_terms()]
    part = Part(terms, SCREENING_ALPHA, problem.degrees[0])
    return _held_out(problem, [part], folds, with_trees, SCREENING_TREES)


def _log_error(problem: Problem, others: HeldOut) -> Array:
    """log(target / prediction) [rows]; NaN where not held out."""
    return np.asarray(np.log(problem.target / np.maximum(others.predicted(1.0), np.finfo(float).tiny)))


def far_off(error: Array) -> Array:
    """Which errors of log(t), [rows], are too far from the others' to be of the same kind, [rows], bool."""
    error = error - np.median(error)
    spreads, factor = CONTRADICTS
    return np.asarray(np.abs(error) > max(spreads * robust_deviation(error), np.log(factor)))


def _spread(problem: Problem, tests: Sequence[HeldOut], reach: float, far: Sequence[tuple[Array, HeldOut]]) -> Spread:
    """Intervals from rows held out among the others, and their growth from rows held out beyond them, and far beyond.

    Where rows are of several devices, from each device as the others predict it.
    """
    target, devices = problem.target, np.unique(problem.device)
    predicted = tests[0].predicted(reach)
    if len(devices) > 1:
        predicted = np.nanmax([test.predicted(reach) for test in tests[1:]], axis=0)  # each row is held out once
    error, size = np.log(target / predicted), np.log2(predicted)
    bins = int(np.clip(len(error) // 50, 1, BINS))
    edges = np.quantile(size, np.arange(1, bins) / bins)
    bin_ = np.searchsorted(edges, size)
    parts = [error[bin_ == b] if (bin_ == b).any() else error for b in range(bins)]  # launches take all the same time
    low = np.array([min(_quantile(part, ONE_SIDE), 0.0) for part in parts])
    high = np.array([max(_quantile(part, 1 - ONE_SIDE), 0.0) for part in parts])
    means = np.array([np.mean(part) for part in parts])
    common = max(float(np.sqrt(np.mean(means**2))), PLATEAU * robust_deviation(error))
    if len(devices) > 1:
        levels = np.array([np.median(error[problem.device == device]) for device in devices])
        common = max(common, float(np.sqrt(np.mean(levels**2))))
    spread = Spread(edges, low, high, 0.0, common, 0.0, _tail(target))
    beyond = [*_beyond_bounds(spread, [*((target, test) for test in tests[1:]), *far], reach)]
    if len(devices) > 1 and beyond:  # what is a device's own is in the interval: together they tell what distance adds
        errors, rests, roots = zip(*beyond, strict=True)
        beyond = [(np.concatenate(errors), np.concatenate(rests), np.concatenate(roots))]
    growths = [max(float(np.quantile(rest / root, 1 - 2 * ONE_SIDE)), 0.0) for _, rest, root in beyond]
    drifts = [max(abs(float(np.median(e))) - common, 0.0) / float(np.median(root)) for e, _, root in beyond]
    growth = np.mean(growths or [np.mean(high - low) / 4])
    drift = np.mean(drifts or [common / 2])
    return replace(
        spread, growth=float(np.hypot(growth, PER_OCTAVE)), common_growth=float(np.hypot(drift, COMMON_PER_OCTAVE))
    )


def _beyond_bounds(
    spread: Spread, tests: Sequence[tuple[Array, HeldOut]], reach: float
) -> Iterator[tuple[Array, Array, Array]]:
    """By way to go beyond, of rows away from the sampled ones: errors, what the bounds leave of them, root of octaves."""
    for times, test in tests:
        held = np.isfinite(test.base)
        if held.sum() < FEWEST_FOR_BOUND or held.all():
            continue
        predicted = test.predicted(reach)[held]
        away = replace(spread, tail=_tail(times[~held])).away(predicted, test.outside[held])
        distant = away > FAR
        if distant.sum() < FEWEST_FOR_BOUND:
            continue
        error = np.log(times[held] / predicted)[distant]
        low, high = spread.bounds(predicted[distant], np.zeros(len(error)))
        yield error, np.maximum(error - high, low - error), np.sqrt(away[distant])


def _tail(target: Array) -> float:
    return float(np.quantile(np.log2(target), 1 - LARGEST_SHARE))


def _quantile(values: Array, share: float) -> float:
    """With the correction for a finite sample that makes a split-conformal interval hold."""
    n = len(values)
    corrected = share * (n + 1) / n - (1 / n if share < 0.5 else 0.0)
    return float(np.quantile(values, np.clip(corrected, 0.0, 1.0)))


def _scores(target: Array, tests: Sequence[HeldOut], reach: float, spread: Spread) -> Scores:
    among, *beyond = (test.predicted(reach) for test in tests)
    low, high = spread.bounds(among, np.zeros(len(among)))
    measured = np.log(target / among)
    return replace(
        scores_of(target, among),
        median_base=float(np.median(np.abs(tests[0].base / target - 1))),
        beyond=_mean([_mean_error(target, predicted) for predicted in beyond]),
        inside=float(np.mean((measured >= low) & (measured <= high))),
    )


def scores_of(target: Array, predicted: Array) -> Scores:
    """Errors of predictions by a base alone, of rows that it had not seen; what is beyond them is not known."""
    error, unknown = predicted / target - 1, float("nan")
    return Scores(
        rows=len(target),
        mape=float(np.mean(np.abs(error))),
        rmspe=float(np.sqrt(np.mean(error**2))),
        median_base=float(np.median(np.abs(error))),
        median=float(np.median(np.abs(error))),
        bias=float(np.sum(predicted) / np.sum(target) - 1),
        beyond=unknown,
        inside=unknown,
    )
