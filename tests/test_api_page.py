"""docs/api.md and the docstrings of `neuralpower`: their examples run, and print what stands there.

NEURALPOWER_REWRITE=1 python -m pytest tests/test_api_page.py     writes what the page's blocks print now
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
from pathlib import Path

from neuralpower.api import functions

PAGE = Path(__file__).parent.parent / "docs/api.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<shown>.*?)```)?", re.S)
# a number with its unit: numbers change with the predictors, words do not
FIGURE = re.compile(r"[\d.,]+(?: ?[kMGTmun]?i?(?:s|B|J|W|FLOP)\b)?|-+")


def masked(text: str) -> list[str]:
    """The words of an output."""
    return FIGURE.sub("#", text).split()


def test_the_blocks_of_the_page_print_what_stands_there() -> None:
    names: dict[str, object] = {}
    text = PAGE.read_text(encoding="utf-8")
    printed, differing = [], []
    for block in BLOCK.finditer(text):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block["code"], str(PAGE), "exec"), names)  # the blocks are ours
        printed.append(out.getvalue())
        if masked(out.getvalue()) != masked(block["shown"] or ""):
            differing.append(f"{block['shown']}\nis now\n{out.getvalue()}")
    if os.environ.get("NEURALPOWER_REWRITE"):
        again = iter(printed)
        PAGE.write_text(BLOCK.sub(lambda block: _block(block["code"], next(again)), text), encoding="utf-8")
        return
    assert len(printed) == 5
    assert not differing, "\n".join(differing)


def _block(code: str, printed: str) -> str:
    lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return f"```python\n{code}```\n\n```text\n{lines}```"


def test_the_examples_of_the_functions_run() -> None:
    result = doctest.testmod(functions)
    assert result.attempted > 15
    assert result.failed == 0
