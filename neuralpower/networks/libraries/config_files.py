"""The config.json of a folder: its fields, its type, how its weights are quantised; without torch."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from neuralpower.dtypes import NETWORK_DTYPES, full_name
from neuralpower.errors import ModelError
from neuralpower.files.json_files import read_json
from neuralpower.files.paths import is_file, is_folder, shown
from neuralpower.networks.sources.base import grammar

# Fields of a configuration that code of transformers reads, besides those that its class declares.
#
# A config.json may hold any field: its class keeps those it does not declare, and the model's code asks for
# them, as in `getattr(config, "head_dim", ...)`. Such a field can be changed like any other; a name that no
# code reads is a mistake.

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


BESIDE = "hf_quant_config.json"  # in which NVIDIA's Model Optimizer says how weights are quantised


def folder_values(path: Path) -> tuple[Any, Path]:
    """(value, file) of a folder's config.json, or of that file; raises ModelError."""
    file = path / "config.json" if is_folder(path) else path
    if not is_file(file):
        raise ModelError(
            f"{shown(path)} holds no config.json or model_index.json; give a folder of transformers or "
            "diffusers, "
            f"or {grammar().partition(', ')[2]}"
        )
    values = _read(file)
    beside = file.with_name(BESIDE)
    if isinstance(values, dict) and "quantization_config" not in values and is_file(beside):
        values = {**values, "quantization_config": _read(beside)}
    return values, file


def _read(file: Path) -> Any:
    """The value in a JSON file; raises ModelError."""
    try:
        return read_json(file)
    except (ValueError, OSError) as error:
        raise ModelError(f"{file} is not JSON ({error}); write the configuration again") from error


# ---- The type in which a checkpoint was published, by its configuration. It imports no torch ----


WORDS = ("dtype", "torch_dtype")  # transformers reads the second where the first is missing
PART = "_config"  # how the fields end that hold the configuration of a part
FIRST = ("text_config", "llm_config", "language_config", "thinker_config")  # parts with most of the weights
QUANTISED = "quantization_config"
IN_HALF = ("awq", "gptq")  # their kernels multiply in float16 (transformers/quantizers)


def dtype_in(values: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> str | None:
    """The type that a config.json states for itself or for a part; `overrides` as in MODEL?field=value.

    A quantised checkpoint that states none is multiplied in 16 bits. None: nothing usable is stated.
    """
    given = overrides or {}
    for key, value in given.items():
        if key.rpartition(".")[2] in WORDS and (asked := _known(value)) is not None:
            return asked
    stated = next(_stated(values), None)
    method = given.get(QUANTISED, values.get(QUANTISED))
    if stated is not None or not isinstance(method, Mapping):
        return stated
    return "float16" if str(method.get("quant_method")).lower() in IN_HALF else "bfloat16"


def _stated(values: Mapping[str, Any]) -> Iterator[str]:
    """The types of a configuration and of its parts, the outermost first."""
    for word in WORDS:
        value = values.get(word)
        named = value.values() if isinstance(value, Mapping) else (value,)  # one type for each part
        yield from filter(None, map(_known, named))
    parts = [name for name, part in values.items() if name.endswith(PART) and isinstance(part, Mapping)]
    for name in sorted(parts, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        if name != QUANTISED:
            yield from _stated(values[name])


def _known(value: object) -> str | None:
    """The full name of a type that a module can have; None for any other value."""
    name = full_name(str(value).removeprefix("torch.").lower())
    return name if name in NETWORK_DTYPES else None
