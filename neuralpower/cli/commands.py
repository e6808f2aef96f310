"""Option groups: classes whose annotated fields are options and arguments of a command, or groups of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_type_hints

from typing_extensions import dataclass_transform

Command = Callable[..., None]


@dataclass_transform(eq_default=False, kw_only_default=True, frozen_default=True)
class OptionGroup:
    """Read as a frozen dataclass, without the time that it takes to compile a real one's methods."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


def with_options(command: Command, first: Sequence[inspect.Parameter] = ()) -> Command:
    """The command as typer reads it: first `first`, then each group's fields in place of the group."""
    hints = _hints(command)

    @functools.wraps(command)
    def asked(**given: Any) -> None:
        taken = {name: _taken(hint, given) for name, hint in hints.items() if _is_group(hint)}
        command(**taken, **given)

    parameters = [*first]
    for parameter in inspect.signature(command).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            parameters += _parameters(parameter.name, hints[parameter.name], parameter.default)
    asked.__dict__["__signature__"] = inspect.Signature(parameters)  # where typer looks
    return asked


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, OptionGroup)


@functools.cache
def _hints(owner: Any) -> dict[str, Any]:
    return get_type_hints(owner, include_extras=True)


def _parameters(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    """The parameter of that type, or those of a group's fields, in their order."""
    if _is_group(hint):
        for field, kind in _hints(hint).items():
            yield from _parameters(field, kind, getattr(hint, field, inspect.Parameter.empty))
    else:
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _taken(group: Any, given: dict[str, Any]) -> Any:
    """The group with its values, which are taken out of what is given."""
    hints = _hints(group).items()
    return group(**{n: _taken(hint, given) if _is_group(hint) else given.pop(n) for n, hint in hints})
