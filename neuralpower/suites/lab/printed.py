"""Read the tables that torch's profiler prints: of torch 1.x (`Number of Calls`) and of today (`# of Calls`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from neuralpower.errors import InputError
from neuralpower.files.paths import check_regular
from neuralpower.suites.lab.operators import Operator, OperatorTable

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BYTES = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30}
# column -> its spellings
SPELLINGS = {
    "name": ("Name",),
    "self_share": ("Self CPU total %", "Self CPU %"),
    "self_cpu": ("Self CPU total", "Self CPU"),
    "cpu": ("CPU total",),
    "average": ("CPU time avg",),
    "calls": ("Number of Calls", "# of Calls"),
    "memory": ("CPU Mem",),
    "self_memory": ("Self CPU Mem",),
}
NEEDED = ("name", "self_share", "self_cpu", "cpu", "calls")
BATCH = re.compile(r"batch[ _-]?size\s*[=:]?\s*(\d+)", re.I)
WHOLE = re.compile(r"self cpu time total:\s*(\S+)", re.I)
GAP = re.compile(r"\s{2,}")
RULE = re.compile(r"[\s-]*-{3,}[\s-]*")


def read_tables(path: Path) -> tuple[OperatorTable, ...]:
    """All tables of a text file, each after a line that names its batch size (`batch size = 16`).

    Raises:
        InputError: the file cannot be read, has no such table, or one is damaged.
    """
    check_regular(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); give a text with tables of torch's profiler") from None
    return parse_tables(text, str(path))


def parse_tables(text: str, name: str = "text") -> tuple[OperatorTable, ...]:
    """The same of a text; `name` stands in messages. A share is of the whole that torch prints, or that follows from it."""
    tables: list[OperatorTable] = []
    batch_size: int | None = None
    columns: dict[str, int] = {}
    rows: list[tuple[Operator, float]] = []
    whole_s: float | None = None

    def close() -> None:
        nonlocal rows, whole_s
        if rows:
            if batch_size is None:
                raise InputError(f"{name}: a table without its batch size; write a line 'batch size = N' above it")
            tables.append(_table(batch_size, rows, whole_s))
        rows, whole_s = [], None

    for number, line in enumerate(text.splitlines(), 1):
        cells = GAP.split(line.strip())
        if header := _columns(cells):
            close()
            columns = header
        elif found := WHOLE.search(line):
            whole_s = _seconds(found.group(1), f"{name}:{number}")
            columns = {}
        elif found := BATCH.search(line):
            close()
            batch_size, columns = int(found.group(1)), {}
        elif columns and not line.strip():
            columns = {}
        elif columns and not RULE.fullmatch(line):
            if len(cells) <= max(columns.values()):
                columns = {}  # a sentence below the table
            else:
                rows.append(_row(cells, columns, f"{name}:{number}"))
    close()
    if not tables:
        raise InputError(
            f"{name}: no table of torch's profiler; its header has Name, Self CPU, CPU total and # of Calls"
        )
    return tuple(tables)


def _columns(cells: Sequence[str]) -> dict[str, int]:
    """Where the columns stand in a header; {} for another line."""
    found = {
        column: cells.index(spelling)
        for column, spellings in SPELLINGS.items()
        for spelling in spellings
        if spelling in cells
    }
    return found if all(column in found for column in NEEDED) else {}


def _row(cells: Sequence[str], columns: dict[str, int], place: str) -> tuple[Operator, float]:
    """An operator, and its share of all self times."""
    texts = {column: cells[index] for column, index in columns.items()}
    calls, share = texts["calls"], texts["self_share"]
    if not calls.isdigit() or not int(calls):
        raise InputError(f"{place}: {calls!r} calls; a positive whole number is needed")
    if not re.fullmatch(r"\d+(\.\d+)?%", share):
        raise InputError(f"{place}: {share!r} is no share such as 1.27%")
    operator = Operator(
        texts["name"],
        self_cpu_s=_seconds(texts["self_cpu"], place),
        cpu_s=_seconds(texts["cpu"], place),
        calls=int(calls),
        self_memory_bytes=_bytes(texts.get("self_memory"), place),
        memory_bytes=_bytes(texts.get("memory"), place),
    )
    return operator, float(share[:-1]) / 100


def _table(batch_size: int, rows: Sequence[tuple[Operator, float]], whole_s: float | None) -> OperatorTable:
    """Where torch did not print the whole, it follows from the row whose share has the most digits."""
    operator, share = max(rows, key=lambda row: row[1])
    whole = whole_s if whole_s is not None else operator.self_cpu_s / share if share else 0.0
    return OperatorTable(batch_size, tuple(o for o, _ in rows), whole)


def _seconds(text: str, place: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|ms|us|ns)", text)
    if not found:
        raise InputError(f"{place}: {text!r} is no time such as 99.194ms")
    return float(found.group(1)) * SECONDS[found.group(2)]


def _bytes(text: str | None, place: str) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*([kmg]?b)", text, re.I)
    if not found:
        raise InputError(f"{place}: {text!r} is no size such as 126.75 KB")
    return round(float(found.group(1)) * BYTES[found.group(2).lower()])
