"""The page of one or several sweeps: tables, pictures, and what was left out."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

from neuralpower.errors import InputError
from neuralpower.report.charts import Chart
from neuralpower.report.page import Cell, Page, Section, Table
from neuralpower.suites.paradnn.analysis import best, faster, linear_weights, one_family, paired, timed
from neuralpower.suites.paradnn.operators import OperatorTimes
from neuralpower.suites.paradnn.pictures import (
    faster_bars,
    heatmap,
    operator_bars,
    over_batch,
    roofline,
    speedups,
    weight_bars,
)
from neuralpower.suites.paradnn.points import BATCH, family_named
from neuralpower.suites.paradnn.roof import Roof

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Roofs = Mapping[tuple[str, str], Roof]  # by device and dtype
ORDERS = (1, 2)


def page_of(points: pd.DataFrame, roofs: Roofs | None = None, operators: Sequence[OperatorTimes] = ()) -> Page:
    """The page of all points; raises InputError where none has a time."""
    frame, roofs = timed(points), roofs or {}
    sections = [Section("Points", _method(points), (_states(points), _best(frame, roofs)))]
    left_out: list[str] = []
    for family, some in frame.groupby("family"):
        known = family_named(str(family))
        whole = some.astype(dict.fromkeys(known.words, int))  # beside other families they have gaps
        sections += _family(known.title.capitalize(), whole, roofs, left_out)
    if frame["family"].nunique() > 1:
        sections.append(Section("All families", (), tuple(_together(frame, roofs))))
    if operators:
        note = ("Self times of a profiled step; its share of no operator is the remainder.",)
        sections.append(Section("Operators", note, (operator_bars(operators),)))
    if left_out:
        sections.append(Section("Left out", tuple(f"- {text}" for text in dict.fromkeys(left_out))))
    devices = ", ".join(map(str, frame["device"].unique()))
    lead = f"{len(frame)} timed points of {devices}. FLOP are 2 per multiply-add."
    return Page("ParaDnn", lead, tuple(sections))


def _method(points: pd.DataFrame) -> tuple[str, ...]:
    sources = " and ".join(sorted(set(points["source"])))
    return (
        f"Figures are {sources}. FLOP of fully connected networks follow from the paper's formula (6 Phi bs in training, "
        "2 Phi bs in inference), those of others are counted. Networks, sweeps and analyses after Wang, Wei and Brooks, A "
        "Systematic Methodology for Analysis of Deep Learning Hardware and Software Platforms, MLSys 2020.",
    )


def _states(points: pd.DataFrame) -> Table:
    columns = ["family", "device", "dtype", "setup", "state"]
    counts = Counter(tuple(map(str, row)) for row in points[columns].itertuples(index=False))
    rows: list[tuple[Cell, ...]] = [(*key, count) for key, count in counts.items()]
    return Table("States", ("family", "device", "dtype", "setup", "state", "points"), tuple(rows))


def _best(frame: pd.DataFrame, roofs: Roofs) -> Table:
    rows = []
    for row in best(frame).to_dict("records"):
        roof = roofs.get((str(row["device"]), str(row["dtype"])))
        words = family_named(str(row["family"])).words
        label = "-".join(f"{word}_{int(row[name])}" for name, word in words.items())
        share = None if roof is None else 100 * float(row["flops_per_s"]) / roof.flops_per_s
        rows.append(
            (str(row["family"]), str(row["device"]), str(row["dtype"]), float(row["flops_per_s"]) / 1e12, share, label)
        )
    header = ("family", "device", "dtype", "best TFLOP/s", "% of peak", "at")
    return Table("Best TFLOP/s by dtype", header, tuple(rows))


def _family(title: str, frame: pd.DataFrame, roofs: Roofs, left_out: list[str]) -> Iterator[Section]:
    """Sections of one family."""
    family = family_named(one_family(frame))
    for key, some in frame.groupby(["device", "dtype"]):
        device, dtype = (str(part) for part in key)
        roof = roofs.get((device, dtype))
        peaks = {dtype: roof.flops_per_s} if roof else None
        maps = [heatmap(some, "TFLOP/s"), heatmap(some, "% of best")]
        if peaks:
            maps.append(heatmap(some, "% of peak", peaks))
        else:
            left_out.append(f"% of peak of {device} in {dtype}: no spec sheet; give --spec")
        rooflines = [roofline(some, roof, by, share) for by in (family.width, BATCH, "kind") for share in (False, True)]
        yield Section(f"{title}: {device}, {dtype}", (), (*maps, *rooflines, *over_batch(some)))
    for dtype in map(str, frame["dtype"].unique()):
        some = frame[frame["dtype"] == dtype]
        parts = _models(some, dtype, left_out)
        if parts:
            yield Section(f"{title}: what makes it fast, {dtype}", (), tuple(parts))
        for a, b in combinations(map(str, some["device"].unique()), 2):
            yield Section(f"{title}: {a} and {b}, {dtype}", (), tuple(_compared(some, a, b, left_out)))


def _together(frame: pd.DataFrame, roofs: Roofs) -> Iterator[Chart]:
    """Rooflines of all families, a series for each kind."""
    for key, some in frame.groupby(["device", "dtype"]):
        device, dtype = (str(part) for part in key)
        for relative in (False, True):
            yield roofline(some, roofs.get((device, dtype)), "kind", relative)


def _models(frame: pd.DataFrame, dtype: str, left_out: list[str]) -> list[Chart]:
    charts: list[Chart] = []
    for order in ORDERS:
        models = {}
        for device, some in frame.groupby("device"):
            model = _tried(functools.partial(linear_weights, some, order), left_out, f"{device}, {dtype}")
            if model is not None:
                models[str(device)] = model
        if models:
            charts.append(weight_bars(models, order))
    return charts


def _compared(frame: pd.DataFrame, a: str, b: str, left_out: list[str]) -> Iterator[Chart]:
    family = family_named(one_family(frame))
    pairs = _tried(lambda: paired(frame, a, b), left_out, f"{a} and {b}")
    if pairs is None:
        return
    for coloured in (BATCH, family.width):
        yield speedups(pairs, a, b, coloured)
    model = _tried(lambda: faster(pairs), left_out, f"{a} and {b}")
    if model is not None:
        yield faster_bars(model, a, b)


def _tried(make: Callable[[], T], left_out: list[str], what: str) -> T | None:
    """What `make` gives; where there are too few points, None, and a line about it."""
    try:
        return make()
    except InputError as error:
        left_out.append(f"{what}: {error}")
        return None
