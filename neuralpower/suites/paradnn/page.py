"""The page of sweeps: analyses, charts and tables, from frames of `sweep.frame`, one row per point.

The analyses are those of the paper: heat maps (section 4.1), linear models of FLOP/s over standardised
hyper-parameters, and comparisons of two devices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from neuralpower.errors import InputError
from neuralpower.report.charts import XY, Bars, BarSeries, Chart, Heatmap, Series
from neuralpower.report.page import Page, Section, Table
from neuralpower.suites.paradnn.points import BATCH, Family, family_named
from neuralpower.suites.paradnn.run import OperatorTimes
from neuralpower.suites.roofs import Roof

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


# ---- Charts of sweeps: heat maps, regression weights, speed-ups, rooflines, throughput over the batch ----


Figures = Iterable[float]
TERA = 1e12


def heatmap(frame: pd.DataFrame, what: str, peaks: Mapping[str, float] | None = None) -> Heatmap:
    """Width by batch of one device and dtype: `what` is TFLOP/s, % of best or % of peak."""
    width = family_of(frame).width
    values = frame["flops_per_s"] / TERA if what == "TFLOP/s" else utilisation(frame, peaks)
    table = frame[[width, BATCH]].assign(value=values)
    table = table.pivot_table(index=width, columns=BATCH, values="value").sort_index(ascending=False)
    columns, rows = (tuple(power_of_two(int(size)) for size in axis) for axis in (table.columns, table.index))
    cells = tuple(_known(row) for row in table.to_numpy(float))
    others = ", ".join(name for name in hyper_parameters(frame) if name not in (width, BATCH))
    note = f"Mean over {others}." if others else ""
    return Heatmap(f"{what}: {_of(frame)}", "batch size", width, columns, rows, cells, what, note)


def weight_bars(models: Mapping[str, Weights], order: int) -> Bars:
    """Regression weights, devices side by side."""
    terms = tuple(dict.fromkeys(term for model in models.values() for term in model.weights))
    bars = [BarSeries(name, tuple(model.weights.get(t) for t in terms)) for name, model in models.items()]
    note = "; ".join(f"{name}: R2 {model.r2:.2f}, {model.points} points" for name, model in models.items())
    title, axis = "Effects on FLOP/s: linear weights", "% of the best FLOP/s per standard deviation"
    return Bars(f"{title}, order {order}", axis, terms, tuple(bars), note=note)


def faster_bars(model: Faster, a: str, b: str) -> Bars:
    """Weights of the logistic model."""
    weights = BarSeries("weight", tuple(model.weights.values()))
    right = f"the model is right at {model.accuracy:.0%}"
    note = f"{a} is faster at {model.share:.0%} of {model.points} points; {right}."
    title = f"When {a} is faster than {b}"
    return Bars(title, "log-odds per standard deviation", tuple(model.weights), (weights,), note=note)


def speedups(pairs: pd.DataFrame, a: str, b: str, coloured: str) -> XY:
    """Speed-up of A over B against parameters, coloured by a hyper-parameter."""
    sizes = pairs["parameters"]
    points = _series(pairs, f"{a} / {b}", sizes, pairs["speedup"], coloured)
    ends = [(float(end), 1.0) for end in (sizes.min(), sizes.max())]
    even = Series.of("as fast", ends, mode="lines", dash=True)
    title, shade = f"Speed-up of {a} over {b}, coloured by {coloured}", f"log2 {coloured}"
    return XY(title, "parameters", "speed-up", (points, even), True, True, shade)


def roofline(frame: pd.DataFrame, roof: Roof | None, coloured: str, relative: bool = False) -> XY:
    """FLOP/s over FLOP per byte of parameters, coloured by a hyper-parameter; for "kind", a series each."""
    top = float(frame["flops_per_s"].max()) if roof is None else roof.flops_per_s
    scale = 100 / top if relative else 1 / TERA
    by_kind = coloured == "kind"
    series = []
    for names, some in frame.groupby(["family", "kind"]) if by_kind else [(("points",), frame)]:
        name = " ".join(dict.fromkeys(map(str, filter(None, names))))
        heights = some["flops_per_s"] * scale
        series.append(_series(some, name, some["intensity"], heights, None if by_kind else coloured))
    if roof is not None:
        known, corner = frame["intensity"].dropna(), roof.flops_per_s / roof.bytes_per_s
        ends = (min([corner / 10, *known]), corner, max([corner * 10, *known]))
        line = [(x, scale * roof.attainable(x)) for x in ends]
        series.append(Series.of(roof.device, line, mode="lines", dash=True))
    title = f"Roofline by {coloured}{', relative' if relative else ''}: {_of(frame)}"
    height = ("% of peak" if roof else "% of the best") if relative else "TFLOP/s"
    shade, note = "" if by_kind else f"log2 {coloured}", "" if roof is None else roof.how
    return XY(title, "FLOP per byte of parameters", height, tuple(series), True, True, shade, note)


def over_batch(frame: pd.DataFrame) -> list[XY]:
    """FLOP/s over the batch, a line for each depth, a chart for each of up to three widths."""
    family = family_of(frame)
    charts = []
    for width in chosen_widths(frame):
        lines = []
        for depth, part in frame[frame[family.width] == width].groupby(family.depth):
            means = part.groupby(BATCH)["flops_per_s"].mean() / TERA
            points = [(int(batch), float(mean)) for batch, mean in zip(means.index, means, strict=True)]
            lines.append(Series.of(f"{family.depth} {depth}", points, mode="lines+markers"))
        title = f"TFLOP/s over batch, {family.width} {width}: {_of(frame)}"
        charts.append(XY(title, "batch size", "TFLOP/s", tuple(lines), True, True))
    return charts


def operator_bars(times: Sequence[OperatorTimes]) -> Bars:
    """Shares of a step by kind, one bar for each network."""
    kinds = dict.fromkeys(kind for one in times for kind in one.seconds)
    series = tuple(BarSeries(kind, tuple(100 * one.shares.get(kind, 0.0) for one in times)) for kind in kinds)
    names = tuple(one.label for one in times)
    return Bars("Operator times", "share of a step (%)", names, series, stacked=True)


def power_of_two(size: int) -> str:
    """A power of two as "2^5", other sizes in digits."""
    return f"2^{size.bit_length() - 1}" if size > 0 and size & (size - 1) == 0 else str(size)


def _series(frame: pd.DataFrame, name: str, x: Figures, y: Figures, coloured: str | None) -> Series:
    words = family_of(frame).words if frame["family"].nunique() == 1 else {BATCH: "bs"}
    rows = frame.to_dict("records")
    text = tuple(", ".join(f"{word} {row[key]}" for key, word in words.items()) for row in rows)
    colours = () if coloured is None else tuple(float(np.log2(value)) for value in frame[coloured])
    return Series(name, _known(x), _known(y), text, colours)


def _known(values: Figures) -> tuple[float | None, ...]:
    return tuple(float(value) if math.isfinite(value) else None for value in values)


def _of(frame: pd.DataFrame) -> str:
    names = {"device": "devices", "family": "families", "dtype": "dtypes"}
    found = {several: frame[column].unique() for column, several in names.items()}
    return ", ".join(str(v[0]) if len(v) == 1 else f"{len(v)} {several}" for several, v in found.items())


# ---- The page of one or several sweeps: tables, pictures, and skipped parts ----


T = TypeVar("T")
Roofs = Mapping[tuple[str, str], Roof]  # by device and dtype
STATE = ("family", "device", "dtype", "setup", "state")


def page_of(
    points: pd.DataFrame, roofs: Roofs | None = None, operators: Sequence[OperatorTimes] = ()
) -> Page:
    """The page of all points; raises InputError if none has a time."""
    frame, roofs = timed(points), roofs or {}
    method = (
        f"Numbers are {' and '.join(sorted(set(points['source'])))}. FLOP of fully connected networks follow "
        "from the paper's formula (6 Phi bs in training, 2 Phi bs in inference); FLOP of other networks are "
        "counted. Networks, sweeps and analyses after Wang, Wei and Brooks, A Systematic Methodology for "
        "Analysis of Deep Learning Hardware and Software Platforms, MLSys 2020."
    )
    counts = Counter(tuple(map(str, row)) for row in points[[*STATE]].itertuples(index=False))
    states = Table("States", (*STATE, "points"), tuple((*key, count) for key, count in counts.items()))
    sections = [Section("Points", (method,), (states, _best(frame, roofs)))]
    left_out: list[str] = []
    for family, swept in frame.groupby("family"):
        known = family_named(str(family))
        whole = swept.astype(dict.fromkeys(known.words, int))  # next to other families they have gaps
        sections += _family(known.title.capitalize(), whole, roofs, left_out)
    if frame["family"].nunique() > 1:
        both = [(*one, relative) for one in _by_device(frame, roofs) for relative in (False, True)]
        together = [roofline(swept, roof, "kind", relative) for *_, swept, roof, relative in both]
        sections.append(Section("All families", (), tuple(together)))
    if operators:
        note = "Self times of a profiled step; time outside operators is the remainder."
        sections.append(Section("Operators", (note,), (operator_bars(operators),)))
    if left_out:
        sections.append(Section("Skipped", tuple(f"- {text}" for text in dict.fromkeys(left_out))))
    devices = ", ".join(map(str, frame["device"].unique()))
    lead = f"{len(frame)} timed points of {devices}. FLOP are 2 per multiply-add."
    return Page("ParaDnn", lead, tuple(sections))


def _best(frame: pd.DataFrame, roofs: Roofs) -> Table:
    rows = []
    for row in best(frame).to_dict("records"):
        family, device, dtype = (str(row[name]) for name in ("family", "device", "dtype"))
        speed, roof = float(row["flops_per_s"]), roofs.get((device, dtype))
        share = None if roof is None else 100 * speed / roof.flops_per_s
        words = family_named(family).words.items()
        label = "-".join(f"{word}_{int(row[name])}" for name, word in words)
        rows.append((family, device, dtype, speed / 1e12, share, label))
    header = ("family", "device", "dtype", "best TFLOP/s", "% of peak", "at")
    return Table("Best TFLOP/s by dtype", header, tuple(rows))


def _by_device(frame: pd.DataFrame, roofs: Roofs) -> Iterator[tuple[str, str, pd.DataFrame, Roof | None]]:
    """(device, dtype, their points, their roof)."""
    for (device, dtype), some in frame.groupby(["device", "dtype"]):
        yield str(device), str(dtype), some, roofs.get((str(device), str(dtype)))


def _family(title: str, frame: pd.DataFrame, roofs: Roofs, left_out: list[str]) -> Iterator[Section]:
    for device, dtype, points, roof in _by_device(frame, roofs):
        charts: list[Chart] = [heatmap(points, what) for what in ("TFLOP/s", "% of best")]
        if roof:
            charts.append(heatmap(points, "% of peak", {dtype: roof.flops_per_s}))
        else:
            left_out.append(f"% of peak of {device} in {dtype}: no spec sheet; give --spec")
        for by in (family_of(frame).width, BATCH, "kind"):
            charts += [roofline(points, roof, by, relative) for relative in (False, True)]
        yield Section(f"{title}: {device}, {dtype}", (), (*charts, *over_batch(points)))
    for dtype, points in ((str(dtype), frame[frame["dtype"] == dtype]) for dtype in frame["dtype"].unique()):
        if parts := _models(points, dtype, left_out):
            yield Section(f"{title}: sizes that make it fast, {dtype}", (), tuple(parts))
        for a, b in combinations(map(str, points["device"].unique()), 2):
            yield Section(f"{title}: {a} and {b}, {dtype}", (), tuple(_compared(points, a, b, left_out)))


def _models(frame: pd.DataFrame, dtype: str, left_out: list[str]) -> list[Chart]:
    charts: list[Chart] = []
    for order in (1, 2):
        models = {}
        for device, some in frame.groupby("device"):
            model = _tried(partial(linear_weights, some, order), left_out, f"{device}, {dtype}")
            if model is not None:
                models[str(device)] = model
        charts += [weight_bars(models, order)] if models else []
    return charts


def _compared(frame: pd.DataFrame, a: str, b: str, left_out: list[str]) -> Iterator[Chart]:
    pairs = _tried(partial(paired, frame, a, b), left_out, f"{a} and {b}")
    if pairs is None:
        return
    for coloured in (BATCH, family_of(frame).width):
        yield speedups(pairs, a, b, coloured)
    model = _tried(partial(faster, pairs), left_out, f"{a} and {b}")
    if model is not None:
        yield faster_bars(model, a, b)


def _tried(make: Callable[[], T], left_out: list[str], what: str) -> T | None:
    """The result of `make`; None, and a line about it, if there are too few points."""
    try:
        return make()
    except InputError as error:
        left_out.append(f"{what}: {error}")
        return None
