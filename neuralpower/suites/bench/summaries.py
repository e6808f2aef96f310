"""Tables of many results: exploration, scaling, spread of times, and shares of time.

weak scaling      the batch of a device is constant, the devices grow; speed-up by throughput
strong scaling    the batch of all devices is constant; speed-up by batch time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Values = Mapping[str, Any]  # of a run, by the names of its result lines
WHAT = ("model", "device", "phase", "dtype")


class Summary(NamedTuple):
    """A table; cells are texts, numbers, or None for an unknown value."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, title: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> Summary:
        """A table of `columns` behind WHAT, its rows in the order of their first six cells."""

        def order(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
            return [(v is not None, v if isinstance(v, int | float) else str(v)) for v in row[:6]]

        return cls(title, (*WHAT, *columns.split("|")), tuple(sorted(rows, key=order)))

    def to_json(self) -> dict[str, Any]:
        """Rows by column name."""
        return {"title": self.title, "rows": [dict(zip(self.header, row, strict=True)) for row in self.rows]}

    def texts(self) -> list[list[str]]:
        """Rows with four digits; "-" for an unknown value."""
        return [
            ["-" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row]
            for row in self.rows
        ]


def what(values: Values) -> tuple[str, ...]:
    """Model, device, phase and dtype of a result."""
    model = values.get("exp.model_title") or values.get("exp.model", "-")
    device = values.get("exp.device_title") or values.get("exp.device_type", "-")
    dtype = f"{'autocast ' if values.get('exp.autocast') else ''}{values.get('exp.dtype', '-')}"
    return str(model), str(device), str(values.get("exp.phase", "-")), dtype


def exploration(results: Iterable[Values]) -> Summary:
    """Batch time and throughput of every run, or its failure, by model and batch."""
    names = ("exp.num_gpus", "exp.replica_batch", "results.time", "results.throughput")
    rows = [(*what(v), *map(v.get, names), v.get("results.status", "-")) for v in results]
    return Summary.of("exploration", "devices|batch each|batch time ms|samples/s|status", rows)


def scaling(results: Iterable[Values], strong: bool) -> Summary:
    """Speed-up and efficiency against the fewest devices, by times: throughputs are rounded, even to 0."""
    column, held = ("batch of all", "effective") if strong else ("batch each", "replica")
    held = f"exp.{held}_batch"
    groups: dict[tuple[Any, ...], dict[int, Values]] = {}
    for v in results:
        if v.get("results.time") and v.get(held) and v.get("exp.num_gpus"):
            groups.setdefault((*what(v), v[held]), {})[v["exp.num_gpus"]] = v
    rows = []
    for key, found in groups.items():
        fewest = min(found)
        for devices, v in found.items():
            work = 1.0 if strong else devices / fewest
            speedup = work * found[fewest]["results.time"] / v["results.time"]
            times = (devices, v["results.time"], v.get("results.throughput"))
            rows.append((*key, *times, float(speedup), speedup * fewest / devices))
    columns = f"{column}|devices|batch time ms|samples/s|speed-up|efficiency"
    return Summary.of(f"{'strong' if strong else 'weak'} scaling", columns, rows)


def statistics(results: Iterable[Values]) -> Summary:
    """Statistics of the batches' times (ms)."""
    rows = []
    for v in results:
        if times := v.get("results.time_data"):
            quarters = np.quantile(times, (0, 0.25, 0.5, 0.75, 1)).tolist()
            mean, std = float(np.mean(times)), float(np.std(times))
            rows.append((*what(v), v.get("exp.replica_batch"), len(times), mean, std, std / mean, *quarters))
    return Summary.of("statistics (ms)", "batch each|n|mean|std|std/mean|min|q25|median|q75|max", rows)


def time_analysis(results: Iterable[Values]) -> Summary:
    """The parts of each run's time (s), and the share of the timed part that waited for data."""
    rows = []
    for v in results:
        if (wall := v.get("results.wall_s")) is not None:
            parts = [float(v.get(f"results.{name}_s") or 0.0) for name in ("setup", "warmup", "timed")]
            waited = v.get("results.data_wait_s")
            share = waited / parts[2] if waited is not None and parts[2] else None
            spent = (wall, *parts, wall - sum(parts), waited, share)
            rows.append((*what(v), v.get("exp.replica_batch"), *spent))
    columns = "batch each|wall|setup|warm-up|timed|rest|data wait|wait/timed"
    return Summary.of("time analysis (s)", columns, rows)


SUMMARIES: dict[str, Callable[[Iterable[Values]], Summary]] = {
    "exploration": exploration,
    "weak": partial(scaling, strong=False),
    "strong": partial(scaling, strong=True),
    "statistics": statistics,
    "time": time_analysis,
}
