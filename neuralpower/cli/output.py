"""The two outputs of a command: `say` prints results on standard output, `tell` prints remarks on stderr.

A network's code, its C extensions and its child processes also print to descriptor 1. So the command keeps a
copy of that descriptor for its results, and makes descriptor 1 stderr.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from typing import TextIO

from neuralpower.cli import waiting
from neuralpower.files.terminal import (
    Visible,
    has_colours,
    quiet,
    shown,
    shown_by,
    styled,
    visible,
    visible_lines,
)
from neuralpower.report.grid import WIDTH

GONE = 141  # exit code when the reader is gone: 128 + SIGPIPE, as a shell reports for other programs


class ReaderGone(Exception):  # noqa: N818  # as with `| head`: not a fault
    """The reader of the results is gone."""


class _Results:
    """The descriptor of the results, unbuffered: the process's end need not write anything."""

    def __init__(self, descriptor: int, encoding: str) -> None:
        self.descriptor, self.encoding = descriptor, encoding

    def isatty(self) -> bool:
        """Whether a terminal shows the results."""
        return os.isatty(self.descriptor)

    def write(self, text: str) -> None:
        """Write all of a text; raises ReaderGone, and OSError for a full disk."""
        rest = memoryview(text.encode(self.encoding, "backslashreplace"))
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError as error:
            is_terminal = stat.S_ISCHR(os.fstat(self.descriptor).st_mode)
            if error.errno == errno.EPIPE or (error.errno == errno.EIO and is_terminal):
                raise ReaderGone from None
            raise


NARROWEST = 40  # letters of a table at least
QUIET, USUAL, VERBOSE = -1, 0, 1  # how much a command prints besides its results
_level = USUAL
_results: _Results | TextIO | None = None
_recording: list[list[str]] | None = None


def say(text: object = "", end: str = "\n") -> None:
    """Print a result with visible letters only, in its styles on a terminal.

    Raises ReaderGone, and OSError for a full disk.
    """
    if _recording is not None:
        _recording.append(["say", f"{text}{end}".removesuffix("\n")])
    waiting.pause()
    where = _results if _results is not None else shown_by(sys.stdout)
    encoding = getattr(where, "encoding", None) or "utf-8"
    where.write(shown(visible_lines(f"{text}{end}"), has_colours(where.isatty()), encoding))
    if isinstance(where, io.TextIOBase):
        where.flush()


def tell(text: object) -> None:
    """Print one line on stderr; on a terminal a warning is yellow. If quiet, print only warnings."""
    if _recording is not None:
        _recording.append(["tell", f"{text}"])
    line = visible(text)
    is_warning = line.startswith("Warning:")
    if _level > QUIET or is_warning:
        waiting.pause()
        line = shown(styled(line, "weak" if is_warning else ""), has_colours(shown_by(sys.stderr).isatty()))
        print(line, file=shown_by(sys.stderr))
        waiting.resume()


def table_width() -> int | None:
    """Letters of a table's line: COLUMNS, or the terminal's, elsewhere WIDTH; with -v any number."""
    if level() > USUAL:
        return None
    where = _results if _results is not None else shown_by(sys.stdout)
    known = where.isatty() or "COLUMNS" in os.environ
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, NARROWEST) if known else WIDTH


def level() -> int:
    """The command's level: QUIET, USUAL or VERBOSE."""
    return _level


@contextlib.contextmanager
def at_level(wanted: int) -> Iterator[None]:
    """Use this level within."""
    global _level
    before, _level = _level, wanted
    try:
        yield
    finally:
        _level = before


@contextlib.contextmanager
def recorded() -> Iterator[list[list[str]]]:
    """Yield a list that records each output within, as ["say" or "tell", text]."""
    global _recording
    before, _recording = _recording, []
    try:
        yield _recording
    finally:
        _recording = before


def open_descriptors() -> None:
    """Open closed descriptors among 0 to 2, and let stderr drop text that has no reader."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdout is None:  # the caller closed it, and wants no results
        sys.stdout = quiet(1)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = quiet(2)


@contextlib.contextmanager
def results_apart() -> Iterator[None]:
    """Reserve standard output for `say`; all other prints go to stderr.

    In its own process this lasts until the end: threads and at-exit handlers print late. If the
    caller has replaced `sys.stdout`, its stream gets the results, and everything is put back.
    """
    global _results
    if isinstance(_results, _Results):
        yield
    elif (own := sys.__stdout__) is not None and shown_by(sys.stdout) is own:
        own.flush()
        _results = _Results(os.dup(1), own.encoding)
        os.dup2(2, 1)
        sys.stdout = Visible(quiet(1))
        yield
    else:
        before, _results = _results, sys.stdout
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            _results = before
