"""The shape of the package: who may import what of whom, and what `--help` costs."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tracked import ROOT, tracked

PACKAGE = Path(__file__).parent.parent / "neuralpower"

PACKAGES: Mapping[str, str] = {
    "version": "",
    "late": "",
    "errors": "",
    "dtypes": "",
    "files": "atomic cache csv_files json_files locks paths stages terminal",
    "quantisation": "asked checkpoints formats gguf schemes totals weights",
    "processes": "alone pool tether",
    "devices": "cluster hardware host machine names spec",
    "optimizers": "registry",
    "layers": """
        base columns expert_load matrix_product rows tensors terms tiles training traits views
        workspace
    """,
    "platforms": "views",
    "data": "columns dataset importing journal networks schema screening sealing",
    "networks": """
        adapters caches decoder passes phases refusals running sharding source users_code
    """,
    "networks.inputs": "inputs known_values requests size_limits",
    "networks.libraries": "callables",
    "networks.names": "catalogue families hub sameness slips",
    "networks.diffusion": "composed families pictures",
    "networks.sources": "base",
    "networks.zoo": "",
    "trace": "follow followed lifetimes paths question recipe recorder records tracer weights",
    "trace.operators": "casts memory_formats modules undisturbed",
    "trace.parts": "by_request exchanges routing stages",
    "trace.steps": "sparse_gradients step_lifetimes",
    "trace.passes": "",
    "ask": "keywords options output spread texts words",
    "measure": """
        rig calls cpu.reached cpu.timer cuda.runtime meters power.energy exchanges.run
    """,
    "measure.collect": "fleet plan",
    "learn": "estimates keys network_estimates notes predictor regressor rows settings train watts",
    "learn.files": "predictor_files predictor_json predictor_lookup",
    "learn.fitting": "",
    "learn.networks": "calibrate network_rows pace",
    "learn.unmeasured": "any_device",
    "prediction": """
        beside case compose generation prediction request rows several_devices shown timeline tree
        weights
    """,
    "prediction.costs": "footprint images prices",
    "prediction.evaluation": "evaluate measured on_gpu",
    "prediction.fits": "fit largest largest_picture remedies verdict",
    "prediction.kept": "kept sums",
    "prediction.parallel": "",
    "prediction.explore": "compare gate layouts outcomes phases rank score sweep",
    "prediction.memory": "engines over_time peak snapshot",
    "traces": "calls explanation rows",
    "serving": "deployment plan policies results simulator step_times surface traffic workload",
    "report": "cards chart_files charts grid number_format page perfetto pictures shown tables",
    "report.results": """
        explored gates inspection layouts measured memory_pictures ranked served traces training
    """,
    "profiling": "cases conventions result rows steps stopwatch",
    "api": "functions gates loaded predicting ranked serving",
    "integrations": "",
    "web": "server",
    "zoo": "",  # at the place that users import, as compat
    "compat": "",
    "cli": "choices commands known_names output parsing",
    "suites": "",  # the command line finds theirs in its list of commands: nothing imports them
    "__main__": "",
}
"""Packages in their order, with their faces: modules that others may import in addition to the package.

