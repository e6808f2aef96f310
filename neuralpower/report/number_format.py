"""Numbers with SI and binary prefixes, bars and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from neuralpower.files.terminal import BLOCKS

if TYPE_CHECKING:  # a list of devices needs no torch
    from neuralpower.prediction.rows import Interval

TIMES = {1.0: "s", 1e-3: "ms", 1e-6: "us"}
SIZES = {2.0**30: "GiB", 2.0**20: "MiB", 2.0**10: "KiB"}


def quantity(value: float | None, unit: str) -> str:
    """Three digits with an SI prefix: 12.3 ms, 4.56 GFLOP; 0 has no prefix, None is "-"."""
    if value is None:
        return "-"
    if value == 0:
        return f"0 {unit}"
    factors = {1e18: "E", 1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k", 1.0: "", 1e-3: "m", 1e-6: "u"}
    factor = next((f for f in factors if abs(value) >= f * 0.9995), 1e-6)
    digits = ".3g" if abs(value) / factor < 999.5 else ".0f"
    return f"{value / factor:{digits}} {factors[factor]}{unit}"


def binary(size: float | None) -> str:
    """Bytes of memory in three digits with a binary prefix, as drivers count them: 24 GiB; None is "-"."""
    if size is None:
        return "-"
    if size == 0:
        return "0 B"
    prefixes = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki", "")
    power = next((i for i in range(6, 0, -1) if abs(size) >= 0.9995 * 2.0 ** (10 * i)), 0)
    value = size / 2.0 ** (10 * power)
    return f"{value:{'.3g' if abs(value) < 999.5 else '.0f'}} {prefixes[6 - power]}B"


def share(value: float) -> str:
    """A share as text: 100 %, 99.2 %, 0.7 %; a share above 0 is never shown as 0 %."""
    percent = 100 * value
    if 0 < percent < 0.05:
        return "< 0.1 %"
    text = f"{percent:.1f}"
    return f"{text.removesuffix('.0')} %"


def probable(share: float) -> str:
    """A probability in percent; never quite 0 or 100."""
    return "above 99%" if share > 0.99 else "below 1%" if share < 0.01 else f"{share:.0%}"


def many(number: float, what: str) -> str:
    """11.7 M parameters, 650 parameters."""
    return f"{quantity(number, '').strip()} {what}"


def bar(value: float, width: int = 8) -> str:
    """A share as a bar of blocks, to an eighth of a letter; padded to its width."""
    eighths = round(8 * width * min(max(value, 0.0), 1.0))
    part = BLOCKS[eighths % 8 - 1] if eighths % 8 else ""
    return (BLOCKS[-1] * (eighths // 8) + part).ljust(width)


def plain(value: float, digits: int = 3) -> str:
    """At least `digits` digits, and all digits before the point: 0.0672, 162, 1083."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:.0f}"


def rate(value: float | None) -> str:
    """12.3/s, with four digits; None is "-"."""
    return "-" if value is None else f"{plain(value, 4)}/s"


def counted(number: int, one: str) -> str:
    """1 trace, 2 traces."""
    return f"{number} {one}{'s' * (number != 1)}"


def bounded(value: Interval, unit: str) -> str:
    return f"{quantity(value.value, unit)} ({between(quantity(value.low, unit), quantity(value.high, unit))})"


def between(low: str, high: str, word: str = "to") -> str:
    """Two values with their units; a unit that they share is said once: 6.89 to 8.87 ms."""
    number, _, unit = low.rpartition(" ")
    return f"{number if unit == high.rpartition(' ')[2] else low} {word} {high}"


def unit_of(values: Sequence[float], units: Mapping[float, str]) -> tuple[float, str]:
    """The (size, name) of the unit in which the largest value has digits before its point."""
    largest = max(values, default=0.0)
    return next(((size, name) for size, name in units.items() if largest >= size), [*units.items()][-1])


def short(label: str) -> str:
    """A label without its overrides, which can be long."""
    model, _, rest = label.partition(" ")
    name, query, _ = model.partition("?")
    return f"{name.removeprefix('transformers:')}{'?..' if query else ''} {rest}".strip()
