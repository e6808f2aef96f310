"""No child process imports Python files of the working folder."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import neuralpower
from neuralpower.measure.collect.process import Worker, command
from neuralpower.measure.exchanges.run import Exchanges, measured
from neuralpower.processes.pool import Pool
from neuralpower.processes.tether import environment, python, tethered
from neuralpower.suites.bench.distributed import launch
from neuralpower.suites.bench.options import Options
from neuralpower.suites.bench.results import execute
from tests.strangers import strangers

PACKAGE = Path(neuralpower.__file__).parent


def _collects() -> None:
    worker = Worker(1, command(power="none"))
    try:
        assert worker.ask({"do": "open"})["hardware"]
    finally:
        worker.stop()


def _fits() -> None:
    with Pool(2) as pool:
        assert list(pool.results(pow, [(2, 3), (2, 4)])) == [8, 16]


def _exchanges() -> None:
    assert measured(Exchanges("gloo", 2, 30.0, ("all_reduce",), largest_bytes=1024)).rows


def _benches() -> None:
    ended = execute(["--help"])
    assert (ended.returncode, ended.stderr) == (0, "")


def _benches_on_several() -> None:
    said: list[str] = []
    launch(Options("alexnet", num_gpus=2, device="cpu"), ["--help"], said.append, said.append)
    assert any("Usage" in line for line in said)


def _runs_a_foreign_module() -> None:
    done = subprocess.run(tethered("this"), env=environment(), capture_output=True, text=True, check=True)
    assert "Zen of Python" in done.stdout


STARTS = (_collects, _fits, _exchanges, _benches, _benches_on_several, _runs_a_foreign_module)


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__.strip("_"))
def test_a_child_runs_no_file_of_the_working_folder(
    start: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = strangers(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    # an empty entry means the working folder, too
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", os.environ.get("PYTHONPATH", ""), ""]))
    start()
    assert not note.exists(), note.read_text()


def test_such_a_file_would_run_with_python_m(tmp_path: Path) -> None:
    note = strangers(tmp_path)
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    subprocess.run([sys.executable, "-m", "this"], cwd=tmp_path, env=plain, capture_output=True, check=False)
    assert note.exists()


def test_arguments_and_the_name_of_the_program_are_as_with_python_m(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import sys; print(__name__, *sys.argv)")
    env = {**environment(), "PYTHONPATH": str(tmp_path)}
    for start in (python("told"), [sys.executable, "-m", "told"]):
        done = subprocess.run([*start, "a", "-c"], env=env, capture_output=True, text=True, check=True)
        assert done.stdout == f"__main__ {tmp_path / 'told.py'} a -c\n"


def test_no_module_starts_python_by_itself() -> None:
    # but `START` does; a container's command in bench's configuration runs where only neuralpower lies
    found = []
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        executable = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "executable"]
        options = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value == "-m"]
        found += [file.relative_to(PACKAGE).as_posix()] if executable or options else []
    assert sorted(found) == ["processes/tether.py", "suites/bench/options.py"]
