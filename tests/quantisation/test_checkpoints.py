"""Checkpoints with a `quantization_config`: what is quantised, how, what is excluded, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from neuralpower.errors import ModelError
from neuralpower.layers.matrix_product import MatrixProduct
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.sources import resolve
from neuralpower.quantisation.asked import parsed
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.totals import Quantised
from neuralpower.trace.passes.quantisation import quantised
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1024}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES, **HEADS}
EXPERTS = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **SIZES, **HEADS}
EXPERTS |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
IN_LAYERS = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 512)  # weights of fully connected layers
PLAIN = 2 * IN_LAYERS + 2 * 2 * 1024 * 256 + 2 * 5 * 256 + 4 * 2 * 32  # bytes, with norms and frequencies

Folder = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Writes a checkpoint's configuration."""

    def write(quantization: Any, beside: Any = None, **values: Any) -> str:
        config = {**(values or LLAMA), **({"quantization_config": quantization} if quantization else {})}
        (tmp_path / "config.json").write_text(json.dumps(config))
        if beside is not None:
            (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
        return str(tmp_path)

    return write


def traced(model: str, asked: str | None = None) -> tuple[Trace, Quantised]:
    """The network's pass over 64 tokens with its weights quantised."""
    source = resolve(model)
    module = source.build("meta", torch.bfloat16)
    inputs = source.inputs(module, InputRequest(1, 64, None, torch.bfloat16), "meta")
    plain = trace(module, inputs.args, inputs.kwargs)
    scheme: Scheme | None = parsed(asked) if asked else source.weights
    assert scheme is not None
    found = quantised(plain, scheme)
    assert found.quantised is not None
    assert found.quantised.plain_bytes == sum(w.bytes for w in plain.weights)
    held = sum(storage.bytes for storage in found.storages if storage.part == "weights")
    assert held == found.quantised.bytes  # which the memory's model sums up
    return found, found.quantised


def products(found: Trace) -> dict[str, MatrixProduct]:
    """The products of the second layer and the head, by the last names of their modules."""
    named = {call.path.rpartition(".")[2]: call.layer for call in found.calls if call.weight}
    return {name: layer for name, layer in named.items() if isinstance(layer, MatrixProduct)}


def groups(**group: Any) -> dict[str, Any]:
    """The fields of compressed-tensors with one group."""
    found: dict[str, Any] = {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}
    found |= {name: group.pop(name) for name in ("format", "ignore") if name in group}
    return {**found, "config_groups": {"group_0": {"targets": ["Linear"], **group}}}


FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FLOAT4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
WHOLE = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
TORCHAO = {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 128}}}
HQQ = {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}
MATRICES = 2 * 7
OUTPUTS = 2 * (256 + 256 + 2 * 128 + 2 * 512 + 256)  # of all layers


@pytest.mark.parametrize(
    ("config", "bits", "beside", "words"),
    [
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            4,
            IN_LAYERS // 128 * 2.5,
            "int4, groups of 128",
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            4,
            IN_LAYERS // 128 * 2.5 + 4 * 2 * (6 * 256 + 512),
            "int4, groups of 128",
        ),
        (
            {"quant_method": "gptq", "bits": 3, "group_size": -1},
            3,
            OUTPUTS * 19 / 8 + 4 * 2 * (6 * 256 + 512),
            "int3, a scale per output",
        ),
        (NF4, 4, IN_LAYERS / 64 * 4 + MATRICES * 64, "nf4, groups of 64"),
        (
            {**NF4, "bnb_4bit_use_double_quant": True},
            4,
            IN_LAYERS / 64 + IN_LAYERS / 64 / 256 * 4 + MATRICES * (64 + 1024 + 4),
            "nf4, groups of 64",
        ),
        ({"load_in_8bit": True}, 8, 4 * OUTPUTS, "int8, a scale per output, activations int8"),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
            8,
            IN_LAYERS / 128**2 * 4,
            "fp8, blocks of 128 x 128, activations fp8",
        ),
        ({"quant_method": "fp8"}, 8, 4 * MATRICES, "fp8, a scale per matrix, activations fp8"),
        (
            {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]},
            8,
            4 * OUTPUTS + 4 * MATRICES,
            "fp8, a scale per output, activations fp8",
        ),
        ({"quant_method": "mxfp8"}, 8, IN_LAYERS / 32, "mxfp8, groups of 32, activations mxfp8"),
        (
            groups(format="pack-quantized", weights=WHOLE),
            4,
            IN_LAYERS / 64 + 16 * MATRICES,
            "int4, groups of 128",
        ),
        (
            groups(format="pack-quantized", weights={**WHOLE, "symmetric": False, "actorder": "group"}),
            4,
            IN_LAYERS // 128 * 2.5 + 16 * MATRICES + 4 * 2 * (6 * 256 + 512),
            "int4, groups of 128",
        ),
        (
            groups(format="float-quantized", weights=FLOAT8, input_activations=TOKENS),
            8,
            2 * OUTPUTS,
            "fp8, a scale per output, activations fp8",
        ),
        (
            groups(
                format="int-quantized",
                weights={**FLOAT8, "type": "int"},
                input_activations={**TOKENS, "type": "int"},
            ),
            8,
            2 * OUTPUTS,
            "int8, a scale per output, activations int8",
        ),
        (
            groups(weights={**FLOAT8, "strategy": "block", "block_structure": [128, 128]}),
            8,
            IN_LAYERS / 128**2 * 2,
            "fp8, blocks of 128 x 128",
        ),
        (
            groups(format="nvfp4-pack-quantized", weights=FLOAT4, input_activations=FLOAT4),
            4,
            IN_LAYERS / 16 + 8 * MATRICES,
            "nvfp4, groups of 16, activations nvfp4",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            4,
            IN_LAYERS / 16 + 8 * MATRICES,
            "nvfp4, groups of 16, activations nvfp4",
        ),
        ({"quant_method": "torchao", "quant_type": TORCHAO}, 4, IN_LAYERS / 128 * 4, "int4, groups of 128"),
        (
            {"quant_method": "torchao", "quant_type": "int8_weight_only"},
            8,
            2 * OUTPUTS,
            "int8, a scale per output",
        ),
        (
            {"quant_method": "hqq", "quant_config": HQQ, "skip_modules": ["lm_head"]},
            4,
            IN_LAYERS / 64 * 4,
            "int4, groups of 64",
        ),
        ({"quant_method": "quanto", "weights": "int4"}, 4, IN_LAYERS / 128 * 4, "int4, groups of 128"),
        ({"quant_method": "eetq"}, 8, 2 * OUTPUTS, "int8, a scale per output"),
    ],
    ids=lambda value: str(value.get("quant_method", "")) if isinstance(value, dict) else "",
)
def test_bytes_are_those_of_the_checkpoint(
    folder: Folder, config: dict[str, Any], bits: int, beside: float, words: str
) -> None:
    _, found = traced(folder(config))
    assert found.plain_bytes == PLAIN
    assert found.words == words
    assert found.bytes == PLAIN - 2 * IN_LAYERS + IN_LAYERS * bits // 8 + beside
    assert found.left_out == ("model.embed_tokens", "lm_head")
    assert found.checkpoint


