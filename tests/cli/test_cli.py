"""The command line: what it prints where, how it ends, and how it refuses."""

import contextlib
import csv
import errno
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from neuralpower import cli
from neuralpower.ask import texts
from neuralpower.cli.calibrate import calibrate
from neuralpower.devices.host import read_cpu
from neuralpower.errors import DeviceError
from neuralpower.layers import KINDS
from neuralpower.layers.rows import to_row
from neuralpower.learn.files import predictor_lookup as predictors
from neuralpower.learn.networks.calibrate import Calibration
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.request import PRESETS
from neuralpower.measure.meters import METERS
from neuralpower.networks.sources import resolve
from neuralpower.prediction.rows import COLUMNS
from neuralpower.version import __version__
from tests.learn.test_predictor import seconds
from tests.program import Ran, done, run

BERT = (
    "transformers:bert?num_hidden_layers=2&hidden_size=64&num_attention_heads=4&intermediate_size=128"
    "&vocab_size=500&max_position_embeddings=64"
)
LEARNT = """
    linear norm activation elementwise softmax attention embedding movement conv2d pool2d matmul reduction
""".split()
NETWORKS = """
import torch
from torch import nn

NUMBER = 3


class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("the moon is full\\nand so on")


class Transform(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.fft.fft(self.linear(x)).real


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )


def blocks():
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)), nn.Linear(32, 4))


def broken():
    return Broken()


def transform():
    return Transform()


def no_module():
    return {"layers": 3}


def unbuilt():
    raise ValueError("the sun is\\nlow")
"""


def refused(ran: Ran, *words: str, code: int = 2) -> None:
    """It printed nothing but one line on stderr, which holds the words."""
    assert ran.code == code, ran
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.endswith("\n")
    for word in words:
        assert word in ran.err


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measurements of the synthetic device, half of the tables as users write them, half as collected."""
    folder = tmp_path_factory.mktemp("datasets") / "synthetic"
    folder.mkdir()
    (folder / "dataset.json").write_text('{"schema": 1, "device": "Synthetic"}')
    for number, kind in enumerate(LEARNT):
        layers = list(draw(KINDS[kind], 60, 0, PRESETS["quick"]))
        table = pd.DataFrame([{**to_row(layer), "runtime_s": seconds(layer)} for layer in layers])
        if number % 2:
            table.to_csv(folder / f"{kind}.csv", index=False)
        else:
            table.to_parquet(folder / f"{kind}.parquet", index=False)
    return folder


@pytest.fixture(scope="module")
def trained(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """The predictor file of the synthetic device, and how its training ran."""
    file = tmp_path_factory.mktemp("models") / "deep" / "synthetic.json"
    return file, run(
        "train-predictor", dataset, "--learner", "lasso", "--jobs", "1", "--out", file, "--verbose"
    )


@pytest.fixture(scope="module")
def predictor(trained: tuple[Path, Ran]) -> Path:
    assert trained[1].code == 0, trained[1].err
    return trained[0]


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of models."""
    file = tmp_path_factory.mktemp("networks") / "net.py"
    file.write_text(NETWORKS)
    return file


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder, and leave torch's settings as they were."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


# ---- the program ----


def test_help_names_every_command() -> None:
    text = done("--help")
    for name in ("collect-data", "train-predictor", "predict", "evaluate", "devices"):
        assert name in text


@pytest.mark.parametrize("name", ["collect-data", "train-predictor", "predict", "evaluate", "devices"])
def test_every_command_explains_itself(name: str) -> None:
    assert "Usage" in done(name, "--help")


def test_the_version_is_the_packages() -> None:
    assert re.fullmatch(
        rf"neuralpower {__version__} \(torch \d[^,]*, transformers \d[^,]*, Python 3[^,]*\)\nTo cite: .+\n",
        done("--version"),
    )


# ---- training ----


def test_training_prints_a_line_per_regressor_and_talks_on_stderr(trained: tuple[Path, Ran]) -> None:
    file, ran = trained
    assert ran.code == 0, ran.err
    header, rule, *rest, last = ran.out.splitlines()
    assert last.startswith("Typical error on held-out rows: ")
    assert header.split()[:5] == ["kind", "group", "dtype", "phase", "rows"]
    assert set(rule) == {"-", " "}
    kinds = {line.split()[0] for line in rest if "[" not in line}
    assert kinds == set(LEARNT)
    assert f"predictor: {file}" in ran.err
    assert re.search(r"^\w+ \w+ \(float32, forward\): skipped, \d rows; 10 needed\.$", ran.err, re.M)
    assert sum(line.count("] seconds = ") for line in rest) == len([line for line in rest if "[" not in line])


def test_training_ends_with_a_sentence_for_anybody(tmp_path: Path) -> None:
    kinds = ("softmax", "linear")
    for kind in kinds:
        layers = list(draw(KINDS[kind], 60, 0, PRESETS["quick"]))
        rows = [{**to_row(layer), "runtime_s": seconds(layer)} for layer in layers]
        rows[5]["runtime_s"] = -1
        pd.DataFrame(rows).to_csv(tmp_path / f"{kind}.csv", index=False)
    (tmp_path / "dataset.json").write_text('{"schema": 1, "device": "Synthetic"}')
    asked = ("train-predictor", tmp_path, "--jobs", "1", "--learner", "hybrid", "--out", tmp_path / "p.json")
    ran = run(*asked)
    assert ran.code == 0, ran.err
    header, _, first, second, explained, last = ran.out.splitlines()
    assert header.split("  ")[-1] == "inside bounds"
    assert [line.split()[0] for line in (first, second)] == ["linear", "softmax"]
    assert second.split()[1] == "59"
    assert explained.startswith("(typical error: half of the held-out rows")
    sentence = (
        r"Typical error on held-out rows: [\d.]+ %\. Power not trained: no row has power_w or energy_j\."
    )
    assert re.fullmatch(sentence, last)
    assert "2 rows skipped: runtime_s is not above 0 (2); -v lists them" in ran.err
    quiet = run(*asked, "--quiet")
    assert (quiet.out, quiet.err) == (f"{last}\n", "")


