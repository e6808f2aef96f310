"""Check output files: never two results in one file, never over an input, never into standard output.

Files are compared, not names: links and other spellings count as the file that they lead to.
"""

from __future__ import annotations

import contextlib
import mimetypes
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError
from neuralpower.files.paths import is_folder

WRITTEN = (
    "out",
    "csv",
    "plot",
    "markdown",
    "trace_file",
    "monitor_file",
    "memory_picture",
)  # options, in any command
NAMED = ("predictor", "source")  # can be the name of a predictor, which stands for its file
READ = re.compile(
    r"(config|dataset|plan|settings)\.json|README\.md|.*\.(csv|parquet|jsonl|gz|safetensors|py)"
)

TEXTS = ("application/json", "application/xml", "application/xhtml+xml", "application/manifest+json")
PICTURES = ("plot", "memory_picture")  # which check the ending themselves

Identity = tuple[int, int] | str


def check_places(given: Mapping[str, Any]) -> None:
    """Raise InputError if an output of a command is another output or an input; `given`: its arguments.

    Call it before standard output is redirected: `/dev/stdout` leads elsewhere afterwards.
    """
    outputs = [(name, Path(given[name])) for name in WRITTEN if given.get(name) is not None]
    if not outputs:
        return
    for name, path in outputs:
        if name not in PICTURES and not is_folder(path):
            _check_ending(f"--{name.replace('_', '-')} {path}", path)
    known: dict[Identity, str] = {}
    for name, value in given.items():
        if name not in WRITTEN:
            for text, file in _inputs(name, value):
                if (identity := _identity(file)) is not None:
                    known[identity] = f"is what {text!r} is read from"
    with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or no file
        if (identity := _identity(sys.stdout.fileno())) is not None:
            known[identity] = "is standard output, where the command prints its results"
    for name, path in outputs:
        option = f"--{name.replace('_', '-')} {path}"
        has_card = name == "out" and path.suffix == ".json"
        for file in (path, path.with_suffix(".md")) if has_card else (path,):
            identity = _identity(file)
            if identity in known:
                also = "" if file == path else f" {file} goes with it, and"
                raise InputError(f"{option}:{also} {known[identity]}; choose another file")
            if identity is not None:
                known[identity] = f"is also where {option} goes"


def _check_ending(option: str, path: Path) -> None:
    """Raise InputError where the ending of a result's file is that of a program, an archive or a picture."""
    kind, _ = mimetypes.MimeTypes(filenames=()).guess_type(f"x{path.suffix}")
    if kind is not None and not kind.startswith("text/") and kind not in TEXTS:
        raise InputError(f"{option}: {path.suffix} is the ending of {kind}; choose .txt, .json or .csv")


def _identity(place: Path | int) -> Identity | None:
    """The identity of a file, even of a missing one; None for folders and /dev/null, which can be shared."""
    try:
        found = os.stat(place)  # noqa: PTH116  # of a descriptor, too
    except (OSError, ValueError):
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # a loop of links, an impossible name
            return str(place.resolve()) if isinstance(place, Path) else None
        return None
    null = stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev
    return None if null or stat.S_ISDIR(found.st_mode) else (found.st_dev, found.st_ino)


def _inputs(name: str, value: object) -> Iterator[tuple[str, Path]]:
    """(text as given, file) for each existing file that an argument leads to."""
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
    """The files of path/file.py:function, @LIST, FILE?overrides, MODEL@PREDICTOR, or a folder of inputs."""
    ends = [found.start() for found in re.finditer(r"[:?@]", text) if found.start()]
    parts = (part for end in ends for part in (text[:end], text[end + 1 :]))
    for candidate in {text, text.removeprefix("@"), *parts}:
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # most arguments name no file
            path = Path(candidate).expanduser()
            if path.is_file():
                yield path
            elif path.is_dir() and candidate == text:
                yield from (file for file in path.iterdir() if READ.fullmatch(file.name))


def _predictor(text: str) -> Iterator[Path]:
    from neuralpower.learn.files.predictor_files import known_predictors

    known = known_predictors()
    yield from (known[name] for name in {text, text.partition("@")[0]} & known.keys())
