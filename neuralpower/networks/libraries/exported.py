"""Networks that torch.export has saved, and rules for a `.pt2` file.

torch.export.load unpickles it, evaluates its text, and writes Python.

    torch >= 2.8   NAME/models/model.json, NAME/data/{weights,constants,sample_inputs}/...
    torch <= 2.7   serialized_exported_program.json, serialized_{state_dict,constants,example_inputs}.pt

The archive is checked before it is loaded: a plain zip of stored files, pickles of tensors alone, and a graph
that calls operators of torch by name. Sizes of tensors are formulas, which sympy evaluates as Python; names
become code of FX.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import FixedSizeError, ModelError
from neuralpower.files.paths import is_file, shown
from neuralpower.networks.inputs.inputs import Inputs, batch_of, in_batches
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.running import quiet
from neuralpower.networks.source import Source

PROGRAM = "serialized_exported_program.json"
FLAT_PICKLES = re.compile(r"serialized_(state_dict|constants|example_inputs)\.(pt|json)")
PARTS = ("archive_format", "archive_version", "byteorder", "version", ".data/", "models/", "extra/")
DATA = ("data/weights/", "data/constants/", "data/sample_inputs/")
# A zip ends with a record of 22 bytes where it has no comment, after two others where files are large.
END, LOCATOR, END64 = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06"

NAME = re.compile(r"\w*")  # of a node: it becomes a variable of Python
PLAIN = re.compile(r"[^\"'\\\n\r(){};=,#]*")  # of a parameter or submodule: it stands in quotes
FREE = "metadata"  # no code is made of it: stack traces
TEXT = "as_string"  # a value for an operator; torch compares an input of the program with it, in code
CONTAINERS = (
    *(None, "builtins.tuple", "builtins.list", "builtins.dict"),
    *("collections.OrderedDict", "collections.deque"),
)

OPERATOR = re.compile(r"torch\.ops\.(higher_order\.\w+|(?!higher_order\.)\w+\.\w+\.\w+)")
ON_NUMBERS = re.compile(
    r"torch\._?sym_\w+|math\.(trunc|ceil|floor|sqrt)"
    r"|_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv)"
    r"|_operator\.(and_|or_|lshift|rshift|getitem)"
)
TOUCH_FILES = ("torch.ops.aten.from_file.", "torch.ops.aten.save.", "torch.ops.prim.")
FORMULAS = (
    *(ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.Tuple),
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop),
)
# sympy's classes, and symbols
FUNCTIONS = re.compile(r"[A-Z]\w*|floor|ceiling|sqrt|oo|int_oo|nan|zoo|pi|[a-z]+\d+")


def check_exported(path: Path) -> None:
    """Raise ModelError for a file that is not an exported program, or that would run code when loaded."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_zip(archive, path.stat().st_size, path)
            _check_members(archive, path)
    # the last is zipfile's word for a compression or a version that it does not read
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, RecursionError, NotImplementedError) as error:
        raise no_program(path) from error


def no_program(path: Path) -> ModelError:
    """The error for a file that torch.export.save has not written."""
    return ModelError(
        f"{path} is not an exported program of torch {torch.__version__}; "
        "write it with torch.export.save of this version"
    )


def _refused(path: Path, what: str) -> ModelError:
    return ModelError(
        f"{path} is not loaded: {what}, which could run code or fill the memory; export the network again "
        "with torch.export.save, with tensors and numbers for inputs and constants"
    )


def _check_zip(archive: zipfile.ZipFile, size: int, path: Path) -> None:
    """Raise ModelError unless every reader of zips finds the same in it, and no more than its size."""
    members = archive.infolist()
    if not members:
        raise no_program(path)
    assert archive.fp is not None  # as long as it is open
    archive.fp.seek(max(size - 98, 0))
    starts = _directory_starts(archive.fp.read())
    if starts != {archive.start_dir} or min(m.header_offset for m in members) != 0:
        raise _refused(path, "the archive has something before, after or between its files")
    if sum(member.file_size for member in members) > size or any(m.compress_type for m in members):
        raise _refused(path, "the archive holds files that are compressed or lie on each other")
    if len({member.filename.lower() for member in members}) < len(members):
        raise _refused(path, "the archive holds two files of one name")
    for member in members:
        name = member.filename
        outside = name.startswith("/") or ".." in PurePosixPath(name).parts
        if outside or name != member.orig_filename or set("\\:") & set(name):
            raise _refused(path, f"the archive holds a file {name!r:.80} outside of it")