def test_training_writes_the_predictor_and_its_card(predictor: Path) -> None:
    data = json.loads(predictor.read_text())
    assert (data["schema"], data["device"], data["learner"]) == (5, "Synthetic", "lasso")
    assert predictor.with_suffix(".md").read_text().startswith("# Predictor `synthetic`")
    assert sorted(path.name for path in predictor.parent.iterdir()) == ["synthetic.json", "synthetic.md"]


def test_rows_that_are_left_out_are_said_with_their_lines(tmp_path: Path) -> None:
    layers = list(draw(KINDS["softmax"], 20, 0, PRESETS["quick"]))
    table = pd.DataFrame([{**to_row(layer), "runtime_s": seconds(layer)} for layer in layers])
    table.loc[3, "runtime_s"] = -1
    (tmp_path / "dataset.json").write_text('{"schema": 1, "device": "Synthetic"}')
    table.to_csv(tmp_path / "softmax.csv", index=False)
    ran = run("train-predictor", tmp_path, "--learner", "lasso", "--jobs", "1", "--out", tmp_path / "p.json")
    assert ran.code == 0
    assert "softmax: 1 skipped, runtime_s is not above 0 (line 5)" in ran.err.splitlines()


# ---- predicting ----

KEYS = {
    "schema",
    "model",
    "predictor",
    "device",
    "batch_size",
    "dtype",
    "phase",
    "runtime_s",
    "power_w",
    "energy_j",
    "memory_bytes",
    "memory",
    "flops",
    "parameters",
    "coverage",
    "extrapolated",
    "basis",
    "unmodelled",
    "layers",
}
LAYER_KEYS = {
    "path",
    "kind",
    "count",
    "runtime_s",
    "power_w",
    "energy_j",
    "flops",
    "bytes",
    "bound",
    "share",
    "basis",
}


def loaded(text: str) -> Any:
    """JSON as the standard has it: NaN and Infinity are no values."""

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def prediction(predictor: Path) -> dict[str, Any]:
    """The prediction of a small BERT, as JSON."""
    ran = run("predict", BERT, "--predictor", predictor, "--batch-size", 3, "--seq-len", 16, "--json")
    assert (ran.code, ran.err) == (0, "")
    return dict(loaded(ran.out))


def test_the_json_of_a_prediction_holds_its_contract(prediction: dict[str, Any]) -> None:
    assert set(prediction) >= KEYS
    assert set(prediction["runtime_s"]) == {"value", "low", "high"}
    for layer in prediction["layers"]:
        assert set(layer) >= LAYER_KEYS
        assert layer["bound"] in ("compute", "memory")
        assert layer["basis"] in ("measured", "in-range", "extrapolated", "borrowed", "roofline")
        assert layer["count"] >= 1
    said = [
        prediction[name]
        for name in ("schema", "model", "predictor", "device", "batch_size", "dtype", "phase")
    ]
    assert said == [1, BERT, "synthetic", "Synthetic", 3, "float32", "forward"]
    assert prediction["power_reason"]  # what is not known is null, with the reason
    assert [prediction[name] for name in ("power_w", "energy_j", "host_bound")] == [None] * 3
    parts = {name: size for name, size in prediction["memory"].items() if name != "phase"}
    assert sum(parts.values()) == prediction["memory_bytes"]["value"]
    assert parts["weights_bytes"] >= 4 * prediction["parameters"]


def test_the_layers_of_a_prediction_add_up_to_its_totals(prediction: dict[str, Any]) -> None:
    layers, total = prediction["layers"], prediction["runtime_s"]
    assert sum(layer["runtime_s"] for layer in layers) == pytest.approx(total["value"], rel=1e-9)
    assert sum(layer["share"] for layer in layers) == pytest.approx(1)
    assert sum(layer["flops"] for layer in layers) == prediction["flops"]
    for layer in layers:
        assert layer["share"] == pytest.approx(layer["runtime_s"] / total["value"])
    assert 0 < total["low"] <= total["value"] <= total["high"]
    assert prediction["coverage"] == pytest.approx(
        sum(layer["share"] for layer in layers if layer["basis"] not in ("borrowed", "roofline"))
    )
    assert prediction["borrowed"] == pytest.approx(1 - prediction["coverage"], abs=1e-9)
    assert (prediction["warnings"], prediction["launch_overhead_s"]) == ([], 0)
    assert sum(kind["runtime_s"] for kind in prediction["by_kind"]) == pytest.approx(total["value"])
    assert prediction["unmodelled"] == []


def test_a_prediction_is_what_the_device_is_known_to_take(prediction: dict[str, Any]) -> None:
    counts: dict[str, int] = {}
    for layer in prediction["layers"]:
        counts[layer["kind"]] = counts.get(layer["kind"], 0) + layer["count"]
        if layer["kind"] in ("linear", "activation", "norm", "embedding"):
            # 5 us a call, 200 GFLOP/s, 10 GB/s, by the row's own FLOP and bytes
            known = 5e-6 * layer["count"] + layer["flops"] / 2e11 + layer["bytes"] / 1e10
            assert layer["runtime_s"] == pytest.approx(known, rel=0.25), layer["path"]
    # two blocks of query, key, value, output, up, down, and the pooler
    assert counts["linear"] == 2 * 6 + 1
    assert counts["attention"] == 2
    assert counts["norm"] == 1 + 2 * 2
    assert counts["embedding"] == 3


