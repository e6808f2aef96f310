"""A lab's folder, in which every step reads and writes its files: it can be repeated, resumed or skipped.

settings.json   inputs of the curves            curves.csv        points, written as they come
checkpoint.pt   after each epoch               environment.json  machine and software
operators_DEVICE_batch_N.json and .csv         trace_DEVICE_batch_N.json, images.png, report.md, report.html
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

import msgspec

from neuralpower.errors import InputError, writing
from neuralpower.files import json_files
from neuralpower.files.csv_files import csv_text
from neuralpower.suites.lab.images import Digits
from neuralpower.suites.lab.operators import OperatorTable
from neuralpower.suites.lab.training import Point, Settings, written

COLUMNS = tuple(field.name for field in fields(Point))
OPERATOR_HEADER = (
    *("name", "shapes", "self_cpu_share", "self_cpu_s", "cpu_share", "cpu_s", "average_s", "calls"),
    *("self_memory_bytes", "memory_bytes", "self_device_s", "device_s"),
)


class Folder:
    """Paths of a lab's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.pt"  # of the last complete epoch
        self.curves = path / "curves.csv"
        self.images = path / "images.png"  # the first training images, as one picture

    def make(self) -> None:
        """Create it; raises InputError."""
        with writing(self.path, "--out"):
            self.path.mkdir(parents=True, exist_ok=True)

    def claim(self, settings: Settings, digits: Digits) -> None:
        """Keep the settings; raises InputError if the folder has a training with other settings.

        More epochs can follow later, so the number of epochs can differ.
        """
        self.make()
        sizes = {"train": len(digits.train), "test": len(digits.test)}
        wanted = {**asdict(settings), "data": digits.name, **sizes}
        found = self.read_json("settings.json")
        if found is not None:
            other = [f"{k} {found.get(k)}" for k, v in wanted.items() if k != "epochs" and found.get(k) != v]
            if other:
                text = f"has a training with {', '.join(other)}; choose another --out"
                raise InputError(f"{self.path}: {text}")
        self.write_json("settings.json", wanted)

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Replace a file."""
        text = json_files.json_text(data, indent=1) + "\n"
        written(self.path / name, lambda aside: aside.write_text(text, encoding="utf-8"))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """The content of a file; None if it is missing; raises InputError for a damaged one."""
        path = self.path / name
        try:
            found = json_files.read_json(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read ({error}); remove it") from None
        if not isinstance(found, dict):
            raise InputError(f"{path}: contains a {type(found).__name__}, not a mapping; remove it")
        return found

    # ---- curves ----

    def points(self) -> list[Point]:
        """The curves so far, by step; a last line that was cut off is skipped. Raises InputError."""
        try:
            lines = self.curves.read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.curves}: cannot be read ({error}); remove it") from None
        found = []
        for number, row in enumerate(csv.DictReader(line for line in lines if line.endswith("\n")), 2):
            try:
                found.append(msgspec.convert(row, Point, strict=False))
            except msgspec.ValidationError:
                wanted = ", ".join(COLUMNS)
                raise InputError(
                    f"{self.curves}:{number}: not a point with {wanted}; remove the line"
                ) from None
        return found

    @contextmanager
    def recorder(self, epochs: int) -> Iterator[Callable[[Point], None]]:
        """A function that appends a point to the curves' file; points after `epochs` are removed first."""
        kept = [COLUMNS, *(astuple(point) for point in self.points() if point.epoch <= epochs)]
        written(self.curves, lambda aside: _write_rows(aside, kept))
        with self.curves.open("a", encoding="utf-8", buffering=1) as file:

            def add(point: Point) -> None:
                file.write(csv_text([astuple(point)]))

            yield add

    # ---- operators ----

    def keep_table(self, table: OperatorTable) -> None:
        """Write a table of operators as JSON and CSV."""
        shares = {"self_cpu_share": "self_cpu_s", "cpu_share": "cpu_s"}
        rows = [
            [table.share(getattr(o, shares[n])) if n in shares else getattr(o, n) for n in OPERATOR_HEADER]
            for o in table.top(len(table.operators))
        ]
        file = self.file_of("operators", table.device, table.batch_size)
        written(file.with_suffix(".csv"), lambda aside: _write_rows(aside, [OPERATOR_HEADER, *rows]))
        self.write_json(file.name, {"schema": 1, **asdict(table)})

    def file_of(self, what: str, device: str, batch_size: int) -> Path:
        """The JSON file of operators or of a trace, at a batch size on a device."""
        return self.path / f"{what}_{device.replace(':', '')}_batch_{batch_size}.json"

    def tables(self) -> list[OperatorTable]:
        """All tables of operators, by device and batch size; raises InputError for a damaged one."""
        found = []
        for path in self.path.glob("operators_*_batch_*.json"):
            try:
                found.append(msgspec.convert(self.read_json(path.name), OperatorTable))
            except msgspec.ValidationError:
                raise InputError(f"{path}: not a table of operators; remove it and profile again") from None
        return sorted(found, key=lambda table: (table.device, table.batch_size))


def _write_rows(path: Path, rows: list[Any]) -> None:
    path.write_text(csv_text(rows), encoding="utf-8", newline="")
