"""How commands end: empty options, faults of our own, margins of memory that is assumed, and short talk."""

from __future__ import annotations

import json

import pytest

from neuralpower import cli
from neuralpower.cli.collect import FIRST_LINE_S, Log
from neuralpower.errors import InputError
from neuralpower.layers.base import FORWARD
from neuralpower.measure.collect.request import Progress
from neuralpower.measure.collect.schedule import Estimate
from neuralpower.platforms import CPU, PLATFORMS
from neuralpower.platforms.accelerator import ASSUMED, MARGINS
from tests.program import done, run

FIT = ("fit", "zoo:deep_mnist", "--device", "amd-instinct-mi210")


@pytest.mark.parametrize(
    "arguments", [("--predictor", ""), ("--predictor", " "), ("--predictor=",), ("--csv", ""), ("--csv= ",)]
)
def test_an_option_that_names_nothing_is_refused(arguments: tuple[str, ...]) -> None:
    ran = run("predict", "zoo:deep_mnist", *arguments)
    name = arguments[0].partition("=")[0]
    assert (ran.code, ran.err) == (2, f"error: {name} is empty; give it a value, or leave it out\n")


def test_what_stands_behind_two_hyphens_is_no_option() -> None:
    cli.check_filled(["models", "--", "--predictor", ""])
    with pytest.raises(InputError, match="--out is empty"):
        cli.check_filled(["report", "--out", ""])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("compare", "zoo:alexnet", "@"), "names no predictor behind @"),
        (("compare", "zoo:alexnet", ""), "a name of a model is empty"),
        (("evaluate", "@"), "has no file name"),
        (("evaluate", "zoo:alexnet", ""), "a name of a model is empty"),
        (("train-predictor", ""), "a name of a dataset is empty"),
        (("train-predictor", "data", "--jobs", "-99"), "jobs -99: must be 1 or more, or -1"),
        (("score", ""), "a name of a file is empty"),
        (("predict", "zoo:alexnet", "--predictor", "amd-epyc-2c", "--autocast", "float32"), "bfloat16"),
        (
            ("fit", "zoo:alexnet", "--phase", "training", "--accumulation", "1000000000"),
            "at most 4096 micro-batches",
        ),
    ],
)
def test_what_names_nothing_is_one_line(command: tuple[str, ...], said: str) -> None:
    ran = run(*command)
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert said in ran.err


def test_a_fault_of_our_own_is_one_line_and_its_traceback_is_there_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr(cli, "command_of", broken)
    ran = run("models")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "a fault of neuralpower itself, KeyError: 'no such thing'" in ran.err
    monkeypatch.setenv("NEURALPOWER_TRACEBACK", "1")
    assert "in broken" in run("models").err


def test_memory_of_an_accelerator_is_said_to_be_assumed_and_a_share_is_kept_free() -> None:
    other = PLATFORMS["accelerator"]
    assert (other.margin("training"), other.margin("decode")) == (MARGINS["training"], MARGINS["forward"])
    assert (CPU.margin("training"), PLATFORMS["nvidia"].margin("training")) == (0.0, 0.0)
    text = done(*FIT, "--phase", "training")
    assert "with 30% of it kept free (--margin)" in text
    assert "assumed, not an upper bound" in text
    assert f"Note: {ASSUMED['training']}" in text
    assert "kept free" not in done("fit", "zoo:deep_mnist", "--memory", "8GB", "--device", "cpu")
    found = json.loads(done(*FIT, "--json"))
    assert (found["margin"], found["notes"], found["memory"]["assumed"]) == (
        MARGINS["forward"],
        [ASSUMED[FORWARD]],
        True,
    )


def test_a_margin_decides_what_fits() -> None:
    high = json.loads(done(*FIT, "--json"))["memory_bytes"]["high"]
    room = (
        "--memory",
        f"{high * 1.25:.0f}B",
    )  # of which 1 / 1.25 = 0.8 is taken: 0.19 can be kept free, 0.21 cannot
    verdicts = [
        json.loads(done(*FIT, *room, "--json", "--margin", share))["verdict"] for share in ("0.19", "0.21")
    ]
    assert verdicts == ["fits", "tight"]
    assert run(*FIT, *room, "--margin", "0.9").code == 1
    for share in ("1", "-0.1", "nan"):
        ran = run(*FIT, *room, "--margin", share)
        assert (ran.code, ran.err.count("\n")) == (2, 1)


def test_predictions_for_an_accelerator_say_what_is_assumed() -> None:
    asked = ("zoo:deep_mnist", "--device", "intel-arc-pro-b60")
    assert ASSUMED[FORWARD] in json.dumps(json.loads(done("predict", *asked, "--json")))
    assert f"Note: {ASSUMED[FORWARD]}" in done("predict", *asked, "-v")
    assert ASSUMED[FORWARD] in done("sweep", *asked, "--batch-size", "1,2", "-v")


def test_a_log_of_a_collection_is_a_line_now_and_then() -> None:
    lines: list[str] = []
    log = Log(False, lines.append)
    for spent_s in range(1200):
        log.tell(
            Progress(
                900,
                spent_s // 2,
                Estimate(0, 0, 0.0, 0),
                measured=1 + spent_s // 2,
                spent_s=spent_s,
                budget_s=1200,
            )
        )
    # at 30, 60, 120, 240, 480 and 960 s
    assert [line.split(":")[0].rpartition(" in ")[2] for line in lines] == [
        "30 s",
        "60 s",
        "2 minutes",
        "4 minutes",
        "8 minutes",
        "16 minutes",
    ]
    assert FIRST_LINE_S == 30
    Log(True, lines.append).tell(Progress(9, 1, Estimate(0, 0, 0.0, 0), spent_s=100.0))
    assert len(lines) == 6