def test_the_parameters_and_the_work_are_the_models(prediction: dict[str, Any]) -> None:
    model = resolve(BERT).build("meta")
    assert prediction["parameters"] == sum(p.numel() for p in model.parameters())
    # a block: 4 products [48, 64] x [64, 64], 2 of [48, 64] x [64, 128], attention 4 * 3 * 4 * 16 * 16 * 16
    block = 2 * (4 * 48 * 64 * 64 + 2 * 48 * 64 * 128) + 4 * 3 * 4 * 16 * 16 * 16
    pooler = 2 * 3 * 64 * 64
    products = sum(
        layer["flops"] for layer in prediction["layers"] if layer["kind"] in ("linear", "attention")
    )
    assert products == 2 * block + pooler


def test_the_csv_of_a_prediction_adds_up_to_the_same(prediction: dict[str, Any], predictor: Path) -> None:
    ran = run(
        "predict", BERT, "--predictor", predictor, "--batch-size", 3, "--seq-len", 16, "--csv", "rows.csv"
    )
    assert (ran.code, ran.err) == (0, "")
    with Path("rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [column.name for column in COLUMNS]
    assert [*rows[0]] == names
    assert {*prediction["layers"][0]} == {*names} - {"step"} | {"phase", "parts"}
    assert len(rows) == len(prediction["layers"])
    assert [row["path"] for row in rows] == [layer["path"] for layer in prediction["layers"]]
    assert sum(float(row["runtime_s"]) for row in rows) == pytest.approx(
        prediction["runtime_s"]["value"], rel=1e-9
    )
    assert sum(int(row["flops"]) for row in rows) == prediction["flops"]
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)
    for row in rows:
        assert float(row["low_s"]) <= float(row["runtime_s"]) <= float(row["high_s"])


@pytest.mark.parametrize(
    ("by", "words"), [("layer", "linear"), ("kind", "attention"), ("module", "encoder.layer.")]
)
def test_the_table_of_a_prediction_has_the_rows_that_were_asked_for(
    by: str, words: str, predictor: Path
) -> None:
    ran = run("predict", BERT, "--predictor", predictor, "--seq-len", 16, "--by", by, "--top", "0")
    assert (ran.code, ran.err) == (0, "")
    title, sure, totals, empty, header, rule, *rows = ran.out.splitlines()
    assert title.endswith("forward, batch 1, float32") and sure.startswith("on Synthetic: expect ")
    assert totals.startswith("latency ")
    assert " samples/s; memory " in totals and totals.endswith(" MiB")
    more = done("predict", BERT, "--predictor", predictor, "--seq-len", 16, "-v")
    # the pooler's product has one row: none was trained
    assert "97.3 % of the time rests on measurements, 2.7 % is borrowed from similar layers; " in more
    assert empty == ""
    assert header.split()[0] == by
    assert set(rule) == {"-", " "}
    assert any(words in row for row in rows)
    shares = [float(word.rstrip("%")) for row in rows for word in row.split() if word.endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(rows) + 0.1)


def test_a_long_table_is_cut_with_the_sum_of_the_rest(predictor: Path) -> None:
    arguments = ("predict", BERT, "--predictor", predictor, "--seq-len", 16, "--by", "layer")
    tables = (done(*arguments, "--top", top).splitlines() for top in (0, 2))
    whole, cut = ([line for line in table if not line.startswith("Note: ")] for table in tables)
    assert len(cut) == 6 + 3  # title, totals, memory, empty, header, rule; two rows and the others
    assert f"({len(whole) - 6 - 2} more)" in cut[-1]
    shares = [float(word.rstrip("%")) for row in cut[6:] for word in row.split() if word.endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.3)


def test_a_function_in_a_file_is_predicted_with_its_input_shape(networks: Path, predictor: Path) -> None:
    model = f"{networks}:convolutional"
    data = loaded(done("predict", model, "--predictor", predictor, "--input-shape", "3x32x32", "--json"))
    kinds = [layer["kind"] for layer in data["layers"]]
    assert kinds == ["conv2d", "norm", "activation", "pool2d", "pool2d", "linear"]
    # 32 x 32 positions, 3 * 3 * 3 weights to each of 8 channels: 1024 * 27 * 8 * 2 FLOP
    assert data["layers"][0]["flops"] == 442_368
    # 27 * 8 + 8, 2 * 8, 8 * 10 + 10
    assert data["parameters"] == 224 + 16 + 90


def test_repeated_blocks_are_one_row(networks: Path, predictor: Path) -> None:
    data = loaded(
        done("predict", f"{networks}:blocks", "--predictor", predictor, "--input-shape", "32", "--json")
    )
    assert [(layer["path"], layer["count"]) for layer in data["layers"]] == [
        ("[0-3].0", 4),
        ("[0-3].1", 4),
        ("4", 1),
    ]


def test_what_is_not_modelled_is_listed_with_its_share(networks: Path, predictor: Path) -> None:
    arguments = ("predict", f"{networks}:transform", "--predictor", predictor, "--input-shape", "8")
    data = loaded(done(*arguments, "--json"))
    (missing,) = data["unmodelled"]
    assert set(missing) == {"operator", "reason", "count", "runtime_s", "share"}
    assert "fft" in missing["operator"]
    assert 0 < missing["share"] < 1
    assert data["coverage"] <= 1 - missing["share"] + 1e-9
    assert f"unmodelled: {missing['operator']} x1" in done(*arguments)


def test_a_training_step_is_predicted_in_its_parts(predictor: Path) -> None:
    data = loaded(
        done(
            "predict",
            BERT,
            "--predictor",
            predictor,
            "--phase",
            "training",
            "--optimizer",
            "momentum",
            "--json",
        )
    )
    step = data["training"]
    parts = [step[f"{name}_s"]["value"] for name in ("forward", "backward", "optimizer")]
    assert data["runtime_s"]["value"] == pytest.approx(sum(parts), rel=0.02)
    assert min(parts) > 0
    assert {row["phase"] for row in data["layers"]} == {"forward", "backward", "optimizer"}
    assert (step["optimizer"], step["samples"]) == ("momentum", 1)
    text = done("predict", BERT, "--predictor", predictor, "--phase", "training")
    assert "step: forward" in text
    assert "Note: no backward data for " in text


