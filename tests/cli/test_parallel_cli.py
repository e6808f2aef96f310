"""Several devices on the command line: layouts, and what cannot be."""

from __future__ import annotations

import json

import pytest

from tests.program import done, run

LLAMA = (
    "transformers:llama?hidden_size=256&intermediate_size=1024&num_attention_heads=8&num_key_value_heads=4&"
    "vocab_size=1000&num_hidden_layers=4&max_position_embeddings=512"
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("predict {} --tensor-parallel 3 --device h100", "has 8 heads, which 3 ranks do not divide"),
        ("predict {} --pipeline-parallel 5 --device h100", "the network has 4 repeated blocks"),
        ("predict {} --tensor-parallel 0 --device h100", "a degree is a whole number from 1"),
        ("predict {} --tensor-parallel 16 --devices 8xh100-sxm", "the cluster has 8"),
        ("predict {} --devices 8xh100-sxm", "no layout says how 8 devices are used"),
        ("predict {} --devices 4xh100-sxm,4xt4 --tensor-parallel 8", "devices of two kinds"),
        ("predict {} --devices 8xh100-sxm --data-parallel 2 --device t4", "both name a device"),
        ("predict {} --nodes 2 --device h100", "no --devices says what a node has"),
        ("predict {} --devices 8xh100-sxm --nodes 0 --data-parallel 2", "nodes 0"),
        ("predict {} --expert-parallel 2 --tensor-parallel 2 --device h100", "has no experts"),
        ("predict {} --expert-parallel 3 --tensor-parallel 2 --device h100", "choose a divisor of 2"),
        ("predict {} --fsdp --device h100", "choose data of 2 or more"),
        ("predict {} --fsdp --zero 1 --data-parallel 2 --device h100", "leave one out"),
        ("predict {} --sequence-parallel --device h100", "choose tensor of 2 or more"),
        ("predict {} --micro-batches 4 --tensor-parallel 2 --device h100", "leave it out"),
        ("predict zoo:resnet18 --tensor-parallel 2 --require-plan --device h100", "has no plan"),
        ("fit {} --tensor-parallel 16 --devices 8xh100-sxm", "the cluster has 8"),
        ("sweep {} --tensor-parallel 1,x --device h100", "write whole numbers with commas"),
        ("compare {}@8xh100-sxm @h100", "no layout says how 8 devices are used"),
        ("compare {}@h100:tp3x @h100", "write degrees with tp, pp, ep and dp"),
        ("parallel {}", "give --devices 8xh100-sxm"),
        ("parallel {} --devices 8xh100-sxm --by cost", "give --price"),
        ("parallel {} --devices 8xh100-sxm --accumulation 2 --phase training", "leave it out"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments: str, said: str) -> None:
    ran = run(*(LLAMA + word[2:] if word.startswith("{}") else word for word in arguments.split()))
    assert (ran.code, ran.err.strip().count("\n")) == (2, 0), ran.err
    assert said in ran.err


def test_predict_says_the_layout_the_whole_batch_and_all_devices() -> None:
    how = ("--tensor-parallel", 2, "--pipeline-parallel", 2, "--micro-batches", 4, "--devices", "8xh100-sxm")
    text = done("predict", LLAMA, "--phase", "training", "--seq-len", 64, *how)
    assert "tensor 2, pipeline 2 on 4 of 8 devices: whole batch 4 (1 x 4 micro-batches)" in text
    assert "pipeline bubble" in text and "all devices:" in text and "memory of a device" in text


def test_a_sweep_has_a_row_for_each_layout() -> None:
    how = ("--phase", "decode", "--tensor-parallel", "1,2,4", "--devices", "8xh100-sxm", "--json")
    points = json.loads(done("sweep", LLAMA, *how))["points"]
    assert [(point["layout"], point["ranks"]) for point in points] == [("", 1), ("tp2", 2), ("tp4", 4)]


def test_layouts_are_compared_side_by_side() -> None:
    text = done("compare", f"{LLAMA}@4xh100-sxm:tp4", "@4xh100-sxm:tp2pp2", "--phase", "decode", "-v")
    assert "tp4 on" in text and "tp2 pp2 on" in text


def test_parallel_ranks_layouts_as_json() -> None:
    how = ("--devices", "2xh100-sxm", "--phase", "decode", "--context", 32, "--json")
    said = json.loads(done("parallel", LLAMA, *how))
    assert said["ranked_by"] == "throughput" and said["reasons"] == {}
    rates = [one["samples_per_s"] for one in said["layouts"]]
    assert rates == sorted(rates, reverse=True) and len(rates) == 4


def test_where_no_layout_fits_the_code_is_1_and_lines_of_a_sort_are_counted() -> None:
    ran = run("parallel", "llama-3.1-70b", "--devices", "2xt4", "--phase", "decode", "--context", 128)
    first, *_ = ran.out.splitlines()
    skipped = [line for line in ran.out.splitlines() if "skipped" in line]
    assert (ran.code, first, "error:" in ran.err) == (1, "no layout fits", False)
    # tp1pp2, tp2 and their kind: too large for 2 x 16 GiB, one line for all
    assert [line.split(" skipped: ")[0].split(" ", 2)[2] for line in skipped] == ["layouts"]
    assert "too little memory" in skipped[0]
