"""The page of one or several sweeps: tables, pictures, and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

from neuralpower.errors import InputError
from neuralpower.report.charts import Chart
from neuralpower.report.page import Columns, Page, Section, Table
from neuralpower.suites.paradnn import pictures
from neuralpower.suites.paradnn.analysis import best, faster, linear_weights, one_family, paired, timed
from neuralpower.suites.paradnn.operators import OperatorTimes
from neuralpower.suites.paradnn.points import BATCH, family_named
from neuralpower.suites.paradnn.roof import Roof

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Profiled = Sequence[OperatorTimes]
Roofs = Mapping[tuple[str, str], Roof]  # by device and dtype
ORDERS = (1, 2)
STATE = ("family", "device", "dtype", "setup", "state")


def page_of(points: pd.DataFrame, roofs: Roofs | None = None, operators: Profiled = ()) -> Page:
    """The page of all points; raises InputError where none has a time."""
    frame, roofs = timed(points), roofs or {}
    sections = [Section("Points", (_method(points),), (_states(points), _best(frame, roofs)))]
    left_out: list[str] = []
    for family, some in frame.groupby("family"):
        known = family_named(str(family))
        whole = some.astype(dict.fromkeys(known.words, int))  # beside other families they have gaps
        sections += _family(known.title.capitalize(), whole, roofs, left_out)
    if frame["family"].nunique() > 1:
        sections.append(Section("All families", (), tuple(_together(frame, roofs))))
    if operators:
        note = "Self times of a profiled step; its share of no operator is the remainder."
        sections.append(Section("Operators", (note,), (pictures.operator_bars(operators),)))
    if left_out:
        sections.append(Section("Left out", tuple(f"- {text}" for text in dict.fromkeys(left_out))))
    devices = ", ".join(map(str, frame["device"].unique()))
    lead = f"{len(frame)} timed points of {devices}. FLOP are 2 per multiply-add."
    return Page("ParaDnn", lead, tuple(sections))


def _method(points: pd.DataFrame) -> str:
    return (
        f"Figures are {' and '.join(sorted(set(points['source'])))}. FLOP of fully connected networks follow "
        "from the paper's formula (6 Phi bs in training, 2 Phi bs in inference), those of others are "
        "counted. Networks, sweeps and analyses after Wang, Wei and Brooks, A Systematic Methodology for "
        "Analysis of Deep Learning Hardware and Software Platforms, MLSys 2020."
    )


def _states(points: pd.DataFrame) -> Table:
    counts = Counter(tuple(map(str, row)) for row in points[[*STATE]].itertuples(index=False))
    return Table("States", (*STATE, "points"), tuple((*key, count) for key, count in counts.items()))


def _best(frame: pd.DataFrame, roofs: Roofs) -> Table:
    def share(row: dict[Any, Any]) -> float | None:
        roof = roofs.get((str(row["device"]), str(row["dtype"])))
        return None if roof is None else 100 * float(row["flops_per_s"]) / roof.flops_per_s

    def label(row: dict[Any, Any]) -> str:
        words = family_named(str(row["family"])).words
        return "-".join(f"{word}_{int(row[name])}" for name, word in words.items())

    columns: Columns[dict[Any, Any]] = {
        "family": lambda row: str(row["family"]),
        "device": lambda row: str(row["device"]),
        "dtype": lambda row: str(row["dtype"]),
        "best TFLOP/s": lambda row: float(row["flops_per_s"]) / 1e12,
        "% of peak": share,
        "at": label,
    }
    return Table.of("Best TFLOP/s by dtype", best(frame).to_dict("records"), columns)


def _by_device(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(device, dtype, their points)."""
    for (device, dtype), some in frame.groupby(["device", "dtype"]):
        yield str(device), str(dtype), some


def _family(title: str, frame: pd.DataFrame, roofs: Roofs, left_out: list[str]) -> Iterator[Section]:
    """Sections of one family."""
    width = family_named(one_family(frame)).width
    for device, dtype, some in _by_device(frame):
        roof = roofs.get((device, dtype))
        maps = [pictures.heatmap(some, "TFLOP/s"), pictures.heatmap(some, "% of best")]
        if roof:
            maps.append(pictures.heatmap(some, "% of peak", {dtype: roof.flops_per_s}))
        else:
            left_out.append(f"% of peak of {device} in {dtype}: no spec sheet; give --spec")
        kinds = [(by, relative) for by in (width, BATCH, "kind") for relative in (False, True)]
        rooflines = [pictures.roofline(some, roof, by, relative) for by, relative in kinds]
        yield Section(f"{title}: {device}, {dtype}", (), (*maps, *rooflines, *pictures.over_batch(some)))
    for dtype in map(str, frame["dtype"].unique()):
        some = frame[frame["dtype"] == dtype]
        parts = _models(some, dtype, left_out)
        if parts:
            yield Section(f"{title}: what makes it fast, {dtype}", (), tuple(parts))
        for a, b in combinations(map(str, some["device"].unique()), 2):
            yield Section(f"{title}: {a} and {b}, {dtype}", (), tuple(_compared(some, a, b, left_out)))


def _together(frame: pd.DataFrame, roofs: Roofs) -> Iterator[Chart]:
    """Rooflines of all families, a series for each kind."""
    for device, dtype, some in _by_device(frame):
        for relative in (False, True):
            yield pictures.roofline(some, roofs.get((device, dtype)), "kind", relative)


def _models(frame: pd.DataFrame, dtype: str, left_out: list[str]) -> list[Chart]:
    charts: list[Chart] = []
    for order in ORDERS:
        found = {
            str(device): _tried(partial(linear_weights, some, order), left_out, f"{device}, {dtype}")
            for device, some in frame.groupby("device")
        }
        models = {device: model for device, model in found.items() if model is not None}
        charts += [pictures.weight_bars(models, order)] if models else []
    return charts


def _compared(frame: pd.DataFrame, a: str, b: str, left_out: list[str]) -> Iterator[Chart]:
    pairs = _tried(partial(paired, frame, a, b), left_out, f"{a} and {b}")
    if pairs is None:
        return
    for coloured in (BATCH, family_named(one_family(frame)).width):
        yield pictures.speedups(pairs, a, b, coloured)
    model = _tried(partial(faster, pairs), left_out, f"{a} and {b}")
    if model is not None:
        yield pictures.faster_bars(model, a, b)


def _tried(make: Callable[[], T], left_out: list[str], what: str) -> T | None:
    """What `make` gives; where there are too few points, None, and a line about it."""
    try:
        return make()
    except InputError as error:
        left_out.append(f"{what}: {error}")
        return None
