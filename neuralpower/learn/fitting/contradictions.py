"""Find rows that contradict the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neuralpower.learn.fitting.held_out import HeldOut, folds_of, hold_out, log_error
from neuralpower.learn.fitting.lasso import Part, polynomial
from neuralpower.learn.fitting.problem import FEWEST_FOR_RESIDUAL, FEWEST_ROWS, Array, Problem
from neuralpower.learn.fitting.slopes import robust_deviation

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
