"""Results as a table, JSON, CSV, Markdown or an HTML page; printed, or in a file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralpower.cli.output import say, tell
from neuralpower.cli.parsing import check_file
from neuralpower.errors import InputError
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import unstyled
from neuralpower.report.grid import at_most, letters
from neuralpower.version import __version__

if TYPE_CHECKING:
    from neuralpower.report.page import Page

TABLE, JSON, CSV, MARKDOWN, HTML = "table", "json", "csv", "md", "html"
ENDINGS = {".json": JSON, ".jsonl": JSON, ".csv": CSV, ".md": MARKDOWN, ".html": HTML, ".htm": HTML}
NUMBER = re.compile(r"[-+]?[\d.,]+([ %]|e[-+]?\d|/|$)|-$")  # a number with its unit, or an unknown value
Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A result in its forms, each made on demand."""

    title: str
    table: Callable[[], str]  # with marks of styles
    json: Callable[[], Any]  # plain values, or JSON text
    rows: Callable[[], Rows]  # a header, then rows in SI units
    shown: Callable[[], Rows] | None = None  # the same for readers; None: as `rows`
    lead: Callable[[], Sequence[str]] = tuple  # the title above the rows
    page: Callable[[], Page] | None = None  # the HTML page, if it has more than the rows
    warnings: Sequence[str] = ()  # printed on stderr with CSV, which cannot hold them


def form_of(form: str | None, out: Path | None, as_json: bool) -> str:
    """The form that the options choose; raises InputError if they contradict each other. Writes nothing."""
    if as_json and form not in (None, JSON):
        raise InputError(f"--json and --format {form}: leave one of them out")
    ending = None if out is None else ENDINGS.get(out.suffix.lower())
    return JSON if as_json else form or ending or TABLE


def check_out(out: Path | None, form: str) -> None:
    """Make the file's folder; raise InputError if the file cannot be written. Call it before long work."""
    check_file(out, f"result.{'txt' if form == TABLE else form}")


def give(answer: Answer, form: str, out: Path | None = None) -> None:
    """Print the answer in that form, or write it to the file."""
    with contextlib.nullcontext() if form == TABLE else at_most(None):
        text = _FORMS[form](answer)
    if form == CSV:
        for warning in answer.warnings:
            tell(f"Warning: {warning}")
    if out is None:
        say(text)
        return
    from neuralpower.files.atomic import replace_file

    plain = unstyled(text) if form == TABLE else text
    replace_file(out, plain.rstrip("\n") + "\n")


def _json(answer: Answer) -> str:
    value = answer.json()
    if isinstance(value, dict) and "schema" in value:
        value = {"schema": value["schema"], "neuralpower_version": __version__, **value}
    return value if isinstance(value, str) else json_text(value)


def _csv(answer: Answer) -> str:
    from neuralpower.files.csv_files import csv_text

    return csv_text(answer.rows()).rstrip("\n")


def _markdown(answer: Answer) -> str:
    from neuralpower.files import csv_files

    header, *rows = _readable(answer)
    right = [all(NUMBER.match(cell) for cell in column) for column in zip(*rows, strict=True)]
    lead = (f"{csv_files.inline(line)}  " for line in _lead(answer))
    return "\n".join(
        [f"# {csv_files.inline(answer.title)}", "", *lead, "", *csv_files.table(header, rows, right)]
    )


def _html(answer: Answer) -> str:
    from neuralpower.report.page import Page, Section, Table, html_text

    if answer.page is not None:
        return html_text(answer.page())
    header, *rows = _readable(answer)
    table = Table("", tuple(header), tuple(map(tuple, rows)))
    return html_text(Page(answer.title, "", (Section("", tuple(_lead(answer)), (table,)),)))


def _lead(answer: Answer) -> list[str]:
    return [unstyled(line) for line in answer.lead()]


def _readable(answer: Answer) -> list[list[str]]:
    """The rows as texts; "-" for an unknown value."""
    rows = (answer.shown or answer.rows)()
    return [[letters(cell) for cell in row] for row in rows]


_FORMS: dict[str, Callable[[Answer], str]] = {
    TABLE: lambda answer: answer.table(),
    JSON: _json,
    CSV: _csv,
    MARKDOWN: _markdown,
    HTML: _html,
}
