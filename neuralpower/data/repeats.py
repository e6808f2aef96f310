"""Repeated measurements of one configuration as one row: their mean, how many they are, how far apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from neuralpower.data.screening import Rows

COUNT, SPREAD = "repeats", "runtime_spread"  # columns of a table whose rows are such means
FAR = 2.0  # times the median of its configuration: such a row is an error, which no mean may hide


def averaged(rows: Rows) -> Rows:
    """One row for each configuration, at the line of its first.

    Times, powers and slow-downs are means; `repeats` counts the rows behind one, and `spread` is the standard
    deviation of their times over their mean. A row FAR from the median of its configuration stays alone: fits
    find whether it contradicts its neighbours.
    """
    from neuralpower.layers.columns import fingerprint

    config = fingerprint(rows.layer)
    if len(np.unique(config)) == len(rows):
        return rows
    octaves = pd.Series(np.log2(rows.runtime_s))
    median = octaves.groupby(config).transform("median").to_numpy()
    far = np.abs(octaves.to_numpy() - median) > np.log2(FAR)
    label = np.where(far, np.arange(len(rows)), -1)
    _, first, group = np.unique(
        np.stack([config, label.astype(np.uint64)]), axis=1, return_index=True, return_inverse=True
    )
    group = group.ravel()
    order = np.argsort(first)  # of the groups, as they stand in the table
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    group, first = place[group], first[order]
    counts = np.bincount(group, weights=rows.repeats)
    mean_s = np.bincount(group, rows.runtime_s * rows.repeats) / counts
    apart = np.bincount(group, rows.repeats * (rows.runtime_s - mean_s[group]) ** 2)
    apart_s = np.sqrt(apart / np.maximum(counts - 1, 1))
    alone = np.bincount(group) == 1
    return dataclasses.replace(
        rows.at(first),
        rejected=rows.rejected,
        runtime_s=mean_s,
        repeats=counts,
        spread=np.where(alone, rows.spread[first], apart_s / mean_s),
        slowdown=_means(rows.slowdown, group),
        power_w=_means(rows.power_w, group),
        energy_u_rel=_means(rows.energy_u_rel, group),
        dispatch_s=_means(rows.dispatch_s, group),
    )


def _means(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The mean of each group's known values, [groups]; NaN where none is known."""
    known = np.isfinite(values)
    counts = np.bincount(group, known)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(group, np.where(known, values, 0.0)) / np.where(counts, counts, np.nan))
