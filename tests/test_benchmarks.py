"""Every benchmark starts and prints its first row; what code imports is there, also of code in texts."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import io
import itertools
import json
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import done
from tests.tracked import ROOT, tracked

PROGRAMS = [
    ".".join(file.relative_to(ROOT / "benchmarks").with_suffix("").parts)
    for file in (*tracked("benchmarks/*.py"), *tracked("benchmarks/train/*.py"))
    if 'if __name__ == "__main__":' in file.read_text()
]
GPT = "transformers:GPT2LMHeadModel?n_layer=1&n_embd=64&n_head=4&vocab_size=100&bos_token_id=0&eos_token_id=0"
RUN = json.dumps(["zoo:deep_mnist", 1, None, "forward", None, {}])
GIVEN: dict[str, tuple[str, ...]] = {
    "constants": ("datasets/amd-epyc-2c/shard-005-norm-optimizer", "--rows", "40", "--only", "SHORT_FACTORS"),
    "goldens": ("statements",),
    "memory": ("--recorded",),
    "memory_run": (RUN,),
    "models": ("BertModel",),
}
"""Arguments of those that take long without any, or need some."""
EVALUATED = {
    "heldout": (("zoo:deep_mnist 2", "zoo:mnist_cnn 2"), ()),
    "small": (("zoo:deep_mnist 2", "zoo:mnist_cnn 2"), ()),
    "training": (("zoo:deep_mnist 2", "zoo:mnist_cnn 2"), ("--phase", "training")),
    "generation": ((f"{GPT} 1 8 prefill", f"{GPT} 1 - decode 8"), ()),
}
"""Those that show what `evaluate --json` wrote: the list of networks, and options."""
ROW = re.compile(r"(?<![\w-])\d|\bneeds a folder\b")  # a number, which no header has, or why there is no row
HEADER = re.compile(r"p10|^\|---")


class Enough(BaseException):
    """A row is printed."""


class FirstRow(io.StringIO):
    """Standard output until its first row."""

    def write(self, text: str) -> int:
        """Raises Enough."""
        written = super().write(text)
        for line in self.getvalue().splitlines(keepends=True):
            if line.endswith("\n") and ROW.search(line) and not HEADER.search(line):
                raise Enough
        return written


def first_row(program: str, *arguments: str) -> str:
    out, argv = FirstRow(), sys.argv
    sys.argv = [program, *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(Enough, SystemExit):
            runpy.run_module(f"benchmarks.{program}", run_name="__main__")
    finally:
        sys.argv = argv
    lines = [line for line in out.getvalue().splitlines() if ROW.search(line) and not HEADER.search(line)]
    assert lines, out.getvalue()
    return lines[0]


@functools.cache
def evaluated(networks: tuple[str, ...], options: tuple[str, ...]) -> str:
    """What `evaluate --json` says of a list of networks."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(networks))
        file.flush()
        return done("evaluate", f"@{file.name}", *options, "--rounds", "1", "--json")


@pytest.fixture
def one_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let engine_memory read the first of its logs alone: it prints when all are predicted."""
    lines = (ROOT / "benchmarks" / "engine_logs.csv").read_text().splitlines(keepends=True)
    real, short = Path.open, tmp_path / "engine_logs.csv"
    short.write_text("".join(lines[:2]))

    def opened(path: Path, *arguments: object, **named: object) -> object:
        return real(short if path.name == short.name else path, *arguments, **named)

    monkeypatch.setattr(Path, "open", opened)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_starts_and_prints_its_first_row(
    program: str, tmp_path: Path, one_log: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    given = GIVEN.get(program, ())
    if program in EVALUATED:
        (tmp_path / "result.json").write_text(evaluated(*EVALUATED[program]))
        given = (str(tmp_path / "result.json"),)
    elif program == "journal":
        given = (str(tmp_path),)
    assert first_row(program, *given)


# ---- names that code imports ----

OWN = ("neuralpower", "benchmarks", "tests", "docs")
LINE = re.compile(rf"^\s*(?:from ({'|'.join(OWN)})\b|import ({'|'.join(OWN)})\b)", re.MULTILINE)


def imported(source: str) -> Iterator[tuple[str, str]]:
    """(module, name in it or "") of the imports of our own in a program, and in texts within it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and LINE.search(node.value):
            for line in node.value.splitlines():
                with contextlib.suppress(SyntaxError):  # prose, or the middle of a call
                    yield from imported(line.strip() if LINE.match(line) else "")


def missing(module: str, name: str) -> bool:
    if module.split(".")[0] not in OWN:
        return False
    try:
        found = importlib.import_module(module)
        return bool(name) and name != "*" and not hasattr(found, name) and not _is_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        return (error.name or "").split(".")[0] in OWN  # else a library that is not installed


def _is_module(name: str) -> bool:
    try:
        return importlib.import_module(name) is not None
    except ModuleNotFoundError:
        return False


def test_what_code_imports_is_there_and_code_in_texts_too() -> None:
    places = itertools.chain(
        tracked("benchmarks/**/*.py"), tracked("docs/**/*.py"), tracked("neuralpower/**/*.py")
    )
    wanted = {(str(file.relative_to(ROOT)), *one) for file in places for one in imported(file.read_text())}
    tests = (file for file in tracked("tests/**/*.py") if file.name not in MADE_UP)
    wanted |= {(str(file.relative_to(ROOT)), *one) for file in tests for one in imported(file.read_text())}
    assert [one for one in sorted(wanted) if missing(*one[1:])] == []


MADE_UP = (
    "additions.py",
    "test_benchmarks.py",
)  # they name modules that an addition writes, or that are not there


def test_an_import_of_what_is_not_there_is_found() -> None:
    lines = "import json\nfrom neuralpower.learn.shelf import x\n    from neuralpower import nothing\n"
    program = f'CODE = """\n{lines}"""'
    found = set(imported(program))
    assert found == {("neuralpower.learn.shelf", "x"), ("neuralpower", "nothing")}
    assert all(missing(*one) for one in found)
    assert not missing("neuralpower.errors", "InputError") and not missing("no_such_library", "x")