def test_strict_ends_with_three_below_the_coverage_asked_for(networks: Path, predictor: Path) -> None:
    sizes = ("--input-shape", "8", "--batch-size", 64)
    arguments = ("predict", f"{networks}:transform", "--predictor", predictor, *sizes, "--json")
    coverage = loaded(done(*arguments))["coverage"]
    assert 0 < coverage < 1
    assert run(*arguments, "--strict", coverage - 0.01).code == 0
    ran = run(*arguments, "--strict", 1)
    assert ran.code == 3
    assert loaded(ran.out)["coverage"] == coverage  # the prediction is printed all the same
    assert ran.err.startswith("error: coverage ")
    assert ran.err.count("\n") == 1
    assert "fft" in ran.err
    assert "lower --strict" in ran.err


def test_a_model_of_known_kinds_passes_the_strictest(networks: Path, predictor: Path) -> None:
    asked = ("predict", f"{networks}:blocks", "--predictor", predictor, "--input-shape", "32", "--strict", 1)
    assert run(*asked, "--batch-size", 64).code == 0
    ran = run(*asked)  # products of one row were not trained: those of many rows stand in for them
    assert ran.code == 3
    assert "is below 100.0%: linear; lower --strict" in ran.err
    assert "rests on formulas alone" in ran.out.splitlines()[1]


def test_a_predictor_in_the_models_folder_is_found_by_name(networks: Path, predictor: Path) -> None:
    Path("models").mkdir()
    Path("models/mine.json").write_text(predictor.read_text())
    data = loaded(
        done("predict", f"{networks}:blocks", "--predictor", "mine", "--input-shape", "32", "--json")
    )
    assert data["predictor"] == "mine"
    listed = loaded(done("devices", "--json"))["predictors"]
    assert {"name": "mine", "device": "Synthetic", "dtypes": ["float32"], "phases": ["forward"]} in listed
    lines = [" ".join(line.split()) for line in done("devices", "-v").splitlines()]
    assert "predictor mine Synthetic, float32, forward" in lines


def test_a_full_disk_behind_the_output_is_one_line_and_code_4(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "argv", ["neuralpower", "models", "--names"])
    err = io.StringIO()
    with (
        contextlib.redirect_stdout(Full()),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        cli.main()
    assert ended.value.code == 4
    assert (
        err.getvalue() == "error: standard output: the disk is full; free space on it, or write elsewhere\n"
    )


def test_a_letter_that_the_output_cannot_show_is_escaped(
    monkeypatch: pytest.MonkeyPatch, predictor: Path
) -> None:
    Path("größe.py").write_text(
        "import torch\n\ndef net():\n    return torch.nn.Linear(8, 4), (torch.zeros(2, 8),)\n"
    )
    monkeypatch.setattr(
        sys, "argv", ["neuralpower", "predict", "größe.py:net", "--predictor", str(predictor)]
    )
    shown = io.BytesIO()
    with (
        contextlib.redirect_stdout(io.TextIOWrapper(shown, encoding="ascii")) as out,
        pytest.raises(SystemExit) as ended,
    ):
        cli.main()
    out.flush()
    assert not ended.value.code
    assert shown.getvalue().startswith(rb"gr\xf6\xdfe.py:net, forward, batch 2")


def test_an_exit_code_of_zero_needs_no_talk(networks: Path, predictor: Path) -> None:
    ran = run("predict", f"{networks}:blocks", "--predictor", predictor, "--input-shape", "32")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("\n")


# ---- what predict refuses ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["transformers:bret"], ["'bret'", "did you mean", "bert"]),
        (["zoo:alexnt"], ["unknown zoo network 'alexnt'", "did you mean alexnet"]),
        (["somenet"], ["'somenet' is not a folder and names no source", "zoo:NAME"]),
        (["no_such_package:function"], ["there is no module 'no_such_package'"]),
        (["absent.py:net"], ["there is no file absent.py"]),
        (["empty"], ["empty holds no config.json", "give a folder"]),
        ([f"{BERT}&hiden_size=3"], ["'hiden_size'", "did you mean", "hidden_size"]),
        ([BERT, "--batch-size", "0"], ["batch size 0: must be 1 or more", "--batch-size 1"]),
        ([BERT, "--batch-size", "-4"], ["batch size -4: must be 1 or more"]),
        ([BERT, "--seq-len", "65"], ["65", "has 64 positions", "give at most 64"]),
        ([BERT, "--seq-len", "0"], ["0", "from 1"]),
        ([BERT, "--input-shape", "3x8x8"], ["(3, 8, 8)", "reads tokens", "seq_len"]),
        ([BERT, "--input-shape", "3,,8"], ["input shape '3,,8'", "such as 3x224x224"]),
        ([BERT, "--input-shape", "3x0"], ["input shape '3x0'", "positive"]),
        ([BERT, "--by", "layers"], ["unknown view 'layers'", "did you mean layer"]),
        ([BERT, "--by", "colour"], ["unknown view 'colour'", "kind, layer, module"]),
        ([BERT, "--dtype", "fp16"], ["was not trained on dtype 'float16'", "--dtype float16"]),
        (
            [BERT, "--dtype", "bf16"],
            ["was not trained on dtype 'bfloat16'", "it has float32", "--dtype bfloat16"],
        ),
        ([BERT, "--dtype", "float33"], ["unknown dtype 'float33'", "did you mean float32"]),
        (
            [BERT, "--phase", "backward"],
            ["was not trained on phase 'backward'", "it has forward; choose", "collect-data --phase"],
        ),
        (
            [BERT, "--phase", "optimizer"],
            ["unknown phase 'optimizer'", "backward, decode, forward, generate, prefill, step, training"],
        ),
        (
            [BERT, "--phase", "training", "--optimizer", "adan"],
            ["unknown optimizer 'adan'", "did you mean adam"],
        ),
        ([BERT, "--phase", "training", "--optimizer", "rmsprop:fused"], ["rmsprop: torch has no fused one"]),
        ([BERT, "--phase", "training", "--accumulation", "0"], ["accumulation 0", "1 micro-batch or more"]),
        ([BERT, "--phase", "training", "--autocast", "bf16"], ["was not trained on dtype 'bfloat16'"]),
        ([BERT, "--checkpointing"], ["activation checkpointing", "belong to phase training, not to forward"]),
        ([BERT, "--strict", "95"], ["95", "between 0 and 1"]),
        ([BERT, "--csv", "file/rows.csv"], ["file/rows.csv", "cannot be written", "choose another"]),
        (["zoo:sensor_net", "--input-shape", "100"], ["100", "784", "input shape"]),
        (["zoo:sensor_net", "--seq-len", "7", "--input-shape", "3x4x5"], ["7", "leave seq_len out"]),
    ],
    ids=lambda value: " ".join(value)[-40:],
)
def test_predict_refuses_with_the_value_the_rule_and_a_way_out(
    predictor: Path, arguments: list[str], words: list[str]
) -> None:
    Path("empty").mkdir()
    Path("file").write_text("a regular file")
    refused(run("predict", *arguments, "--predictor", predictor), *words)


