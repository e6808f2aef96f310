"""What the README shows is run: Python blocks as they are, commands as they are typed."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from neuralpower import cli

README = (Path(__file__).parent.parent / "README.md").read_text()
COMMANDS = [
    shlex.split(line.removeprefix("$ "), comments=True)[1:]
    for block in re.findall(r"```console\n(.*?)```", README, re.S)
    for line in block.splitlines()
    if line.removeprefix("$ ").startswith("neuralpower ")
]
WITHOUT_A_DEVICE = ("predict", "devices")


def test_the_readme_has_commands_and_code() -> None:
    shown = {command[0] for command in COMMANDS}
    assert shown >= {"predict", "devices", "collect-data", "train-predictor", "evaluate"}
    assert shown >= {"sweep", "compare", "fit", "score", "profile", "bench", "paradnn", "report", "lab"}
    assert "make demo" in README
    assert "make test" in README


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.S))
def test_a_python_block_runs(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent)
    exec(compile(code, "README.md", "exec"), {})  # the block is ours
    value, low, high = (float(word) for word in capsys.readouterr().out.split())
    assert 0 < low < value < high


@pytest.mark.parametrize("command", [c for c in COMMANDS if c[0] in WITHOUT_A_DEVICE], ids=" ".join)
def test_a_command_that_needs_no_device_runs(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # for what it writes
    monkeypatch.setattr(sys, "argv", ["neuralpower", *command])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c[0] not in WITHOUT_A_DEVICE], ids=" ".join)
def test_a_command_that_measures_is_spelt_as_the_program_has_it(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("models/mine.json").touch()  # what an earlier command of the README writes
    words = list(command)
    found: Any = cli.command_of(words.pop(0))
    while hasattr(found, "commands"):  # a group
        found = found.commands[words.pop(0)]
    assert found.make_context(found.name, words).params


def test_every_test_and_command_of_the_lineage_is_there() -> None:
    text = (Path(__file__).parent.parent / "docs/lineage.md").read_text()
    named = re.findall(r"`tests/([\w/]+\.py)::(\w+)`", text)
    assert len(named) > 150
    for file, name in named:
        assert f"def {name}(" in (Path(__file__).parent / file).read_text(), f"{file}::{name}"
    asked = {command.split()[0] for command in re.findall(r"`neuralpower ([a-z][^`]*)`", text)}
    assert asked <= cli.COMMANDS.keys()
