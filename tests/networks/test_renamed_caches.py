"""Caches under either name that transformers gives them: `past_key_values`, and `cache` since 5.24."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers

from neuralpower.networks.caches import CACHES, cache_of
from neuralpower.networks.decoder import Decoder
from neuralpower.networks.inputs.size_limits import InputRequest

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PARENT: Any = transformers.LlamaForCausalLM
THEIRS = next(name for name in CACHES if name in inspect.signature(PARENT.forward).parameters)


class OfOld(PARENT):  # type: ignore[misc]  # transformers has no types here
    """A model whose forward calls its cache `past_key_values`."""

    def forward(self, input_ids: Any, past_key_values: Any = None, use_cache: bool = True) -> Any:
        output = PARENT.forward(self, input_ids, use_cache=use_cache, **{THEIRS: past_key_values})
        return type("Output", (), {"logits": output.logits, "past_key_values": cache_of(output)})()


class Renamed(PARENT):  # type: ignore[misc]  # transformers has no types here
    """A model whose forward calls its cache `cache`."""

    def forward(self, input_ids: Any, cache: Any = None, use_cache: bool = True) -> Any:
        output = PARENT.forward(self, input_ids, use_cache=use_cache, **{THEIRS: cache})
        return type("Output", (), {"logits": output.logits, "cache": cache_of(output)})()


def test_a_step_reads_the_cache_under_either_name() -> None:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=4, vocab_size=100)
    shapes = {}
    for name, kind in (("past_key_values", OfOld), ("cache", Renamed), (THEIRS, PARENT)):
        with torch.device("meta"):
            step = Decoder(kind(config), InputRequest(2)).decode(16)
        assert step.inputs is not None
        shapes[kind] = [tuple(layer.keys.shape) for layer in step.inputs.kwargs[name].layers]
    assert shapes[OfOld] == shapes[Renamed] == shapes[PARENT] == [(2, 4, 16, 8)] * 2