def _directory_starts(end: bytes) -> set[int]:
    """Where the last 98 bytes of a zip say that its directory starts; empty if they are not its usual end."""
    last = end[-22:]
    if last[:4] != END:
        return set()
    starts = {int.from_bytes(last[16:20], "little")} - {0xFFFFFFFF}
    if end[-42:-38] == LOCATOR:  # of the record for large files, which then lies just before
        starts |= {int.from_bytes(end[-50:-42], "little")} if end[-98:-94] == END64 else {-1}
    return starts


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    names = archive.namelist()
    if "version" in names and PROGRAM in names:
        for name in names:
            if FLAT_PICKLES.fullmatch(name):
                _check_pickle(archive.read(name), path, name)
            elif name not in ("version", PROGRAM) and not name.startswith("extra_files"):
                raise _refused(path, f"the archive holds {name!r:.80}")
        _check_program(json.loads(archive.read(PROGRAM)), path)
        return
    root = names[0].partition("/")[0] + "/"
    if f"{root}archive_format" not in names or archive.read(f"{root}archive_format") != b"pt2":
        raise no_program(path)
    for name in names:
        inner = name.removeprefix(root)
        if not name.startswith(root) or not inner.startswith((*PARTS, *DATA)):
            raise _refused(path, f"the archive holds {name!r:.80}")
        if inner.startswith("models/"):
            _check_program(json.loads(archive.read(name)), path)
        elif inner.endswith("_config.json") and inner.startswith(DATA):
            _check_payloads(archive, name, path)
        elif inner.endswith(".pt") and inner.startswith(DATA):
            _check_pickle(archive.read(name), path, inner)


def _check_payloads(archive: zipfile.ZipFile, config: str, path: Path) -> None:
    """Raise ModelError for weights and constants that are no tensors, or pickles of more than tensors."""
    folder = config.rpartition("/")[0]
    for name, payload in json.loads(archive.read(config))["config"].items():
        file = str(payload["path_name"])
        if not re.fullmatch(r"(weight|tensor)_\d+", file):
            raise _refused(path, f"{name!r:.80} is an object of its own ({file!r:.40})")
        if payload.get("use_pickle"):
            _check_pickle(archive.read(f"{folder}/{file}"), path, file)


def _check_pickle(content: bytes, path: Path, name: str) -> None:
    """Raise ModelError for a pickle that holds more than tensors, numbers, texts and containers of these."""
    if not content:
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_zip(archive, len(content), path)
        torch.load(io.BytesIO(content), map_location="meta", weights_only=True)
    except ModelError:
        raise
    except Exception as error:
        raise _refused(path, f"{name} is a pickle of more than tensors") from error


def _check_program(program: Any, path: Path) -> None:
    for check, key, value in _texts(program):
        try:
            good = check(value)
        except (SyntaxError, ValueError, RecursionError, MemoryError, AttributeError, TypeError, KeyError):
            good = False
        if not good:
            raise _refused(path, f"its graph has the {key} {value!r:.80}")


def _texts(value: Any, key: str = "", in_nodes: bool = False) -> Iterator[tuple[Check, str, str]]:
    """(rule, key, text) of all texts of a program that become code."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield (NAME if key.endswith("_values") else PLAIN).fullmatch, f"field of {key}", str(name)
            if name != FREE and not (name == TEXT and in_nodes):
                yield from _texts(inner, str(name), in_nodes or name == "nodes")
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, key, in_nodes)
    elif isinstance(value, str):
        yield RULES.get(key, PLAIN.fullmatch), key, value


def _is_formula(text: str) -> bool:
    """Whether a text is arithmetic on symbols and numbers, as sympy writes it."""
    return all(map(_is_arithmetic, ast.walk(ast.parse(text.strip(), mode="eval"))))


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name)
    if isinstance(node, ast.Name):
        return FUNCTIONS.fullmatch(node.id) is not None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.isidentifier()
    return isinstance(node, FORMULAS)


def _is_guard(text: str) -> bool:
    """Whether a text compares sizes of inputs, as in `L['x'].size()[0] % 3 == 0`: torch runs it as Python."""
    return not set("#\\\n\r") & set(text) and all(map(_is_comparison, ast.walk(ast.parse(text, mode="eval"))))


def _is_comparison(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("size", "stride", "storage_offset") and isinstance(node.value, ast.Subscript)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return not node.args and not node.keywords
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return PLAIN.fullmatch(node.value) is not None
    is_inputs = isinstance(node, ast.Name) and node.id == "L"
    return is_inputs or isinstance(node, (ast.Subscript, ast.BoolOp, ast.boolop)) or _is_arithmetic(node)


def _is_operator(text: str) -> bool:
    """Whether a target is an operator of torch, arithmetic on sizes, or a parameter's name in a signature."""
    if ON_NUMBERS.fullmatch(text):
        return True
    if not text.startswith(("torch", "_operator", "math", "#")):
        return PLAIN.fullmatch(text) is not None  # as `layers.0.weight`; no function is found by it
    if text.startswith(TOUCH_FILES) or not OPERATOR.fullmatch(text):
        return False
    found: Any = torch
    for name in text.split(".")[1:]:
        found = getattr(found, name, None)
    return found is None or isinstance(found, (torch._ops.OpOverload, torch._ops.HigherOrderOperator))


