"""Refusals keep their exit codes and their lines: scripts read the codes, people the lines."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from neuralpower import cli
from neuralpower.errors import InputError
from neuralpower.learn.predictor_json import check_places
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
