"""The base of a regressor: a polynomial with non-negative weights, fitted to relative error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, starmap
from typing import NamedTuple

import numpy as np

from neuralpower.learn.fitting.problem import (
    BEYOND,
    FEWEST_FOR_BOUND,
    FEWEST_ROWS,
    FLOOR,
    NEW_DEVICE,
    WORST,
    Array,
    Problem,
    Term,
)
from neuralpower.learn.fitting.slopes import OUTLIER, Alignment, fit_alignment
from neuralpower.learn.regressor import PLAIN_DEGREE, PLAIN_WORK, Regressor, Scores, Spread

ALPHAS = tuple(10.0 ** (-exponent / 2) for exponent in range(3, 13))
IMPORTANCE, MOST_IMPORTANT = 0.25, 5.0  # a row's weight grows with this power of its time, up to this factor
# Times a plausible row's weight: a row below, some 60 times too fast, must not set the terms' scales.
IMPOSSIBLE = 1e-3
PRIOR = (0.4, 0.2)  # of the exponent with which layers follow the machine's speed: mean, standard deviation
FEWEST_FOR_TERM = 10  # rows in which a term is above 0
LEVELLING_ALPHA, LEVELLING_ROUNDS = (1e-4,), 4  # of the fits that find each device's level
# Times the least error of the kind's own terms: a plain polynomial, or a constant, must err less than that to
# be chosen, because it extrapolates worse.
SURELY_PLAIN = 0.95


def polynomial(dimensions: Sequence[str], degree: int) -> list[Term]:
    """All products of up to `degree` different dimensions, the constant first.

    No squares: time grows at most in proportion to each side, and beyond the sampled box a small weight on a
    square or cube would outgrow all else.
    """
    chosen = (names for total in range(degree + 1) for names in combinations(dimensions, total))
    return [Term(tuple((name, 1) for name in names)) for names in chosen]


def plain_terms(problem: Problem) -> list[Term]:
    """Terms of a quadratic polynomial of the table's own dimensions, FLOPs and bytes; equal columns once.

    It has squares, unlike the kind's own polynomial: held-out rows must confirm them.
    """
    powers = [Counter(names) for n in (1, 2) for names in combinations_with_replacement(problem.plain, n)]
    terms = [Term(), *(Term(special=name) for name in PLAIN_WORK if name in problem.special)]
    terms += [Term(tuple(names.items())) for names in powers]
    matrix = problem.matrix(terms)
    different: dict[bytes, Term] = {}
    for term, column in zip(terms, (matrix / np.maximum(matrix.max(axis=0), 1)).T, strict=True):
        if column.any():
            different.setdefault(column.round(9).tobytes(), term)
    return list(different.values())


class Part(NamedTuple):
    """The terms and the alpha of one non-negative Lasso; a base is the mean of one or several."""

    terms: Sequence[Term]
    alpha: float
    degree: int


def fit_base(problem: Problem, parts: Sequence[Part]) -> Regressor:
    """The mean of the parts' non-negative Lassos; terms of weight 0 are dropped."""
    weights: dict[Term, float] = {}
    for terms, alpha, _ in parts:
        found = _weights(problem, terms, problem.matrix(terms), [alpha])[0] / len(parts)
        for term, weight in zip(terms, found.tolist(), strict=True):
            if weight > 0:
                weights[term] = weights.get(term, 0.0) + weight
    return Regressor(
        terms=tuple(weights),
        weights=np.array(list(weights.values())),
        degree=max(part.degree for part in parts),
        alpha=parts[0].alpha,
        box={name: (float(values.min()), float(values.max())) for name, values in problem.axes.items()},
        trees=None,
        reach=0.0,
        spread=Spread([], [0.0], [0.0], 0.0, 0.0, 0.0),
        scores=Scores(len(problem), *[float("nan")] * 7),
        least=float(problem.target.min()) * (1.0 if problem.bounded else FLOOR),
    )


