"""The dtype that a network has by itself, wherever it is stated, and what a cast of it moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neuralpower
from neuralpower.cli import parsing
from neuralpower.networks.libraries.config_files import dtype_in
from neuralpower.networks.sources import published_dtype, resolve
from tests.program import done

BERT = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "architectures": ["GPT2LMHeadModel"]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
NETWORK = """
import torch
from torch import nn

def half():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU()).bfloat16()

def example_inputs(batch_size):
    return torch.ones(batch_size, 64)
"""


def folder(at: Path, values: dict[str, Any]) -> str:
    """A folder with that config.json."""
    at.mkdir(exist_ok=True)
    (at / "config.json").write_text(json.dumps(values))
    return str(at)


@pytest.mark.parametrize(
    ("values", "stated"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "torch.bfloat16"}, "bfloat16"),
        ({"torch_dtype": "BF16"}, "bfloat16"),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, "float16"),  # transformers reads `dtype` first
        ({"dtype": None, "torch_dtype": "float16"}, "float16"),
        ({"dtype": {"text_config": "bfloat16"}}, "bfloat16"),
        ({"text_config": {"torch_dtype": "bfloat16"}}, "bfloat16"),
        ({"vision_config": {"dtype": "float16"}}, "float16"),
        ({"vision_config": {"dtype": "float32"}, "text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"thinker_config": {"text_config": {"dtype": "bfloat16"}}}, "bfloat16"),
        ({"quantization_config": {"quant_method": "awq"}}, "float16"),
        ({"quantization_config": {"quant_method": "fp8"}, "torch_dtype": "float8_e4m3fn"}, "bfloat16"),
        ({"quantization_config": {"quant_method": "gptq"}, "torch_dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float8_e4m3fn"}, None),
        ({"dtype": 16}, None),
        ({}, None),
    ],
)
def test_the_dtype_is_read_wherever_a_configuration_states_it(
    values: dict[str, Any], stated: str | None
) -> None:
    assert dtype_in(values) == stated


def test_an_override_of_the_dtype_counts(tmp_path: Path) -> None:
    place = folder(tmp_path / "net", {**BERT, "torch_dtype": "bfloat16"})
    assert published_dtype(f"{place}?torch_dtype=float16") == "float16"
    assert published_dtype(f"{place}/config.json") == "bfloat16"
    assert published_dtype("transformers:bert?dtype=bfloat16") == "bfloat16"
    assert published_dtype("gpt2?dtype=float16") == "float16"
    assert published_dtype("transformers:bert") is None


def test_every_command_takes_a_folders_own_dtype(tmp_path: Path) -> None:
    place = folder(tmp_path / "net", {**GPT2, "torch_dtype": "bfloat16", "quantization_config": AWQ})
    sizes = ("--seq-len", "8")
    assert "batch 1, bfloat16" in done("predict", place, *sizes, "--device", "l4")
    swept = done("sweep", place, *sizes, "--device", "l4", "--batch-size", "1", "--json")
    assert {one["dtype"] for one in json.loads(swept)["points"]} == {"bfloat16"}
    half, whole = (
        json.loads(done("fit", place, *sizes, "--device", "l4", "--json", *more))["memory"]["weights_bytes"]
        for more in ((), ("--dtype", "float32"))
    )
    assert half < whole
    assert neuralpower.predict(place, device="l4", seq_len=8).dtype == "bfloat16"
    assert neuralpower.predict(Path(place), device="l4", seq_len=8).dtype == "bfloat16"
    candidate = {"model": place, "seq_len": 8}
    plain, asked = neuralpower.score([candidate, {**candidate, "dtype": "bfloat16"}], device="l4")
    assert plain.runtime_s == asked.runtime_s
    one = {"seq_len": 8, "device": "l4", "phase": "forward"}
    wide = neuralpower.memory(place, dtype="float32", **one)
    assert neuralpower.memory(place, **one).weights_bytes < wide.weights_bytes


def test_configuration_objects_modules_and_builders_have_their_own_dtype(tmp_path: Path) -> None:
    from transformers import BertConfig

    assert published_dtype(BertConfig(dtype="bfloat16")) == "bfloat16"
    assert published_dtype(BertConfig()) is None
    assert published_dtype(nn.Linear(2, 2).half()) == "float16"
    assert published_dtype(lambda: nn.Linear(2, 2).bfloat16()) == "bfloat16"
    (tmp_path / "net.py").write_text(NETWORK)
    model = f"{tmp_path}/net.py:half"
    assert parsing.usual_dtype(model) == "bfloat16"
    assert neuralpower.predict(model, device="h100").dtype == "bfloat16"
    program = torch.export.export(nn.Linear(4, 4).bfloat16(), (torch.ones(2, 4, dtype=torch.bfloat16),))
    torch.export.save(program, tmp_path / "net.pt2")
    assert published_dtype(f"{tmp_path}/net.pt2") == "bfloat16"


class Dequantised(nn.Module):
    """A linear layer in bfloat16, with a scale in float32 and weights of 8 bits that it unpacks."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
        self.router = nn.Parameter(torch.ones(4, 64))
        self.register_buffer("weight", torch.zeros(32, 64).to(torch.float8_e4m3fn))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("mean", torch.zeros(64, dtype=torch.bfloat16))
        self.register_buffer("codes", torch.zeros(8, dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, 64] -> [batch, 32]."""
        return nn.functional.linear(self.plain(x) - self.mean, self.weight.to(x.dtype))


class Scaled(nn.Module):
    """A product of 8 bits with scales in float32, as torch takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
        self.weight = nn.Parameter(torch.zeros(128, 64).to(torch.float8_e4m3fn), requires_grad=False)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, 64] -> [batch, 128]."""
        short, one = self.plain(x).to(torch.float8_e4m3fn), self.scale
        return torch._scaled_mm(short, self.weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def test_a_cast_moves_tensors_of_the_main_dtype_alone() -> None:
    moved = resolve(Dequantised()).build("meta", torch.float16)
    types = {name: tensor.dtype for name, tensor in (*moved.named_parameters(), *moved.named_buffers())}
    assert types == {
        "plain.weight": torch.float16,
        "mean": torch.float16,
        "router": torch.float32,
        "scale": torch.float32,
        "weight": torch.float8_e4m3fn,
        "codes": torch.int8,
    }
    built = resolve(Dequantised).build("meta", torch.float16)
    assert {name: t.dtype for name, t in built.state_dict().items()} == types


def test_weights_of_8_bits_count_a_byte_each() -> None:
    # bfloat16: 64 x 64 of the layer, 64 of the mean; float32: 4 x 64, a scale; a byte: 32 x 64, 8 codes
    nbytes = 2 * (64 * 64 + 64) + 4 * (4 * 64 + 1) + 32 * 64 + 8
    found = neuralpower.memory(Dequantised(), (16, 64), device="h100", phase="forward")
    assert found.weights_bytes == nbytes
    assert neuralpower.predict(Dequantised(), (16, 64), device="h100").dtype == "bfloat16"


def test_a_product_of_8_bits_is_followed_in_its_own_types() -> None:
    inputs = torch.ones(16, 64, dtype=torch.bfloat16)
    assert Scaled()(inputs).shape == (16, 128)  # torch runs it here
    found = neuralpower.predict(Scaled(), (16, 64), device="h100")
    assert [row.flops for row in found.by_kind() if row.kind == "matmul"] == [2 * 16 * 64 * 128]


def test_an_input_of_8_bits_stays_so() -> None:
    class Unpacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = nn.Linear(64, 64, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.plain(x.float())

    short = torch.zeros(16, 64).to(torch.float8_e4m3fn)
    found = neuralpower.predict(Unpacked(), (short,), device="h100")
    assert {"movement", "linear"} <= {row.kind for row in found.by_kind()}  # the first is the cast
