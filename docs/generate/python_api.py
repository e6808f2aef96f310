"""The page of the Python interface, made from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import neuralpower
from docs.generate.markdown import page, table
from neuralpower import errors
from neuralpower.prediction.prediction import Prediction

SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Examples?):$")
QUOTED = re.compile(r"(: |-> )'([^']*)'")  # a type that is read late
ENTRY = re.compile(r"^ {4}(\*{0,2}\w[\w., ]*):\s*(.*)$")


def api_page() -> str:
    """Every public name of `neuralpower`, the class `Prediction`, and the errors."""
    title = "# Python interface\n\nEvery public name. [Python](../api.md) has examples. Units are SI."
    names = {name: getattr(neuralpower, name) for name in sorted(neuralpower.__all__) if name[0] != "_"}
    names.setdefault("Prediction", Prediction)
    blocks = (block for name, thing in names.items() for block in described(f"neuralpower.{name}", thing))
    return page(
        title, *blocks, "## Errors", table(("error of `neuralpower.errors`", "exit code", ""), raised())
    )


def raised() -> Iterator[tuple[str, int, str]]:
    """(Class, exit code, first line) of each error class."""
    for name, thing in vars(errors).items():
        if isinstance(thing, type) and issubclass(thing, errors.NeuralPowerError):
            yield f"`{name}`", thing.exit_code, summary(thing)


def described(name: str, thing: Any, level: int = 2) -> Iterator[str]:
    """Blocks of one public thing."""
    yield f"{'#' * level} {name}"
    if isinstance(thing, ModuleType):
        yield prose(inspect.getdoc(thing))
        yield table(("name", ""), ((f"`{key}`", summary(one)) for key, one in public(thing)))
        return
    yield f"```python\n{name.rpartition('.')[2]}{signature(thing)}\n```"
    yield prose(inspect.getdoc(thing))
    if isinstance(thing, type):
        if dataclasses.is_dataclass(thing):
            fields = [field for field in dataclasses.fields(thing) if not field.name.startswith("_")]
            yield table(("field", "type"), ((f"`{field.name}`", f"`{field.type}`") for field in fields))
        methods = ((f"`{key}{signature(one)}`", summary(one)) for key, one in members(thing))
        yield table(("method or property", ""), methods)


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Public functions and classes that a module defines."""
    for name, thing in vars(module).items():
        if callable(thing) and not name.startswith("_") and thing.__module__ == module.__name__:
            yield name, thing


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class, its own first."""
    seen: set[str] = set()
    for owner in kind.__mro__[:-1]:
        for name, thing in vars(owner).items():
            method = inspect.isfunction(thing) or isinstance(thing, (property, classmethod, staticmethod))
            if method and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, thing.__func__ if isinstance(thing, (classmethod, staticmethod)) else thing


def signature(thing: Any) -> str:
    """Parameters, with their types as the source writes them; nothing for a property."""
    if isinstance(thing, property):
        return ""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    kept = [p for name, p in found.parameters.items() if name not in ("self", "cls") and name[0] != "_"]
    return QUOTED.sub(r"\1\2", str(found.replace(parameters=kept)))


def summary(thing: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    text = inspect.getdoc(thing) or ""
    return " ".join(text.split("\n\n")[0].split())


def prose(text: str | None) -> str:
    """A docstring in Markdown: its sections become lists, its examples blocks of code."""
    lines: list[str] = []
    inside = ""
    for line in (text or "").splitlines():
        found, entry = SECTION.match(line), ENTRY.match(line)
        if found:
            inside = found[1]
            lines += ["", f"**{inside}**", ""]
        elif inside and entry and "Example" not in inside:
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif inside and line and not line.startswith(" "):
            inside = ""
            lines += ["", line]
        else:
            lines.append(f"  {line.strip()}" if inside and line.strip() and "Example" not in inside else line)
    return "\n".join(lines)
