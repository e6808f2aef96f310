"""Text streams for messages apart from results: where nobody can read a message, it is dropped."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import TextIO


class _Quiet(io.FileIO):
    """A descriptor whose other end may be gone: a closed terminal, a pipe without a reader, a full disk."""

    def write(self, data: object) -> int:
        """Bytes taken: all of them, also where the system takes none."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # whatever a text layer hands down
        rest = view
        with contextlib.suppress(OSError):
            while rest and (taken := super().write(rest)):
                rest = rest[taken:]
        return len(view)


def quiet(descriptor: int) -> TextIO:
    """A text stream on a descriptor, line by line; it never fails."""
    raw = _Quiet(descriptor, "w", closefd=False)
    encoding = sys.__stderr__.encoding if sys.__stderr__ is not None else "utf-8"
    return io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True, write_through=True)
