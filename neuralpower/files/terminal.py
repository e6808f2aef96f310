r"""What a terminal is sent: letters, and nothing that moves its cursor, hides text or turns its order round.

Names of layers, devices, files and models come from others. They are stored as they are, and made visible in
print: `\x1b` is the escape that begins a terminal's commands, `\u202e` a mark that reverses what follows.
"""

from __future__ import annotations

import contextlib
import io
import os
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
# Marks of a style in the program's own texts: private letters, which `shown` replaces, and no name may hold.
STYLES = {"bold": "1", "good": "32", "weak": "33", "bad": "31"}  # by name, how ECMA-48 (SGR) numbers each
BEGINS = {name: chr(0xE100 + number) for number, name in enumerate(STYLES)}
ENDS = "\ue1ff"
MARKS = "".join((*BEGINS.values(), ENDS))
ANY_MARK = re.compile(f"[{MARKS}]")
BLOCKS = "\u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"  # one eighth of a cell to all of it
WITHOUT_BLOCKS = str.maketrans(BLOCKS, "   #####")
UNSAFE = re.compile(f"[{HIDDEN}]")
UNSAFE_IN_A_LINE = re.compile(f"[{HIDDEN}{MARKS}\t\n]")
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


def styled(text: str, style: str) -> str:
    """The text between marks of one of STYLES; as it is for ""."""
    return f"{BEGINS[style]}{text}{ENDS}" if style and text else text


def unstyled(text: str) -> str:
    return ANY_MARK.sub("", text)


def shown(text: str, colours: bool, encoding: str = "utf-8") -> str:
    """The text as a stream gets it: marks as a terminal's commands or none, blocks as `#` if it has none."""
    if colours:
        codes = {mark: f"\x1b[{STYLES[name]}m" for name, mark in BEGINS.items()} | {ENDS: "\x1b[0m"}
        text = ANY_MARK.sub(lambda match: codes[match[0]], text)
    else:
        text = unstyled(text)
    try:
        BLOCKS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(WITHOUT_BLOCKS)
    return text


def has_colours(is_terminal: bool) -> bool:
    """Whether a stream gets colours: a terminal does, unless NO_COLOR is set or it cannot show any."""
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Visible:
    """A stream that makes text visible; Rich, which uses a terminal's commands, finds the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # the name by which rich.console.Console.file looks for it

    def write(self, text: str) -> int:
        """Write a text; how many letters it had."""
        self.rich_proxied_file.write(visible_lines(text))
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
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


# ---- Text streams for messages apart from results: where nobody can read a message, it is dropped ----


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
