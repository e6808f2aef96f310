"""Analyses of sweeps, from frames of `table.frame`, one row per point.

The analyses are those of the paper: heat maps (section 4.1), linear models of FLOP/s over standardised
hyper-parameters, and comparisons of two devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.errors import InputError
from neuralpower.suites.paradnn.points import Family, family_named

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 8  # fewest points for a model


@dataclass(frozen=True)
class Weights:
    """A linear model: percent of the best FLOP/s per standard deviation of a term; R squared."""

    weights: Mapping[str, float]
    r2: float
    points: int


@dataclass(frozen=True)
class Faster:
    """A logistic model of "A is faster than B": log-odds per standard deviation of a term."""

    weights: Mapping[str, float]
    accuracy: float  # share of correct answers
    share: float  # of the points at which A is faster
    points: int


def timed(frame: pd.DataFrame) -> pd.DataFrame:
    """The points that have a time; raises InputError if there are none."""
    found = frame[frame["flops_per_s"].notna()]
    if found.empty:
        way = "sweep first, with `neuralpower paradnn fc --benchmark --out DIR`"
        raise InputError(f"no point has a time: {way}")
    return found


def family_of(frame: pd.DataFrame) -> Family:
    """The family of all points; raises InputError if there are several."""
    families = sorted(set(frame["family"]))
    if len(families) != 1:
        raise InputError(f"points of {' and '.join(families)}: a comparison needs points of one family")
    return family_named(str(families[0]))


def hyper_parameters(frame: pd.DataFrame) -> list[str]:
    """The family's sizes that take more than one value."""
    return [name for name in family_of(frame).words if frame[name].nunique() > 1]


def utilisation(frame: pd.DataFrame, peaks: Mapping[str, float] | None = None) -> pd.Series[float]:
    """Percent of the best point of the same device and dtype, or of a dtype's peak; NaN if it has none."""
    if peaks is None:
        return 100 * frame["flops_per_s"] / frame.groupby(["device", "dtype"])["flops_per_s"].transform("max")
    return 100 * frame["flops_per_s"] / frame["dtype"].map(peaks).astype(float)


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """The fastest point of each family, device and dtype."""
    return frame.loc[frame.groupby(["family", "device", "dtype"])["flops_per_s"].idxmax()]


def linear_weights(frame: pd.DataFrame, order: int = 1) -> Weights:
    """Least squares of FLOP/s (% of the best) on sizes and their products of `order`; raises InputError."""
    from sklearn.linear_model import LinearRegression

    names, terms = _terms(frame, order)
    target = utilisation(frame).to_numpy()
    model = LinearRegression().fit(terms, target)
    weights = dict(zip(names, map(float, model.coef_), strict=True))
    return Weights(weights, r2=float(model.score(terms, target)), points=len(frame))


def paired(frame: pd.DataFrame, a: str, b: str) -> pd.DataFrame:
    """Points of both devices, with `speedup`: the FLOP/s of A over those of B; raises InputError for none."""
    keys = ["family", "kind", "dtype", "setup", *family_of(frame).words]
    sides = [frame[frame["device"] == device].drop_duplicates(keys, keep="last") for device in (a, b)]
    both = sides[0].merge(sides[1][[*keys, "flops_per_s"]], on=keys, suffixes=("", "_b"))
    if both.empty:
        way = "sweep both with the same ranges and --seed"
        raise InputError(f"{a!r} and {b!r} have no point in common; {way}")
    return both.assign(speedup=both["flops_per_s"] / both["flops_per_s_b"])


def faster(pairs: pd.DataFrame) -> Faster:
    """When A is faster than B; raises InputError if it always or never is, or for too few points."""
    from sklearn.linear_model import LogisticRegression

    wins = (pairs["speedup"] > 1).to_numpy()
    if wins.all() or not wins.any():
        some = f"{'all' if wins.all() else 'none'} of {len(wins)} points"
        raise InputError(f"A is faster at {some}: a model needs points of both results")
    names, terms = _terms(pairs, 1)
    model = LogisticRegression().fit(terms, wins)
    return Faster(
        weights=dict(zip(names, map(float, model.coef_[0]), strict=True)),
        accuracy=float(model.score(terms, wins)),
        share=float(wins.mean()),
        points=len(pairs),
    )


def _terms(frame: pd.DataFrame, order: int) -> tuple[list[str], Any]:
    """Names and values [points, terms] of standardised sizes and their products; raises InputError."""
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    names = hyper_parameters(frame)
    if len(frame) < FEWEST or not names:
        rule = f"a model needs {FEWEST} that differ in one or more sizes"
        raise InputError(f"{len(frame)} points that differ in {len(names)} sizes: {rule}")
    scaled = StandardScaler().fit_transform(frame[names].to_numpy(float))
    products = PolynomialFeatures(order, include_bias=False).fit(scaled)
    labels = [str(name).replace(" ", " x ") for name in products.get_feature_names_out(names)]
    return labels, products.transform(scaled)


def chosen_widths(frame: pd.DataFrame) -> list[int]:
    """Up to three widths, one picture each: the paper's 32, 256, 2048 or 32, 1024, 8192, else spread ones."""
    there = sorted(int(width) for width in frame[family_of(frame).width].unique())
    for known in ((32, 256, 2048), (32, 1024, 8192)):
        if set(known) <= set(there):
            return list(known)
    if len(there) <= 3:
        return there
    return [there[int(i)] for i in np.linspace(0, len(there) - 1, 3).round()]
