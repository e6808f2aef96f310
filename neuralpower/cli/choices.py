"""Options whose values are words: listed by --help, completed by the shell, checked without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer import Option

from neuralpower.dtypes import MEASURABLE, full_name
from neuralpower.errors import unknown

Words = Sequence[str] | Callable[[], Sequence[str]]
LONGEST = 24  # longest list, in letters, that --help shows as the option's value


def choice(
    what: str,
    words: Words,
    *names: str,
    help: str = "",
    default: str = "",
    several: bool = False,
    meant: Callable[[str], str | None] = lambda text: None,
    **how: Any,
) -> Any:
    """An option whose value is one of `words`, or `several` of them with commas.

    Args:
        what: the noun for a word, in error messages.
        words: all values, or a function that lists them on demand.
        names: the option's names, such as "--phase".
        help: the help text; a list of words that is too long for the value column is added to it.
        default: a sentence that says which value holds by default.
        several: whether the option accepts several words with commas.
        meant: maps another spelling, such as an alias, to a word; returns None for an unknown one.
        how: further arguments of typer's `Option`; `kind=Argument` makes an argument.
    """
    listed = () if callable(words) else tuple(words)
    shown = "|".join(listed)
    short = bool(listed) and len(shown) <= LONGEST and not several and "metavar" not in how
    how.setdefault("metavar", f"<{shown}>" if short else f"<{what.split()[0]}>")
    if listed and not short:
        help = f"{help.rstrip('.')}: {', '.join(listed)}."
    help = f"{help} {default}".strip()

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{before}{comma}{word}" for word in _listed(words) if word.startswith(last)]

    def check(context: typer.Context, value: Any) -> Any:
        if value is None or context.resilient_parsing:
            return value
        return [*map(parted, value)] if isinstance(value, (list, tuple)) else parted(str(value))

    def parted(text: str) -> str:
        if not several:
            return one(text)
        return ",".join(one(part.strip()) for part in text.split(",")) if text.strip() else text

    def one(text: str) -> str:
        if not text or text in _listed(words):
            return text
        found = meant(text)
        if found is None:
            raise unknown(what, text, _listed(words))
        return found

    kind = how.pop("kind", Option)
    return kind(*names, help=help, callback=check, autocompletion=complete, **how)


def _listed(words: Words) -> Sequence[str]:
    return words() if callable(words) else words


def power_meters() -> tuple[str, ...]:
    """Names of power meters, and the values for any meter and for none."""
    from neuralpower.measure.meters import CHOICES, known_meters

    return (*CHOICES, *known_meters())


def measured_choice(help: str) -> Any:
    """An option for the dtypes that a collection measures, with commas."""
    return choice(
        "dtype",
        MEASURABLE,
        help=help,
        several=True,
        meant=lambda text: text if full_name(text) in MEASURABLE else None,
    )
