"""Keywords of Python, as the table has them, and the limits of a gate as people write them."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from neuralpower.ask.options import no_word, options_of
from neuralpower.ask.words import meant_by
from neuralpower.devices.names import UNITS
from neuralpower.errors import InputError, unknown

# Limits of a gate as people write them: a growth over a baseline, +5%, or a value with its unit, 30ms.

TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
JOULES = {"j": 1.0, "mj": 1e-3, "kj": 1e3, "wh": 3600.0}
COUNTS = {"flop": 1.0, "kflop": 1e3, "mflop": 1e6, "gflop": 1e9, "tflop": 1e12, "pflop": 1e15}


@dataclass(frozen=True)
class Metric:
    """What a gate may limit: the noun, the unit of its values, and what people write for them."""

    name: str  # latency, memory, energy, flops
    unit: str
    units: Mapping[str, float]
    example: str

    def limit(self, text: str) -> Limit:
        """The limit that a text says; raises InputError."""
        found = re.fullmatch(r"\s*(\+?)\s*([0-9]+(?:\.[0-9]+)?)\s*(%|[A-Za-z]+)\s*", str(text))
        sign, number, unit = ("", "nan", "") if found is None else found.groups()
        value, scale = float(number), self.units.get(unit.lower(), math.nan)
        if unit == "%" and sign and math.isfinite(value):
            return Limit(self, str(text).strip(), growth=value / 100)
        if not sign and 0 < value * scale < math.inf:
            return Limit(self, str(text).strip(), value=value * scale)
        raise InputError(
            f"--max-{self.name} {text!r:.40}: write a growth over the baseline, such as +5%, or a value "
            f"with its unit, such as {self.example}"
        )


METRICS = {
    metric.name: metric
    for metric in (
        Metric("latency", "s", TIMES, "30ms"),
        Metric("memory", "B", UNITS, "10GiB"),
        Metric("energy", "J", JOULES, "2J"),
        Metric("flops", "FLOP", COUNTS, "4GFLOP"),
    )
}
USUAL = {"latency": "+5%", "memory": "+5%"}  # without any limit


@dataclass(frozen=True)
class Limit:
    """How much of a metric is allowed: `growth` over the baseline as a share, or a `value`."""

    metric: Metric
    text: str
    growth: float | None = None
    value: float | None = None

    def holds(self, now: float, growth: float | None) -> bool:
        """Whether a value, and its growth over the baseline, where it has one, are allowed."""
        if self.value is not None:
            return now <= self.value
        return growth is None or growth <= (self.growth or 0.0) + 1e-9  # rounding of a sum


def limits_in(options: Mapping[str, Any]) -> tuple[Limit, ...]:
    """The limits of the options `max_latency` and its like; USUAL without any. Raises InputError."""
    given = {name: options.get(f"max_{name}") for name in METRICS}
    if all(text is None for text in given.values()):
        given |= USUAL
    return tuple(METRICS[name].limit(text) for name, text in given.items() if text is not None)


def ceilings_in(options: Mapping[str, Any]) -> tuple[Limit, ...]:
    """The same where there is no baseline, so that a growth says nothing; raises InputError."""
    given = any(options.get(f"max_{name}") is not None for name in METRICS)
    limits = limits_in(options) if given else ()
    for limit in limits:
        if limit.value is None:
            raise InputError(
                f"--max-{limit.metric.name} {limit.text}: nothing to grow from; write a value such as "
                f"{limit.metric.example}, or: neuralpower gate MODEL --baseline FILE"
            )
    return limits


Function = TypeVar("Function", bound=Callable[..., Any])


def keywords(what: str, options: Mapping[str, Any], table: Any, command: str = "") -> dict[str, Any]:
    """The options under their names of today; a former name is read with a warning, for one version.

    Raises InputError for an unknown name, with the most likely one, and for a share called strict.
    """
    known, named = options_of(table, command), dict(options)
    former = {old: name for name, option in known.items() for old in option.before.split()}
    for old in [name for name in options if name in former and name not in known]:
        if old == "strict" and not isinstance(named[old], bool):
            raise InputError(
                f"strict {named[old]!r:.40}: means two things; write min_coverage for the least coverage, or "
                "require_plan=True for a network that must have a plan"
            )
        warnings.warn(f"{old} is now {former[old]}; the old name goes in 0.3", FutureWarning, stacklevel=5)
        named[former[old]] = named.pop(old)
    check_names(
        what, named, known, {word: name for name, one in known.items() for word in one.aliases.split()}
    )
    for name, value in named.items():
        one = known[name]
        if one.what and one.meant is no_word and isinstance(value, str) and value not in one.words:
            if (word := meant_by(value, one.words)) is None:
                raise unknown(one.what, value, one.words)
            named[name] = word
    return named


def check_names(
    what: str, given: Mapping[str, Any], known: Mapping[str, Any], aliases: Mapping[str, str] | None = None
) -> None:
    """Raise InputError for an unknown name, with the most likely one."""
    for name in given:
        if name not in known:
            meant = (aliases or {}).get(name.lower())
            raise (
                InputError(f"unknown {what} {name!r}: did you mean {meant}?")
                if meant
                else unknown(what, name, known)
            )


def documented(table: Any, command: str = "") -> Callable[[Function], Function]:
    """Put the options of a table in place of `{options}` in a function's docstring."""

    def with_options(function: Function) -> Function:
        lines = [
            f"`{name}`: {one.help}" for name, one in options_of(table, command).items() if not one.hidden
        ]
        text = ("\n" + " " * 12).join(lines)
        function.__doc__ = (function.__doc__ or "").replace("{options}", text)
        return function

    return with_options
