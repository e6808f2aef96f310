"""Keywords of Python, as the table has them: former names, unknown ones, and docstrings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from neuralpower.ask.options import no_word, options_of
from neuralpower.ask.words import meant_by
from neuralpower.errors import InputError, unknown

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
