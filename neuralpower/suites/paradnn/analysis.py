"""What sweeps say: tables of points in, tables and models of them out.

Input are frames as `table.frame` makes them, one row per point. The analyses are those of the paper: heat maps (section 4.1),
linear models of FLOP/s over standardised hyper-parameters, and comparisons of two devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.errors import InputError
from neuralpower.suites.paradnn.points import family_named

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 8  # points that a model is fitted to


@dataclass(frozen=True)
class Weights:
    """Of a linear model: how much FLOP/s (in percent of the best) one standard deviation of a term adds; R squared."""

    weights: Mapping[str, float]
    r2: float
    points: int


@dataclass(frozen=True)
class Faster:
    """A logistic model of "A is faster than B": log-odds per standard deviation of each term, and its share of right answers."""

    weights: Mapping[str, float]
    accuracy: float
    share: float  # of the points at which A is faster
    points: int


def timed(frame: pd.DataFrame) -> pd.DataFrame:
    """The points that have a time; raises InputError where there is none."""
    found = frame[frame["flops_per_s"].notna()]
    if found.empty:
        raise InputError(
            "no point has a time: sweep first, as `neuralpower paradnn fc --benchmark --out DIR`"
        )
    return found


def one_family(frame: pd.DataFrame) -> str:
    """The family of all points; raises InputError where there are several."""
    families = sorted(set(frame["family"]))
    if len(families) != 1:
        raise InputError(f"points of {' and '.join(families)}: a comparison needs points of one family")
    return str(families[0])


def hyper_parameters(frame: pd.DataFrame) -> list[str]:
    """Those of the family that take more than one value."""
    return [name for name in family_named(one_family(frame)).words if frame[name].nunique() > 1]


def utilisation(frame: pd.DataFrame, peaks: Mapping[str, float] | None = None) -> pd.Series[float]:
    """Percent of the best point of the same device and dtype, or of a dtype's peak; NaN where it has none."""
    if peaks is None:
        return 100 * frame["flops_per_s"] / frame.groupby(["device", "dtype"])["flops_per_s"].transform("max")
    return 100 * frame["flops_per_s"] / frame["dtype"].map(peaks).astype(float)


def pivot(frame: pd.DataFrame, values: pd.Series[float], rows: str, columns: str) -> pd.DataFrame:
    """The mean of values over all other hyper-parameters, by two of them."""
    table = frame[[rows, columns]].assign(value=values)
    return table.pivot_table(index=rows, columns=columns, values="value", aggfunc="mean").sort_index(
        ascending=False
    )


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """The fastest point of each family, device and dtype."""
    index = frame.groupby(["family", "device", "dtype"])["flops_per_s"].idxmax()
    return frame.loc[index]


def linear_weights(frame: pd.DataFrame, order: int = 1) -> Weights:
    """Least squares of FLOP/s (in percent of the best) on standardised hyper-parameters and their products up to `order`.

    Raises:
        InputError: fewer than eight points, or none whose sizes differ.
    """
    from sklearn.linear_model import LinearRegression

    names, terms = _terms(frame, order)
    target = utilisation(frame).to_numpy()
    model = LinearRegression().fit(terms, target)
    found = dict(zip(names, map(float, model.coef_), strict=True))
    return Weights(found, float(model.score(terms, target)), len(frame))


def paired(frame: pd.DataFrame, a: str, b: str) -> pd.DataFrame:
    """Points that both devices have, with `speedup`: the FLOP/s of A over those of B.

    Raises:
        InputError: there are none.
    """
    keys = ["family", "kind", "dtype", "setup", *family_named(one_family(frame)).words]
    sides = [frame[frame["device"] == device].drop_duplicates(keys, keep="last") for device in (a, b)]
    both = sides[0].merge(sides[1][[*keys, "flops_per_s"]], on=keys, suffixes=("", "_b"))
    if both.empty:
        raise InputError(
            f"{a!r} and {b!r} have no point in common; sweep both with the same ranges and --seed"
        )
    return both.assign(speedup=both["flops_per_s"] / both["flops_per_s_b"])


def faster(pairs: pd.DataFrame) -> Faster:
    """When A is faster than B; raises InputError where it always or never is, or for fewer than eight points."""
    from sklearn.linear_model import LogisticRegression

    wins = (pairs["speedup"] > 1).to_numpy()
    if wins.all() or not wins.any():
        raise InputError(
            f"A is faster at {'all' if wins.all() else 'none'} of {len(wins)} points: there is nothing to tell apart"
        )
    names, terms = _terms(pairs, 1)
    model = LogisticRegression().fit(terms, wins)
    return Faster(
        dict(zip(names, map(float, model.coef_[0]), strict=True)),
        float(model.score(terms, wins)),
        float(wins.mean()),
        len(pairs),
    )


def _terms(frame: pd.DataFrame, order: int) -> tuple[list[str], Any]:
    """Names and values [points, terms] of the standardised hyper-parameters' products."""
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    names = hyper_parameters(frame)
    if len(frame) < FEWEST or not names:
        raise InputError(
            f"{len(frame)} points that differ in {len(names)} sizes: a model needs {FEWEST} that differ in one at least"
        )
    scaled = StandardScaler().fit_transform(frame[names].to_numpy(float))
    products = PolynomialFeatures(order, include_bias=False).fit(scaled)
    labels = [str(name).replace(" ", " x ") for name in products.get_feature_names_out(names)]
    return labels, products.transform(scaled)


def chosen_widths(frame: pd.DataFrame) -> list[int]:
    """Up to three widths for a picture each: of the paper's 32, 256, 2048 or 32, 1024, 8192 those that are there, else spread."""
    family = family_named(one_family(frame))
    there = sorted(int(width) for width in frame[family.width].unique())
    for known in ((32, 256, 2048), (32, 1024, 8192)):
        if set(known) <= set(there):
            return list(known)
    if len(there) <= 3:
        return there
    return [there[int(i)] for i in np.linspace(0, len(there) - 1, 3).round()]
