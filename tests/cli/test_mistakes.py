"""Mistakes that everybody makes on the command line: each is one line with the right command."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from neuralpower.ask.texts import rate, shape, sizes
from neuralpower.errors import InputError
from tests.program import done, run


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("3x224x224", (3, 224, 224)),
        ("3,224,224", (3, 224, 224)),
        ("(3, 224, 224)", (3, 224, 224)),
        ("(16,)", (16,)),
        ("1x3x224x224", (3, 224, 224)),
        ("(1, 1, 28, 28)", (1, 28, 28)),
        ("1x64x64x64", (1, 64, 64, 64)),  # a volume of one channel
        ("16x3x224x224", (16, 3, 224, 224)),  # a film
    ],
)
def test_a_shape_is_read_as_people_write_it(text: str, sizes: tuple[int, ...]) -> None:
    assert shape(text) == sizes


@pytest.mark.parametrize("text", ["3x", "x3", "()", "3,,8", "3x0", "3x-1", "3.5x2", "(3x8))"])
def test_no_shape_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="write positive sizes without the batch, such as 3x224x224"):
        shape(text)


@pytest.mark.parametrize(
    ("text", "per_second"),
    [(4, 4.0), ("4", 4.0), ("0.5/s", 0.5), ("3000/min", 50.0), ("90k/h", 25.0), ("86.4M / day", 1000.0)],
)
def test_a_rate_is_read_per_second_minute_hour_or_day(text: float | str, per_second: float) -> None:
    assert rate(text) == pytest.approx(per_second)


@pytest.mark.parametrize("text", ["", "4/week", "k/day", "4//s", "many"])
def test_no_rate_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InputError, match="or such as 3000/min, 90k/h, 1M/day"):
        rate(text)


def test_thousands_of_tokens_are_powers_of_two() -> None:
    assert sizes("1k:4k,500,0.5k", "contexts") == (1024, 2048, 4096, 500, 512)
    for words in (("--context", "1.5k"), ("--context=1.5k",)):
        ran = run("predict", "gpt2", "--phase", "decode", *words, "--device", "t4")
        assert ran.code == 2 and "context 1536 and the new token take 1537 positions" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predict", "gpt2", "--context", "0.3k"), "Invalid value for '--context'"),  # 307.2 tokens
        (("predict", "gpt2", "--context", "3T"), "Invalid value for '--context'"),
        (("predict", "gpt2", "--device", "i7-12700"), "lists all "),
        (("predict", "gpt2", "--device"), "it takes: h100, rtx-4090, ..."),
        (("rank", "gpt2", "--price"), "it takes: Price of a device for an hour: 2.49/h"),
        (("predict", "yolov8n"), "and give yolov8n.onnx"),
        (("explain", "resnet18"), "write neuralpower predict resnet18 --by layer"),
    ],
)
def test_what_is_near_is_told_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert words in ran.err


def test_a_batch_in_the_shape_is_answered_with_its_own_option() -> None:
    ran = run("predict", "zoo:resnet18", "--input-shape", "8x3x224x224")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    way = "the first size of 8x3x224x224 is the batch: write --batch-size 8 --input-shape 3x224x224"
    assert ran.err.strip().endswith(way)


def test_a_batch_in_the_shape_that_would_fail_too_gets_no_such_advice(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
        "        return x.reshape(-1, 7) @ x.new_ones(5, 5)\n"
    )
    ran = run("predict", f"{file}:Net", "--input-shape", "8x3x7x7", "--device", "h100")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "its forward raises" in ran.err and "is the batch" not in ran.err


def test_a_memory_without_a_device_is_an_nvidia_gpus_and_the_first_line_says_so() -> None:
    first = done("fit", "zoo:deep_mnist", "--memory", "24GiB").splitlines()[0]
    assert first.endswith("on an NVIDIA GPU of 24GiB (assumed; this machine: --device cpu)")
    here = done("fit", "zoo:deep_mnist", "--memory", "24GiB", "--device", "cpu")
    assert "assumed; this machine" not in here and "kept free" not in here


def test_a_table_instead_of_a_dataset_is_answered_with_the_command_that_makes_one(tmp_path: Path) -> None:
    table = tmp_path / "linear.csv"
    table.write_text("rows,in_features,out_features,latency_ms\n1,8,8,0.1\n")
    ran = run("train-predictor", table)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.strip().endswith(f"Fix: neuralpower dataset check {table} --device NAME --out FOLDER")
    ran = run("dataset", "check", table)
    assert "--map runtime_s=latency_ms/1000" in ran.out + ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("predict", "zoo:deep_mnist", "--memory-picture", "memory.bmp"),
            "the ending must be one of .html, ",
        ),
        (("fit", "zoo:deep_mnist", "--memory-picture", "memory.bmp"), "the ending must be one of .html, "),
        (("predict", "zoo:deep_mnist", "--memory-picture", "/dev/null/m.html"), "m.html: cannot be written"),
        (
            (
                "fit",
                "zoo:alexnet",
                "--devices",
                "2xh100-sxm",
                "--data-parallel",
                "2",
                "--memory-picture",
                "memory.html",
            ),
            "draws one device's memory; leave it out",
        ),
    ],
)
def test_a_picture_of_memory_that_cannot_be_drawn_is_refused(arguments: tuple[str, ...], words: str) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert words in ran.err
    assert not Path("memory.html").exists()


def test_a_picture_of_memory_is_drawn_by_predict_and_fit(tmp_path: Path) -> None:
    page, snapshot = tmp_path / "memory.html", tmp_path / "memory.pickle"
    done("predict", "zoo:deep_mnist", "--phase", "training", "--device", "t4", "--memory-picture", str(page))
    assert "The peak is " in page.read_text()
    done("fit", "zoo:deep_mnist", "--device", "t4", "--memory-picture", str(snapshot))
    assert pickle.loads(snapshot.read_bytes())["segments"]
