"""The events of a profiler's JSON one by one: a trace of a gigabyte is never in memory as a whole."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from neuralpower.errors import InputError
from neuralpower.files.paths import why_irregular

MOST_BYTES = 3 * 2**30  # of a trace, unpacked: 1 GiB takes a minute
MOST_EVENT = 2**25  # letters of an event, or of another value besides the events
STEP = 2**22  # bytes that are read at once
PACKED = b"\x1f\x8b"  # the first bytes of a gzip file
EVENTS = "traceEvents"
OTHERS = {  # first bytes of other profilers' files
    b"SQLite format 3": "a database of Nsight Systems",
    b"\x0a": "a protobuf of Perfetto",
}
EXPORT = "export it by torch.profiler: prof.export_chrome_trace(FILE)"
NEXT = re.compile(r"[\s,]*")  # before the next event or name
COLON = re.compile(r"\s*:\s*")


class EventStream:
    """An iterator over the events of a trace, packed by gzip or not; `about` has the other values by name.

    Iterating raises InputError: no regular file, too large, cut off, no JSON, or without a list of events.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, Any] = {}
        self._text, self._at, self._ended = "", 0, False
        self._bytes = 0
        self._listed = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each event that is an object, in order."""
        if reason := why_irregular(self.path):
            raise InputError(f"{self.path}: {reason}; give a trace that torch.profiler exported")
        try:
            with self.path.open("rb") as file:
                start = file.read(16)
            packed = start[:2] == PACKED
            if start.removeprefix(codecs.BOM_UTF8).lstrip()[:1] not in (b"{", b"[", b""):
                for mark, other in OTHERS.items():
                    if start.startswith(mark):
                        raise InputError(f"{self.path}: is {other}, no trace of torch.profiler; {EXPORT}")
            with gzip.open(self.path) if packed else self.path.open("rb") as file:
                self._file: IO[bytes] = file  # type: ignore[assignment]  # a GzipFile reads as one
                yield from self._walked()
        except (EOFError, zlib.error) as error:
            raise self._cut(str(error)) from None
        except FileNotFoundError:
            raise InputError(f"{self.path}: there is no such file; {EXPORT}") from None
        except (OSError, ValueError, RecursionError) as error:
            text = " ".join(str(error).split())[:200]
            raise InputError(f"{self.path}: is not a trace of torch.profiler ({text}); {EXPORT}") from None

    def _walked(self) -> Iterator[dict[str, Any]]:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in its stub
        first = self._letter(required=False)
        if first != "{":
            self._no_events() if first == "[" else self._wrong()
        self._at += 1
        while (letter := self._letter()) != "}":
            if letter != '"':
                self._wrong()
            name = self._value()
            while (colon := COLON.match(self._text, self._at)) is None or colon.end() == len(self._text):
                if not self._more():
                    self._wrong()
            self._at = colon.end()
            if name == EVENTS and self._letter() == "[":
                self._listed = True
                self._at += 1
                while self._letter() != "]":
                    event = self._value()
                    if isinstance(event, dict):
                        yield event
                self._at += 1
            else:
                self.about[name] = self._value()
        if not self._listed:
            self._no_events()

    def _letter(self, *, required: bool = True) -> str:
        """The next letter that is neither a space nor a comma."""
        while True:
            space = NEXT.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                if required:
                    raise self._cut("the text ends within its list")
                return ""

    def _value(self) -> Any:
        """The next value; more is read until it is whole."""
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except (StopIteration, json.JSONDecodeError) as error:
                if len(self._text) - self._at > MOST_EVENT:
                    raise ValueError(f"a value of more than {MOST_EVENT:,} letters, or no value") from None
                if not self._more():
                    if isinstance(error, json.JSONDecodeError) and _is_within(error, len(self._text)):
                        raise ValueError(error.msg) from None
                    raise self._cut("the text ends within an event") from None
                continue
            if end == len(self._text) and self._more():  # a number may have further digits
                continue
            self._at = end
            return value

    def _more(self) -> bool:
        """Read on; whether there was more."""
        if self._ended:
            return False
        data = self._file.read(STEP)
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            raise ValueError(f"it has more than the {MOST_BYTES:,} bytes that are read: record fewer steps")
        self._ended = not data
        self._text = self._text[self._at :] + self._decoder.decode(data, final=self._ended)
        self._at = 0
        return True

    def _cut(self, what: str) -> InputError:
        return InputError(f"{self.path}: is not a trace of torch.profiler: it is cut off ({what}); {EXPORT}")

    def _wrong(self) -> None:
        raise ValueError("no JSON object")

    def _no_events(self) -> None:
        raise InputError(f"{self.path}: has no list {EVENTS}; give a trace that torch.profiler exported")


def _is_within(error: json.JSONDecodeError, end: int) -> bool:
    """Whether a text is wrong before its end, rather than cut off there."""
    return error.pos < end - 1 and not error.msg.startswith("Unterminated")
