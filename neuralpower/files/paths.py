"""Files that a user names: whether they are there, what they are (no pipe hangs); predictors' folders."""

from __future__ import annotations

import importlib.resources
import os
import stat
from pathlib import Path

from neuralpower.errors import InputError

KINDS_OF_FILE = {
    **{stat.S_IFDIR: "it is a folder", stat.S_IFIFO: "it is a pipe", stat.S_IFSOCK: "it is a socket"},
    **dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "it is a device"),
}


def is_file(path: str | Path) -> bool:
    """Whether a regular file has that name; False for names that no file can have, as of 300 letters."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: str | Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def is_there(path: str | Path) -> bool:
    return _mode(path) != 0


def _mode(path: str | Path) -> int:
    try:
        return os.stat(path).st_mode  # noqa: PTH116  # Path's errors differ by version of Python
    except (OSError, ValueError):  # the second of a name with a NUL
        return 0


def resolved(path: Path) -> Path:
    """The path without links; raises InputError for a link that leads to itself."""
    try:
        return path.resolve()
    except RuntimeError:  # of Python before 3.13
        raise InputError(f"{path}: is a link that leads to itself; remove it, or give another path") from None


def why_irregular(path: str | Path) -> str:
    """Why a path is not a regular file, as a clause; "" where it is one, and where nothing is there."""
    if not is_there(path) or is_file(path):
        return ""
    return KINDS_OF_FILE.get(stat.S_IFMT(_mode(path)), "it is not a regular file")


def check_regular(path: str | Path, error: type[InputError] = InputError) -> None:
    """Raise `error` for a pipe or a device, which may have no end, but not for a folder or nothing."""
    if (reason := why_irregular(path)) and not is_folder(path):
        raise error(f"{path}: {reason.removeprefix('it ')}; give a regular file")


def check_read(path: str | Path) -> None:
    """Raise InputError for a pipe that nobody reads: a writer would wait without end."""
    if stat.S_ISFIFO(_mode(path)):
        try:
            os.close(os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)))
        except OSError:
            raise InputError(f"{path}: is a pipe that nobody reads; choose a file") from None


def shown(path: str | Path) -> str:
    """A name for a message: the beginning of one that is too long to be a file's."""
    text = str(path)
    return text if len(text) <= 255 else f"{text[:60]}... ({len(text)} letters)"


# ---- Folders in which predictors are found by name ----


def predictor_folders() -> list[Path]:
    """./models, the package's own, the source tree's."""
    package = Path(str(importlib.resources.files("neuralpower")))
    return [Path("models"), package / "models", package.parent / "models"]
