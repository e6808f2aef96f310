"""What set-up installs: one version of each package, with the hashes of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module, util
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tracked import ROOT

TOML: Any = import_module(
    "tomllib" if util.find_spec("tomllib") else "tomli"
)  # of Python 3.11; before it, tomli
UNHASHED = {"torch"}  # each index that serves a build of a release has another file
PROJECT = TOML.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WANTED = [Requirement(text) for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def entries(name: str) -> dict[str, str]:
    """Requirement, in the spelling of `packaging` -> what follows it."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    halves = [line.partition(" --hash") for line in lines]
    return {spelt(head): mark + rest for head, mark, rest in halves}


def spelt(text: str) -> str:
    """A requirement, whose marker says `python_full_version`, as tools write it."""
    return str(Requirement(text.replace("python_version", "python_full_version").replace('"', "'")))


PINNED, LOCKED = entries("constraints.txt"), entries("requirements.lock")


def test_the_lock_has_the_versions_of_the_constraints() -> None:
    pinned = {text for text in PINNED if Requirement(text).name not in UNHASHED}
    assert {*LOCKED} == pinned, "run `make lock`"


@pytest.mark.parametrize("text", LOCKED)
def test_every_entry_has_hashes(text: str) -> None:
    hashes = LOCKED[text].split()
    assert hashes and all(HASH.fullmatch(one) for one in hashes)


@pytest.mark.parametrize("python", ["3.10.0", "3.11.0", "3.12.0", "3.14.0"])
def test_every_dependency_has_one_version_that_the_project_takes(python: str) -> None:
    here = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
    known: dict[str, list[str]] = {}
    for one in map(Requirement, PINNED):
        if one.marker is None or one.marker.evaluate(here):
            known.setdefault(canonicalize_name(one.name), []).append(str(one.specifier).removeprefix("=="))
    assert [name for name, versions in known.items() if len(versions) != 1] == []
    for want in WANTED:
        (version,) = known[canonicalize_name(want.name)]
        assert want.specifier.contains(version), f"{want} and {version}"


def test_set_up_checks_the_hashes() -> None:
    commands = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--no-deps --require-hashes -r requirements.lock" in commands


EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
TEXTS = [
    path
    for pattern in ("neuralpower/**/*.py", "neuralpower/**/*.json", "docs/**/*.md", "README.md")
    for path in ROOT.glob(pattern)
]
HINT = re.compile(r"pip install(.*)")
PACKAGE = re.compile(r"'?[a-z.\[{][\w.\[\]{}-]*'?$")
ELSEWHERE = ("natten", "s3fs", "sentencepiece")  # that a user's own code or storage needs


def test_hints_name_packages_that_can_be_installed() -> None:
    """Neuralpower itself is in no index: extras are those of a checkout, and packages those of an extra."""
    known = {
        Requirement(text).name for texts in (PROJECT["dependencies"], *EXTRAS.values()) for text in texts
    }
    wrong, seen = [], 0
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        wrong += [(path.name, "neuralpower[")] if re.search(r"neuralpower\[[a-z]+\]", text) else []
        for line in HINT.findall(text):
            for word in packages_of(line):
                seen += 1
                if not (word in known or word in ELSEWHERE or is_local(word)):
                    wrong.append((path.name, line))
    assert not wrong
    assert seen > 30


def packages_of(line: str) -> Iterator[str]:
    """The words after `pip install` that name what is installed, up to the end of the command."""
    for word in re.split(r"[`;\")]|, | \(|:(?!/)", line)[0].split():
        word = word.strip("'.") if not word.startswith(("'.", ".")) else word.strip("'")
        if PACKAGE.match(word) is None or word == "-r":
            if word.startswith(("--", "http")):
                continue
            return
        yield word


def is_local(word: str) -> bool:
    """Whether a word of `pip install` is a checkout, with an extra that there is, a wheel or a blank."""
    extra = re.fullmatch(r"\.(?:\[(\w+)\])?", word)
    if extra is not None:
        return extra[1] is None or extra[1] in EXTRAS
    return word.endswith(".whl") or word.startswith("{")


def test_the_list_of_extras_is_complete() -> None:
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    for name, wants in EXTRAS.items():
        packages = {Requirement(want).name for want in wants}
        if name != "dev":
            [row] = re.findall(rf"^\| `\.\[{name}\]` \| (.*?) \|", text, re.MULTILINE)
            assert set(row.split()) == packages, name
