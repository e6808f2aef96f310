"""The points of a sweep as charts and as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuralpower.report.charts import XY, Named, Series
from neuralpower.report.number_format import SIZES, TIMES, plain, unit_of

if TYPE_CHECKING:  # which predict does not need
    from neuralpower.prediction.explore.sweep import Sweep, SweepPoint


@dataclass(frozen=True)
class Swept:
    """The known points of a sweep: a line for each predictor, dtype and length, along the batch sizes.

    With one batch size, a line runs along the lengths.
    """

    result: Sweep
    known: Sequence[SweepPoint]

    @property
    def along_length(self) -> bool:
        """Whether lines run along the lengths."""
        batches, lengths = ({getattr(p, name) for p in self.known} for name in ("batch_size", "seq_len"))
        return len(batches) == 1 and len(lengths) > 1

    @property
    def along_ranks(self) -> bool:
        """Whether lines run along the devices: one batch size and one length on several layouts."""
        batches = {p.batch_size for p in self.known}
        return len(batches) == 1 and not self.along_length and len({p.ranks for p in self.known}) > 1

    @property
    def word(self) -> str:
        """What changes along a line."""
        if self.along_ranks:
            return "devices"
        return "tokens per sample" if self.along_length else "batch size"

    def size(self, point: SweepPoint) -> int:
        """A point's size along its line."""
        if self.along_ranks:
            return point.ranks
        return (point.seq_len or 0) if self.along_length else point.batch_size

    def groups(self) -> dict[str, list[SweepPoint]]:
        """Name -> points of a line; a name contains only what differs."""
        points = self.known
        many = {
            name: len({getattr(p, name) for p in points}) > 1
            for name in ("predictor", "dtype", "seq_len", "layout")
        }
        found: dict[str, list[SweepPoint]] = {}
        for p in points:
            length = f"length {p.seq_len}" if many["seq_len"] and not self.along_length else ""
            layout = p.layout if many["layout"] and not self.along_ranks else ""
            own = (p.predictor if many["predictor"] else "", p.dtype if many["dtype"] else "")
            parts = (*own, length, layout)
            found.setdefault(" ".join(filter(None, parts)) or p.device, []).append(p)
        return {name: sorted(some, key=self.size) for name, some in found.items()}

    def text(self, p: SweepPoint) -> str:
        """The name of a point."""
        length, layout = f", length {p.seq_len}" if p.seq_len else "", f", {p.layout}" if p.layout else ""
        return f"batch {p.batch_size}{length}{layout}"

    def front(self) -> XY:
        """Latency against energy or throughput, each point with its size."""
        energy = self.result.front.startswith("latency")
        size, unit = unit_of([p.runtime_s or 0.0 for p in self.known], TIMES)

        def point(p: SweepPoint) -> Named:
            figure = (p.energy_j or 0.0) / p.batch_size if energy else p.samples_per_s or 0.0
            return (p.runtime_s or 0.0) / size, figure, self.text(p)

        lines = [
            Series.of(
                name, map(point, some), mode="lines+markers", labels=tuple(str(self.size(p)) for p in some)
            )
            for name, some in self.groups().items()
        ]
        best = sorted((p for p in self.known if p.best), key=lambda p: p.runtime_s or 0.0)
        front = Series.of("Pareto-optimal", map(point, best), mode="lines", halo=True)
        what = "energy of a sample, J" if energy else "samples/s"
        note = f"Numbers next to points: {self.word}. Pareto-optimal in {self.result.front}."
        title = f"Latency against {'energy' if energy else 'throughput'}: {self.result.points[0].model}"
        return XY(title, f"latency, {unit}", what, (*lines, front), True, True, note=note)

    def curves(self) -> Iterator[XY]:
        """Throughput and memory over the swept size, if it has two values or more."""
        if len({self.size(p) for p in self.known}) < 2:
            return
        byte, unit = unit_of([p.memory_bytes or 0.0 for p in self.known], SIZES)
        figures: dict[str, Callable[[SweepPoint], float | None]] = {
            "Throughput, samples/s": lambda p: p.samples_per_s,
            f"Memory, {unit}": lambda p: None if p.memory_bytes is None else p.memory_bytes / byte,
        }
        for what, figure in figures.items():
            lines = []
            for name, some in self.groups().items():
                points = [(self.size(p), figure(p), self.text(p)) for p in some]
                labels = tuple("" if y is None else plain(y) for _, y, _ in points)
                lines.append(Series.of(name, points, mode="lines+markers", labels=labels))
            title = f"{what.partition(',')[0]} over {self.word}"
            yield XY(title, self.word, what, tuple(lines), True, True)
