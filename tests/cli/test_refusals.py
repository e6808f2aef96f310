"""Refusals keep their exit codes and their lines: scripts read the codes, people the lines."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuralpower import cli
from neuralpower.errors import InputError
from neuralpower.learn.files.predictor_json import check_places
from tests.program import run

REFUSALS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("refusals.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("refusal", REFUSALS, ids=[" ".join(one["arguments"]) for one in REFUSALS])
def test_a_refusal_keeps_its_code_and_its_line(refusal: dict[str, Any]) -> None:
    ran = run(*refusal["arguments"])
    said = ran.err.strip().splitlines()
    assert (ran.code, said[-1][: len(refusal["line"])] if said else "") == (refusal["code"], refusal["line"])


@pytest.mark.parametrize(
    "given",
    ["{}", "zoo:{}", "{}:f", "--device={}", "--predictor={}", "--dtype={}", "--input-shape={}", "--by={}"],
)
@pytest.mark.parametrize("letter", ["x", "3"])
def test_a_message_cuts_a_name_of_thousands_of_letters(given: str, letter: str) -> None:
    ran = run("predict", *(["zoo:alexnet"] if given.startswith("--") else []), given.format(letter * 5000))
    (line,) = ran.err.splitlines()
    assert (ran.code, line.startswith("error: ")) == (2, True)
    assert len(line) < 1000 and letter * 20 in line


def test_a_link_that_leads_to_itself_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("link").symlink_to("link")
    for command in (
        ("dataset", "merge", "data", "link", "--out", "out"),
        ("merge", "link", "data", "--out", "out"),
        ("dataset", "check", "link"),
        ("train-predictor", "link"),
        ("predict", "link"),
        ("predict", "link:f"),
        ("predict", "zoo:alexnet", "--device", "link"),
        ("predict", "zoo:alexnet", "--device", "t4", "--csv", "link"),
        ("score", "link"),
    ):
        ran = run(*command)
        assert (ran.code, ran.err.count("error: "), len(ran.err.splitlines())) == (2, 1, 1), ran.err


def test_a_predictor_s_file_ends_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"models/mine: a predictor's file ends in .json; choose models/mine.js"
    ):
        check_places(Path("models/mine"))


STRANGE = (
    *("  ", "٣", "٣x٣", "½", "𝟛", "3" * 5000, "x" * 5000, "-1", "0", "nan", "inf", "1e400", "9" * 30),
    *(":", "@", "?", "~nobody-of-that-name/x", "/", "/dev/null/x", "link", "a\nb", "1,,2", "\x1b[2J", "=1"),
)
"""Values for every option: none may end a command with a traceback, a fault of ours, or many lines."""
BASE = {
    "predict": ("zoo:deep_mnist", "--predictor", "nvidia-t4"),
    "fit": ("zoo:deep_mnist", "--device", "t4"),
    "sweep": ("zoo:deep_mnist", "--device", "t4"),
    "compare": ("zoo:deep_mnist", "zoo:mnist_cnn", "--device", "t4"),
    "parallel": ("zoo:deep_mnist", "--devices", "2xt4"),
    "rank": ("zoo:deep_mnist", "--device", "t4"),
}


@pytest.mark.parametrize("command", BASE)
def test_no_value_of_an_option_is_a_fault_of_ours(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("link")
    options = [
        option
        for parameter in cli.command_of(command).params
        for option in parameter.opts[:1]
        if option.startswith("--") and not parameter.is_flag and option != "--help"
    ]
    assert len(options) > 10
    cases = list(itertools.product(options, STRANGE))
    for option, value in random.Random(command).sample(cases, 150):
        ran = run(command, *BASE[command], f"{option}={value}")
        said = [line for line in ran.err.splitlines() if line.startswith("error: ")]
        refused = ran.code == 2 and len(said) == 1 and len(said[0]) < 3000
        assert refused or (ran.code in (0, 1) and not said), (
            f"{command} {option}={value!r:.40}: {ran.err:.500}"
        )


STRANGE_FILES = {
    **{"empty": b"", "zeros": b"\0" * 100, "other.csv": b"a,b\n1\n2,3,4\n", "latin": b"\xff\xfe\xe9\n"},
    **{
        "list.json": b"[1,2]",
        "number.json": b"7",
        "open.json": b'{"a":',
        "deep.json": b"[" * 5000 + b"]" * 5000,
    },
    **{"nan.json": b'{"schema":1,"name":"x","class":"gpu","values":{"memory_bytes":NaN}}'},
    **{"mark.json": b'\xef\xbb\xbf{"schema":1}', "x.pt2": b"PK\3\4junk", "x.parquet": b"PAR1xxxxPAR1"},
    **{"syntax.py": b"def f(:\n", "lines.jsonl": b'{"model":"zoo:alexnet"}\n{"layers":3}\nnull\n'},
    "net.py": b"""
