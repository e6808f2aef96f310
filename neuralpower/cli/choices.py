"""Options whose values are words: listed by --help, completed by the shell, checked without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer import Option

from neuralpower.ask.words import meant_by
from neuralpower.dtypes import MEASURABLE, full_name
from neuralpower.errors import unknown

Words = Sequence[str] | Callable[[], Sequence[str]]
LONGEST = 24  # longest list, in letters, that --help shows as the option's value


@dataclass(frozen=True)
class _Words:
    """The words that an option takes: completed, and checked."""

    what: str
    words: Words
    several: bool
    meant: Callable[[str], str | None]

    def listed(self) -> Sequence[str]:
        return self.words() if callable(self.words) else self.words

    def complete(self, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if self.several else ("", "", incomplete)
        return [f"{before}{comma}{word}" for word in self.listed() if word.startswith(last)]

    def check(self, context: typer.Context, value: Any) -> Any:
        if value is None or context.resilient_parsing:
            return value
        return [*map(self._parted, value)] if isinstance(value, (list, tuple)) else self._parted(str(value))

    def _parted(self, text: str) -> str:
        if not self.several:
            return self._word(text)
        return ",".join(self._word(part.strip()) for part in text.split(",")) if text.strip() else text

    def _word(self, text: str) -> str:
        if not text or text in self.listed():
            return text
        word = self.meant(text) or meant_by(text, self.listed())
        if word is None:
            raise unknown(self.what, text, self.listed())
        return word


def choice(
    what: str,
    words: Words,
    *names: str,
    help: str = "",
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
        several: whether the option accepts several words with commas.
        meant: maps another spelling, such as an alias, to a word; returns None for an unknown one.
        how: further arguments of typer's `Option`; `kind=Argument` makes an argument, and `otherwise` is a
            sentence for the help that says which value holds by default.
    """
    listed = () if callable(words) else tuple(words)
    shown = "|".join(listed)
    short = bool(listed) and len(shown) <= LONGEST and not several and "metavar" not in how
    how.setdefault("metavar", f"<{shown}>" if short else f"<{what.split()[0]}>")
    if listed and not short:
        help = f"{help.rstrip('.')}: {', '.join(listed)}."
    help = f"{help} {how.pop('otherwise', '')}".strip()
    option, kind = _Words(what, words, several, meant), how.pop("kind", Option)
    return kind(*names, help=help, callback=option.check, autocompletion=option.complete, **how)


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
