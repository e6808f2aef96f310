"""The Python interface: what the documentation shows runs, and answers as the command line does."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import neuralpower
from neuralpower.api.loaded import LoadedPredictor
from neuralpower.errors import InputError, ModelError, PredictorError, StepError
from neuralpower.layers.rows import to_row
from neuralpower.networks.phases import Phase
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.request import Request

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def predictor() -> LoadedPredictor:
    return neuralpower.load("amd-epyc-2c")


def test_a_name_is_predicted_as_on_the_command_line(predictor: LoadedPredictor) -> None:
    said = predictor.predict("zoo:deep_mnist", batch_size=4)
    assert said == predict_request(Request("zoo:deep_mnist", 4), predictor.predictor)[0]


def test_a_prediction_lists_the_trace_passes_that_ran(predictor: LoadedPredictor) -> None:
    recipe = neuralpower.Recipe(accumulation=2)
    step = predictor.predict("zoo:deep_mnist", batch_size=4, phase="training", recipe=recipe)
    assert step.to_json()["passes"] == ["forward", "backward", "accumulation", "optimizer"]
    assert predictor.predict("zoo:deep_mnist").to_json()["passes"] == ["forward"]


def test_inputs_in_hand_are_the_same_as_inputs_made(predictor: LoadedPredictor) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    given = predictor.predict(model, torch.zeros(4, 8))
    made = predictor.predict(model, batch_size=4, input_shape=(8,))
    assert given == made
    assert (given.batch_size, given.memory) == (4, made.memory)
    assert predictor.predict(model, {"input": torch.zeros(4, 8)}).runtime_s == given.runtime_s


def test_a_dtype_may_be_torchs_own(predictor: LoadedPredictor) -> None:
    named, own = (predictor.predict("zoo:deep_mnist", dtype=dtype) for dtype in ("float32", torch.float32))
    assert own.to_json() == named.to_json()


def test_an_empty_batch_is_refused(predictor: LoadedPredictor) -> None:
    with pytest.raises(InputError, match="inputs hold no sample"):
        predictor.predict(nn.Linear(4, 4), torch.randn(0, 4))


def test_it_is_said_where_given_inputs_become_another_batch(
    predictor: LoadedPredictor, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\ndef steps():\n    return nn.LSTM(16, 16), "
        "torch.randn(35, 2, 16)\n"
    )
    cut, whole = (predictor.predict(f"{file}:steps", batch_size=size) for size in (1, 35))
    (note,) = (text for text in cut.assumptions if "given inputs" in text)
    assert "35 long, counts as the batch and becomes 1; batch size 35 keeps them unchanged" in note
    assert not any("given inputs" in text for text in whole.assumptions)
    assert whole.flops == 35 * cut.flops


BRINGS = """
import torch
from torch import nn

def steps():
    return nn.LSTM(16, 16), torch.randn(35, 2, 16)

class Graph(nn.Module):
    def forward(self, nodes, edges):
        return nodes[edges[0]] + nodes[edges[1]]

def graph():
    return Graph(), (torch.randn(100, 8), torch.randint(0, 100, (2, 500)))

def image():
    return nn.Conv2d(3, 8, 3), torch.randn(3, 16, 16)