@pytest.mark.parametrize(
    "arguments",
    [
        "predict --csv",
        "sweep --csv",
        "sweep --plot",
        "profile --csv",
        "profile --markdown",
        "profile --trace-file",
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_anything_is_done(arguments: str) -> None:
    command, option = arguments.split()
    example = {"--csv": ".csv", "--plot": ".html", "--markdown": ".md", "--trace-file": ".json"}[option]
    folder, new, nowhere = (f"{name}{example}" for name in ("folder", "new", "/dev/null/x"))
    Path(folder).mkdir()
    refused(run(command, "zoo:deep_mnist", option, nowhere), f"{nowhere}: cannot be written")
    refused(run(command, "zoo:deep_mnist", option, folder), f"{folder}: is not a file", f"{example}\n")
    refused(run(command, "zoo:no_such_network", option, new), "unknown zoo network")
    assert not Path(new).exists()


def test_rows_can_be_written_to_what_is_no_regular_file(predictor: Path) -> None:
    assert run("predict", BERT, "--predictor", predictor, "--csv", "/dev/null").code == 0


@pytest.mark.parametrize("command", ["predict", "profile", "evaluate"])
def test_a_trace_replaces_nothing_but_a_file(command: str) -> None:
    os.mkfifo("pipe")
    refused(
        run(command, "zoo:deep_mnist", "--trace-file", "pipe"), "pipe: is not a file; choose a file's name"
    )
    assert Path("pipe").is_fifo()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("convolution", ["'convolution'", "did you mean convolutional"]),
        ("NUMBER", ["'NUMBER'"]),
        ("no_module", ["gives a dict", "has to return an nn.Module"]),
        ("broken", ["its forward raises RuntimeError", "the moon is full"]),
        ("unbuilt", ["cannot be built", "ValueError", "the sun is"]),
        ("blocks", ["has no known input shape", "--input-shape"]),
        ("blocks?width=3", ["width", "it takes none"]),
    ],
)
def test_a_function_that_makes_no_model_is_refused(
    networks: Path, predictor: Path, function: str, words: list[str]
) -> None:
    shape = [] if function == "blocks" else ["--input-shape", "32"]
    refused(run("predict", f"{networks}:{function}", *shape, "--predictor", predictor), *words)


TALKING = """
import torch
from torch import nn


class Talking(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        print("built")

    def forward(self, x):
        print("called")
        return self.linear(x)


def example_inputs(batch_size):
    return (torch.zeros(batch_size, 8),)


print("loaded")
"""


def test_what_a_model_prints_is_no_part_of_the_output(predictor: Path) -> None:
    Path("talking.py").write_text(TALKING)
    asked = ("predict", "talking.py:Talking", "--phase", "training", "--predictor", predictor)
    ran = run(*asked, "--json")
    assert json.loads(ran.out)["parameters"] == 72
    assert {"loaded", "built", "called"} <= set(ran.err.splitlines())
    measured = done("evaluate", "talking.py:Talking", "--rounds", 3, "--predictor", predictor, "--json")
    assert len(json.loads(measured)["networks"]) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["p.json", "not a predictor file, or is cut off"]),
        pytest.param("[" * 100_000, ["p.json", "not a predictor file, or is cut off"], id="nested"),
        ("[1, 2]", ["p.json", "holds a list"]),
        ("not JSON", ["p.json", "not a predictor file"]),
        ('{"schema": 7}', ["schema 7, this version reads 5"]),
        ('{"schema": 4}', ["schema 4, this version reads 5"]),
        ('{"schema": 5, "device": "x"}', ["is incomplete"]),
    ],
)
def test_a_damaged_predictor_is_refused_with_what_makes_a_new_one(
    networks: Path, text: str, words: list[str]
) -> None:
    Path("p.json").write_text(text)
    ran = run("predict", f"{networks}:blocks", "--input-shape", "32", "--predictor", "p.json")
    refused(ran, *words, "train")


