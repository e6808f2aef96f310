"""Slopes of log(t) that a sum of terms cannot have: on the machine's speed, and on how well layers fit it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neuralpower.learn.files.file_struct import Log, NotNegative, Part

Array = np.ndarray

OUTLIER = 4.0  # residuals of more than this number of usual spreads lose weight
SAVED = 0.03  # standard deviation, before rows tell, of each share's slope: 0.02 for products of four GPUs
FLOOR, ABOVE = 0.01, 1.25  # quantile of the targets that is their floor; times that, rows tell
FEWEST_ABOVE = 20
HUBER, HUBER_ROUNDS = 2.0, 4  # standard deviations to which an error counts as much as another (Huber, 1964)


class Alignment(Part, frozen=True):
    """Time saved by layers that fit the device's memory and tiles."""

    slopes: dict[str, Log]  # of -log(t) on each share
    floor: NotNegative  # time of the shortest rows

    def saved(self, shares: Mapping[str, Array], unaligned: Array) -> Array:
        """Reduction of log(t) by alignment, [rows].

        The floor hides what is below it: with t^4 = floor^4 + work^4, a share 1 - (floor / t)^4 of a change
        of the work shows.
        """
        seen = 1 - np.minimum(self.floor / unaligned, 1.0) ** 4
        return np.asarray(seen * sum(slope * shares[name] for name, slope in self.slopes.items()))


def fit_alignment(
    shares: Mapping[str, Array], sides: Mapping[str, Array], base: Array, target: Array, importance: Array
) -> Alignment | None:
    """Slopes of log(base / target) on the shares by a ridge regression with Huber's weights.

    Each [rows]; `base` had not seen them; `sides` are the sizes that shares follow from; `importance` is what
    a row counts. Slopes can be negative: otherwise noise alone would make aligned rows look faster. None
    where no share varies, or too few rows stand out from the floor.
    """
    shares = {name: share for name, share in shares.items() if np.ptp(share) > 0}
    floor = float(np.quantile(target, FLOOR))
    known = base > ABOVE * floor
    if not shares or known.sum() < FEWEST_ABOVE:
        return None
    one = Alignment({"": 1.0}, floor)
    visible = np.column_stack([one.saved({"": share[known]}, base[known]) for share in shares.values()])
    error, counts = np.log(base[known] / target[known]), importance[known]
    groups = [np.unique(side[known], return_inverse=True)[1] for side in sides.values()]
    slopes = np.zeros(len(shares))
    for _ in range(HUBER_ROUNDS):
        rest = error - visible @ slopes
        rest -= np.median(rest)
        spread = max(robust_deviation(rest), 1e-3)
        usual = np.clip(rest, -HUBER * spread, HUBER * spread)
        apart = np.min([_apart(group, usual) for group in groups], axis=0, initial=1.0)
        huber = np.minimum(1.0, HUBER * spread / np.maximum(np.abs(rest), 1e-12))
        weight = apart * counts / counts.mean() * huber
        x, y = (values - np.average(values, axis=0, weights=weight) for values in (visible, error))
        information = (x * weight[:, None]).T @ x + np.eye(len(shares)) * (spread / SAVED) ** 2
        slopes = np.linalg.solve(information, (x * weight[:, None]).T @ y)
    return Alignment(dict(zip(shares, slopes.tolist(), strict=True)), floor)


def _apart(group: Array, error: Array) -> Array:
    """Weight of each row within its group, [rows]: (1 + v) / (1 + n v), n the group's rows.

    v: variance of the errors' common part in a group over the variance within groups, by an analysis of
    variance. A size that is slow for its own reasons is slow in all its rows: a thousand of them count as one
    (Moulton, 1986).
    """
    rows = np.bincount(group)
    groups, total = len(rows), len(error)
    if groups in (1, total):
        return np.ones(total)
    mean = np.bincount(group, error) / rows
    within = float(np.sum((error - mean[group]) ** 2)) / (total - groups)
    between = float(rows @ (mean - error.mean()) ** 2) / (groups - 1)
    usual_rows = (total - float(np.sum(rows**2)) / total) / (groups - 1)
    common = max(between - within, 0.0) / usual_rows / max(within, 1e-12)
    return np.asarray((1 + common) / (1 + common * rows[group]))


def speed_exponent(slowdown: Array, ratio: Array, prior: tuple[float, float]) -> float:
    """Slope of log(ratio) on log(slow-down), not below 0.

    Without information in the rows, it is near the prior's mean, with its deviation. `slowdown` [rows]: in
    any unit; `ratio` [rows]: measured / predicted at one speed of the machine.
    """
    x = np.log(slowdown) - np.median(np.log(slowdown))
    r = np.log(ratio)
    r -= np.median(r)
    usual = np.abs(r) <= OUTLIER * robust_deviation(r)
    x, r = x[usual], r[usual]
    noise = max(float(np.var(r)), 1e-6)
    mean, deviation = prior
    information = float(x @ x) / noise + deviation**-2
    return max((float(x @ r) / noise + mean / deviation**2) / information, 0.0)


def robust_deviation(values: Array) -> float:
    """Standard deviation from the median absolute deviation, which outliers do not move."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
