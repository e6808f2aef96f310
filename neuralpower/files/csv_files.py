"""CSV as this program writes it: a header, then rows; empty for what is not known.

A spreadsheet runs a text that begins like a formula. Such a text gets an apostrophe before it, by which a
spreadsheet knows text. Numbers stay numbers, also those that come as text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neuralpower.errors import writing
from neuralpower.files.atomic import aside, make_folder_of
from neuralpower.files.terminal import visible_lines

FORMULA = "=+-@\uff1d\uff0b\uff0d\uff20"  # and as they are typed in East Asia
BLANK = "\t\r\n"


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Lines with commas between cells, quoted where they hold one."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def write_csv(path: Path, rows: Iterable[Iterable[Any]], instead: str = "file") -> None:
    """Write a file and make its folder; raises InputError: choose another `instead`."""
    with writing(path, instead):
        make_folder_of(path)
        with aside(path) as new:
            new.write_bytes(csv_text(rows).encode())


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = visible_lines(value.replace("\r\n", "\n"))
    return f"'{text}" if _is_formula(value) else text


def _is_formula(text: str) -> bool:
    """Whether a spreadsheet could take it for one; "-" alone says that something is not known."""
    if len(text) < 2 or not (text[0] in BLANK or text.lstrip()[:1] in FORMULA):
        return False
    try:
        float(text)
    except ValueError:
        return bool(text.strip())
    return False
