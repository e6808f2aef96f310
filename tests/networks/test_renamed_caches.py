"""Caches under the name that transformers gives them since 5.24: `cache`, of arguments and of outputs."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from neuralpower.networks.decoder import Decoder
from neuralpower.networks.input_request import InputRequest

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


class Renamed(transformers.LlamaForCausalLM):  # type: ignore[misc]  # transformers has no types here
    """A model whose forward calls its cache `cache`."""

    def forward(self, input_ids: Any, cache: Any = None, use_cache: bool = True) -> Any:
        found = transformers.LlamaForCausalLM.forward(
            self, input_ids=input_ids, past_key_values=cache, use_cache=use_cache
        )
        return type("Output", (), {"logits": found.logits, "cache": found.past_key_values})()


def test_a_step_reads_the_cache_under_either_name() -> None:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=4, vocab_size=100)
    with torch.device("meta"):
        asked = Decoder(Renamed(config), InputRequest(2)).decode(16)
        usual = Decoder(transformers.LlamaForCausalLM(config), InputRequest(2)).decode(16)
    assert asked.inputs is not None and usual.inputs is not None
    layers = [
        inputs.kwargs[name].layers
        for inputs, name in ((asked.inputs, "cache"), (usual.inputs, "past_key_values"))
    ]
    shapes = [[tuple(layer.keys.shape) for layer in some] for some in layers]
    assert shapes[0] == shapes[1] == [(2, 4, 16, 8)] * 2
