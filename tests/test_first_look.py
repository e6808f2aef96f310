"""What a first user types: own inputs in `fit` and `sweep`, and errors that say what to write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import neuralpower
from neuralpower.errors import InputError, ModelError
from neuralpower.report.tables import prediction_table

MODEL = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.picture, self.about = nn.Conv2d(3, width, 3), nn.Linear(10, width)

    def forward(self, image, meta):
        return self.picture(image).mean((2, 3)) + self.about(meta)
"""


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.picture, self.about = nn.Conv2d(3, 8, 3), nn.Linear(10, 8)

    def forward(self, image: torch.Tensor, meta: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.picture(image).mean((2, 3)) + self.about(meta)
        return result


def given(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(batch, 3, 32, 32), torch.zeros(batch, 10)


def test_fit_takes_inputs_whose_batch_it_changes() -> None:
    found = neuralpower.fit(Two(), inputs=given(4), device="t4")
    assert found.fits and found.request is not None and found.request.batch_size == 4
    assert found.largest_batch is not None and found.largest_batch > 1000
    single = neuralpower.fit(Two(), inputs=given(1), device="t4")
    assert found.memory.inputs_bytes == 4 * single.memory.inputs_bytes
    assert not any("counts as the batch" in note for note in found.notes)


def test_sweep_takes_inputs_and_names_the_network() -> None:
    found = neuralpower.sweep(Two(), inputs=given(2), device="t4", batch_size=(1, 2))
    assert [(p.model, p.batch_size, p.error) for p in found.points] == [("Two", 1, ""), ("Two", 2, "")]


def test_inputs_at_the_place_of_the_memory_are_told_their_place() -> None:
    with pytest.raises(InputError, match=r"inputs are given by name: inputs=\.\.\.") as refused:
        neuralpower.fit(Two(), given(1), device="t4")
    assert len(str(refused.value)) < 250
    with pytest.raises(InputError, match="sizes and inputs"):
        neuralpower.fit(Two(), inputs=given(1), device="t4", seq_len=8)


@pytest.mark.parametrize("shape", [[], ["--input-shape", "3x32x32"]])
def test_a_network_of_two_inputs_is_told_the_function_to_write(tmp_path: Path, shape: list[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    command = [sys.executable, "-m", "neuralpower", "predict", "model.py:Two?width=64", "--device", "t4"]
    ran = subprocess.run([*command, *shape], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    said = "define example_inputs(batch_size) in model.py, which returns the tuple (image, meta)"
    assert said in ran.stderr


def test_a_network_of_one_input_is_not() -> None:
    with pytest.raises(ModelError) as refused:
        neuralpower.predict(nn.Conv2d(3, 8, 3), device="t4")
    assert "example_inputs" not in str(refused.value)


def test_top_keeps_the_largest_modules_in_their_order() -> None:
    found = neuralpower.predict("zoo:resnet18", device="t4")
    rows = found.by_module(2)
    largest = sorted(rows, key=lambda row: -row.runtime_s)[:2]
    lines = prediction_table(found, "module", 2, 2).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("---"))
    shown = [line.split()[0] for line in lines[start + 1 : start + 3]]
    assert shown == [row.path for row in rows if row in largest]