def test_half_of_a_predictor_is_refused(predictor: Path, networks: Path) -> None:
    text = predictor.read_text()
    Path("half.json").write_text(text[: len(text) // 2])
    ran = run("predict", f"{networks}:blocks", "--input-shape", "32", "--predictor", "half.json")
    refused(ran, "half.json", "cut off", "train-predictor")


def test_an_unknown_predictor_is_answered_with_the_nearest(predictor: Path) -> None:
    Path("models").mkdir()
    Path("models/laptop.json").write_text(predictor.read_text())
    refused(run("predict", BERT, "--predictor", "labtop"), "unknown predictor 'labtop'", "laptop")


def test_a_configuration_that_is_no_json_is_refused(predictor: Path) -> None:
    Path("config.json").write_text("{")
    refused(run("predict", "config.json", "--predictor", predictor), "config.json is not JSON")
    Path("config.json").write_text('{"model_type": "bret"}')
    refused(run("predict", "config.json", "--predictor", predictor), "'bret'", "bert")


# ---- what the other commands refuse ----

GOOD = '{"schema": 1, "device": "x"}'


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["unknown dataset"]),
        ({"softmax.csv": "rows,width,runtime_s\n"}, ["has no dataset.json", '"schema": 1']),
        ({"dataset.json": "{"}, ["dataset.json", "is not JSON", "write it again"]),
        (
            {"dataset.json": '{"schema": 3, "device": "x"}'},
            ["schema is 3, but this version reads 1", '"schema": 1'],
        ),
        ({"dataset.json": GOOD}, ["holds no table", "collect-data --out"]),
        ({"dataset.json": GOOD, "softmx.csv": "a\n"}, ["'softmx'", "did you mean softmax"]),
        (
            {"dataset.json": GOOD, "softmax.csv": "rows,runtime_s\n1,1\n"},
            ["data: softmax: column width missing", "the table needs rows"],
        ),
        (
            {"dataset.json": GOOD, "softmax.csv": "rows,width,runtime_s\n1,2,0\n"},
            ["0 usable rows, 1 skipped", "10"],
        ),
        (
            {"dataset.json": GOOD, "softmax.parquet": "PAR1"},
            ["softmax.parquet", "cannot be read", "write it again"],
        ),
    ],
    ids=lambda value: " ".join(value)[:50],
)
def test_train_refuses_what_is_no_dataset(tmp_path: Path, files: dict[str, str], words: list[str]) -> None:
    folder = tmp_path / "data"
    for name, text in files.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    refused(run("train-predictor", folder, "--jobs", "1", "--out", tmp_path / "p.json"), *words)
    assert not (tmp_path / "p.json").exists()


def test_train_refuses_an_unknown_learner(dataset: Path) -> None:
    ran = run("train-predictor", dataset, "--learner", "laso", "--out", "p.json")
    refused(ran, "unknown learner 'laso'", "did you mean lasso")
    refused(
        run("train-predictor", dataset, "--jobs", "0", "--out", "p.json"), "jobs 0: must be 1 or more", "-1"
    )