def _weights(problem: Problem, terms: Sequence[Term], matrix: Array, alphas: Sequence[float]) -> Array:
    """Weights [alphas, terms] of the non-negative Lasso, for the usual one of the rows' devices.

    Devices differ by a factor, and hosts by their launch overhead, for reasons that no term describes. Terms
    would absorb both in weights that mean something else. So each device has its own of both, and a new one
    has their medians: the median level is over devices that do not stand apart, if there are any.
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
        usual = np.array([_medians(ratio[device == i]) for i in range(len(devices))]) * level[:, None]
        middle = np.exp(np.median(np.log(usual[telling]), axis=0))
        level = usual[:, -1] / middle[-1]
    weights = np.zeros((len(alphas), len(terms)))
    weights[:, varies] = found[:, :split] * middle[:, None]
    weights[:, ~varies] = np.median(found[:, split:], axis=1)[:, None]
    return weights


def _medians(ratio: Array) -> Array:
    """The median of each column [rows, columns] without its NaN; 1 where too few are known."""
    return np.array([np.nanmedian(c) if np.isfinite(c).sum() >= FEWEST_ROWS else 1.0 for c in ratio.T])


def unaligned(problem: Problem, base: Array, folds: Array) -> tuple[Problem, Alignment | None]:
    """Targets as if nothing were aligned, each by slopes from the other folds; and the slopes of all rows.

    `base` [rows] stands for the unaligned times; its fits had not seen these rows either.
    """
    importance, target = importance_of(problem.target), problem.target.copy()

    def fitted(rows: Array) -> Alignment | None:
        some = problem.at(rows)
        shares = {name: some.special[name] for name in problem.shares}
        return fit_alignment(shares, some.axes, base[rows], some.target, importance[rows])

    for fold in np.unique(folds):
        held, found = np.flatnonzero(folds == fold), fitted(folds != fold)
        if found:
            target[held] *= np.exp(found.saved(problem.at(held).special, base[held]))
    return replace(problem, target=target), fitted(np.full(len(problem), True))


def non_negative_lasso(matrix: Array, target: Array, alphas: Sequence[float]) -> Array:
    """Weights [alphas, terms] of the non-negative Lasso on relative error, where rows far off count less."""
    relative = matrix / target[:, None]
    plausible = _plausible(relative)
    scale = np.sqrt(np.mean(relative[plausible > IMPOSSIBLE] ** 2, axis=0))
    used = (scale > 0) & (np.count_nonzero(relative, axis=0) >= min(FEWEST_FOR_TERM, len(relative) // 2))
    scaled, least = relative[:, used] / scale[used], int(np.argmin(alphas))
    weights = np.zeros((len(alphas), matrix.shape[1]))
    plausible = emphasis = plausible * importance_of(target)
    near: Array | None = None
    for _ in range(2):
        weighted = scaled * emphasis[:, None] / len(scaled)
        near = path = non_negative(scaled.T @ weighted, weighted.sum(axis=0), alphas, near)
        residual = scaled @ path[least] - 1
        spread = max(1.4826 * float(np.median(np.abs(residual))), 0.02)
        emphasis = plausible * np.minimum(1.0, (OUTLIER * spread / np.maximum(np.abs(residual), 1e-12)) ** 2)
    # The median row sets the level. Squares of relative errors are least where predictions are too low, by
    # exp(-1.5 s^2) under log-normal noise s. Layers' noise cancels in a network, such a bias does not. A mean
    # would follow the rows that the terms do not describe, most of them slower than the terms say; so would a
    # median in which long rows count for more.
    level = np.median(scaled @ path.T, axis=0)[:, None]
    weights[:, used] = path / np.where(level > 0, level, 1.0) / scale[used]
    return weights


def importance_of(target: Array) -> Array:
    """Weight per row: long layers make up a network's time, so they count for more, within bounds."""
    return np.asarray(np.clip((target / np.median(target)) ** IMPORTANCE, 1 / MOST_IMPORTANT, MOST_IMPORTANT))


def _plausible(relative: Array) -> Array:
    """Weight per row: below 1 where a term per second exceeds what nearly all other rows reach.

    With non-negative weights, phi_j(x) / t is at most 1 / w_j: a row far above that for any j is too fast to
    be true, and would pull the whole fit to itself.
    """
    emphasis = np.ones(len(relative))
    for column in relative.T:
        rows = np.flatnonzero(column)
        if len(rows) >= FEWEST_FOR_BOUND:
            beyond = len(rows) // 100 + 2
            bound = 2 * np.partition(column[rows], -beyond)[-beyond]
            emphasis[rows] = np.minimum(emphasis[rows], (bound / column[rows]) ** 2)
    return emphasis