def _is_spec(text: str) -> bool:
    """Whether the description of nested inputs names plain containers alone: others are imported by name."""
    if not text:
        return True
    _, spec = json.loads(text)
    return _is_plain_spec(spec)


def _is_plain_spec(spec: Mapping[str, Any]) -> bool:
    context = spec["context"]
    keys = json.loads(context) if isinstance(context, str) and spec["type"] is not None else context
    keys = keys if isinstance(keys, list) else [] if keys is None else [keys]
    plain = all(PLAIN.fullmatch(str(key)) for key in keys)
    return spec["type"] in CONTAINERS and plain and all(map(_is_plain_spec, spec["children_spec"]))


Check = Callable[[str], object]
"""Returns a true value for a permitted text."""
RULES: Mapping[str, Check] = {
    **dict.fromkeys(("expr_str", "as_expr"), _is_formula),
    **dict.fromkeys(("in_spec", "out_spec"), _is_spec),
    **{"guards_code": _is_guard, "target": _is_operator},
    **dict.fromkeys(("name", "as_name", "forward_arg_names"), NAME.fullmatch),
}
"""Key of a program -> rule for its text; PLAIN for all other keys."""


def exported_source(text: str, path: Path, overrides: dict[str, Any]) -> Source:
    """A .pt2 file: its shapes are those of the export, except where these were dynamic."""
    if overrides:
        raise ModelError(
            f"{text!r} has overrides, but an exported program is fixed; export it again with other sizes"
        )
    if not is_file(path):
        raise ModelError(
            f"there is no file {shown(path)}; give an existing .pt2, written by torch.export.save"
        )
    check_exported(path)  # loading it unpickles and evaluates what it holds
    try:
        with quiet("torch.export"):
            program = torch.export.load(path)
    except Exception as error:
        raise no_program(path) from error

    def construct(dtype: torch.dtype) -> nn.Module:
        if torch.get_default_device().type == "meta":
            raise NotImplementedError("an exported graph names its devices")
        return program.module()  # in its own types, whatever is asked

    def brings(model: nn.Module) -> Inputs | None:
        return None if program.example_inputs is None else Inputs(*program.example_inputs)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        inputs = brings(model)
        if inputs is None:
            raise ModelError(
                f"{text} was saved without its example inputs; export it again with torch.export.save"
            )
        if request.input_shape is not None or request.seq_len is not None:
            raise FixedSizeError(
                f"{text} is exported for fixed shapes; leave input_shape and seq_len out, or export it again"
            )
        if request.batch_size != batch_of(inputs) and not _has_dynamic_batch(program):
            raise FixedSizeError(
                f"batch size is {request.batch_size}, but {text} is exported for a batch of "
                f"{batch_of(inputs)}; give this one, or export it with a dynamic batch (torch.export.Dim)"
            )
        return in_batches(inputs, request.batch_size)

    return Source(text, construct, examples, brings=brings, untyped=program.module)


def _has_dynamic_batch(program: Any) -> bool:
    """Whether the first size of the first input is a symbol."""
    names = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in names and isinstance(value, Tensor) and value.dim():
            return isinstance(value.shape[0], torch.SymInt)
    return False
