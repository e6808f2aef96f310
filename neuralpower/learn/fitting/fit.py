"""The learner: a Lasso of non-negative weights on relative error, then a gated residual of boosted trees.

    base      t0(x) = sum_j w_j phi_j(x), w_j >= 0     minimise  mean_i (t0(x_i)/t_i - 1)^2 + alpha |w|_1
    residual  r(x)  = boosted trees on log(t / t0)
    predict   t1(x) = t0(x) exp(r(x) / (1 + (d(x)/reach)^2))
              t(x)  = t1(x) exp(-(1 - (floor / t1(x))^4) sum_k c_k a_k(x))

d counts the octaves outside the sampled box, summed over its axes. a_k says, from 0 to 1, how well x fits an
accelerator's memory and tiles (`slopes`): sizes of networks are round, those of a sweep are not, and what
that saves applies outside the box as well.

Some kinds, such as exchanges, have few sizes, octaves apart. Their trees are fitted to straight lines between
neighbouring sizes, so that a size between them has a residual between theirs.

This module handles arrays and names only. The polynomial with a Lasso and ten-fold cross-validation is
NeuralPower's (Cai et al., arXiv:1710.05420, section 3.2). Dividing each row by its time makes the error
relative; non-negative weights keep every prediction positive and growing. Intervals are split-conformal (Vovk
et al.; Lei et al., arXiv:1604.04173), on the errors of held-out rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuralpower.learn.fitting.held_out import (
    HeldOut,
    cost_of,
    find_contradicting,
    fit_residual,
    folds_of,
    hold_out,
)
from neuralpower.learn.fitting.intervals import scores_held_out, spread_of
from neuralpower.learn.fitting.lasso import PRIOR, Part, fit_base, select, unaligned
from neuralpower.learn.fitting.problem import FEWEST_FOR_RESIDUAL, FEWEST_ROWS, LARGEST_SHARE, Array, Problem
from neuralpower.learn.fitting.slopes import Alignment, speed_exponent
from neuralpower.learn.regressor import Regressor, Scores, Spread, upper_half
from neuralpower.learn.unmeasured.device_levels import levels_of

FARTHEST_SHARE = 0.3  # of the rows, outside the box of the others on at least one axis
FAR_KNOWN, FAR_ASKED = 0.7, 0.9  # quantiles of the size: rows up to the first predict those above the second
# Rows on which terms, reach and intervals are chosen; weights and trees are then fitted to all. Products on
# H100 and L40S, whole shapes held out, err by 2.3 and 3.9 % from 31,700 rows, by 2.7 and 4.8 from 5,200.
MOST_TO_CHOOSE = 2900
# From this number of devices on, trees may model what they have in common beyond the terms. Trained on
# others, products are then off by 11.7 % for 15.0 on an H100, 17.7 for 21.0 on an A100, 23.9 for 28.7 on an
# L40S.
FEWEST_DEVICES = 6
LAST_FOLDS = 2  # of ten, that judge parts fitted to more rows
# Configurations that a regressor remembers: among ten thousand, the exact layer to predict is rarely missing.
MOST_MEASURED = 5000
SURELY = 0.99  # times the cost of a mean of bases: a single base must cost less to be surely better
# Octaves outside the box at which half of the residual is applied; 0: no residual.
REACHES = (0.0, 0.25, 1.0, 4.0, float("inf"))


@dataclass(frozen=True)
class Fitted:
    """A regressor, and the rows that were skipped because they contradict their neighbours."""

    regressor: Regressor
    contradicting: Array  # [rows], bool
    parts: Sequence[Part]  # whose mean the base is


def fit(problem: Problem, learner: str = "hybrid") -> Fitted:
    """Degree, alpha, residual and reach by folds, then weights, box and intervals; `lasso` has no residual.

    Tries bases with the optional terms, without them, and the mean of both. Targets refer to
    the machine's usual speed and to unaligned sizes; how far layers follow both is fitted, too. The same
    rows give the same regressor.
    """
    contradicting = find_contradicting(problem)
    problem = problem.at(~contradicting)  # no step below uses them: one more corrupt row changes nothing
    some = problem.at(np.sort(np.argsort(problem.config)[:MOST_TO_CHOOSE]))  # `config` is random
    choices = [_choose(some, learner)]
    if problem.optional:
        choices.append(_choose(some.certain(), learner))
    if problem.optional and len(some) == len(problem):  # of many rows one base or the other is surely better
        mean = _choose(some, learner, [*choices[0].parts, *choices[1].parts])
        choices.append(replace(mean, cost=SURELY * mean.cost))
    best = min(choices, key=lambda choice: choice.cost)
    known = best.problem if len(some) == len(problem) else _as_chosen(problem, best)
    base = fit_base(known, best.parts)
    spread, scores = _errors(best, known)
    regressor = replace(
        base,
        trees=fit_residual(known, base) if best.reach else None,
        reach=best.reach,
        spread=spread,
        scores=scores,
        exponent=best.exponent,
        alignment=best.alignment,
        measured=np.unique(upper_half(problem.config)) if len(problem) <= MOST_MEASURED else None,
    )
    if len(np.unique(problem.device)) > 1:
        regressor = replace(regressor, levels=levels_of(regressor, known), measured=None)
    return Fitted(regressor, contradicting, best.parts)


@dataclass(frozen=True)
class _Choice:
    """The best choice for a problem by cross-validation, and its errors on the held-out rows."""

    problem: Problem  # targets at the machine's usual speed, and as if no row were aligned
    parts: Sequence[Part]
    exponent: float
    alignment: Alignment | None
    tests: Sequence[HeldOut]
    reach: float
    cost: float


def _errors(choice: _Choice, known: Problem) -> tuple[Spread, Scores]:
    """Intervals and scores: from the rows chosen on, and from LAST_FOLDS of all rows where these are more."""
    spread = spread_of(choice.problem, choice.tests, choice.reach, _far(choice))
    scores = scores_held_out(choice.problem.target, choice.tests, choice.reach, spread)
    if len(known) == len(choice.problem) or len(np.unique(known.device)) > 1:
        return spread, scores
    folds = folds_of(known)
    some = np.where(folds < LAST_FOLDS, folds, -1)
    held = np.flatnonzero(some >= 0)
    found = hold_out(known, choice.parts, some, with_trees=choice.reach > 0)
    test = HeldOut(found.base[held], found.residual[held], found.outside[held])
    beyond = [(choice.problem.target, other) for other in choice.tests[1:]]
    spread = spread_of(known.at(held), [test], choice.reach, [*beyond, *_far(choice)])
    among = scores_held_out(known.at(held).target, [test], choice.reach, spread)
    return spread, replace(among, rows=len(known), beyond=scores.beyond)


def _as_chosen(problem: Problem, choice: _Choice) -> Problem:
    """All rows with the terms and targets that were chosen on some of them."""
    if problem.optional and not choice.problem.optional:
        problem = problem.certain()
    problem = replace(problem, target=problem.target / problem.slowdown**choice.exponent)
    if choice.alignment is None:
        return problem
    saved = choice.alignment.saved(problem.special, fit_base(problem, choice.parts).base(problem))
    return replace(problem, target=problem.target * np.exp(saved))


def _choose(problem: Problem, learner: str, parts: Sequence[Part] = ()) -> _Choice:
    """The base's parts unless given, the effects of speed and alignment, and how far the residual reaches."""
    folds, beyond = folds_of(problem), _beyond(problem)
    parts = parts or [select(problem, folds, beyond)]
    devices = len(np.unique(problem.device))
    with_trees = learner == "hybrid" and len(problem) >= FEWEST_FOR_RESIDUAL
    with_trees = with_trees and (devices == 1 or devices >= FEWEST_DEVICES)
    exponent, alignment = 0.0, None
    if np.ptp(problem.slowdown) > 0:
        base = hold_out(problem, parts, folds, with_trees=False).base
        exponent = min(speed_exponent(problem.slowdown, problem.target / base, PRIOR), 1.0)
        problem = replace(problem, target=problem.target / problem.slowdown**exponent)
    if problem.shares:
        base = hold_out(problem, parts, folds, with_trees=False).base
        problem, alignment = unaligned(problem, base, folds)
    tests = [hold_out(problem, parts, held, with_trees) for held in (folds, *beyond)]
    costs = {reach: cost_of(problem, tests, reach) for reach in (REACHES if with_trees else (0.0,))}
    reach = min(costs, key=lambda reach: costs[reach])
    return _Choice(problem, parts, exponent, alignment, tests, reach, costs[reach])


def _far(choice: _Choice) -> list[tuple[Array, HeldOut]]:
    """(targets, predictions by a fit to small rows) of these and of the largest rows: for intervals alone."""
    problem = choice.problem
    low, high = np.quantile(problem.size, (FAR_KNOWN, FAR_ASKED))
    small, large = problem.size <= low, problem.size > max(low, high)
    if len(np.unique(problem.device)) > 1 or small.sum() < FEWEST_FOR_RESIDUAL or not large.any():
        return []
    part, folds = problem.at(small | large), np.where(large, 0, -1)[small | large]
    return [(part.target, hold_out(part, choice.parts, folds, with_trees=choice.reach > 0))]


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