def select(problem: Problem, folds: Array, beyond: Sequence[Array]) -> Part:
    """The terms, alpha and degree of least mean absolute relative error on held-out rows."""
    held = [(folds == fold, 1.0 / len(problem)) for fold in np.unique(folds)]
    held += [(b == 0, weight_of(problem) / len(beyond) / np.sum(b == 0)) for b in beyond if (b == 0).any()]

    def tried(terms: list[Term], degree: int) -> tuple[Part, Array]:
        """(part with the best alpha, its two errors): relative, and the same for too low as for too high."""
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
    degrees = problem.degrees if many else problem.degrees[:1]
    best, *others = [tried([*polynomial(sides, degree), *special], degree) for degree in degrees]
    for part, errors in others:
        if errors[0] < 0.99 * best[1][0]:
            best = part, errors
    plain = [([Term()], 0)] if problem.plain else []
    if problem.plain and many:
        plain.append((plain_terms(problem), PLAIN_DEGREE))
    for part, errors in starmap(tried, plain):
        if (errors < SURELY_PLAIN * best[1]).all():
            best = part, errors
    return best[0]


def weight_of(problem: Problem) -> float:
    """How much an error beyond the sampled rows counts, relative to one among them, in choosing terms."""
    return BEYOND if len(np.unique(problem.device)) == 1 else NEW_DEVICE


# ---- Non-negative least squares with a penalty on the sum of the weights, solved exactly ----
# minimise  w' G w / 2 - (b - alpha) w,  w >= 0
#
# A weight is free, or held at 0. The free ones are solved for. Where that takes some below 0, all move as
# far as the first reaches 0, which is held from then on. Else the weight that the gradient would raise
# most becomes free, until it would raise none (Lawson and Hanson, "Solving Least Squares Problems", 1974,
# chapter 23). That takes about one step per weight, where coordinate descent on nearly collinear columns
# takes thousands.

RIDGE = 1e-9  # times the mean diagonal of G, added to it: nearly collinear columns have one answer
STEPS = 5  # at most, times the number of weights
# Times the largest of b: no smaller gradient raises a weight. The ridge's own is less: of equal columns, one
# has all the weight.
ROUNDING = 1e-7


def non_negative(
    gram: np.ndarray, products: np.ndarray, alphas: Sequence[float], near: np.ndarray | None = None
) -> np.ndarray:
    """Weights [alphas, terms] for G [terms, terms] and b [terms].

    The search starts from `near`, answers to a similar question, else for each alpha from the answer for the
    next one up: the start changes how long it takes, not what is found.
    """
    terms = len(products)
    gram = gram + RIDGE * max(float(np.trace(gram)), 1e-300) / max(terms, 1) * np.eye(terms)
    nearly = ROUNDING * float(np.abs(products).max(initial=0.0))
    weights, found = np.zeros(terms), np.zeros((len(alphas), terms))
    for number in np.argsort(alphas)[::-1]:
        start = weights if near is None else near[number]
        weights = found[number] = _solved(gram, products - alphas[number], start, nearly)
    return found


def _solved(gram: np.ndarray, target: np.ndarray, start: np.ndarray, nearly: float) -> np.ndarray:
    """The weights [terms] that minimise w' G w / 2 - target w, from some that are not negative."""
    weights, free = start.copy(), start > 0
    for _ in range(STEPS * len(target)):
        places = np.flatnonzero(free)
        now, best = weights[places], np.linalg.solve(gram[places[:, None], places], target[places])
        falls = best <= 0
        if falls.any():
            share = now[falls] / np.maximum(now[falls] - best[falls], 1e-300)
            weights[places] = np.maximum(now + share.min() * (best - now), 0.0)
            held = places[falls][share <= share.min()]
            weights[held], free[held] = 0.0, False
            continue
        weights[places] = best
        gradient = target - gram[:, places] @ best
        gradient[places] = 0.0
        raised = int(np.argmax(gradient))
        if gradient[raised] <= nearly:
            break
        free[raised] = True
    return weights
