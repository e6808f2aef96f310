"""What other tools call a command or an option is refused in one line with the command line to type."""

from __future__ import annotations

import shlex

import pytest

from neuralpower.ask.keywords import keywords
from neuralpower.ask.options import Standing
from neuralpower.ask.words import RANKED, STANDINGS, meant_by
from neuralpower.cli import COMMANDS, _options
from neuralpower.cli.other_words import WAYS
from tests.program import done, run

SAID = {
    "traffic gpt2 --device t4 --slo-tpot 50ms": "traffic gpt2 --device t4 --sla tpot=50ms@p95",
    "traffic gpt2 --ttft 200 --itl=50ms": "traffic gpt2 --sla ttft=200ms@p95,tpot=50ms@p95",
    "serve gpt2 --tp 4 --qps 10": "traffic gpt2 --tensor-parallel 4 --rate 10",
    "plan gpt2 --rps 50 --slo ttft=500ms": "plan gpt2 --rate 50 --sla ttft=500ms",
    "predict gpt2 --fp16 --device 4090": "predict gpt2 --dtype float16 --device 4090",
    "predict gpt2 --precision int8": "predict gpt2 --weights int8",
    "predict gpt2 --precision bfloat16": "predict gpt2 --dtype bfloat16",
    "predict gpt2 --prompt 10 --output 128": "predict gpt2 --prompt 10 --new-tokens 128 --phase generate",
    "predict sdxl --width 1024 --height 768": "predict sdxl --resolution 1024x768",
    "predict gpt2 --seq-len 5 --isl 100": "predict gpt2 --seq-len 5 --prompt 100 --phase generate",
    "predict gpt2 --ctx 512": "predict gpt2 --context 512 --phase decode",
    "predict resnet18 --samples 500 --epochs 1 --input-size 32": (
        "predict resnet18 --samples 500 --input-shape 3x32x32 --phase training (nothing here says --epochs)"
    ),
    "compare --model gpt2 --device a10 h100 t4": "rank gpt2 --device a10,h100,t4",
    "rank gpt2 --metric energy": "rank gpt2 --by energy",
    "models --type diffusion": "models --task image",
    "train gpt2 --batch 32": "predict gpt2 --batch-size 32 --phase training",
    "cost gpt2 --device h100": "predict gpt2 --device h100 --price 2.49",
    "price --device h100": "predict MODEL --device h100 --price 2.49",
    "carbon gpt2 --region germany": "predict gpt2 --region germany",
    "plan gpt2 --qps 5 --wallet 5000": "plan gpt2 --rate 5 (nothing here says --wallet)",
    "plan gpt2 --qps 5 --budget 5000": "plan gpt2 --rate 5 --budget 5000",
    "plan gpt2 --device h100 --rps 20": "plan gpt2 --devices h100 --rate 20",
    "fit gpt2 --users 100 --vram 12GB": "fit gpt2 --concurrency 100 --memory 12GB --engine vllm",
    "predict gpt2 --device t4 --confidence": "predict gpt2 --device t4",  # bounds are always printed
    "gpt2 --device t4": "predict gpt2 --device t4",
    "max-batch gpt2": "fit gpt2",
    "gpus": "devices --specs",
    "plot gpt2": "predict gpt2 --plot page.html",
    "vllm gpt2 --max-model-len 512": "fit gpt2 --max-model-len 512 --engine vllm",
    "plan gpt2 --qps 3 --latency 5s": "plan gpt2 --rate 3 --sla latency=5s@p95",
    "cite": "--version",
}


@pytest.mark.parametrize("typed", SAID)
def test_other_words_are_answered_with_the_line_to_type(typed: str) -> None:
    ran = run(*shlex.split(typed))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.strip().endswith(f"; write neuralpower {SAID[typed]}")
    assert "Possible" not in ran.err and "Did you mean" not in ran.err


@pytest.mark.parametrize(
    ("option", "way"),
    [
        ("--max-num-seqs", "`fit`, `traffic`, `plan` have --max-num-seqs, as in neuralpower fit gpt2 {} 256"),
        ("--qps", "`traffic`, `plan` have --rate, as in neuralpower traffic gpt2 --rate 256"),
        ("--batch-sizes", "see --help"),  # a slip, with what is near
    ],
)
def test_an_option_of_other_commands_names_them(option: str, way: str) -> None:
    ran = run("predict", "gpt2", option, "256")
    assert ran.code == 2 and ran.err.startswith(f"error: No such option: {option}")
    assert ran.err.endswith(f"; {way.format(option)}\n")


def test_each_way_is_an_option_that_some_command_has() -> None:
    every = {option for name in COMMANDS for option in _options(name)} | {"--version"}
    for word, way in WAYS.items():
        said = [part for part in way.split() if part.startswith("--")]
        assert {*said} <= every, word
        assert word.startswith("--") or way.split()[0] in (*COMMANDS, "--version") and word not in COMMANDS


def test_several_devices_in_the_place_of_one_are_told_the_option() -> None:
    ran = run("predict", "gpt2", "--device", "2xh100")
    assert ran.code == 2 and ran.err.endswith("; write --device h100 --tensor-parallel 2\n")


def test_a_value_is_taken_by_other_names_here_and_in_python() -> None:
    assert meant_by("tokens-per-watt", STANDINGS) == "energy" == meant_by("Efficiency", RANKED)
    assert meant_by("cost", STANDINGS) == "price" and meant_by("price", RANKED) == "cost"
    assert meant_by("dream", STANDINGS) is None
    assert "tokens/s" in run("rank", "gpt2", "--by", "dream").err
    named = keywords("option of rank", {"by": "co2"}, Standing)
    assert named == {"by": "carbon"}


def test_a_short_page_names_the_whole_command_for_all_options() -> None:
    for words in (("dataset", "init"), ("predict",)):
        assert done(*words, "-h").splitlines()[-1].endswith(f"neuralpower {' '.join(words)} --help")