def test_products_take_weights_as_they_lie(folder: Folder) -> None:
    awq = products(traced(folder({"quant_method": "awq"}))[0])
    assert awq["q_proj"].weights_dtype == "uint4"
    assert awq["q_proj"].weights_group == 128
    assert awq["q_proj"].dtype == "bfloat16"
    assert not awq["lm_head"].operand_types.quantised
    assert awq["q_proj"].bytes().weights == 256 * 256 // 2 + 256 * 2 * 20 // 8
    blocks = products(traced(folder({"quant_method": "fp8", "weight_block_size": [128, 128]}))[0])["q_proj"]
    assert (blocks.dtype, blocks.output_dtype, blocks.weights_dtype) == ("float8_e4m3fn", "bfloat16", "")
    assert (blocks.weights_group, blocks.weights_rows_group, blocks.input_group) == (128, 128, 128)
    assert blocks.quantises
    assert blocks.bytes().weights == 256 * 256 + 2 * 2 * 4


@pytest.mark.parametrize(
    ("config", "stays"),
    [
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.mlp", "lm_head"]},
            {"gate_proj", "up_proj", "down_proj", "lm_head"},
        ),
        ({"quant_method": "fp8", "modules_to_not_convert": ["down_proj"]}, {"down_proj"}),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["v_proj"]},
            {"v_proj"},
        ),
        ({"quant_method": "gptq", "dynamic": {r"-:.*\.o_proj": {}}}, {"o_proj", "lm_head"}),
        ({"quant_method": "gptq", "lm_head": True}, set()),
        (
            groups(ignore=["re:.*self_attn.[qk]_proj", "lm_head"], weights=WHOLE),
            {"q_proj", "k_proj", "lm_head"},
        ),
        (groups(ignore=["model.layers.1.self_attn.q_proj"], weights=WHOLE), {"q_proj"}),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["model.layers.1.mlp*", "lm_head"]},
            {"gate_proj", "up_proj", "down_proj", "lm_head"},
        ),
    ],
)
def test_modules_left_out_stay_as_they_are(folder: Folder, config: dict[str, Any], stays: set[str]) -> None:
    found = products(traced(folder(config))[0])
    assert {name for name, layer in found.items() if not layer.operand_types.quantised} == stays


