"""Read tables printed by torch's profiler, of torch 1.x (`Number of Calls`) and later (`# of Calls`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from neuralpower.errors import InputError
from neuralpower.files.paths import check_regular
from neuralpower.suites.lab.operators import Operator, OperatorTable

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30}
TIME = (re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us|ns)"), "time such as 99.194ms")
SIZE = (re.compile(r"(-?\d+(?:\.\d+)?)\s*([kmg]?b)", re.I), "size such as 126.75 KB")
SPELLINGS = {  # of the columns
    "Name": "name",
    "Self CPU total %": "share",
    "Self CPU %": "share",
    "Self CPU total": "self_cpu",
    "Self CPU": "self_cpu",
    "CPU total": "cpu",
    "Number of Calls": "calls",
    "# of Calls": "calls",
    "CPU Mem": "memory",
    "Self CPU Mem": "self_memory",
}
NEEDED = {"name", "share", "self_cpu", "cpu", "calls"}
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
        text = f"cannot be read ({error}); give a text file with tables of torch's profiler"
        raise InputError(f"{path}: {text}") from None
    return parse_tables(text, str(path))


def parse_tables(text: str, name: str = "text") -> tuple[OperatorTable, ...]:
    """The same from a text; messages use `name`."""
    tables: list[OperatorTable] = []
    batch_size: int | None = None
    columns: dict[str, int] = {}
    rows: list[tuple[Operator, float]] = []
    whole_s: float | None = None

    def close() -> None:
        nonlocal rows, whole_s
        if rows:
            if batch_size is None:
                raise InputError(
                    f"{name}: a table without its batch size; write a line 'batch size = N' above it"
                )
            tables.append(_table(batch_size, rows, whole_s))
        rows, whole_s = [], None

    for number, line in enumerate(text.splitlines(), 1):
        cells, place = GAP.split(line.strip()), f"{name}:{number}"
        if header := _columns(cells):
            close()
            columns = header
        elif found := WHOLE.search(line):
            whole_s, columns = _amount(found.group(1), TIME, place), {}
        elif found := BATCH.search(line):
            close()
            batch_size, columns = int(found.group(1)), {}
        elif columns and not RULE.fullmatch(line):
            if len(cells) <= max(columns.values()):
                columns = {}  # an empty line, or a sentence below the table
            else:
                rows.append(_row({column: cells[i] for column, i in columns.items()}, place))
    close()
    if not tables:
        columns_needed = "Name, Self CPU, CPU total and # of Calls"
        raise InputError(f"{name}: not a table of torch's profiler; its header has {columns_needed}")
    return tuple(tables)


def _columns(cells: Sequence[str]) -> dict[str, int]:
    """Positions of the columns in a header; {} for another line."""
    found = {SPELLINGS[cell]: i for i, cell in reversed([*enumerate(cells)]) if cell in SPELLINGS}
    return found if found.keys() >= NEEDED else {}


def _row(texts: dict[str, str], place: str) -> tuple[Operator, float]:
    """An operator, and its share of all self times."""
    calls, share = texts["calls"], texts["share"]
    if not calls.isdigit() or not int(calls):
        raise InputError(f"{place}: {calls!r} calls; must be a positive whole number")
    if not re.fullmatch(r"\d+(\.\d+)?%", share):
        raise InputError(f"{place}: {share!r} is not a share such as 1.27%")
    self_s, all_s = (_amount(texts[column], TIME, place) for column in ("self_cpu", "cpu"))
    own, whole = (
        round(_amount(texts[column], SIZE, place)) if column in texts else None
        for column in ("self_memory", "memory")
    )
    return Operator(texts["name"], self_s, all_s, int(calls), own, whole), float(share[:-1]) / 100


def _table(batch_size: int, rows: Sequence[tuple[Operator, float]], whole_s: float | None) -> OperatorTable:
    """If torch did not print the total, it follows from the row whose share has the most digits."""
    operator, share = max(rows, key=lambda row: row[1])
    whole = whole_s if whole_s is not None else operator.self_cpu_s / share if share else 0.0
    return OperatorTable(batch_size, tuple(o for o, _ in rows), whole)


def _amount(text: str, sort: tuple[re.Pattern[str], str], place: str) -> float:
    """Seconds of a TIME, bytes of a SIZE."""
    pattern, what = sort
    found = pattern.fullmatch(text)
    if not found:
        raise InputError(f"{place}: {text!r} is no {what}")
    return float(found.group(1)) * UNITS[found.group(2).lower()]