def test_train_refuses_a_place_it_cannot_write_before_it_fits_anything(dataset: Path) -> None:
    Path("file").write_text("a regular file")
    refused(
        run("train-predictor", dataset, "--out", "file/p.json"), "file/p.json", "cannot be written", "--out"
    )
    refused(run("train-predictor", dataset, "--out", "."), ".: is not a file", "such as predictor.json")
    refused(run("train-predictor", dataset, "--out", "/proc/p.json"), "/proc/p.json: cannot be written")
    Path("q.md").mkdir()
    refused(run("train-predictor", dataset, "--out", "q.json"), "q.md: is not a file")
    refused(run("train-predictor", dataset, "--out", "p.md"), "is the name of the predictor's card", "p.json")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "quik"], ["unknown preset 'quik'", "did you mean quick"]),
        (["--device", "gpu"], ["unknown device 'gpu'", "cpu"]),
        (["--phase", "training"], ["unknown phase 'training'", "forward"]),
        (["--dtype", "f32,float33"], ["unknown dtype 'float33'", "did you mean float32"]),
        (["--power", "nvm"], ["unknown power meter 'nvm'", "did you mean nvml"]),
        (["--executor", "rey"], ["unknown executor 'rey'", "did you mean ray"]),
        (["--address", "auto"], ["address 'auto'", "add --executor ray"]),
        (["--time-budget", "soon"], ["time budget 'soon'", "such as 20m"]),
        (["--time-budget", "0"], ["time budget '0'", "positive"]),
        (["--dtype", ","], ["dtype ',': contains no name", "leave the option out"]),
        (["--kinds", ","], ["kinds ',': contains no name"]),
        (["--kinds", ""], ["--kinds is empty; give it a value, or leave it out"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_collect_refuses_before_it_touches_anything(arguments: list[str], words: list[str]) -> None:
    refused(run("collect-data", *arguments, "--out", "data"), *words)
    assert not Path("data").exists()


def test_names_are_told_apart_by_commas_outside_of_a_models_overrides() -> None:
    models = "zoo:alexnet, transformers:swin?depths=[2,2]&num_heads=[3,6],zoo:vgg11"
    assert texts.names(models, "models") == (
        "zoo:alexnet",
        "transformers:swin?depths=[2,2]&num_heads=[3,6]",
        "zoo:vgg11",
    )


def test_collect_knows_every_meter_that_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(
        run("collect-data", "--power", "wattsup", "--out", "data"),
        "unknown power meter 'wattsup'",
        "nvml, rapl",
    )
    monkeypatch.setitem(METERS, "wattsup", METERS["rapl"])
    # past the check of the meter's name, up to the next one
    refused(
        run("collect-data", "--power", "wattsup", "--executor", "rey", "--out", "data"),
        "unknown executor 'rey'",
    )


def test_no_line_of_a_collection_is_broken_where_the_terminal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    Path("file").write_text("a regular file")
    ran = run("collect-data", "--preset", "quick", "--out", "file")
    assert ran.err.splitlines()[0] == f"cpu of {read_cpu().name}, {read_cpu().cores} cores -> file"


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_collect_refuses_a_place_it_cannot_write(place: str) -> None:
    Path("file").write_text("a regular file")
    ran = run("collect-data", "--preset", "quick", "--out", place)
    assert (ran.code, ran.out) == (2, "")
    (error,) = (line for line in ran.err.splitlines() if line.startswith("error: "))
    assert f"{place}: cannot be written" in error
    assert "choose another --out" in error
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch-size", "0", BERT], ["batch size 0", "1 or more"]),
        (["--rounds", "0", BERT], ["rounds 0", "1 or more"]),
        (["@absent"], ["absent: cannot be read", "MODEL, batch size, length"]),
        (["@list"], ["list:3", "'zoo:alexnet many'", "MODEL, batch size, length"]),
        (["@none"], ["none: has no network", "MODEL, batch size, length"]),
        (["zoo:alexnt"], ["'alexnt'", "alexnet"]),
        (["--dtype", "float64", BERT], ["float64", "it has float32"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_evaluate_refuses_before_it_measures(predictor: Path, arguments: list[str], words: list[str]) -> None:
    Path("list").write_text("# networks\nzoo:alexnet 1 -\nzoo:alexnet many\n")
    Path("none").write_text("# networks\n\n")
    ran = run("evaluate", *arguments, "--predictor", predictor)
    assert (ran.code, ran.out) == (2, "")
    *talk, error = ran.err.splitlines()
    assert all(
        line.startswith(("Warning: predictor synthetic was trained on another device: ", "predicting "))
        for line in talk
    )
    assert error.startswith("error: ")
    assert all(word in error for word in words), error


def test_no_predictor_at_all_is_answered_with_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, networks: Path
) -> None:
    monkeypatch.setattr("neuralpower.learn.files.predictor_files.predictor_folders", lambda: [Path("models")])
    ran = run("predict", f"{networks}:blocks", "--input-shape", "32")
    refused(ran, "there is no predictor yet", "collect-data and train-predictor", "--predictor")
    assert "predictor  none" in done("devices")


# ---- evaluating ----


def test_an_evaluation_sets_predictions_beside_measurements(networks: Path, predictor: Path) -> None:
    model, shape = f"{networks}:blocks", ("--input-shape", "32", "--batch-size", "2", "--rounds", "3")
    ran = run("evaluate", model, *shape, "--predictor", predictor, "--json")
    assert ran.code == 0, ran.err
    data = loaded(ran.out)
    (network,) = data["networks"]
    assert data["schema"] == 1
    assert (network["model"], network["batch_size"], network["seq_len"]) == (model, 2, None)
    assert len(network["samples_s"]) == 3
    assert min(network["samples_s"]) <= network["measured_s"] <= max(network["samples_s"])
    # the synthetic device has no sentinel: what is corrected is the wait for cores that other processes had
    assert network["slowdown"] == pytest.approx(1 / (1 - network["waited"]))
    assert network["corrected_s"] == pytest.approx(network["measured_s"] * (1 - network["waited"]))
    predicted = network["predicted_s"]
    assert predicted["low"] <= predicted["value"] <= predicted["high"]
    assert network["error"] == pytest.approx(predicted["value"] / network["corrected_s"] - 1)
    assert network["noise"] >= 0
    own = data["summary"]["neuralpower"]
    assert own["networks"] == 1
    assert own["mape"] == pytest.approx(abs(network["error"]))
    assert set(data["summary"]) == {"neuralpower", "roofline", "FLOPs only"}
    assert "Warning: predictor synthetic was trained on another device: name Synthetic there" in ran.err
    assert "measuring " in ran.err


def test_a_machine_slower_than_any_network_has_met_is_told(networks: Path, predictor: Path) -> None:
    # as if the sentinel usually took a nanosecond; the slow-down that is taken out has an upper bound
    fitted = {**json.loads(predictor.read_text()), "device": read_cpu().name}
    usual = {"sentinel_s": 1e-9, "again_s": 1e-9, "exponent": 1.0, "slowest": 1.25}
    Path("slow.json").write_text(json.dumps({**fitted, "network_speed": usual}))
    shape = ("--input-shape", "32", "--rounds", "1", "--json")
    ran = run("evaluate", f"{networks}:blocks", *shape, "--predictor", "slow.json")
    assert ran.code == 0, ran.err
    (network,) = loaded(ran.out)["networks"]
    assert network["slowdown"] == pytest.approx(max(1.25, 1 / (1 - network["waited"])))
    assert network["too_slow"] > 1.25
    assert ran.err.count("measuring ") == 3  # twice more at the end
    assert (
        "times slower than usual, more than the predictor has seen; the correction is incomplete" in ran.err
    )
    calm = {**usual, "sentinel_s": 1e3, "again_s": 1e3}
    Path("calm.json").write_text(json.dumps({**fitted, "network_speed": calm}))
    Path("other.json").write_text(json.dumps({**fitted, "device": "Another CPU", "network_speed": usual}))
    for name in ("calm.json", "other.json"):
        assert "usual time" not in run("evaluate", f"{networks}:blocks", *shape, "--predictor", name).err


def test_an_evaluation_is_the_prediction_that_predict_gives(predictor: Path) -> None:
    Path("list").write_text(f"# networks\n{BERT} 2 8\n{BERT} 1 -\n\n{BERT} 3 16\n")
    data = loaded(done("evaluate", "@list", "--rounds", "3", "--predictor", predictor, "--json"))
    assert [(n["batch_size"], n["seq_len"]) for n in data["networks"]] == [(2, 8), (1, None), (3, 16)]
    arguments = ("predict", BERT, "--predictor", predictor, "--json")
    alone = loaded(done(*arguments, "--batch-size", 2, "--seq-len", 8))
    assert data["networks"][0]["predicted_s"] == pytest.approx(alone["runtime_s"])
    assert -1 <= data["summary"]["neuralpower"]["spearman"] <= 1


def test_an_evaluation_is_a_table_for_readers(networks: Path, predictor: Path) -> None:
    shape = ("--input-shape", "32", "--rounds", "3")
    text = done("evaluate", f"{networks}:blocks", *shape, "--predictor", predictor, "-v")
    header, rule, row, *rest = text.splitlines()
    assert header.split()[:3] == ["network", "predicted", "measured"]
    assert set(rule) == {"-", " "}
    assert ":blocks" in row
    assert any(line.startswith("roofline") for line in rest)


def test_one_round_is_enough_to_evaluate(networks: Path, predictor: Path) -> None:
    shape = ("--input-shape", "32", "--rounds", "1", "--json")
    data = loaded(done("evaluate", f"{networks}:blocks", *shape, "--predictor", predictor))
    assert len(data["networks"][0]["samples_s"]) == 1


def test_a_network_that_cannot_run_here_is_named(networks: Path, predictor: Path) -> None:
    ran = run(
        "evaluate", f"{networks}:broken", "--input-shape", "32", "--rounds", "1", "--predictor", predictor
    )
    assert (ran.code, ran.out) == (2, "")
    assert "the moon is full" in ran.err.splitlines()[-1]


@pytest.mark.parametrize("bad", [["broken"], ["broken", "absent"]])
def test_a_network_that_cannot_be_evaluated_is_named_and_the_others_are_measured(
    networks: Path, predictor: Path, bad: list[str]
) -> None:
    models = [f"{networks}:{name}" for name in ("blocks", *bad, "blocks")]
    ran = run("evaluate", *models, "--input-shape", "32", "--rounds", "1", "--predictor", predictor, "--json")
    assert ran.code == 2
    data = loaded(ran.out)
    assert [network["model"] for network in data["networks"]] == [models[0], models[-1]]
    assert {(network["model"], network["batch_size"]) for network in data["refused"]} == {
        (m, 1) for m in models[1:-1]
    }
    assert any("the moon is full" in network["error"] for network in data["refused"])
    for name in bad:
        assert any(line.startswith(f"Warning: {networks}:{name} b1: ") for line in ran.err.splitlines())
    said = f"{len(bad)} of {len(models)} networks could not be evaluated; see the warnings above"
    assert ran.err.splitlines()[-1] == f"error: {said}"


def test_where_no_network_can_be_evaluated_nothing_is_printed(networks: Path, predictor: Path) -> None:
    shape = ("--input-shape", "32", "--rounds", "1")
    ran = run("evaluate", f"{networks}:broken", f"{networks}:absent", *shape, "--predictor", predictor)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("error: none of 2 networks could be evaluated")


# ---- other devices ----


def test_a_predictor_is_calibrated_on_this_machine(
    predictor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The predictor is synthetic, and on a busy machine its layers lie as far off as other tests ask for.
    monkeypatch.setattr("neuralpower.cli.calibrate.USELESS", float("inf"))
    out = tmp_path / "mine.json"
    text = done("calibrate", "--from", predictor, "--samples", 12, "--out", out)
    assert re.search(
        r"\d+ layers: geometric mean error [\d.]+% before, ([\d.]+% after|scaling did not reduce it)",
        text,
    )
    fitted = json.loads(out.read_text())
    assert fitted["dataset"]["calibrated_from"] == "synthetic"
    assert "calibrated" in out.with_suffix(".md").read_text()


def test_a_calibration_that_says_nothing_is_not_written(
    predictor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = Calibration(predictors.load(predictor), 12, 70.0, 19.0)
    monkeypatch.setattr("neuralpower.learn.networks.calibrate.measure_layers", lambda *_, **__: ([], []))
    monkeypatch.setattr("neuralpower.learn.networks.calibrate.calibrate", lambda *_: spoilt)
    with pytest.raises(DeviceError, match="1900% off on average.*nothing written"):
        calibrate(str(predictor), 12, 0, tmp_path / "mine.json")
    assert not list(tmp_path.glob("mine*"))


def test_what_cannot_be_calibrated_is_refused(predictor: Path, tmp_path: Path) -> None:
    refused(run("calibrate", "--from", predictor, "--samples", 2), "samples 2", "10 or more")
    refused(run("calibrate", "--from", tmp_path / "none.json"), "unknown predictor")
    refused(run("calibrate", "--from", "nvidia-t4"), "an NVIDIA GPU, but this machine is a CPU")
    flipped = json.loads(predictor.read_text())
    flipped["hardware"] |= {"accelerator": True, "platform": "nvidia"}  # a GPU's layers have other terms
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps(flipped))
    refused(run("calibrate", "--from", file), "by a version that described ", "train it again")


def test_a_device_s_sheet_needs_a_predictor_of_several(
    predictor: Path, networks: Path, tmp_path: Path
) -> None:
    asked = (
        "predict",
        f"{networks}:blocks",
        "--input-shape",
        "32",
        "--predictor",
        predictor,
        "--device-spec",
    )
    refused(run(*asked, "nvidia-l4"), "was trained on one device and works only for it")
    refused(run(*asked, "nvidia-l44"), "unknown device 'nvidia-l44'", "nvidia-l4")
    twice = (
        "predict",
        f"{networks}:blocks",
        "--input-shape",
        "32",
        "--predictor",
        "nvidia-float32@nvidia-l4",
    )
    refused(run(*twice, "--device-spec", "nvidia-t4"), "nvidia-l4 and device nvidia-t4 both name a device")
    refused(run(*asked, "nvidia-t4", "--device", "l4"), "--device l4 and --device-spec nvidia-t4 both name")
    sheet = tmp_path / "sheet.json"
    sheet.write_text(json.dumps({"schema": 1, "name": "x", "class": "gpu", "values": {"cores": 0}}))
    refused(run(*asked, sheet), "has no 'memory_bytes_per_s'")


def test_several_datasets_of_unknown_peaks_are_refused(tmp_path: Path) -> None:
    folders = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "dataset.json").write_text(json.dumps({"schema": 1, "device": name}))
        (folder / "softmax.csv").write_text("rows,width,runtime_s\n8,16,0.001\n")
        folders.append(folder)
    refused(run("train-predictor", *folders, "--out", tmp_path / "p.json"), "those of 'one' are not known")
