"""Where a command writes: no two results to one file, none over what it reads, none among the results of standard output.

Files are compared, not names: a link, a hard link and another spelling are the file that they lead to.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError

WRITTEN = (
    "out",
    "csv",
    "plot",
    "markdown",
    "trace_file",
    "monitor_file",
)  # options, in every command that has them
NAMED = ("predictor", "source")  # which may be the name of a predictor, and stand for its file
READ = re.compile(
    r"(config|dataset|plan|settings)\.json|README\.md|.*\.(csv|parquet|jsonl|gz|safetensors|py)"
)

Identity = tuple[int, int] | str


def check_places(given: Mapping[str, Any]) -> None:
    """Raise InputError where an output of a command is another output, or one of its inputs; `given`: its arguments.

    To be asked before standard output is taken away: `/dev/stdout` leads elsewhere afterwards.
    """
    outputs = [(name, Path(given[name])) for name in WRITTEN if given.get(name) is not None]
    if not outputs:
        return
    known: dict[Identity, str] = {}
    for name, value in given.items():
        if name not in WRITTEN:
            for text, file in _inputs(name, value):
                if (identity := _identity(file)) is not None:
                    known[identity] = f"is what {text!r} is read from"
    with contextlib.suppress(AttributeError, OSError, ValueError):  # standard output is closed, or no file
        if (identity := _identity(sys.stdout.fileno())) is not None:
            known[identity] = "is standard output, where the command prints its results"
    for name, path in outputs:
        option = f"--{name.replace('_', '-')} {path}"
        files = (
            [path, path.with_suffix(".md")] if name == "out" and path.suffix == ".json" else [path]
        )  # and its card
        for file in files:
            identity = _identity(file)
            if identity in known:
                also = "" if file == path else f" {file} goes with it, and"
                raise InputError(f"{option}:{also} {known[identity]}; choose another file")
            if identity is not None:
                known[identity] = f"is also where {option} goes"


def _identity(place: Path | int) -> Identity | None:
    """What tells a file from others, there or still to be made; None of a folder and of /dev/null, which many may share."""
    try:
        found = os.fstat(place) if isinstance(place, int) else place.stat()
    except (OSError, ValueError):
        return _resolved(place) if isinstance(place, Path) else None
    null = stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev
    return None if null or stat.S_ISDIR(found.st_mode) else (found.st_dev, found.st_ino)


def _resolved(path: Path) -> str | None:
    try:
        return str(path.resolve())
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # links in a circle, a name that none can have: writing says so
        return None


def _inputs(name: str, value: object) -> Iterator[tuple[str, Path]]:
    """(as it was given, file) for the files that there are behind an argument."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _inputs(name, one)
    elif isinstance(value, (str, Path)):
        text = str(value)
        for part in {text, *text.split(",")}:
            yield from ((text, file) for file in _files(part.strip()))
            if name in NAMED:
                yield from ((text, file) for file in _predictor(part.strip()))


def _files(text: str) -> Iterator[Path]:
    """Of path/file.py:function, @LIST, FILE?overrides, MODEL@PREDICTOR, a folder that holds what is read."""
    ends = [found.start() for found in re.finditer(r"[:?@]", text) if found.start()]
    for candidate in {
        text,
        text.removeprefix("@"),
        *(text[:end] for end in ends),
        *(text[end + 1 :] for end in ends),
    }:
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # most arguments are no names of files
            path = Path(candidate).expanduser()
            if path.is_file():
                yield path
            elif path.is_dir() and candidate == text:
                yield from (file for file in path.iterdir() if READ.fullmatch(file.name))


def _predictor(text: str) -> Iterator[Path]:
    from neuralpower.learn.predictor_lookup import known_predictors

    known = known_predictors()
    yield from (known[name] for name in {text, text.partition("@")[0]} & known.keys())
