"""Markdown as this program writes it: text whose only markup is `code`, and tables.

Names come from others, and viewers take raw HTML and links of any kind: both are written as letters.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from neuralpower.files.terminal import visible

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
