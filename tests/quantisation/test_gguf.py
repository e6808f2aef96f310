"""Files of llama.cpp: sizes that are published, and which tensors of a mixture get more bits."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from neuralpower.layers.matrix_product import MatrixProduct
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.sources import resolve
from neuralpower.quantisation.asked import parsed
from neuralpower.quantisation.weights import LINEAR, Weight
from neuralpower.trace.passes.quantisation import quantised
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace

LLAMA = (
    "transformers:LlamaForCausalLM?hidden_size=4096&intermediate_size=14336&num_hidden_layers=32"
    "&num_attention_heads=32&num_key_value_heads=8&vocab_size=128256"
)


@cache
def llama() -> Trace:
    """Llama-3.1-8B, a pass over one token."""
    source = resolve(LLAMA)
    module = source.build("meta", torch.bfloat16)
    inputs = source.inputs(module, InputRequest(1, 1, None, torch.bfloat16), "meta")
    return trace(module, inputs.args, inputs.kwargs)


# GB of the files of Llama-3.1-8B-Instruct, as bartowski/Meta-Llama-3.1-8B-Instruct-GGUF lists them; each
# holds the tokenizer beside the tensors, 7.8 MB.
PUBLISHED = {"q2_k": 3.18, "q3_k_m": 4.02, "q3_k_l": 4.32, "q4_k_s": 4.69, "q4_k_m": 4.92, "q5_k_m": 5.73}
PUBLISHED |= {"q6_k": 6.60, "q8_0": 8.54, "iq3_m": 3.78, "iq4_xs": 4.45}
TOKENIZER = 7.8e6


@pytest.mark.parametrize(("name", "gigabytes"), PUBLISHED.items())
def test_files_have_the_size_that_is_published(name: str, gigabytes: float) -> None:
    found = quantised(llama(), parsed(name)).quantised
    assert found is not None
    assert found.bytes + TOKENIZER == pytest.approx(gigabytes * 1e9, abs=0.006e9)


def test_an_awq_checkpoint_has_the_size_of_its_tensors() -> None:
    """4 bits and 20 bits for 128 of 6,979,321,856 weights; other weights are bfloat16 or frequencies."""
    found = quantised(llama(), parsed("awq")).quantised
    in_layers = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336)
    rest = 2 * (2 * 128_256 * 4096 + 65 * 4096) + 2 * 64 * 4
    assert in_layers == 6_979_321_856
    assert found is not None
    assert found.bytes == in_layers // 2 + in_layers // 128 * 20 // 8 + rest == 5_727_855_104
    assert found.plain_bytes == 2 * in_layers + rest


def test_values_and_down_products_of_some_layers_get_more_bits() -> None:
    found = quantised(llama(), parsed("q4_k_m"))
    types = {
        call.weight.removeprefix("model.layers."): call.layer.weights_dtype
        for call in found.calls
        if isinstance(call.layer, MatrixProduct) and call.weight
    }
    more = {
        int(name.partition(".")[0]) for name, kind in types.items() if ".v_proj" in name and kind == "q6_k"
    }
    assert more == {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31}
    assert {int(n.partition(".")[0]) for n, kind in types.items() if "down" in n and kind == "q6_k"} == more
    assert types["lm_head.weight"] == "q6_k"
    assert {types[f"{i}.mlp.up_proj.weight"] for i in range(32)} == {"q4_k"}
    assert found.quantised is not None
    assert found.quantised.words == "Q4_K_M (81% Q4_K, 19% Q6_K)"
    assert found.quantised.left_out == ()


def test_products_that_blocks_do_not_divide_get_another_type() -> None:
    names = ("model.layers.0.mlp.up_proj", "model.layers.0.mlp.fc", "model.layers.0.mlp.odd")
    weights = [
        Weight(name=f"{name}.weight", sort=LINEAR, shape=(64, inputs), dtype="bfloat16", bytes=128 * inputs)
        for name, inputs in zip(names, (512, 32 * 9, 100), strict=True)
    ]
    forms = parsed("q4_k_s").forms(weights, {})
    found = [form and form.dtype for form in forms.values()]
    assert found == ["q4_k", "q5_0", "float16"]
