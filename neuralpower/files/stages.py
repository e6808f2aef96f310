"""Stages of the program, for a person who waits: code names its stages, and a listener may show them.

    stage("loading the predictor")
    for size in counted(sizes, "tracing"):
        ...

Nothing is shown unless somebody listens, as the command line does where stderr is a terminal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str, int, int | None], None]  # (stage, parts done, parts in all, None where not known)
_listener: Listener | None = None


def stage(text: str, done: int = 0, total: int | None = None) -> None:
    """Say what begins now, and how many of its parts are done."""
    if _listener is not None:
        _listener(text, done, total)


def counted(parts: Iterable[T], text: str, total: int | None = None) -> Iterator[T]:
    """The parts, one by one, with a stage that says how many are done."""
    if total is None and isinstance(parts, Sized):
        total = len(parts)
    for done, part in enumerate(parts):
        stage(text, done, total)
        yield part


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Tell a listener of the stages within."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
