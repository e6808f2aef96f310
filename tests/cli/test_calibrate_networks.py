"""`neuralpower calibrate --networks`: whole networks of one's own GPU move its predictor."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neuralpower.devices.spec import find_spec
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.networks.network_rows import read_totals
from neuralpower.learn.unmeasured.any_device import before_networks
from tests.program import done, run

DEVICE = "rtx-4090"
NETWORKS = ("alexnet", "resnet18", "squeezenet", "mobilenet_v1", "vgg11", "convmixer")
TIMES = {"convolution compute": log(1.5), "convolution memory": log(1.5), "norm memory": log(1.5)}


@pytest.fixture(scope="module")
def timed() -> pd.DataFrame:
    """Networks as timm's benchmark writes them, on a GPU whose convolutions take half as long again."""
    rows = [{"model": f"zoo:{name}", "batch": b, "dtype": "amp"} for name in NETWORKS for b in (128, 256)]
    table = pd.DataFrame(rows)
    start = before_networks(find_spec(DEVICE))
    assert start.law is not None
    totals, rejected = read_totals(table.assign(runtime_s=1.0), start.hardware)
    assert not rejected
    truth = replace(start, law=start.law.times(TIMES)).of_torch()
    found = truth.estimate_each([total.layers for total in totals])
    seconds = np.array([t.calls @ one.runtime_s for t, one in zip(totals, found, strict=True)])
    return table.assign(step_ms=1e3 * seconds, samples_per_s=table["batch"] / seconds, image="")


def test_a_moved_predictor_is_written_and_predicts_what_was_timed(
    timed: pd.DataFrame, tmp_path: Path
) -> None:
    file, out = tmp_path / "timed.csv", tmp_path / "mine.json"
    timed.to_csv(file, index=False)
    said = done("calibrate", "--from", DEVICE, "--networks", file, "--out", out).splitlines()
    assert said[0].startswith("12 networks: mean error ") and "(held-out networks)" in said[0]
    moved, last = said[1:-1], said[-1]
    assert moved and all(" x 1." in line and ", by zoo:" in line for line in moved[:1])
    assert last == f"predictor: {out}"
    written = json.loads(out.read_text())
    assert written["dataset"]["moved"][0]["networks"][0].startswith("zoo:")
    assert "12 whole networks" in out.with_suffix(".md").read_text()
    asked = ("predict", "zoo:resnet18", "--batch-size", 256, "--autocast", "float16", "--json")
    before, after = (
        json.loads(done(*asked, *place))["runtime_s"]
        for place in (("--device", DEVICE), ("--predictor", out))
    )
    wanted = timed.loc[(timed.model == "zoo:resnet18") & (timed.batch == 256), "step_ms"].item() / 1e3
    values = [one["value"] if isinstance(one, dict) else one for one in (before, after)]
    assert abs(values[1] / wanted - 1) < 0.5 * abs(values[0] / wanted - 1)
    assert "was measured on this device;" not in run(*asked, "--predictor", out).err
    assert load(out).others or load(out).regressors  # what else is known of the device answers, too


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": 1}, "1 usable network, 5 of different names needed"),
        ({"step_ms": 1e3}, "they are most likely milliseconds, but runtime_s is in seconds"),
        ({"layout": "nchw32"}, "unknown layout 'nchw32'"),
        ({"run": "tensorrt"}, "unknown run 'tensorrt'"),
        ({"batch": 128.5}, "batch is 128.5, but must be a whole number"),
        ({"model": "zoo:none"}, "unknown zoo network 'none'"),
    ],
)
def test_what_moves_nothing_is_refused_in_one_line(
    timed: pd.DataFrame, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    table, file = timed[timed.batch == 128].copy(), tmp_path / "timed.csv"
    for name, value in change.items():
        if name == "rows":
            table = table.head(1)
        elif name == "model":
            table = table.assign(model=value, step_ms=1.0)
        else:
            table[name] = 1e3 * table[name] if name == "step_ms" else value
    table.to_csv(file, index=False)
    ran = run("calibrate", "--from", DEVICE, "--networks", file, "--out", tmp_path / "mine.json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert words in ran.err
    assert not (tmp_path / "mine.json").exists()


def test_rows_without_a_time_are_listed_and_the_others_used(timed: pd.DataFrame, tmp_path: Path) -> None:
    file = tmp_path / "timed.csv"
    times = [float("nan"), -1.0, float("inf")]
    pd.concat([timed, timed.head(3).assign(step_ms=times)]).to_csv(file, index=False)
    ran = run("calibrate", "--from", DEVICE, "--networks", file, "--out", tmp_path / "mine.json")
    assert ran.code == 0
    assert all(
        f"skipped: runtime_s {text}: must be seconds above 0" in ran.err
        for text in ("empty", "-0.001", "inf")
    )


def test_unknown_networks_are_listed_and_the_others_used(timed: pd.DataFrame, tmp_path: Path) -> None:
    file = tmp_path / "timed.csv"
    pd.concat([timed, timed.head(1).assign(model="zoo:none")]).to_csv(file, index=False)
    ran = run("calibrate", "--from", DEVICE, "--networks", file, "--out", tmp_path / "mine.json")
    assert ran.code == 0
    assert "skipped: unknown zoo network 'none'" in ran.err


def test_devices_without_a_sheet_and_options_without_a_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "timed.csv"
    file.write_text("model,batch,runtime_s\n")
    small = tmp_path / "small.csv"  # the host sets the pace of small networks
    small.write_text("model,batch,runtime_s,dtype\n" + "zoo:resnet18,1,2.5,float16\n")
    for arguments, words in (
        (("--from", "my-gpu", "--networks", file), "neuralpower dataset init FOLDER --device-spec FILE"),
        (
            ("--from", "amd-epyc-2c", "--networks", file),
            "the name of a GPU with a spec sheet, or the file of one",
        ),
        (("--from", "amd-epyc-9654", "--networks", file), "is a CPU; leave it out to measure layers here"),
        (("--from", DEVICE, "--map", "batch=b"), "--networks FILE, which is not given"),
        (("--from", DEVICE, "--networks", file), "0 usable networks, 5 of different names needed"),
        (("--from", DEVICE, "--networks", small), "most likely milliseconds"),
    ):
        ran = run("calibrate", *arguments, "--out", tmp_path / "mine.json")
        assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
        assert words in ran.err
