"""Files that strangers may have written: read within limits, with one clause of what is wrong.

`read_json` raises ValueError with the reason alone: the caller says which file it is and what to do.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from neuralpower.errors import InputError
from neuralpower.files.paths import why_irregular

# 20 times the largest predictor of the package; in memory, lists of numbers take some 20 times their JSON.
MOST_BYTES = 64 * 2**20
SPACED = re.compile(r'"\s+:')  # between a name and its value
LONG = 309  # digits of the shortest integers beyond the largest float
MOST = sys.float_info.max
SHOWN = 40  # letters of a value in a message


def read_text(path: Path, *, mark: bool = False) -> str:
    """The text of a regular UTF-8 file of at most MOST_BYTES; `mark`: it may begin with a byte-order mark.

    Raises ValueError, with what is wrong in one clause, and OSError where the system refuses.
    """
    if reason := why_irregular(path):
        raise ValueError(reason)
    with path.open("rb") as file:
        size = max(os.fstat(file.fileno()).st_size, 0)
        data = b"" if size > MOST_BYTES else file.read(MOST_BYTES + 1)
    if size > MOST_BYTES or len(data) > MOST_BYTES:
        raise ValueError(f"it has {max(size, len(data)):,} bytes, more than the {MOST_BYTES:,} that are read")
    if not data:
        raise ValueError("it is empty")
    try:
        return data.decode("utf-8-sig" if mark else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8; save it as UTF-8") from None


def read_json(path: Path, *, mark: bool = False, endless: bool = False) -> Any:
    """The value in a JSON file; raises as `read_text`, and ValueError for what `parse_json` refuses."""
    return parse_json(read_text(path, mark=mark), endless=endless)


def parse_json(text: str, *, endless: bool = False) -> Any:
    """The value of a JSON text; `endless`: NaN and infinity stay, for a caller who refuses them by field.

    Raises ValueError: no JSON, a name twice in an object, a number that is NaN or infinite, nested too deep.
    """
    try:
        value = msgspec.json.decode(text)
        if text.count('":') == _names(value) and not (SPACED.search(text) or _has_long(text)):
            return value  # a name that stood twice, or in a text, would be counted once more
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass  # the standard library says better what is wrong
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=float if endless else _no_number)
        place, number = ("", None) if endless else next(not_finite(value), ("", None))
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except UnicodeEncodeError:
        raise ValueError("a text in it holds half a letter, a surrogate without its other half") from None
    if number is not None:
        raise ValueError(f"{place or 'it'} is a number that is too large")
    return value


def _names(value: Any) -> int:
    """Number of names in all objects within."""
    count = 0
    waiting: list[Any] = [[value]]
    while waiting:
        some = waiting.pop()
        if isinstance(some, dict):
            count += len(some)
            some = [*some.values()]
        if not {dict, list}.isdisjoint(map(type, some)):  # most lists hold numbers alone
            waiting.extend(item for item in some if isinstance(item, (dict, list)))
    return count


def _has_long(text: str) -> bool:
    """Whether LONG digits may stand in a row: 20 of them then fill one of the windows that are looked at."""
    width = 20
    return any(text[start : start + width].isdigit() for start in range(0, len(text), LONG + 1 - width))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice)} is twice in an object")
    return found


def _no_number(literal: str) -> Any:
    raise ValueError(f"{literal} stands for a number, and JSON has no such number")


def not_finite(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """(place, number) of each number in plain values that is NaN or beyond all floats; places as `a.b[3]`."""
    if isinstance(value, (float, int)):
        if not -MOST <= value <= MOST:
            yield place, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from not_finite(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from not_finite(item, f"{place}[{i}]")


def nullable(value: Any) -> Any:
    """Plain values with None for each number that is NaN or infinite, where null means "not known"."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [nullable(item) for item in value]
    return {name: nullable(item) for name, item in value.items()} if isinstance(value, dict) else value


def plain(value: Any) -> Any:
    """A result as plain values: objects by their `to_json`, else by their fields; tuples as lists."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def named(value: Any, names: str) -> dict[str, Any]:
    """Plain values of a result's attributes, in the order of their names.

    A name is an attribute, `key=attribute`, or `key=attribute.of.it`, null if the first is None. With `?`
    behind it, an empty text is null.
    """
    values = {}
    for name in names.split():
        key, _, path = name.rstrip("?").rpartition("=")
        held = value
        for step in path.split("."):
            held = None if held is None else getattr(held, step)
        values[key or path] = plain(held or None if name.endswith("?") else held)
    return values


class Declared:
    """A result whose JSON object is declared: names of its attributes, as `named` takes them."""

    in_json: ClassVar[str]
    schema: ClassVar[int] = 1  # of the object, for those that name it

    def to_json(self) -> dict[str, Any]:
        return named(self, self.in_json)


def json_text(value: Any, *, indent: int | None = None, compact: bool = False) -> str:
    """Plain values as JSON; raises InputError, with its place, for a number that JSON cannot hold."""
    try:
        text = json.dumps(value, indent=indent, separators=(",", ":") if compact else None, allow_nan=False)
        return text.replace("\x7f", "\\u007f")  # the one control that JSON lets stand as it is
    except ValueError:
        place, number = next(not_finite(value), ("", math.nan))
        raise InputError(
            f"{place or 'the answer'} is {number}: the sizes, or "
            "numbers of a given file, are beyond what can be computed; choose smaller sizes, or "
            "another file"
        ) from None


def shown(value: Any) -> str:
    """A value of a stranger's file for a message: JSON in one line, cut off where it is long."""
    try:
        text = json.dumps(value)
    except (ValueError, TypeError, RecursionError):
        text = type(value).__name__
    return text if len(text) < SHOWN else text[: SHOWN - 4] + " ..."
