"""The base of a regressor: a polynomial with non-negative weights, fitted to relative error."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from neuralpower.learn.problem import BEYOND, FEWEST_FOR_BOUND, FEWEST_ROWS, FLOOR, NEW_DEVICE, WORST, Problem
from neuralpower.learn.regressor import PLAIN_DEGREE, PLAIN_WORK, Array, Regressor, Scores, Spread, Term
from neuralpower.learn.slopes import OUTLIER, Alignment, learn_alignment

ALPHAS = tuple(10.0 ** (-exponent / 2) for exponent in range(3, 13))
IMPORTANCE, MOST_IMPORTANT = 0.25, 5.0  # a row's weight grows with this power of its time, up to this factor
IMPOSSIBLE = (
    1e-3  # of a plausible row's weight: one below, some 60 times too fast, must not set the terms' scales
)
PRIOR = (0.4, 0.2)  # of the exponent with which layers follow the machine's speed: mean, standard deviation
FEWEST_FOR_TERM = 10  # rows in which a term is above 0
LEVELLING_ALPHA, LEVELLING_ROUNDS = (1e-4,), 4  # of the fits that find each device's level
# Of the least error of the kind's own terms: a plain polynomial, or a constant, must err less to be taken instead, as it knows
# less of what lies beyond the rows.
SURELY_PLAIN = 0.95


def polynomial(dimensions: Sequence[str], degree: int) -> list[Term]:
    """All products of up to `degree` different dimensions, the constant first.

    No squares: nothing takes longer than in proportion to each of its sides, and beyond the sampled box a small weight on
    a square or cube of one would outgrow all else.
    """
    chosen = (names for total in range(degree + 1) for names in itertools.combinations(dimensions, total))
    return [Term(tuple((name, 1) for name in names)) for names in chosen]


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


class Part(NamedTuple):
    """What a non-negative Lasso is fitted with; a base is one of them or the mean of several."""

    terms: Sequence[Term]
    alpha: float
    degree: int


def fit_base(problem: Problem, parts: Sequence[Part]) -> Regressor:
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


def unaligned(problem: Problem, base: Array, folds: Array) -> tuple[Problem, Alignment | None]:
    """Targets as if nothing were aligned, each by slopes that its fold had no part in; and the slopes of all rows.

    `base` [rows], which had not seen them either, stands for what they take then.
    """
    importance, target = importance_of(problem.target), problem.target.copy()

    def learnt(rows: Array) -> Alignment | None:
        some = problem.at(rows)
        shares = {name: some.special[name] for name in problem.shares}
        return learn_alignment(shares, some.axes, base[rows], some.target, importance[rows])

    for fold in np.unique(folds):
        held, found = np.flatnonzero(folds == fold), learnt(folds != fold)
        if found:
            target[held] *= np.exp(found.saved(problem.at(held).special, base[held]))
    return replace(problem, target=target), learnt(np.full(len(problem), True))


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
    plausible = emphasis = plausible * importance_of(target)
    for _ in range(2):
        root = np.sqrt(emphasis)[:, None]
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", ConvergenceWarning
            )  # the polynomial's columns are nearly collinear
            _, path, _ = lasso_path(
                scaled * root,
                root[:, 0],
                alphas=sorted(alphas, reverse=True),
                positive=True,
                tol=1e-5,
                max_iter=3000,
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


def importance_of(target: Array) -> Array:
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


def select(problem: Problem, folds: Array, beyond: Sequence[Array]) -> Part:
    """The terms, alpha and degree with the least mean absolute relative error on rows held out, among the rest and beyond."""
    held = [(folds == fold, 1.0 / len(problem)) for fold in np.unique(folds)]
    held += [(b == 0, weight_of(problem) / len(beyond) / np.sum(b == 0)) for b in beyond if (b == 0).any()]

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
    plain = (
        [([Term()], 0), *([(plain_terms(problem), PLAIN_DEGREE)] if many else [])] if problem.plain else []
    )
    for part, errors in itertools.starmap(tried, plain):
        if (errors < SURELY_PLAIN * best[1]).all():
            best = part, errors
    return best[0]


def weight_of(problem: Problem) -> float:
    """What an error beyond the sampled rows counts beside one among them, when a learner is chosen."""
    return BEYOND if len(np.unique(problem.device)) == 1 else NEW_DEVICE
