r"""What a terminal is sent: letters, and nothing that moves its cursor, hides text or turns its order round.

Names of layers, devices, files and models come from others. They are stored as they are, and made visible in
print: `\x1b` is the escape that begins a terminal's commands, `\u202e` a mark that reverses what follows.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls of C0 and C1, but tab and newline
    "\xad\u061c\u180e\u200b-\u200f"  # soft hyphen, marks of direction, of no width
    "\u2028-\u202e\u2060-\u206f\ufeff"  # separators of lines and paragraphs, embeddings, overrides, isolates
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"  # annotations, halves of letters, tags
)
UNSAFE = re.compile(f"[{HIDDEN}]")
UNSAFE_IN_A_LINE = re.compile(f"[{HIDDEN}\t\n]")
SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def visible(text: object) -> str:
    """A name, or a line, with escapes for what a terminal would obey or hide, newlines and tabs, too."""
    return UNSAFE_IN_A_LINE.sub(_escape, str(text))


def visible_lines(text: str) -> str:
    """The same for a text of the program, whose newlines and tabs are its own."""
    return UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    letter, code = match[0], ord(match[0])
    if letter in SHORT:
        return SHORT[letter]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Visible:
    """A stream that makes text visible; Rich, which uses a terminal's commands, finds the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # the name by which rich.console.Console.file looks for it

    def write(self, text: str) -> int:
        """Write a text; how many letters it had."""
        self.rich_proxied_file.write(visible_lines(text))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        """Write texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a stream can do."""
        return getattr(self.rich_proxied_file, name)


def shown_by(stream: TextIO | Visible) -> TextIO:
    """The stream that a visible one writes to; any other itself."""
    return stream.rich_proxied_file if isinstance(stream, Visible) else stream


@contextlib.contextmanager
def visible_streams() -> Iterator[None]:
    """Print all within through `visible_lines`, also the traceback of an error that leaves it."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (s if isinstance(s, Visible) else Visible(s) for s in before)
    try:
        yield
    except SystemExit:
        sys.stdout, sys.stderr = before
        raise
    else:
        sys.stdout, sys.stderr = before
