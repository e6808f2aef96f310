"""Bounds and scores from rows held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from neuralpower.learn.fitting.held_out import HeldOut, mean_error, mean_of
from neuralpower.learn.fitting.problem import FAR, FEWEST_FOR_BOUND, LARGEST_SHARE, Array, Problem
from neuralpower.learn.fitting.slopes import robust_deviation
from neuralpower.learn.regressor import NINETY, Scores, Spread

BINS = 6  # of predicted time, each with its own interval
# What an octave beyond the sampled rows adds at least: to an interval of log(t), and to the deviation that
# layers share. Errors of different octaves count as independent, so by the root of octaves (docs/method.md).
PER_OCTAVE, COMMON_PER_OCTAVE = 0.05, 0.03
ONE_SIDE = 0.05  # of measurements may lie below a layer's interval, and as many above
# How far devices lie from what others say, as a standard deviation of log(t), before any is seen, and as how
# many devices that counts: passes over memory reach 73 to 92 % of the bandwidth on GPUs of 2016 to 2020.
DEVICES_APART, APART_LIKE = 0.1, 2
PLATEAU = 0.3  # share of the error that all layers of a regressor have in common, where nothing tells


def spread_of(
    problem: Problem, tests: Sequence[HeldOut], reach: float, far: Sequence[tuple[Array, HeldOut]]
) -> Spread:
    """Intervals from rows held out among the others; their growth from rows held out beyond and far beyond.

    Where rows are of several devices, both come from each device as the others predict it.
    """
    target, devices = problem.target, np.unique(problem.device)
    predicted = tests[0].predicted(reach)
    if len(devices) > 1:  # each row is held out once
        predicted = np.nanmax([test.predicted(reach) for test in tests[1:]], axis=0)
    error, size = np.log(target / predicted), np.log2(predicted)
    bins = int(np.clip(len(error) // 50, 1, BINS))
    edges = np.quantile(size, np.arange(1, bins) / bins)
    bin_ = np.searchsorted(edges, size)
    parts = [
        error[bin_ == b] if (bin_ == b).any() else error for b in range(bins)
    ]  # launches all take the same
    low = np.array([min(_quantile(part, ONE_SIDE), 0.0) for part in parts])
    high = np.array([max(_quantile(part, 1 - ONE_SIDE), 0.0) for part in parts])
    means = np.array([np.mean(part) for part in parts])
    common = max(float(np.sqrt(np.mean(means**2))), PLATEAU * robust_deviation(error))
    if len(devices) > 1:
        levels = np.array([np.median(error[problem.device == device]) for device in devices])
        common = max(common, float(np.sqrt(np.mean(levels**2))))
        least = _of_new_devices(error, levels[np.searchsorted(devices, problem.device)], levels)
        low, high = np.minimum(low, -least), np.maximum(high, least)
    spread = Spread(edges.tolist(), low.tolist(), high.tolist(), 0.0, common, 0.0, _tail(target))
    beyond = [*_beyond_bounds(spread, [*((target, test) for test in tests[1:]), *far], reach)]
    if (
        len(devices) > 1 and beyond
    ):  # intervals include each device's own error: together they show what distance adds
        errors, rests, roots = map(np.concatenate, zip(*beyond, strict=True))
        beyond = [(errors, rests, roots)]
    growths = [max(float(np.quantile(rest / root, 1 - 2 * ONE_SIDE)), 0.0) for _, rest, root in beyond]
    drifts = [max(abs(float(np.median(e))) - common, 0.0) / float(np.median(root)) for e, _, root in beyond]
    growth = np.mean(growths or [np.mean(high - low) / 4])
    drift = np.mean(drifts or [common / 2])
    return structs.replace(
        spread,
        growth=float(np.hypot(growth, PER_OCTAVE)),
        common_growth=float(np.hypot(drift, COMMON_PER_OCTAVE)),
    )


def _of_new_devices(error: Array, level: Array, levels: Array) -> float:
    """Half of the interval of log(t) on one more device: the fewer devices are known, the wider it is.

    `level`: of each row's device [rows]; `levels`: of each device. By Student's t for as many devices, with
    those that the prior counts as.
    """
    from scipy.stats import t

    known = len(levels) + APART_LIKE
    apart = np.sqrt((np.sum(levels**2) + APART_LIKE * DEVICES_APART**2) / known)
    among = NINETY * robust_deviation(error - level)
    return float(np.hypot(t.ppf(1 - ONE_SIDE, known) * apart, among))


def _beyond_bounds(
    spread: Spread, tests: Sequence[tuple[Array, HeldOut]], reach: float
) -> Iterator[tuple[Array, Array, Array]]:
    """(errors, what bounds leave of them, root of octaves) of rows beyond the sampled ones, for each test."""
    for times, test in tests:
        held = np.isfinite(test.base)
        if held.sum() < FEWEST_FOR_BOUND or held.all():
            continue
        predicted = test.predicted(reach)[held]
        away = structs.replace(spread, tail=_tail(times[~held])).away(predicted, test.outside[held])
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


def scores_held_out(target: Array, tests: Sequence[HeldOut], reach: float, spread: Spread) -> Scores:
    """Errors and coverage of the bounds, on rows held out."""
    among, *beyond = (test.predicted(reach) for test in tests)
    low, high = spread.bounds(among, np.zeros(len(among)))
    measured = np.log(target / among)
    return replace(
        scores_of(target, among),
        median_base=float(np.median(np.abs(tests[0].base / target - 1))),
        beyond=mean_of([mean_error(target, predicted) for predicted in beyond]),
        inside=float(np.mean((measured >= low) & (measured <= high))),
    )


def scores_of(target: Array, predicted: Array) -> Scores:
    """Errors of predictions by a base alone, of rows that it had not seen; those beyond are not known."""
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
