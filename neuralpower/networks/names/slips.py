"""Names of networks in their libraries' files, and suggestions for a text that names none. No torch."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from neuralpower.errors import ModelError, unknown
from neuralpower.files.paths import is_file
from neuralpower.networks.names.catalogue import catalogue, find_entry, named

_ZOO = re.compile(r'zoo_model\(\s*(f?)"(\w+)(?:\{\w+\})?"')
_NUMBERS = re.compile(r"\b(\d+): \(")  # keys of a table by whose numbers networks are named
_TYPE = re.compile(r'"([\w.-]+)"[:,]\s*"\w+Config"')
_WORD = re.compile(r'"([\w.-]+)"')
AUTO = ("auto_mappings.py", "configuration_auto.py", "modeling_auto.py")


@functools.cache
def zoo_names() -> tuple[str, ...]:
    """Ids of the zoo, by the decorators in its files."""
    names: set[str] = set()
    for file in (Path(__file__).parents[1] / "zoo").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        for formatted, name in _ZOO.findall(text):
            numbers = _NUMBERS.findall(text) if formatted else [""]
            names |= {f"{name}{number}" for number in numbers}
    return tuple(sorted(names))


@functools.cache
def transformers_names() -> tuple[frozenset[str], frozenset[str]]:
    """(Model types, all names of types and classes) in the tables of transformers; empty without it."""
    spec = importlib.util.find_spec("transformers")
    places = [] if spec is None else spec.submodule_search_locations or []
    texts = [
        file.read_text(encoding="utf-8")
        for place in places
        for name in AUTO
        if (file := Path(place) / "models" / "auto" / name).is_file()
    ]
    types, words = (frozenset(w for text in texts for w in form.findall(text)) for form in (_TYPE, _WORD))
    return types, words


NEAR = 0.85  # share of equal letters, from which on one name suggests another
MOST = 6  # names that a message lists
OF_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*")
WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".h5", ".pkl")
YOLO = re.compile(
    r"yolo(v?\d+|-?nas|-?world)[a-z]*(-\w+)?", re.IGNORECASE
)  # of libraries that no source reads
BESIDE = ("example_inputs", "main")  # functions of a file that build no network
_MODEL_OF_TORCHVISION = re.compile(r"^@register_model\(\)\s*(?:@.*\s*)*def (\w+)\(", re.MULTILINE)


def meant(text: str) -> str:
    """A hint on the network that `text` most likely means, for a message's end; "" without one."""
    if text.endswith(".py"):
        return _of_file(text)
    if text.lower().endswith(WEIGHTS):
        return "weights alone are not a network; give the code that builds it: path/file.py:Name"
    if OF_HUB.fullmatch(text) and not Path(text).exists():
        return f"for a model of the Hugging Face hub write hf:{text}{_or_listed(text.partition('/')[2])}"
    if YOLO.fullmatch(text):
        return f"export it by its own library (yolo export model={text}.pt format=onnx) and give {text}.onnx"
    found = list(dict.fromkeys(_alike(text)))[:MOST]
    return f"did you mean {_either(found)}?" if found else ""


def listed_as(label: str) -> str:
    """The catalogue's name of a model of the hub; "" where it has none, or several."""
    found = named(label)
    return found[0] if len(found) == 1 else ""


def check_defined(file: Path, location: str, name: str) -> None:
    """Raise ModelError where a file of Python plainly does not define `name`; doubts pass."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
    bound = {one for node in ast.walk(tree) for one in _bound(node)}
    built = _built(tree)
    if built and not bound & {name, "*", "__getattr__", "globals"}:
        raise unknown(f"function in {location}", name, built, ModelError)


def _of_file(location: str) -> str:
    """Which classes and functions of a file build a network, perhaps."""
    path = Path(location).expanduser()
    if not is_file(path):
        return f"there is no file {location}; give an existing path/file.py:Name"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return f"{location} cannot be read as Python ({error}); correct it"
    found = _built(tree)
    if not found:
        return f"{location} defines no class and no function; add one that builds the network"
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    brings = any(isinstance(node, ast.FunctionDef) and node.name == BESIDE[0] for node in tree.body)
    shape = "" if brings else " with --input-shape, such as 3x224x224"
    return f"choose what builds it: {_either([f'{location}:{name}' for name in found[:MOST]])}{more}{shape}"


def _built(tree: ast.Module) -> list[str]:
    """Public classes and functions of a file: modules first, then functions, then other classes."""
    ranks: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            ranks[node.name] = 0 if any(_is_module(ast.unparse(base)) for base in node.bases) else 2
        elif isinstance(node, ast.FunctionDef) and node.name not in BESIDE:
            ranks[node.name] = 1
    return sorted((name for name in ranks if not name.startswith("_")), key=ranks.__getitem__)


def _is_module(base: str) -> bool:
    return "nn." in base or base.endswith(("Module", "Sequential"))


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a part of a file may define, "*" for all of another module."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.alias):
        yield node.asname or node.name
    elif isinstance(node, ast.Name):
        yield node.id


def _or_listed(name: str) -> str:
    """A model of the catalogue whose name is alike."""
    try:
        return f", or {find_entry(name).name}, which `neuralpower models` has"
    except ModelError:
        near = difflib.get_close_matches(name.lower(), catalogue(), n=1, cutoff=NEAR)
        return f", or {near[0]}, which `neuralpower models` has" if near else ""


def _alike(text: str) -> Iterator[str]:
    """Networks of libraries whose names are the same but for case and marks, or nearly so."""
    types, _ = transformers_names()
    libraries: dict[str, Iterable[str]] = {
        "zoo": zoo_names(), "torchvision": _torchvision_names(), "transformers": types
    }  # fmt: skip
    plain = {
        prefix: {re.sub(r"[-_.\s]", "", name.lower()): name for name in names}
        for prefix, names in libraries.items()
    }
    wanted = re.sub(r"[-_.\s]", "", text.lower())
    yield from (f"{prefix}:{names[wanted]}" for prefix, names in plain.items() if wanted in names)
    for prefix, names in plain.items():
        near = difflib.get_close_matches(wanted, names, n=2, cutoff=NEAR)
        yield from (f"{prefix}:{names[name]}" for name in near)


def _torchvision_names() -> list[str]:
    """Networks of torchvision by its files; none where it is not installed."""
    spec = importlib.util.find_spec("torchvision")
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = (file for folder in folders for file in Path(folder, "models").glob("*.py"))
    return [name for file in files for name in _MODEL_OF_TORCHVISION.findall(file.read_text("utf-8"))]


def _either(names: list[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
