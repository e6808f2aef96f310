"""Cache of printed predictions: a repeated command imports neither torch nor transformers.

An answer is the text that a command printed, and how it ended. Its key holds all inputs: options, the model
and its files, predictors, spec sheets, this machine's CPU, the package's own files, and versions and places
of what computes. It holds, too, which files of these libraries it came from, and ends where one has changed.
Models whose source runs code, or reads a network, are never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from typer import Exit

from neuralpower.cli.output import USUAL, level, recorded, say, table_width, tell
from neuralpower.errors import CoverageError
from neuralpower.files.cache import cache_folder, keep, key_of, recall
from neuralpower.networks.names.sameness import is_current, loaded, question_of


def answered(model: str, options: Mapping[str, Any], compute: Callable[[], None]) -> None:
    """Print the cached answer to a command, or compute the answer and cache its text.

    Raises what `compute` raises, and CoverageError or Exit again if the cached answer ended with it.
    """
    folder = cache_folder()
    question = None if folder is None else question_of(model, options)
    if folder is None or question is None:
        compute()
        return
    key = key_of({**question, "level": max(level(), USUAL), "width": table_width()})
    found = recall(folder, key)
    if found is not None and is_current(found) and _printed(found):
        return
    with recorded() as lines:
        try:
            compute()
        except CoverageError as error:
            keep(folder, key, {"lines": lines, "loaded": loaded(), "coverage_error": str(error)})
            raise
        except Exit as end:
            keep(folder, key, {"lines": lines, "loaded": loaded(), "exit_code": end.exit_code})
            raise
    keep(folder, key, {"lines": lines, "loaded": loaded()})


def _printed(answer: Mapping[str, Any]) -> bool:
    """Print a cached answer, if there is one; whether it was. Raises CoverageError or Exit if it did."""
    lines = answer.get("lines")
    if not isinstance(lines, list) or not lines or not all(_is_line(line) for line in lines):
        return False
    for where, text in lines:
        (say if where == "say" else tell)(text)
    if "coverage_error" in answer:
        raise CoverageError(str(answer["coverage_error"]))
    if isinstance(code := answer.get("exit_code"), int):
        raise Exit(code)
    return True


def _is_line(line: Any) -> bool:
    return isinstance(line, list) and len(line) == 2 and all(isinstance(part, str) for part in line)
