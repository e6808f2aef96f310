"""CSV and Markdown as this program writes them: tables that neither a spreadsheet nor a viewer runs.

A spreadsheet runs a text that begins like a formula. Such a text gets an apostrophe before it, by which a
spreadsheet knows text. Numbers stay numbers, also those that come as text.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from neuralpower.errors import writing
from neuralpower.files.atomic import aside, make_folder_of
from neuralpower.files.terminal import visible, visible_lines

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


# Markdown as this program writes it: text whose only markup is `code`, and tables.
#
# Names come from others, and viewers take raw HTML and links of any kind: both are written as letters.

CODE = re.compile(r"(?<!\\)`([^`<&|\\\n]+)`")
SPECIAL = re.compile(r"[\\`\[\]|]")


def inline(text: str) -> str:
    """One line of text: what stands between backticks is code, all else letters."""
    found, end = [], 0
    for match in CODE.finditer(text):
        found += [escaped(text[end : match.start()]), f"`{visible(match[1])}`"]
        end = match.end()
    return "".join([*found, escaped(text[end:])])


def escaped(text: str) -> str:
    """Text without any markup, in one line."""
    line = visible(re.sub(r"\s*\n\s*", " ", text))
    return html.escape(SPECIAL.sub(lambda match: f"\\{match[0]}", line), quote=False)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool] | None = None
) -> list[str]:
    """Lines of a table; `right`: the columns that are flush right."""
    rules = ["---:" if flush else "---" for flush in right or [False] * len(header)]
    first, *others = ([inline(cell) for cell in row] for row in (header, *rows))
    return [f"| {' | '.join(cells)} |" for cells in (first, rules, *others)]
