"""Every diff of CONTRIBUTING.md touches one file, and what it adds works from end to end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DIFFS = re.findall(
    r"^```diff\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M | re.S
)
PATHS = [re.findall(r"^\+\+\+ b/(\S+)$", diff, re.M) for diff in DIFFS]


def contents(folder: Path) -> dict[str, bytes]:
    """All files but compiled ones, by their paths."""
    files = (file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def apply(diff: str, folder: Path) -> None:
    """As `git apply` does, also where there is no git."""
    if shutil.which("git"):
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
        command = ["git", "apply", "-"]
        done = subprocess.run(
            command, input=diff, text=True, cwd=folder, env=environment, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return
    head, *hunks = re.split(r"^@@.*@@.*\n", diff, flags=re.M)
    file = folder / head.split("+++ b/")[1].strip()
    for lines in (hunk.splitlines(keepends=True) for hunk in hunks):
        old, new = ("".join(line[1:] for line in lines if line[0] in marks) for marks in (" -", " +"))
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        assert text.count(old) == 1 if old else not text, f"{file}: the context is not there"
        file.write_text(text.replace(old, new) if old else new, encoding="utf-8")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """(A copy of the package with all additions, the files that each of them changed)."""
    folder = tmp_path_factory.mktemp("contributed")
    for file in (*(ROOT / "neuralpower").rglob("*"), ROOT / "models" / "nvidia-float32.json"):
        if file.is_dir() or file.parent.name == "__pycache__":
            continue
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)  # without its mode: nobody may write to some checkouts
    changed, before = [], contents(folder)
    for diff in DIFFS:
        apply(diff, folder)
        after = contents(folder)
        changed.append([name for name in {**before, **after} if before.get(name) != after.get(name)])
        before = after
    return folder, changed


@pytest.fixture(scope="module")
def found(package: tuple[Path, list[list[str]]]) -> dict[str, Any]:
    """What a fresh process with these additions answers."""
    folder, _ = package
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, str(ROOT / "tests" / "additions.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    assert Path(answers["package"]).is_relative_to(folder), (
        "the additions are not in the package that was asked"
    )
    return answers


def kinds(prediction: dict[str, Any]) -> list[str]:
    return [layer["kind"] for layer in prediction["layers"]]


def test_there_is_a_diff_for_everything_that_can_be_added() -> None:
    places = (
        "layers",
        "dtypes.py",
        "ask/options.py",
        "prediction/request.py",
        "devices",
        "networks/sources",
        "trace/passes",
        "prediction/rows.py",
        "ask/words.py",
        "networks/phases.py",
        "networks/decoder.py",
        "measure/meters",
        "platforms",
    )
    assert len(PATHS) == len(places)
    for (path,), place in zip(PATHS, places, strict=True):
        assert path.startswith(f"neuralpower/{place}")


def test_each_addition_touches_one_file(package: tuple[Path, list[list[str]]]) -> None:
    _, changed = package
    assert changed == PATHS


def test_a_layer_kind_is_traced_priced_and_built(found: dict[str, Any]) -> None:
    prediction = found["kind"]["predicted"]
    assert kinds(prediction) == ["fourier"]
    assert prediction["flops"] == 5 * 64 * 1024 * 10 // 2
    assert prediction["unmodelled"] == []
    assert prediction["runtime_s"]["value"] > 0
    written, returned = found["kind"]["bytes"]
    assert written == returned


def test_a_dtype_is_known_to_options_sheets_and_layers(found: dict[str, Any]) -> None:
    # 21 numbers of 6 bits are 15.75 bytes, 7 are 5.25
    assert found["dtype"] == {"option": "float6_e3m2fn", "peak": 3e14, "weights": [16], "input": 6}


def test_an_option_is_a_flag_a_keyword_and_a_line_of_help(found: dict[str, Any]) -> None:
    option = found["option"]
    assert option["help"] and option["docstring"]
    assert option["command"] == option["python"] == "activation checkpointing of attention"
    assert option["refused"].startswith("selective: which parts checkpointing runs again")


def test_a_phase_is_predicted_and_only_its_sizes_are_taken(found: dict[str, Any]) -> None:
    phase = found["phase"]
    assert phase["name"] == phase["python"] == "score"
    # the head's product has a row for each of the 2 x 16 tokens; a prefill has one for each prompt, and the
    # choice of its next token
    more = 2 * 64 * 50257 * 2 * (16 - 1)
    assert phase["flops"] - phase["prefill flops"] == pytest.approx(more, rel=1e-3)
    assert phase["refused"].startswith("--context 16 belongs to --phase decode, not to score")


def test_a_device_is_listed_and_predicted_by_name(found: dict[str, Any]) -> None:
    assert "nvidia-rtx-2080-ti" in found["device"]["listed"]
    assert found["device"]["predicted"]["device"] == "NVIDIA GeForce RTX 2080 Ti"
    assert found["device"]["predicted"]["predictor"] == "nvidia-float32@nvidia-rtx-2080-ti"


def test_a_meter_is_listed_and_read(found: dict[str, Any]) -> None:
    assert "hwmon" in found["meter"]["listed"]
    assert found["meter"]["read"] == ["energy1_input", 2.5]


def test_a_platforms_devices_are_predicted_by_its_own_facts_and_its_rig_opens(found: dict[str, Any]) -> None:
    notes = found["platform"]["predicted"]["trace"]["notes"]
    assert any(note.startswith("the GPU shares memory with the processor") for note in notes)
    assert not any("A100" in note or "limit_w" in note for note in notes), "of other platforms"
    assert found["platform"]["refused"] == "device 'mps': torch sees no GPU of Apple's here; choose cpu"
    assert found["platform"]["opened"] == {"type": "mps", "platform": "apple"}


def test_a_pass_runs_in_its_place_and_is_named(found: dict[str, Any]) -> None:
    prediction = found["device"]["predicted"]  # of a network with batch norms
    assert prediction["passes"] == ["folding", "forward"]
    assert "conv2d" in kinds(prediction)
    assert "norm" not in kinds(prediction)
    assert "batch norms are folded into weights" in prediction["trace"]["notes"]


def test_a_column_of_a_result_stands_in_every_form(found: dict[str, Any]) -> None:
    table, markdown, written = (found["column"][form] for form in ("table", "md", "csv"))
    assert "FLOP  speed  " in re.sub(" +", "  ", table) and "| FLOP | speed | bound |" in markdown
    assert written.splitlines()[0].endswith(",energy_j,flops_per_s,step")
    assert all(layer["flops_per_s"] > 0 for layer in found["device"]["predicted"]["layers"] if layer["flops"])


def test_a_source_of_models_is_resolved_by_its_prefix(found: dict[str, Any]) -> None:
    answers = found["source"]
    assert kinds(answers["predicted"]) == ["linear", "activation", "linear"]
    assert answers["predicted"]["flops"] > 2 * (784 * 256 + 256 * 10)
    assert answers["refused"] == "'mlp:784': write two widths or more, as in mlp:784x256x10"
    assert "zoo:NAME, mlp:WIDTHxWIDTH, package.module:function" in answers["written"]
    assert answers["of data"] is None, "a source that runs no code may be named by data"