"""


def test_inputs_that_a_network_brings_stay_as_they_are(predictor: LoadedPredictor, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(BRINGS)
    for name, first in (("steps", 35), ("graph", 100), ("image", 3)):
        found = predictor.predict(f"{file}:{name}")
        assert found.batch_size == first
        assert not any("given inputs" in text for text in found.assumptions)
    gathered = predictor.predict(f"{file}:graph")
    assert [to_row(row.layer)["elements"] for row in gathered.rows if row.layer is not None] == [500 * 8] * 2
    with pytest.raises(
        InputError, match="seq_len is 9, but .*own.py:steps brings its inputs; leave seq_len out"
    ):
        predictor.predict(f"{file}:steps", seq_len=9)
    with pytest.raises(
        InputError, match="given inputs, 3 long, counts as the batch and becomes 2; batch size 3 keeps"
    ):
        predictor.predict(f"{file}:image", batch_size=2)


def test_an_exported_program_keeps_its_batch(predictor: LoadedPredictor, tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(8, 4), (torch.zeros(5, 8),))
    torch.export.save(program, tmp_path / "own.pt2")
    assert predictor.predict(str(tmp_path / "own.pt2")).batch_size == 5
    with pytest.raises(InputError, match="batch size is 1, but .* is exported for a batch of 5"):
        predictor.predict(str(tmp_path / "own.pt2"), batch_size=1)


def test_a_batch_of_numpys_numbers_can_be_written_as_json(predictor: LoadedPredictor) -> None:
    for given in ({}, {"inputs": torch.zeros(2, 784)}):
        found = predictor.predict("zoo:deep_mnist", **given, batch_size=np.int64(2))
        assert json.loads(json.dumps(found.to_json()))["batch_size"] == 2


def test_a_prediction_is_frozen_and_becomes_a_table(predictor: LoadedPredictor) -> None:
    found = predictor.predict("zoo:deep_mnist")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.flops = 0  # type: ignore[misc]
    table = found.to_pandas()
    assert table["runtime_s"].tolist() == [row.runtime_s for row in found.rows]
    assert table["power_w"].isna().all()


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.argmax()


def test_a_phase_of_a_language_model_may_be_a_name(predictor: LoadedPredictor) -> None:
    llama = (
        "transformers:llama?hidden_size=32&intermediate_size=64&num_hidden_layers=1&"
        "num_attention_heads=4&vocab_size=100"
    )
    assert predictor.predict(llama, phase="decode") == predictor.predict(
        llama, phase=neuralpower.Phase.decode()
    )


def test_what_cannot_be_asked_is_refused(predictor: LoadedPredictor) -> None:
    with pytest.raises(PredictorError, match="unknown predictor 'amd-epyc-2'"):
        neuralpower.load("amd-epyc-2")
    with pytest.raises(InputError, match="sizes and inputs are both given"):
        predictor.predict(nn.Linear(8, 8), torch.zeros(1, 8), seq_len=3)
    for number in (0, 2.5):
        with pytest.raises(InputError, match=f"batch size {number}: must be a whole number, 1 or more"):
            predictor.predict("zoo:deep_mnist", batch_size=number)
    with pytest.raises(InputError, match="seq_len is 2.5, but must be a whole number from 1"):
        predictor.predict("transformers:bert", seq_len=2.5)
    with pytest.raises(InputError, match="every size must be a whole number from 1"):
        predictor.predict("zoo:resnet18", input_shape=(3, 224.0, 224))
    for phase in ("sideways", Phase("sideways")):
        with pytest.raises(
            InputError,
            match="phase 'sideways': known: backward, decode, forward, generate, prefill, step",
        ):
            predictor.predict("zoo:deep_mnist", phase=phase)
    with pytest.raises(
        InputError, match="nothing to train on; wrap the network in a module that returns its loss$"
    ):
        predictor.predict(nn.Sequential(nn.Linear(8, 8), Largest()), torch.zeros(1, 8), phase="training")
    with pytest.raises(PredictorError, match="was trained on one device and works only for it"):
        predictor.on("nvidia-t4")
    with pytest.raises(InputError, match="its memory is unknown; give memory"):
        predictor.fit("zoo:deep_mnist")


@pytest.mark.parametrize(
    ("asked", "keywords", "said"),
    [
        ("score", {"candidates": 3}, "candidates 3: must be a list of JSON objects, or of lines"),
        (
            "score",
            {"candidates": '{"model": "zoo:alexnet"}'},
            "candidates '.*: must be a list of JSON objects",
        ),
        ("on", {"device": 3}, "unknown device '3'"),
        ("fit", {"batch": 3}, "unknown field of a request 'batch': did you mean batch_size"),
        ("fit", {"dtype": 3}, "unknown dtype 3: known are float64"),
        (
            "fit",
            {"phase": "training", "accumulation": "3"},
            "accumulation '3': must be 1 micro-batch or more",
        ),
        ("fit", {"phase": "training", "optimizer": 3}, "unknown optimizer '3'"),
        ("predict", {"phase": 3}, "unknown phase '3'"),
        ("predict", {"phase": "training", "recipe": "adam"}, "recipe 'adam': must be a Recipe"),
    ],
)
def test_an_argument_of_another_type_is_told_with_its_rule(
    predictor: LoadedPredictor, asked: str, keywords: dict[str, Any], said: str
) -> None:
    model = {"fit": {"model": "zoo:deep_mnist", "memory": "1GB"}, "predict": {"model": "zoo:deep_mnist"}}
    with pytest.raises(InputError, match=said):
        getattr(predictor, asked)(**model.get(asked, {}), **keywords)


def test_what_is_of_another_type_is_refused(predictor: LoadedPredictor) -> None:
    number: Any = 3
    assert [point.batch_size for point in predictor.sweep("zoo:deep_mnist", batch_size=3).points] == [3]
    with pytest.raises(InputError, match=r"3: must be a list; write \[3\]"):
        predictor.sweep("zoo:deep_mnist", dtype=number)
    with pytest.raises(InputError, match="input_shape is 3, but every size must be a whole number"):
        predictor.predict("zoo:deep_mnist", input_shape=number)
    assert "input_shape is 3" in predictor.sweep("zoo:deep_mnist", input_shape=number).points[0].error
    with pytest.raises(PredictorError, match="unknown predictor '3': known: amd-epyc-2c"):
        neuralpower.load(number)
    with pytest.raises(InputError, match="3 is not a network that can be run; give an nn.Module"):
        neuralpower.profile(number, 3)
    with pytest.raises(ModelError, match="must be Tensor, not int"):
        neuralpower.profile(nn.Linear(8, 8), 3)
    with pytest.raises(ModelError, match="give inputs, or an input_shape"):
        predictor.predict(nn.Linear(8, 8))


def test_importing_neuralpower_imports_no_torch() -> None:
    program = (
        "import sys, neuralpower; assert 'torch' not in sys.modules; assert 'load' in neuralpower.__all__"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_module_is_predicted_in_its_own_dtype(predictor: LoadedPredictor) -> None:
    half = nn.Sequential(nn.Linear(16, 8)).bfloat16()
    with pytest.raises(PredictorError, match="was not trained on dtype 'bfloat16'"):
        predictor.predict(half, torch.zeros(4, 16, dtype=torch.bfloat16))
    h200 = neuralpower.load("nvidia-h200-sxm-141gb")
    assert h200.predict(half, torch.zeros(4, 16, dtype=torch.bfloat16)).dtype == "bfloat16"
    with pytest.raises(
        InputError, match="inputs are float32, but dtype is bfloat16; give inputs of this dtype"
    ):
        h200.predict(half, {"input": torch.zeros(4, 16)}, dtype="bfloat16")
    assert predictor.predict(half, torch.zeros(4, 16), dtype="float32").dtype == "float32"
    assert (
        predictor.predict(nn.Sequential(nn.ReLU()), torch.zeros(4, 16)).dtype == "float32"
    )  # without weights
    assert half[0].weight.dtype == torch.bfloat16


def test_a_module_that_is_called_through_a_function_is_trained_as_any_and_left_alone(
    predictor: LoadedPredictor,
) -> None:
    plain, other = (nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(2))
    own = other[0].forward
    other[0].forward = lambda x: own(x)
    expected, found = (predictor.predict(net, torch.zeros(8, 64), phase="training") for net in (plain, other))
    assert (found.runtime_s, found.memory) == (expected.runtime_s, expected.memory)
    assert [weight.grad for weight in other.parameters()] == [None, None]


def test_a_step_that_asks_for_values_is_predicted_without_its_memory(predictor: LoadedPredictor) -> None:
    class Scaled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * float(input.abs().max())

    found = predictor.predict(Scaled(64, 64), torch.ones(8, 64), phase="training")
    assert found.training is not None
    assert found.memory is None
    assert any(text.startswith("its memory is not known: Scaled: a training step") for text in found.remarks)
    with pytest.raises(StepError, match="choose phase forward, or measure"):
        predictor.fit(Scaled(64, 64), memory="8GB", input_shape=(64,), phase="training")


def test_a_default_device_does_not_matter(predictor: LoadedPredictor) -> None:
    network = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def answers() -> list[object]:
        return [
            predictor.predict("zoo:deep_mnist"),
            predictor.predict(network, batch_size=2, input_shape=(8,), phase="training"),
            predictor.sweep("zoo:deep_mnist").points,
            predictor.fit("zoo:deep_mnist", memory="1GB"),
            predictor.score([{"model": "zoo:deep_mnist"}]),
        ]

    with torch.device("meta"):
        elsewhere = answers()
    assert elsewhere == answers()


def test_a_prediction_leaves_loggers_and_random_states_as_they_were(predictor: LoadedPredictor) -> None:
    class Drawing(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * (random.random() + np.random.rand() + float(torch.rand([])))

    logger = logging.getLogger("torch._subclasses.fake_tensor")

    def states() -> list[object]:
        return [random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist(), logger.level]

    network = Drawing(8, 8)
    before = states()
    predictor.predict(network, torch.zeros(1, 8), phase="training")
    assert states() == before


def test_a_module_is_swept_and_fitted_with_its_own_dtype_and_shape(predictor: LoadedPredictor) -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 26 * 26, 10))
    swept = predictor.sweep(network, batch_size=(1, 8), input_shape=(1, 28, 28))
    asked = [
        predictor.predict(network, batch_size=n, input_shape=(1, 28, 28)).runtime_s.value for n in (1, 8)
    ]
    assert [point.runtime_s for point in swept.points] == pytest.approx(asked)
    whole = predictor.fit(network, memory="8GB", input_shape=(1, 28, 28)).memory.weights_bytes
    half = predictor.fit(network.bfloat16(), memory="8GB", input_shape=(1, 28, 28)).memory.weights_bytes
    assert whole == 2 * half > 0


def test_parameters_that_take_no_part_are_named() -> None:
    class Two(nn.Module):
        """Reads texts, and images where there are any."""

        def __init__(self) -> None:
            super().__init__()
            self.text = nn.Linear(8, 8)
            self.image = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))

        def forward(self, text: Tensor, image: Tensor | None = None) -> Tensor:
            return self.text(text) if image is None else self.text(text) + self.image(image)

    predictor, x = neuralpower.load("amd-epyc-2c"), torch.zeros(2, 8)
    for phase in ("forward", "training"):
        # 8 x 16 + 16 and 16 x 8 + 8 of 8 x 8 + 8 more
        assert predictor.predict(Two(), x, phase=phase).remarks == (
            "80% of the parameters are not used: image; other inputs may use them",
        )
        assert predictor.predict(Two(), (x, x), phase=phase).remarks == ()
