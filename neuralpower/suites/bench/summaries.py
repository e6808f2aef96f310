"""Tables of many results: what was explored, how it scales, how times spread, and where they went.

weak scaling      the batch of a device stays, the devices grow; speed-up by throughput
strong scaling    the batch of all devices together stays; speed-up by batch time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Values = Mapping[str, Any]

WHAT = ("model", "device", "phase", "dtype")


class Summary(NamedTuple):
    """A table; cells are texts, numbers or None for what is not known."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Rows by column name."""
        return {"title": self.title, "rows": [dict(zip(self.header, row, strict=True)) for row in self.rows]}

    def texts(self) -> list[list[str]]:
        """Rows of four digits; "-" for what is not known."""
        return [
            ["-" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row]
            for row in self.rows
        ]


def what(values: Values) -> tuple[str, str, str, str]:
    """Model, device, phase and dtype of a result."""
    numbers = str(values.get("exp.dtype", "-"))
    return (
        str(values.get("exp.model_title") or values.get("exp.model", "-")),
        str(values.get("exp.device_title") or values.get("exp.device_type", "-")),
        str(values.get("exp.phase", "-")),
        f"autocast {numbers}" if values.get("exp.autocast") else numbers,
    )


def exploration(results: Iterable[Values]) -> Summary:
    """Batch time and throughput of every run, by model and batch; what went wrong instead."""
    names = ("exp.num_gpus", "exp.replica_batch", "results.time", "results.throughput")
    rows = [(*what(v), *map(v.get, names), v.get("results.status", "-")) for v in results]
    return _summary("exploration", "devices|batch each|batch time ms|samples/s|status", rows)


def scaling(
    results: Iterable[Values], *, title: str, held: str, column: str, work: Callable[[int], int]
) -> Summary:
    """Speed-up and efficiency against the fewest devices, where `held` is the same, which `column` shows.

    They follow from the times: throughputs are whole numbers, of slow networks 0. `work` is how much of it a batch of
    so many devices is, in any unit.
    """
    groups: dict[tuple[Any, ...], dict[int, Values]] = {}
    for v in results:
        if v.get("results.time") and v.get(held) and v.get("exp.num_gpus"):
            groups.setdefault((*what(v), v[held]), {})[v["exp.num_gpus"]] = v
    rows = []
    for key, found in sorted(groups.items()):
        fewest = min(found)
        for devices, v in sorted(found.items()):
            speedup = work(devices) / work(fewest) * found[fewest]["results.time"] / v["results.time"]
            times = (devices, v["results.time"], v.get("results.throughput"))
            rows.append((*key, *times, float(speedup), speedup * fewest / devices))
    header = (*WHAT, column, "devices", "batch time ms", "samples/s", "speed-up", "efficiency")
    return Summary(title, header, tuple(rows))


def statistics(results: Iterable[Values]) -> Summary:
    """How the times of the batches spread (ms)."""
    rows = []
    for v in results:
        if times := v.get("results.time_data"):
            quarters = np.quantile(times, (0, 0.25, 0.5, 0.75, 1)).tolist()
            mean, std = float(np.mean(times)), float(np.std(times))
            rows.append((*what(v), v.get("exp.replica_batch"), len(times), mean, std, std / mean, *quarters))
    return _summary("statistics (ms)", "batch each|n|mean|std|std/mean|min|q25|median|q75|max", rows)


def time_analysis(results: Iterable[Values]) -> Summary:
    """Where the time of each run went (s), and how much of the timed part was waiting for data."""
    rows = []
    for v in results:
        wall = v.get("results.wall_s")
        if wall is None:
            continue
        parts = [float(v.get(f"results.{name}_s") or 0.0) for name in ("setup", "warmup", "timed")]
        waited = v.get("results.data_wait_s")
        share = waited / parts[2] if waited is not None and parts[2] else None
        rows.append((*what(v), v.get("exp.replica_batch"), wall, *parts, wall - sum(parts), waited, share))
    return _summary(
        "time analysis (s)", "batch each|wall|setup|warm-up|timed|rest|data wait|wait/timed", rows
    )


def _summary(title: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> Summary:
    """A table of these columns behind WHAT, its rows by what they are of."""

    def order(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            (value is not None, value if isinstance(value, int | float) else str(value)) for value in row[:6]
        )

    return Summary(title, (*WHAT, *columns.split("|")), tuple(sorted(rows, key=order)))


SUMMARIES: dict[str, Callable[[Iterable[Values]], Summary]] = {
    "exploration": exploration,
    "weak": partial(
        scaling,
        title="weak scaling",
        held="exp.replica_batch",
        column="batch each",
        work=lambda devices: devices,
    ),
    "strong": partial(
        scaling,
        title="strong scaling",
        held="exp.effective_batch",
        column="batch of all",
        work=lambda devices: 1,
    ),
    "statistics": statistics,
    "time": time_analysis,
}
