"""Texts and values of options: lists, sizes, shapes, lengths. Nothing here imports torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError, whole_number
from neuralpower.files.paths import check_regular, is_there

OUTER_COMMA = re.compile(r",(?![^\[]*\])")
IMAGES, CHANNELS = 4, (1, 3)  # the number of sizes of a batch of images, and of a single image's channels
MOST_SIZES = 10_000  # of one dimension of a grid
SPANS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
BINARY = 2  # letters of whole numbers: k, m


def names(text: str | None, what: str) -> tuple[str, ...] | None:
    """("a", "b") for "a,b", None for None; a comma in brackets belongs to a list in a model's override.

    Raises InputError, which names `what`, if there is no name between the commas.
    """
    if text is None:
        return None
    found = tuple(part.strip() for part in OUTER_COMMA.split(text) if part.strip())
    if not found:
        raise InputError(
            f"{what} {text!r}: contains no name; write names with commas, or leave the option out"
        )
    return found


def written_out(text: str, kind: type[int] | type[float]) -> str:
    """A number in full: 32768 for 32k of an int, as of tokens, 1.5e13 for 15T of a float; else the text."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([kKmMbBtT])", text)
    if match is None:
        return text
    power = "kmbt".index(match[2].lower()) + 1
    if kind is float:
        return repr(float(match[1]) * 1000.0**power)
    whole = float(match[1]) * 1024**power
    return str(int(whole)) if power <= BINARY and whole.is_integer() else text


def rate(given: Any) -> float | None:
    """Requests per second of 4, "4/s", "3000/min", "90k/h" or "1M/day", None for None; raises InputError."""
    if given is None or isinstance(given, (int, float)):
        return given
    number, _, span = str(given).strip().partition("/")
    try:
        return float(written_out(number.strip(), float)) / SPANS_S[span.strip().lower() or "s"]
    except (KeyError, ValueError):
        raise InputError(
            f"rate {given!r:.40}: write requests per second, or such as 3000/min, 90k/h, 1M/day"
        ) from None


def sizes(text: str, what: str) -> tuple[int, ...]:
    """(1, 2, 4, 8) for "1:8", (4, 6, 8) for "4:8:2" (in steps), (1, 3) for "1,3"; raises InputError."""
    numbers: list[int] = []
    for written in text.split(","):
        part = ":".join(written_out(bound.strip(), int) for bound in written.split(":"))
        match = re.fullmatch(r"\s*([0-9]{1,18})(?::([0-9]{1,18})(?::([0-9]{1,18}))?)?\s*", part)
        if not match or int(match.group(1)) < 1:
            how = "write sizes such as 1,8,32, a doubling 1:256 or steps 64:512:64"
            raise InputError(f"{what} {text!r}: {how}")
        low, high, step = (
            int(match.group(1)),
            int(match.group(2) or match.group(1)),
            int(match.group(3) or -1),
        )
        if high < low or match.group(3) and step < 1:
            how = "the end must not be below the start, nor a step below 1; swap them"
            raise InputError(f"{what} {part!r}: {how}")
        if step < 0:
            numbers += [low << n for n in range((high // low).bit_length())]
        elif (high - low) // step >= MOST_SIZES:
            raise InputError(f"{what} {part!r}: more than {MOST_SIZES} sizes; take larger steps")
        else:
            numbers += range(low, high + 1, step)
    return tuple(dict.fromkeys(numbers))


def resolution(size: Any) -> tuple[int, int] | None:
    """(width, height) for "1024x768", "1024" or (1024, 768), None for None; raises InputError."""
    if size is None:
        return None
    parts = re.split("[xX*]", size.strip()) if isinstance(size, str) else size
    numbers = [str(part).strip() for part in parts] if isinstance(parts, Iterable) else [str(parts)]
    sides = [int(part) if re.fullmatch("[0-9]{1,6}", part) else 0 for part in numbers]
    if len(sides) not in (1, 2) or min(sides) < 1:
        raise InputError(f"--resolution {size!s:.40}: write WIDTHxHEIGHT in pixels, such as 1024x1024")
    return sides[0], sides[-1]


def numbers(text: str, what: str, example: str) -> tuple[int, ...]:
    """(1, 16, 64) for "1,16,64"; raises InputError, which names `what`."""
    try:
        return tuple(whole_number(name) for name in names(text, what) or ())
    except ValueError:
        raise InputError(f"{what} {text!r}: write whole numbers with commas, such as {example}") from None


def counts(given: Any, what: str) -> Sequence[int]:
    """The numbers of a text, of a list, or one; raises InputError, which names `what`."""
    if isinstance(given, str):
        return numbers(given, what, "1,2,4,8")
    return given if isinstance(given, (list, tuple)) else (given,)


def shape(text: Any) -> tuple[int, ...] | None:
    """(3, 224, 224) for "3x224x224", "3,224,224" and "(3, 224, 224)"; a list as it is. Raises InputError.

    A leading 1 before the three sizes of an image of 1 or 3 channels is a batch, and is removed.
    """
    if not isinstance(text, str):
        return tuple(text) if isinstance(text, Iterable) else text
    plain = text.strip().lower().removeprefix("(").removesuffix(")").rstrip(", ")
    written = re.fullmatch(r"[0-9]{1,18}(\s*[x,]\s*[0-9]{1,18})*", plain)
    sizes = tuple(int(size) for size in re.findall(r"[0-9]+", plain)) if written else ()
    if not sizes or 0 in sizes:
        raise InputError(f"input shape {text!r}: write positive sizes without the batch, such as 3x224x224")
    return sizes[1:] if len(sizes) == IMAGES and sizes[0] == 1 and sizes[1] in CHANNELS else sizes


def lengths(text: str | None, what: str = "lengths") -> tuple[int, ...] | None:
    """(812, 95) for "812,95", or for a file with a number on each line; raises InputError."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9\s,.+-]*", text) or is_there(text):
        return _lengths_in(Path(text), what)
    if not text.strip():
        return _no_lengths(text, what)
    return tuple(_length(part, what) for part in text.split(","))


def chunks(text: str) -> tuple[tuple[int, int], ...]:
    """((512, 0), (256, 1024)) for "512@0,256@1024"; raises InputError."""
    pairs = []
    for part in names(text, "chunks") or ():
        match = re.fullmatch(r"([0-9]{1,9})@([0-9]{1,9})", part)
        if match is None:
            raise InputError(f"chunk {part!r:.40}: new@cached tokens; write 512@0,256@1024")
        pairs.append((int(match[1]), int(match[2])))
    return tuple(pairs)


def _lengths_in(file: Path, what: str) -> tuple[int, ...]:
    """The numbers in a file; raises InputError."""
    check_regular(file)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        way = "choose a text file with a number on each line, or write lengths such as 812,95,4076"
        raise InputError(f"{what} {str(file)!r:.200}: cannot be read ({error}); {way}") from None
    found = [_length(line, f"{file} line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    return tuple(found) or _no_lengths(str(file), what)


def _length(text: str, where: str) -> int:
    """One length; raises InputError, which names the place `where`."""
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text) or int(text) < 1:
        raise InputError(f"{where}: {text.strip()!r:.40} is not a length; write whole numbers of 1 or more")
    return int(text)


def _no_lengths(text: str, what: str) -> tuple[int, ...]:
    raise InputError(
        f"{what} {text!r:.200}: contains no number; write one for each request, such as 812,95,4076"
    )
