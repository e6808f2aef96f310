"""Predictions of held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from neuralpower.learn.fitting.lasso import Part, fit_base, importance_of, polynomial, weight_of
from neuralpower.learn.fitting.problem import FEWEST_FOR_RESIDUAL, FEWEST_ROWS, WORST, Array, Problem
from neuralpower.learn.fitting.slopes import OUTLIER, robust_deviation
from neuralpower.learn.fitting.trees import Trees, boost
from neuralpower.learn.regressor import BASE_FEATURE, Regressor, say

FOLDS = 10
PIECES = 16  # of a line between two neighbours
FEWEST_SHAPES = 50  # that whole shapes are held out of
STRUCTURE = 0.7  # of log(t / t0): up to this a residual may be structure, however good the base is elsewhere


def folds_of(problem: Problem) -> Array:
    """A fold per row, from its shape alone: one more row leaves all others in their folds.

    By configuration where there are few shapes.
    """
    many = len(np.unique(problem.shape)) >= FEWEST_SHAPES
    label = problem.shape if many else problem.config
    fold = (label % np.uint64(FOLDS)).astype(int)
    return fold if len(np.unique(fold)) > 1 else np.unique(label, return_inverse=True)[1] % FOLDS


def fit_residual(problem: Problem, base: Regressor, size: tuple[int, int, float] | None = None) -> Trees:
    """Boosted trees for log(target / base)."""
    t0 = base.base(problem)
    target = np.log(problem.target / t0)
    devices = np.unique(problem.device)
    for device in devices[
        : len(devices) if len(devices) > 1 else 0
    ]:  # a level gives no information on the next device
        here = problem.device == device
        target[here] -= np.median(target[here])
    if not problem.bounded:
        spread, middle = max(robust_deviation(target), 0.02), float(np.median(target))
        widest = max(OUTLIER * spread, STRUCTURE)
        target = np.clip(target, middle - widest, middle + widest)  # no single row may make its own leaf
    x, weight = np.column_stack([problem.features, np.log2(t0)]), importance_of(problem.target)
    if problem.curve and len(devices) == 1:
        x, target, weight = _drawn(x, target, weight, *map(problem.feature_names.index, problem.curve))
    return boost(x, target, weight, (*problem.feature_names, BASE_FEATURE), size)


def _drawn(x: Array, target: Array, weight: Array, along: int, apart: int) -> tuple[Array, Array, Array]:
    """Rows of straight lines between neighbours along one feature, for each value of another; all else is 0.

    From the rows alone, trees would give a size that was not measured the residual of the nearest one.
    """
    curves = []
    for number in np.unique(x[:, apart]):
        here = x[:, apart] == number
        places, at = np.unique(x[here, along], return_inverse=True)
        rows = np.bincount(at)
        known = (np.bincount(at, one[here]) / rows for one in (target, weight))
        step = np.linspace(0, len(places) - 1, PIECES * (len(places) - 1) + 1)
        drawn = [np.interp(step, np.arange(len(places)), one) for one in (places, *known)]
        curves.append((np.full(len(step), number), *drawn))
    numbers, places, targets, weights = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    lines = np.zeros((len(numbers), x.shape[1]))
    lines[:, along], lines[:, apart] = places, numbers
    return lines, targets, weights


@dataclass(frozen=True)
class HeldOut:
    """Predictions of rows by fits that had not seen them, each [rows]; NaN for rows never held out."""

    base: Array
    residual: Array  # log, 0 without trees
    outside: Array  # octaves outside the box of the rows that the fit had seen

    def predicted(self, reach: float) -> Array:
        return np.asarray(self.base * np.exp(self.residual * say(self.outside, reach)))


def hold_out(
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
        held = folds == fold
        known, asked = problem.at(np.flatnonzero(~held)), problem.at(held)
        regressor = fit_base(known, parts)
        base[held], outside[held] = regressor.base(asked), regressor.outside(asked.axes)
        if with_trees:
            trees = fit_residual(known, regressor, size)
            residual[held] = trees.predict(np.column_stack([asked.features, np.log2(base[held])]))
    return HeldOut(base, residual, outside)


def cost_of(problem: Problem, tests: Sequence[HeldOut], reach: float) -> float:
    """The error among the sampled rows, plus a share of the error beyond them."""
    among, *beyond = (mean_error(problem.target, test.predicted(reach)) for test in tests)
    return among + weight_of(problem) * float(np.nan_to_num(mean_of(beyond)))


def mean_of(errors: Sequence[float]) -> float:
    """The mean of the errors that are known; NaN where none is."""
    known = [error for error in errors if np.isfinite(error)]
    return sum(known) / len(known) if known else float("nan")


def mean_error(target: Array, predicted: Array) -> float:
    """Mean absolute relative error of the rows that were held out, each at most WORST."""
    held = np.isfinite(predicted)
    error = np.minimum(np.abs(predicted[held] / target[held] - 1), WORST)
    return float(np.mean(error)) if len(error) else float("nan")


def log_error(problem: Problem, others: HeldOut) -> Array:
    """log(target / prediction) [rows]; NaN where not held out."""
    return np.asarray(np.log(problem.target / np.maximum(others.predicted(1.0), np.finfo(float).tiny)))


# ---- Find rows that contradict the others ----

SCREENING_ALPHA, SCREENING_TREES = 1e-3, (40, 12, 0.12)  # of the quick fit that finds contradicting rows
CONTRADICTS = 12.0, 2.5  # a row is skipped that lies this number of spreads, and this factor, from the others
# The same for fewer than three times FEWEST_ROWS rows, in standard deviations of the others without the row;
# both grow by themselves with each octave outside of their box. A target that the device bounds takes the
# factor of many rows. None of 72 tables of 10 to 24 rows of a CPU's sweep lost a row; 74 % of 144 with one
# time 20 times too high or too low lost that one, none another.
CONTRADICTS_FEW = 4.0, 5.0


def find_contradicting(problem: Problem) -> Array:
    """Rows too far from a fit of all others to be of the same kind, [rows], bool."""
    if len(problem) < 3 * FEWEST_ROWS:
        return _contradicting_few(problem)
    five = folds_of(problem) // 2
    return far_off(log_error(problem, _quick(problem, five, len(problem) >= FEWEST_FOR_RESIDUAL)))


def _contradicting_few(problem: Problem) -> Array:
    def compared(others: Array, row: int) -> tuple[float, Array, float]:
        known, both = problem.at(others), problem.at(np.append(others, row))
        error = log_error(known, _quick(known, np.unique(folds_of(known), return_inverse=True)[1] % 5))
        alone = _quick(both, np.append(np.full(len(others), -1), 0))
        return float(log_error(both, alone)[-1]), error, float(alone.outside[-1])

    factor = CONTRADICTS[1] if problem.bounded else CONTRADICTS_FEW[1]
    return contradicting_few(len(problem), compared, factor)


def contradicting_few(
    rows: int,
    compared: Callable[[Array, int], tuple[float, Array, float]],
    factor: float = CONTRADICTS_FEW[1],
) -> Array:
    """Which of a few rows contradict the others, [rows], bool.

    Rows are found one after the other, as a wrong one spoils all fits that it is in; good ones that were
    marked as wrong before it was found come back. `compared(others, row)`: the row's error of log(t) by a fit
    to the others; the errors of these among themselves (externally studentized residuals); octaves that the
    row lies outside of their box.
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
    return hold_out(problem, [part], folds, with_trees, SCREENING_TREES)


def far_off(error: Array) -> Array:
    """Which errors of log(t), [rows], are too far from the others' to be of the same kind, [rows], bool."""
    error = error - np.median(error)
    spreads, factor = CONTRADICTS
    return np.asarray(np.abs(error) > max(spreads * robust_deviation(error), np.log(factor)))
