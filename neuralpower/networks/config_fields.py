"""Fields that code of transformers reads of a configuration, beside those that its class declares.

A config.json may hold any field: its class keeps what it does not declare, and the model's code asks for it, as in
`getattr(config, "head_dim", ...)`. Such a field can be changed like any other, and a name that no code reads is a mistake.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

LOADING = "transformers.configuration_utils"  # whose keywords are of files, too
LEVEL = 3  # dots from transformers/models/NAME/ up to transformers/
TAKING = ("pop", "get", "setdefault")  # of the keywords that a configuration is made with


def read_of(config: object) -> frozenset[str]:
    """Names of the fields that the code of its model asks a configuration for.

    That is what its class takes, what its model reads, and what the model imports from transformers' shared code reads.
    """
    classes = [
        kind.__module__ for kind in type(config).__mro__ if kind.__module__.startswith("transformers.models.")
    ]
    own = dict.fromkeys((*classes, *(module.replace(".configuration_", ".modeling_") for module in classes)))
    shared = dict.fromkeys(name for module in own for name in _imported_by(module))
    bases = {kind.__module__ for kind in type(config).__mro__} & shared.keys() - {LOADING}
    taken = (name for module in (*own, *bases) for name in _names(module, _taken))
    return frozenset((*taken, *(name for module in (*own, *shared) for name in _names(module, _asked))))


@functools.cache
def _tree(module: str) -> ast.Module:
    """The code of a module, which is not imported; none where there is no such file."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    is_file = found is not None and found.origin is not None and found.origin.endswith(".py")
    return ast.parse(
        Path(str(found.origin)).read_text(encoding="utf-8") if found is not None and is_file else ""
    )


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
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
    ):
        yield from _words(node) if _ends(node.args[0], "config") else ()


def _taken(node: ast.AST) -> Iterator[str]:
    """Fields in `kwargs.pop("NAME")` and the like."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKING:
        yield from _words(node) if _ends(node.func.value, "kwargs") else ()


def _words(call: ast.Call) -> list[str]:
    """The first text among its arguments."""
    return [
        each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ][:1]


def _ends(node: ast.AST, word: str) -> bool:
    """Whether a variable or an attribute is called so: `config`, `self.config`, `text_config`."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.endswith(word)
