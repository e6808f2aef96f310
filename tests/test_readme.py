"""What the README and the pages show is run: Python blocks as they are, commands as they are typed."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs.generate import outputs, picture, tables
from neuralpower import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {name: (ROOT / name).read_text() for name in outputs.PAGES}
HAND_WRITTEN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CONSOLE = {
    f"{page.relative_to(ROOT)}: {line}": (page, shlex.split(line.removeprefix("$ "), comments=True)[1:])
    for page in HAND_WRITTEN
    for block in re.findall(r"```(?:console|bash)\n(.*?)```", page.read_text(), re.S)
    for line in block.splitlines()
    if re.match(r"(\$ )?neuralpower \w", line) and "..." not in line and not re.search(r"[|>]|[A-Z]{5}", line)
}
SHORT = ("predict", "fit", "compare", "sweep")  # commands that answer within seconds
SHOWN = [
    (name, commands, shown)
    for name, page in PAGES.items()
    for commands, shown in outputs.blocks(page)
    if all(command.split()[1] in SHORT for command in commands)
]


def test_the_readme_is_short_and_pages_are_no_longer_than_300_lines() -> None:
    assert len(README.splitlines()) <= 130
    long = {page.name: len(page.read_text().splitlines()) for page in HAND_WRITTEN}
    assert {name for name, lines in long.items() if lines > 300} <= {"CONTRIBUTING.md"}


def test_targets_of_make_exist_and_the_readme_says_what_demo_and_test_take() -> None:
    targets = dict(re.findall(r"^([a-z][a-z-]*):(.*)$", (ROOT / "Makefile").read_text(), re.M))
    named = {name for page in HAND_WRITTEN for name in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert {"demo", "test"} <= named <= targets.keys()
    for name in ("demo", "test"):
        assert "setup" in targets[name]  # on a fresh clone, too
        assert re.search(rf"`make {name}`[^`]*\w minutes", README)


def test_the_links_of_the_readme_lead_somewhere() -> None:
    linked = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert len(linked) > 10
    assert [place for place in linked if not (ROOT / place).exists()] == []


def test_the_python_of_the_page_on_memory_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "memory.md").read_text()
    (code,) = re.findall(r"```python\n(import neuralpower\n.*?)```", page, re.S)
    exec(compile(code, "memory.md", "exec"), {})  # the block is ours
    few, many = (tuple(map(float, line.split())) for line in capsys.readouterr().out.splitlines())
    assert few[0] < many[0]
    assert 0 < few[1] < many[1]
    assert few[1] <= few[2] and many[1] <= many[2]


@pytest.fixture
def printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[[str], str]:
    """The output of a command in an empty folder, like `outputs.run`, but in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", outputs.WIDTH)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("NEURALPOWER_CACHE", "off")

    def run(command: str) -> str:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        out, err = capfd.readouterr()
        return err + out

    return run


@pytest.mark.parametrize(("name", "commands", "shown"), SHOWN, ids=[" ".join([n, *c]) for n, c, _ in SHOWN])
def test_a_page_shows_what_its_commands_print(
    name: str, commands: list[str], shown: str, printed: Callable[[str], str], tmp_path: Path
) -> None:
    outputs.files(PAGES[name], tmp_path)
    now = "".join(map(printed, commands))
    assert outputs.alike(shown, now), f"{now}\n`make readme` writes what commands print now"


def test_the_picture_shows_what_its_command_prints(printed: Callable[[str], str]) -> None:
    shown = picture.words(outputs.PICTURE.read_text()).partition(outputs.PICTURED)[2]
    now = printed(outputs.PICTURED)
    assert outputs.alike(shown, now), f"{now}\n`make readme` draws what the command prints now"
    assert outputs.PICTURED in README


def test_the_readme_shows_the_table_of_devices() -> None:
    assert tables.short_devices() in README, "`make readme` writes it"


def test_outputs_are_alike_up_to_rounding() -> None:
    assert outputs.alike("latency 12.7 ms, 1,301 calls", "latency 12.8 ms,  1,301 calls")
    assert not outputs.alike("latency 12.7 ms", "latency 14.7 ms")
    assert not outputs.alike("latency 12.7 ms", "latency 12.7 us")
    assert not outputs.alike("1 row", "1 row and 2 notes")


def test_a_page_is_rewritten_with_what_commands_print(tmp_path: Path) -> None:
    page = (
        '```python title="net.py"\nx = 1\n```\n<!-- run -->\n```console\n$ neuralpower a\nold\n```\n'
        "<!-- measure -->\n```console\n$ neuralpower b\nkept\n```\n"
    )

    def run(command: str, folder: Path) -> str:
        return f"{command}: {(folder / 'net.py').read_text()}"

    new = outputs.refreshed(page, tmp_path, run)
    assert new == page.replace("old\n", "neuralpower a: x = 1\n")
    assert "$ neuralpower b\nneuralpower b: x = 1\n" in outputs.refreshed(page, tmp_path, run, measure=True)
    assert outputs.refreshed(new, tmp_path, run) == new


@pytest.mark.parametrize(("page", "command"), CONSOLE.values(), ids=CONSOLE)
def test_a_command_of_a_page_is_spelt_as_the_program_has_it(
    page: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if any(word.startswith("torchvision:") for word in command):
        pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    outputs.files(page.read_text(), tmp_path)
    folders = [f"{word}config.json" for word in command if word.endswith("/")]
    files = re.findall(r"[\w./-]+\.(?:json|pt2|py|txt)\b", " ".join(command))
    for file in (*folders, *files):  # what the reader has, or an earlier command writes
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        if not Path(file).exists():
            Path(file).write_text("def __getattr__(name): ...\n" if file.endswith(".py") else "")
    words = list(command)
    found: Any = cli.command_of(words.pop(0))
    while hasattr(found, "commands"):  # a group
        found = found.commands[words.pop(0)]
    settings = cli.app.info.context_settings or {}  # whose names of --help a command keeps from then on
    assert found.make_context(found.name, words, **settings).params


def test_every_test_and_command_of_the_lineage_is_there() -> None:
    text = (ROOT / "docs/lineage.md").read_text()
    named = re.findall(r"`tests/([\w/]+\.py)::(\w+)`", text)
    assert len(named) > 150
    for file, name in named:
        assert f"def {name}(" in (Path(__file__).parent / file).read_text(), f"{file}::{name}"
    asked = {command.split()[0] for command in re.findall(r"`neuralpower ([a-z][^`]*)`", text)}
    assert asked <= cli.COMMANDS.keys()
