"""A predictor of a user's own device, and a spec sheet of the same name: they belong together."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

import neuralpower
from neuralpower.errors import PredictorError
from tests.program import done, run

NET = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))

def example_inputs(batch_size):
    return torch.ones(batch_size, 256)
"""
PEAKS = {"peak_flops_per_s": {"float32": 1e13}, "memory_bytes_per_s": 2e11}
SHEET = {
    "schema": 1,
    "name": "My Board",
    "class": "gpu",
    "vendor": "Acme",
    "aliases": ["Acme MB-1"],
    "values": {
        name: {"value": value, "source": "its maker"}
        for name, value in {
            "peak_flops_float32": 1e13,
            "memory_bytes_per_s": 2e11,
            "memory_bytes": 8e9,
            "cores": 16,
        }.items()
    },
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a predictor of a device that nobody knows, its sheet, a network and its measured time."""
    folder = tmp_path_factory.mktemp("own")
    drawn = random.Random(0)
    for name, hardware in (("mine", PEAKS), ("bare", {})):
        (folder / name).mkdir()
        about = {"schema": 1, "device": "My Board", "hardware": hardware}
        (folder / name / "dataset.json").write_text(json.dumps(about))
        with (folder / name / "linear.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["rows", "in_features", "out_features", "bias", "runtime_s"])
            for _ in range(80):
                a, b, c = (2 ** drawn.randint(4, 11) for _ in range(3))
                rows.writerow([a, b, c, 1, 1e-5 + 2 * a * b * c / 5e12])
        done("train-predictor", folder / name, "--out", folder / f"{name}.json")
    (folder / "board.json").write_text(json.dumps(SHEET))
    (folder / "other.json").write_text(json.dumps({**SHEET, "name": "Other", "aliases": []}))
    (folder / "net.py").write_text(NET)
    rows_ = f"model,batch_size,dtype,runtime_s,device\n{folder}/net.py:net,64,float32,5e-5,My Board\n"
    (folder / "networks.csv").write_text(rows_)
    return folder


def test_the_sheet_of_its_own_device_is_taken_and_says_how_networks_are_held(place: Path) -> None:
    how: dict[str, Any] = {"batch_size": 64, "predictor": place / "mine.json"}
    alone = neuralpower.predict(f"{place}/net.py:net", **how)
    there = neuralpower.predict(f"{place}/net.py:net", device=place / "board.json", **how)
    assert there.runtime_s == alone.runtime_s  # its regressors are those of the dataset
    assert alone.memory is not None and there.memory is not None
    assert alone.memory.framework_bytes < 2**25 < there.memory.framework_bytes  # a CPU's, an accelerator's
    loaded = neuralpower.load(place / "mine.json").on(place / "board.json")
    assert loaded.predict(f"{place}/net.py:net", batch_size=64).memory == there.memory
    assert loaded.fit(f"{place}/net.py:net", batch_size=64).room_bytes == 8e9
    printed = done(
        "predict", f"{place}/net.py:net", "-b", 64, "--predictor", place / "mine.json", "--device",
        place / "board.json",
    )  # fmt: skip
    assert "on My Board: expect" in printed and "measured on this device" in printed.splitlines()[1]


@pytest.mark.parametrize("name", ["other.json", "t4"])
def test_the_sheet_of_another_device_is_refused(place: Path, name: str) -> None:
    sheet = place / name if name.endswith(".json") else name
    with pytest.raises(PredictorError, match="was trained on one device and works only for it"):
        neuralpower.predict(f"{place}/net.py:net", device=sheet, predictor=place / "mine.json")


def test_an_alias_of_the_sheet_names_the_device_too(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mb.json").write_text(json.dumps({**SHEET, "name": "MB-1", "aliases": ["my  board"]}))
    found = neuralpower.load(place / "mine.json").on(tmp_path / "mb.json")
    assert found.predictor.platform.name == "accelerator"


def test_a_predictor_beside_the_sheet_is_found_by_the_sheets_name(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "board.json").write_bytes((place / "mine.json").read_bytes())
    found = neuralpower.predict(f"{place}/net.py:net", device=place / "board.json", batch_size=64)
    assert next(row for row in found.by_kind() if row.kind == "linear").basis == "in-range"


@pytest.mark.parametrize("device", [(), ("--device", "board.json")])
def test_measurements_of_the_device_are_compared_with_its_predictor_and_its_roofline(
    place: Path, device: tuple[str, ...]
) -> None:
    named = (device[0], place / device[1]) if device else ()
    asked = ("--measured", place / "networks.csv", "--predictor", f"{place}/mine.json,roofline")
    ran = run("evaluate", *asked, *named, "--trust-code", "--json")
    assert (ran.code, ran.err) == (0, "")
    data = json.loads(ran.out)
    assert set(data["networks"][0]["predictors"]) == {"mine", "roofline"}


def test_a_roofline_without_peaks_says_where_to_state_them(place: Path) -> None:
    asked = ("--measured", place / "networks.csv", "--predictor", f"{place}/bare.json,roofline")
    ran = run("evaluate", *asked, "--trust-code")
    assert "peaks of My Board are not known; give its sheet (--device FILE)" in ran.err
