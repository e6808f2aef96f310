"""The page of one or several sweeps: tables, pictures, and skipped parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

from neuralpower.errors import InputError
from neuralpower.report.charts import Chart
from neuralpower.report.page import Page, Section, Table
from neuralpower.suites.paradnn import pictures
from neuralpower.suites.paradnn.analysis import best, family_of, faster, linear_weights, paired, timed
from neuralpower.suites.paradnn.points import BATCH, family_named
from neuralpower.suites.paradnn.roof import Roof
from neuralpower.suites.paradnn.run import OperatorTimes

if TYPE_CHECKING:
    import pandas as pd

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
    for family, some in frame.groupby("family"):
        known = family_named(str(family))
        whole = some.astype(dict.fromkeys(known.words, int))  # next to other families they have gaps
        sections += _family(known.title.capitalize(), whole, roofs, left_out)
    if frame["family"].nunique() > 1:
        both = [(*one, relative) for one in _by_device(frame, roofs) for relative in (False, True)]
        together = [pictures.roofline(some, roof, "kind", relative) for *_, some, roof, relative in both]
        sections.append(Section("All families", (), tuple(together)))
    if operators:
        note = "Self times of a profiled step; time outside operators is the remainder."
        sections.append(Section("Operators", (note,), (pictures.operator_bars(operators),)))
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
    """Sections of one family."""
    for device, dtype, some, roof in _by_device(frame, roofs):
        charts: list[Chart] = [pictures.heatmap(some, what) for what in ("TFLOP/s", "% of best")]
        if roof:
            charts.append(pictures.heatmap(some, "% of peak", {dtype: roof.flops_per_s}))
        else:
            left_out.append(f"% of peak of {device} in {dtype}: no spec sheet; give --spec")
        for by in (family_of(frame).width, BATCH, "kind"):
            charts += [pictures.roofline(some, roof, by, relative) for relative in (False, True)]
        yield Section(f"{title}: {device}, {dtype}", (), (*charts, *pictures.over_batch(some)))
    for dtype, some in ((str(dtype), frame[frame["dtype"] == dtype]) for dtype in frame["dtype"].unique()):
        if parts := _models(some, dtype, left_out):
            yield Section(f"{title}: sizes that make it fast, {dtype}", (), tuple(parts))
        for a, b in combinations(map(str, some["device"].unique()), 2):
            yield Section(f"{title}: {a} and {b}, {dtype}", (), tuple(_compared(some, a, b, left_out)))


def _models(frame: pd.DataFrame, dtype: str, left_out: list[str]) -> list[Chart]:
    charts: list[Chart] = []
    for order in (1, 2):
        models = {}
        for device, some in frame.groupby("device"):
            model = _tried(partial(linear_weights, some, order), left_out, f"{device}, {dtype}")
            if model is not None:
                models[str(device)] = model
        charts += [pictures.weight_bars(models, order)] if models else []
    return charts


def _compared(frame: pd.DataFrame, a: str, b: str, left_out: list[str]) -> Iterator[Chart]:
    pairs = _tried(partial(paired, frame, a, b), left_out, f"{a} and {b}")
    if pairs is None:
        return
    for coloured in (BATCH, family_of(frame).width):
        yield pictures.speedups(pairs, a, b, coloured)
    model = _tried(partial(faster, pairs), left_out, f"{a} and {b}")
    if model is not None:
        yield pictures.faster_bars(model, a, b)


def _tried(make: Callable[[], T], left_out: list[str], what: str) -> T | None:
    """The result of `make`; None, and a line about it, if there are too few points."""
    try:
        return make()
    except InputError as error:
        left_out.append(f"{what}: {error}")
        return None
