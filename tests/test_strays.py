"""What belongs to one machine is found; what any reader has is left alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neuralpower.version import __version__
from tests.strays import ALLOWED, ROOT_FILES, findings, local_paths, main, strays
from tests.tracked import ROOT, tracked

AT = "/"  # so that this file names no such path itself


@pytest.mark.parametrize("name", ["LEAD_NOTE.txt", "notes.md", ".env", "demo.json"])
def test_a_file_at_the_root_that_is_on_no_list_is_refused(name: str) -> None:
    (line,) = strays([name, "README.md", f"docs/{name}"])
    assert line.startswith(f"{name}: ")


@pytest.mark.parametrize(
    "path",
    ["tmp/x/y.json", "home/me/net.py", "root/.cache", "work/main", "Users/me", "mnt/disk", "var/tmp/a"],
)
@pytest.mark.parametrize("text", ["see {}", '"{}"', "--out={}", "`{}`", "a:{}", "({})"])
def test_a_path_of_one_machine_is_found(path: str, text: str) -> None:
    (line,) = local_paths("docs/page.md", "first\n" + text.format(AT + path))
    assert line.startswith(f"docs/page.md:2: /{path}: ")


@pytest.mark.parametrize(
    "text",
    ["./tmp/x", "~/work/x", "https://a.org/home/x", "a/tmp/b", "{folder}/tmp/x", "/proc/cpuinfo", "/tmpfs"],
)
def test_a_path_that_any_reader_has_is_none(text: str) -> None:
    assert list(local_paths("docs/page.md", text)) == []


def test_a_recorded_command_may_name_a_temporary_folder_and_nothing_else() -> None:
    name = "datasets/device/shard/dataset.json"
    assert list(local_paths(name, f'"{AT}tmp/data"')) == []
    assert (
        len(list(local_paths(name, f'"{AT}home/me"')))
        == len(list(local_paths("a.json", f'"{AT}tmp/a"')))
        == 1
    )


def test_files_are_read_and_those_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(f"in {AT}tmp/a\n")
    (tmp_path / "docs" / "b.png").write_bytes(b"\xff\xfe/tmp/a")
    (tmp_path / "stray").write_text("")
    found = list(findings(tmp_path, [*tmp_path.rglob("*.*"), tmp_path / "stray"]))
    assert [line.split(":")[0] for line in found] == ["stray", "docs/a.md"]


def test_the_repository_holds_nothing_of_one_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main(), capsys.readouterr().out) == (0, "")


def test_each_entry_of_the_lists_is_needed() -> None:
    held = {file.relative_to(ROOT).as_posix(): file for file in tracked()}
    assert held.keys() >= ROOT_FILES
    for files, paths in ALLOWED.items():
        texts = [file.read_text() for name, file in held.items() if re.fullmatch(files, name)]
        assert any(re.search(paths.removesuffix(".*"), text) for text in texts), files


def test_the_citation_names_this_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {__version__}" in lines
