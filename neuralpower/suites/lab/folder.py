"""A lab's folder: every step reads and writes its files here, so that a step can be repeated, continued or left out.

settings.json   what decides the curves        curves.csv        points, written as they come
checkpoint.pt   after each epoch               environment.json  machine and software
operators_DEVICE_batch_N.json and .csv         trace_DEVICE_batch_N.json, images.png, report.md, report.html
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError, writing
from neuralpower.files.csv_files import csv_text
from neuralpower.files.json_files import json_text, read_json
from neuralpower.suites.lab.images import Digits
from neuralpower.suites.lab.operators import Operator, OperatorTable
from neuralpower.suites.lab.training import Point, Settings, written

COLUMNS = tuple(field.name for field in fields(Point))
OPERATOR_HEADER = (
    *("name", "shapes", "self_cpu_share", "self_cpu_s", "cpu_share", "cpu_s", "average_s", "calls"),
    *("self_memory_bytes", "memory_bytes", "self_device_s", "device_s"),
)


@dataclass(frozen=True)
class Folder:
    """Where a lab's files lie."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        """Of the last complete epoch."""
        return self.path / "checkpoint.pt"

    @property
    def curves(self) -> Path:
        """Points of the curves."""
        return self.path / "curves.csv"

    @property
    def images(self) -> Path:
        """The first training images, as one picture."""
        return self.path / "images.png"

    def make(self) -> None:
        """Create it; raises InputError."""
        with writing(self.path, "--out"):
            self.path.mkdir(parents=True, exist_ok=True)

    def claim(self, settings: Settings, digits: Digits) -> None:
        """Keep the settings; raises InputError where the folder holds a training that went otherwise.

        More epochs may be learnt later: their number is no difference.
        """
        self.make()
        wanted = {**asdict(settings), "data": digits.name, "train": len(digits.train), "test": len(digits.test)}
        found = self._json("settings.json")
        if found is not None:
            other = [f"{k} {found.get(k)}" for k, v in wanted.items() if k != "epochs" and found.get(k) != v]
            if other:
                raise InputError(f"{self.path}: holds a training with {', '.join(other)}; choose another --out")
        self.write_json("settings.json", wanted)

    def settings(self) -> dict[str, Any] | None:
        """What `claim` kept; None where nothing was trained."""
        return self._json("settings.json")

    def environment(self) -> dict[str, Any] | None:
        """The machine; None where nothing was run."""
        return self._json("environment.json")

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Replace a file."""
        text = json_text(data, indent=1) + "\n"
        written(self.path / name, lambda aside: aside.write_text(text, encoding="utf-8"))

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            found = read_json(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read ({error}); remove it") from None
        if not isinstance(found, dict):
            raise InputError(f"{path}: holds a {type(found).__name__}, not a mapping; remove it")
        return found

    # ---- curves ----

    def points(self) -> list[Point]:
        """The curves so far, in the order of their steps; a last line that was cut off is left out. Raises InputError."""
        try:
            lines = self.curves.read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.curves}: cannot be read ({error}); remove it") from None
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
        found = []
        for number, row in enumerate(csv.DictReader(lines), 2):
            try:
                epoch, step, images = int(row["epoch"]), int(row["step"]), int(row["images"])
                found.append(Point(row["part"], epoch, step, images, float(row["loss"]), float(row["accuracy"])))
            except (KeyError, TypeError, ValueError):
                raise InputError(
                    f"{self.curves}:{number}: no point with {', '.join(COLUMNS)}; remove the line"
                ) from None
        return found

    @contextmanager
    def recorder(self, epochs: int) -> Iterator[CurveFile]:
        """The file of the curves, open for more; points of epochs after the first `epochs` go: they are learnt again."""
        kept = [point for point in self.points() if point.epoch <= epochs]
        lines = [",".join(COLUMNS), *(_line(point) for point in kept)]
        written(self.curves, lambda aside: aside.write_text("\n".join(lines) + "\n", encoding="utf-8"))
        with self.curves.open("a", encoding="utf-8") as file:
            yield CurveFile(file)

    # ---- operators ----

    def keep_table(self, table: OperatorTable) -> None:
        """Write a table of operators as JSON and CSV."""
        name = f"operators_{_plain(table.device)}_batch_{table.batch_size}"

        def cells(operator: Operator) -> list[Any]:
            shares = {"self_cpu_share": table.share(operator.self_cpu_s), "cpu_share": table.share(operator.cpu_s)}
            return [shares[name] if name in shares else getattr(operator, name) for name in OPERATOR_HEADER]

        rows = [OPERATOR_HEADER, *map(cells, table.top(len(table.operators)))]
        written(self.path / f"{name}.csv", lambda aside: _write_rows(aside, rows))
        self.write_json(f"{name}.json", table.to_json())

    def trace_file(self, device: str, batch_size: int) -> Path:
        """Of a run for chrome://tracing or Perfetto."""
        return self.path / f"trace_{_plain(device)}_batch_{batch_size}.json"

    def tables(self) -> list[OperatorTable]:
        """All tables of operators, by device and batch size; raises InputError for a damaged one."""
        found = []
        for path in self.path.glob("operators_*_batch_*.json"):
            data = self._json(path.name) or {}
            try:
                found.append(OperatorTable.from_json(data))
            except (KeyError, TypeError):
                raise InputError(f"{path}: not a table of operators; remove it and profile again") from None
        return sorted(found, key=lambda table: (table.device, table.batch_size))


class CurveFile:
    """Points are in the file as soon as they are added."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def add(self, point: Point) -> None:
        """Append one."""
        self._file.write(_line(point) + "\n")
        self._file.flush()


def _line(point: Point) -> str:
    return ",".join(str(getattr(point, name)) for name in COLUMNS)


def _plain(device: str) -> str:
    return device.replace(":", "")


def _write_rows(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    path.write_text(csv_text(rows), encoding="utf-8", newline="")