A package imports only from itself and from those above it. Files that enter something in a registry need no
face: a kind of layer, a pass of traces, a source of models, a network, a meter.
"""
ORDER = [name for name in PACKAGES if "." not in name]
MOST_FACES = 12
ENTERS = re.compile(r"^@(layer_kind|trace_pass|model_source|zoo_model|power_meter)\(", re.MULTILINE)
FILES = sorted(PACKAGE.rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def imported(source: str, package: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(Package, module within it) of each import from neuralpower, anywhere in a file of `package`."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level]] if node.level else []
            base += node.module.split(".") if node.module else []
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        yield from ((name[1], module_in(name[1:])) for name in names if name[0] == "neuralpower" and name[1:])


def module_in(name: list[str]) -> str:
    """The module within its package that a dotted name means: "zoo.mnist", or "" for the package itself."""
    path = PACKAGE.joinpath(*name)
    is_module = path.is_dir() or path.with_suffix(".py").is_file()
    return ".".join(name[1:] if is_module else name[1:-1])


def place(file: Path) -> str:
    """The package that a file belongs to; "" for neuralpower/__init__.py."""
    first = file.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def room(package: str, module: str) -> tuple[str, str]:
    """The innermost package of PACKAGES that a module lies in, and its name there."""
    parts = [package, *module.split(".")] if module else [package]
    inner = next(n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in PACKAGES)
    return ".".join(parts[:inner]), ".".join(parts[inner:])


def enters(package: str, module: str) -> bool:
    """Whether a file enters something in a registry."""
    file = PACKAGE.joinpath(*package.split("."), *module.split(".")).with_suffix(".py")
    return file.is_file() and ENTERS.search(file.read_text(encoding="utf-8")) is not None


def refused(source: str, own: str, package: tuple[str, ...]) -> Iterator[str]:
    """What a file of the package `own` imports although it may not, and what it may."""
    above = ORDER[: ORDER.index(own)] if own else ORDER  # the public names are imported when asked for
    for other, module in imported(source, package):
        if other == own:
            continue
        if other not in above:
            yield f"{other}.{module}: {own} may import from {', '.join(above)}"
            continue
        inner, name = room(other, module)
        if name and name not in PACKAGES[inner].split() and not enters(inner, name):
            faces = [f"neuralpower.{inner}", *PACKAGES[inner].split()]
            yield f"{other}.{module}: an inner module; others may import {', '.join(faces)}"


def test_every_module_has_its_place_in_the_order() -> None:
    assert {place(file) for file in FILES} - {""} <= set(ORDER), "enter the new package in PACKAGES"


def packages() -> list[str]:
    """The rows of the table: each package, indented as it lies, and the first line of what it says."""
    folders = [(name, PACKAGE.joinpath(*name.split("."), "__init__.py")) for name in PACKAGES]
    says = {
        name: (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").splitlines()[0]
        for name, file in folders
        if file.is_file()
    }
    return [f"| {'&emsp;' * name.count('.')}`{name.replace('.', '/')}` | {says[name]} |" for name in says]


def test_the_list_of_packages_is_that_of_the_folders() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "\n".join(packages()) in page, "write these rows into CONTRIBUTING.md:\n" + "\n".join(packages())


def test_every_face_is_there() -> None:
    faces = [(*own.split("."), *face.split(".")) for own, faces in PACKAGES.items() for face in faces.split()]
    assert [face for face in faces if module_in([*face]) != ".".join(face[1:])] == []


def test_a_face_is_short() -> None:
    long = {own: len(faces.split()) for own, faces in PACKAGES.items() if len(faces.split()) > MOST_FACES}
    assert long == {}


def test_a_package_imports_only_faces_of_those_above_it() -> None:
    lines = [
        f"{file.relative_to(PACKAGE.parent)} imports {line}"
        for file in FILES
        for line in refused(
            file.read_text(encoding="utf-8"),
            place(file),
            ("neuralpower", *file.relative_to(PACKAGE).parts[:-1]),
        )
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import neuralpower.cli", ["cli."]),
        ("import neuralpower.errors, neuralpower.report.tables", ["report.tables"]),
        ("from neuralpower import cli, errors", ["cli."]),
        ("from neuralpower.trace.tracer import trace", ["trace.tracer"]),
        ("from .. import trace", ["trace."]),
        ("from ..report import tables", ["report.tables"]),
        ("def f():\n    from neuralpower.learn.predictor import Predictor", ["learn.predictor"]),
        ("from neuralpower.platforms.cpu import PLATFORM", ["platforms.cpu"]),
        ("from neuralpower.platforms import cpu, views", ["platforms.cpu"]),
        ("from neuralpower.platforms import CPU\nfrom neuralpower.layers.base import Layer", []),
        (
            "from . import dataset\nfrom .shards import Shard\nfrom neuralpower.data.journal import Journal",
            [],
        ),
        ("import torch\nfrom torch import nn", []),
    ],
)
def test_an_import_that_is_not_allowed_is_seen(source: str, names: list[str]) -> None:
    assert [line.partition(":")[0] for line in refused(source, "data", ("neuralpower", "data"))] == names


MOST_METHODS, MOST_LINES, MOST_PARAMETERS = 25, 50, 7
# What is larger today: none may be added, and what becomes smaller leaves the list.
LONG_FUNCTIONS = """
    prior_fit.__init__ surface_of
""".split()


@functools.cache
def definitions() -> list[tuple[Path, Any]]:
    """The classes and functions of all files."""
    return [
        (file, node)
        for file in FILES
        for node in ast.walk(parsed(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.ClassDef, *FUNCTIONS))
    ]


def methods(name: str, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """Those of a class and of the package's classes that it derives from."""
    node = classes[name]
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)} & {*classes} - {name}
    own = {one.name for one in node.body if isinstance(one, FUNCTIONS)}
    return own.union(*(methods(base, classes) for base in bases))


def parameters(function: Any) -> int:
    every = function.args
    count = len([*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg])
    count -= (every.vararg is None) + (every.kwarg is None)
    return count - any(one.arg in ("self", "cls") for one in every.args[:1])


def test_no_class_has_more_methods_than_one_reads_at_once() -> None:
    classes = {node.name: node for _, node in definitions() if isinstance(node, ast.ClassDef)}
    assert [name for name in classes if len(methods(name, classes)) > MOST_METHODS] == []


def test_no_function_becomes_longer_than_a_page() -> None:
    functions = [(file, node) for file, node in definitions() if isinstance(node, FUNCTIONS)]
    long = [
        f"{file.stem}.{node.name}" if node.name == "__init__" else node.name
        for file, node in functions
        if (node.end_lineno or 0) - node.lineno + 1 > MOST_LINES
    ]
    assert sorted(long) == sorted(LONG_FUNCTIONS)
    assert [node.name for _, node in functions if parameters(node) > MOST_PARAMETERS] == []


def printed_by(program: str) -> str:
    """What a fresh Python that runs to its end prints."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_is_light_and_its_public_names_are_there() -> None:
    program = (
        "import sys, types, neuralpower\n"
        "assert 'torch' not in sys.modules and 'neuralpower.profiling' not in sys.modules\n"
        "import neuralpower.profiling, neuralpower.cli.profile\n"
        "assert isinstance(neuralpower.profile, types.FunctionType)\n"
        "assert neuralpower.Profile is neuralpower.compat.Profile\n"
        "assert not hasattr(neuralpower, 'profil')\n"
    )
    printed_by(program)


def test_help_does_not_import_torch() -> None:
    program = (
        "import sys\n"
        "from neuralpower.cli import main\n"
        "sys.argv = ['neuralpower', '--help']\n"
        "try:\n"
        "    status = main()\n"
        "except SystemExit as stop:\n"
        "    status = stop.code\n"
        "assert not status, status\n"
        "assert 'torch' not in sys.modules\n"
        "assert not [name for name in sys.modules if name.startswith('neuralpower.suites')]\n"
    )
    printed = printed_by(program)
    assert "predict" in printed and "paradnn" in printed, "those of the suites are listed all the same"


def test_the_repository_holds_nothing_beside_its_own_folders() -> None:
    names = [file.relative_to(ROOT).parts for file in tracked()]
    folders = {parts[0] for parts in names if len(parts) > 1}
    assert folders == {".ci", "benchmarks", "datasets", "docs", "models", "neuralpower", "tests"}
