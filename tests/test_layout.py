"""The shape of the package: who may import whom, and what `--help` costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "neuralpower"

# A package imports only from itself and from those above it.
ORDER = (
    "version",
    "errors",
    "dtypes",
    "files",
    "processes",
    "devices",
    "layers",
    "platforms",
    "data",
    "networks",
    "trace",
    "measure",
    "learn",
    "predict",
    "api",
    "report",
    "profiling",
    "zoo",  # faces at the places that users import
    "compat",
    "suites",
    "cli",
    "__main__",
)
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """What a file of that package imports from neuralpower, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level]] if node.level else []
            base += node.module.split(".") if node.module else []
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        yield from (name[1] for name in names if name[0] == "neuralpower" and len(name) > 1)


def place(file: Path) -> str:
    """The entry of `ORDER` that a file belongs to; "" for neuralpower/__init__.py."""
    first = file.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def refused(source: str, module: str, package: tuple[str, ...]) -> list[str]:
    """What a file of `module` imports although it does not stand above it."""
    allowed = set(ORDER[: ORDER.index(module) + 1]) if module else set(ORDER)  # the public names, when asked for
    return [name for name in imported(source, package) if name not in allowed]


def test_every_module_has_its_place_in_the_order() -> None:
    assert {place(file) for file in FILES} - {""} <= set(ORDER), "enter the new module in ORDER"


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(PACKAGE)) for file in FILES])
def test_a_module_imports_only_from_those_above_it(file: Path) -> None:
    package = ("neuralpower", *file.relative_to(PACKAGE).parts[:-1])
    assert refused(file.read_text(encoding="utf-8"), place(file), package) == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import neuralpower.cli", ["cli"]),
        ("import neuralpower.errors, neuralpower.report.table", ["report"]),
        ("from neuralpower import cli, errors", ["cli"]),
        ("from neuralpower.trace.tracer import trace", ["trace"]),
        ("from .. import trace", ["trace"]),
        ("from ..report import table", ["report"]),
        ("def f():\n    from neuralpower.learn.predictor import Predictor", ["learn"]),
        ("from . import base\nfrom .base import Layer\nfrom neuralpower.layers.base import Layer", []),
        ("import torch\nfrom torch import nn", []),
    ],
)
def test_an_import_from_below_is_seen(source: str, names: list[str]) -> None:
    assert refused(source, "layers", ("neuralpower", "layers")) == names


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
    )
    assert "predict" in printed_by(program)


def test_the_repository_holds_nothing_beside_its_own_folders() -> None:
    root = PACKAGE.parent
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    folders = {name.split("/")[0] for name in listed.split("\0") if "/" in name}
    assert folders == {".ci", "benchmarks", "datasets", "docs", "models", "neuralpower", "tests"}