def test_groups_of_a_checkpoint_may_differ(folder: Folder) -> None:
    config = groups(weights=FLOAT8)
    rest = {"targets": ["re:.*mlp.*"], "weights": WHOLE, "input_activations": None}
    config["config_groups"] = {"group_0": rest, "group_1": config["config_groups"]["group_0"]}
    found = products(traced(folder(config))[0])
    assert {found[name].weights_dtype for name in ("gate_proj", "up_proj", "down_proj")} == {"int4"}
    assert found["q_proj"].weights_dtype == "float8_e4m3fn"
    more = {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*q_proj": {"bits": 8}}}
    found = products(traced(folder(more))[0])
    assert (found["q_proj"].weights_dtype, found["k_proj"].weights_dtype) == ("int8", "uint4")


def test_experts_are_quantised_and_routers_are_not(folder: Folder) -> None:
    plain, _ = traced(folder({"quant_method": "fp8", "weight_block_size": [128, 128]}, **EXPERTS))
    found, totals = traced(folder(groups(weights={**WHOLE, "group_size": 32}), **EXPERTS))
    assert "model.layers.*.mlp.gate" in totals.left_out
    stacked = [call.layer for call in found.calls if "experts" in call.weight]
    assert {getattr(layer, "weights_dtype", "") for layer in stacked} == {"int4"}
    stacked = [call.layer for call in plain.calls if "experts" in call.weight]
    assert {layer.dtype for layer in stacked} == {"float8_e4m3fn"}
    ignored = ["re:.*experts.*down_proj", "lm_head"]
    found, _ = traced(folder(groups(ignore=ignored, weights={**WHOLE, "group_size": 32}), **EXPERTS))
    by_name = {call.weight.rpartition(".")[2]: call.layer for call in found.calls if "experts" in call.weight}
    assert getattr(by_name["gate_up_proj"], "weights_dtype", "") == "int4"
    assert getattr(by_name["down_proj"], "weights_dtype", "") == ""


def test_gpt_oss_takes_what_its_authors_say(folder: Folder) -> None:
    """Model card of gpt-oss (arXiv:2508.10925), table 1: the checkpoint of the smaller one is 12.8 GiB."""
    left_out = "model.layers.*.self_attn model.layers.*.mlp.router model.embed_tokens lm_head".split()
    config = {"quant_method": "mxfp4", "modules_to_not_convert": left_out}
    sizes = {"hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "vocab_size": 201_088}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64}
    experts = {"num_local_experts": 32, "num_experts_per_tok": 4}
    about = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}
    _, found = traced(folder(config, **about, **sizes, **heads, **experts))
    assert found.words == "mxfp4, groups of 32"
    assert found.bits == 4.25
    assert round(found.bytes / 2**30, 1) == 12.8


def test_a_file_beside_the_configuration_says_it_too(folder: Folder) -> None:
    beside = {
        "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"], "kv_cache_quant_algo": None}
    }
    _, found = traced(folder(None, beside))
    assert found.words == "fp8, a scale per matrix, activations fp8"
    assert found.bytes == PLAIN - IN_LAYERS + 8 * MATRICES


def test_layers_of_mixed_precision_have_their_own(folder: Folder) -> None:
    layers = {"model.layers.1.mlp.up_proj": {"quant_algo": "W4A16_AWQ", "group_size": 64}}
    layers["model.layers.1.self_attn.q_proj"] = {"quant_algo": "FP8"}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    found = products(traced(folder(config))[0])
    assert (found["up_proj"].weights_dtype, found["up_proj"].weights_group) == ("int4", 64)
    assert found["q_proj"].dtype == "float8_e4m3fn"
    assert not found["k_proj"].operand_types.quantised


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "aqlm"}, "quantized by 'aqlm', which is not known; known are .*awq.*=null"),
        ({"bits": 4}, "quantized by 'none', which is not known"),
        (
            {"quant_method": "awq", "bits": 8},
            r"bits of its quantization_config \(awq\) is 8, but must be one of 4",
        ),
        ({"quant_method": "gptq", "bits": 5}, "bits of .* is 5, but must be one of 2, 3, 4, 8"),
        ({"quant_method": "gptq", "group_size": 0}, "group_size of .* is 0, but must be 1 or more, or -1"),
        ({"quant_method": "gptq", "group_size": "128"}, "group_size of .* must be a whole number"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size .* must be two sides"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "must be a list of modules' names"),
        ({"quant_method": "fp8", "activation_scheme": "odd"}, "must be one of dynamic, static"),
        (
            {"quant_method": "bitsandbytes"},
            "load_in_4bit of .* is missing, but must be true, or load_in_8bit",
        ),
        ({**NF4, "bnb_4bit_quant_type": "nf5"}, "must be one of nf4, fp4"),
        (
            {"quant_method": "compressed-tensors"},
            "config_groups .* is missing, but must be an object of groups",
        ),
        (groups(weights={**WHOLE, "num_bits": 5}), "num_bits .* is 5, but must be 4 or 8"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, "quant_algo .* 'fp3', but must be one of fp8"),
        ({"quant_method": "torchao", "quant_type": "odd"}, "quant_type .* 'odd', but must be one of int4"),
        ({"quant_method": "hqq", "nbits": 7}, "nbits .* is 7, but must be one of 2, 3, 4, 8"),
        ({"quant_method": "quanto", "weights": "int3"}, "weights .* must be one of int8, float8"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Folder, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(folder(config))


def test_a_pattern_that_is_none_is_refused(folder: Folder) -> None:
    model = folder({"quant_method": "fp8", "modules_to_not_convert": ["model.(layers"]})
    with pytest.raises(ModelError, match="not a regular expression"):
        traced(model)