from torch import nn
def fails(): raise ValueError("a\\nb\\n" * 50)
def none(): return None
def exits(): raise SystemExit(7)
number = 3
class Lacks(nn.Module):
    def forward(self, x): return x.no_such
class Endless(nn.Module):
    def forward(self, x): return self.forward(x)
class Takes(nn.Module):
    def __init__(self, a): super().__init__()
""",
}
NO_MODELS = (
    *(f"net.py:{name}" for name in "fails none exits number Lacks Endless Takes nobody".split()),
    *("net.py:", "syntax.py:f", "hf:", "hf:a/b/c", "hf:@", "transformers:", "zoo:", "::", "json:loads"),
    *("transformers:gpt2?=", "transformers:gpt2?n_layer=-1", "transformers:gpt2?n_head=0"),
    *("transformers:gpt2?n_layer=1e9", "transformers:gpt2?n_embd=nan", "zoo:alexnet?classes=0"),
    *(
        "torch.nn:Linear",
        "torch.nn:Module",
        "http://x/y",
        "file:///etc/passwd",
        "C:\\x",
        "\u202e",
        "--",
        "-x",
    ),
)
ANYTHING = (
    *STRANGE,
    *STRANGE_FILES,
    *NO_MODELS,
    "link",
    "folder",
    "/dev/null",
    "2x2xh100",
    "h100,",
    "1e3xh100",
)
# those that measure nothing
ASKED = (
    "predict sweep compare fit parallel score models devices dataset merge train-predictor bench-log".split()
)


def leaves(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words, command) of a command, or of those below a group."""
    if not hasattr(command, "commands"):
        yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves((*path, name), below)


def drawn(choose: random.Random, command: Any) -> list[str]:
    """Arguments and up to four options, of which each may be anything."""
    given = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            many = choose.randint(1, 2) if parameter.nargs == -1 else 1
            good = "zoo:deep_mnist" if "model" in parameter.name else "folder"
            given += [choose.choice((good, choose.choice(ANYTHING))) for _ in range(many)]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    for option in choose.sample(options, min(len(options), choose.choice((0, 1, 1, 2, 4)))):
        name = choose.choice([one for one in option.opts if one.startswith("--")])
        given.append(name if option.is_flag else f"{name}={choose.choice(ANYTHING)}")
    return given


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 12))])
def test_nothing_that_is_given_is_a_fault_of_ours(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("link").symlink_to("link")
    Path("folder").mkdir()
    for name, content in STRANGE_FILES.items():
        Path(name).write_bytes(content)
    commands = [leaf for name in ASKED for leaf in leaves((name,), cli.command_of(name))]
    choose = random.Random(seed)
    for _ in range(40):
        path, command = choose.choice(commands)
        given = drawn(choose, command)
        ran = run(*path, *given)
        said = [line for line in ran.err.splitlines() if line.startswith("error: ")]
        assert "Traceback" not in ran.out + ran.err, (path, given)
        refused = ran.code in (2, 3, 4) and len(said) == 1 and len(said[0]) < 3000
        assert refused or (ran.code in (0, 1) and not said), f"{path} {given}: {ran.code} {ran.err:.500}"


def test_a_template_that_nobody_has_filled_in_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (("dataset", "init", "folder", "--device", "X"), ("merge", "folder", "--out", "out")):
        ran = run(*command)
        assert ran.code == 0, ran.err
