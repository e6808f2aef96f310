"""Fields of a configuration that code of transformers reads, besides those that its class declares.

A config.json may hold any field: its class keeps those it does not declare, and the model's code asks for
them, as in `getattr(config, "head_dim", ...)`. Such a field can be changed like any other; a name that no
code reads is a mistake.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

LOADING = "transformers.configuration_utils"  # whose keywords are those of files, too
LEVEL = 3  # dots from transformers/models/NAME/ up to transformers/
TAKING = ("pop", "get", "setdefault")  # methods that take a keyword that a configuration is made with


def read_of(config: object) -> frozenset[str]:
    """Names of fields that a configuration's class takes, or that its model or shared code reads."""
    modules = dict.fromkeys(kind.__module__ for kind in type(config).__mro__)
    classes = [module for module in modules if module.startswith("transformers.models.")]
    own = {*classes, *(module.replace(".configuration_", ".modeling_") for module in classes)}
    shared = {name for module in own for name in _imported_by(module)}
    taking = own | (modules.keys() & shared - {LOADING})
    sought = [*((module, _taken) for module in taking), *((module, _asked) for module in own | shared)]
    return frozenset(name for module, found_in in sought for name in _names(module, found_in))


@functools.cache
def _tree(module: str) -> ast.Module:
    """The code of a module, which is not imported; none where there is no such file."""
    try:
        origin = getattr(importlib.util.find_spec(module), "origin", None) or ""
    except ModuleNotFoundError:
        origin = ""
    return ast.parse(Path(origin).read_text(encoding="utf-8") if origin.endswith(".py") else "")


def _imported_by(module: str) -> Iterator[str]:
    """Shared files of transformers that a model's code imports: `from ...modeling_rope_utils import ...`."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.level == LEVEL and node.module:
            yield f"transformers.{node.module}"


@functools.cache
def _names(module: str, found_in: Callable[[ast.AST], Iterator[str]]) -> frozenset[str]:
    return frozenset(n for node in ast.walk(_tree(module)) for n in found_in(node) if not n.startswith("_"))


def _asked(node: ast.AST) -> Iterator[str]:
    """Fields in `config.NAME` and `getattr(config, "NAME")`, for any variable whose name ends so."""
    if isinstance(node, ast.Attribute) and _ends(node.value, "config") and isinstance(node.ctx, ast.Load):
        yield node.attr
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
        yield from _words(node) if _ends(node.args[0], "config") else ()


def _taken(node: ast.AST) -> Iterator[str]:
    """Fields in `kwargs.pop("NAME")` and the like."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKING:
        yield from _words(node) if _ends(node.func.value, "kwargs") else ()


def _words(call: ast.Call) -> list[str]:
    values = (each.value for each in call.args if isinstance(each, ast.Constant))
    return [value for value in values if isinstance(value, str)][:1]


def _ends(node: ast.AST, word: str) -> bool:
    """Whether a variable or an attribute is called so: `config`, `self.config`, `text_config`."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.endswith(word)
