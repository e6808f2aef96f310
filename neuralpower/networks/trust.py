"""Whose word may run code: what a user types may, a model that stands in a file of data may not, unless he says so.

A file of data is a dataset's table, a journal, a list of candidates, a plan, a JSON file of parameters. It may name a
network that a library or neuralpower itself defines, and a configuration, which is read as JSON and runs nothing.
Functions import a file or a package, and an exported program is a graph that is executed.
"""

from __future__ import annotations

import os
from pathlib import Path

from neuralpower.errors import ModelError

NAMED = ("transformers", "torchvision", "timm", "zoo")  # prefixes of networks that installed libraries define
OPTION = "--trust-code"
NAME, CONFIGURATION, EXPORTED, FUNCTION, NOTHING = "name", "configuration", "exported", "function", ""
RUNS_CODE = (EXPORTED, FUNCTION)


def sort_of(location: str) -> str:
    """What a MODEL without its overrides is: name, configuration, exported, function, or nothing at all."""
    prefix, colon, _ = location.partition(":")
    if colon and prefix in NAMED:
        return NAME
    try:
        path = Path(location).expanduser()
        os.fsencode(path)
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError):  # too long, of a user who is none, or of letters that no file has
        return NOTHING
    if "\0" in location:
        return NOTHING
    if path.suffix == ".pt2":
        return EXPORTED
    if is_folder or path.suffix == ".json":
        return CONFIGURATION
    return FUNCTION if colon else NOTHING


def check_model(model: str, where: str = "", trust_code: bool = False) -> None:
    """Raise ModelError where a model that data name would run code; `where`: the file and line, to be said before."""
    if not trust_code and sort_of(str(model).partition("?")[0]) in RUNS_CODE:
        names = ", ".join(f"{prefix}:" for prefix in NAMED)
        raise ModelError(
            f"{where and f'{where}: '}model {str(model)!r:.100} would run code, and a file of data may name {names} or a "
            f"config.json alone; if you trust it, give {OPTION} (in Python trust_code=True)"
        )
