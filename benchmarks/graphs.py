"""NeuSight's networks as lists of layers: built with transformers on meta, traced, made as measured.

It measured transformers 4.38 in float32 with eager attention. Three things have changed since, and are put
back here: how attention scales and masks its scores, a mask for BERT, and a loop over experts that each take
their whole capacity.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks.segments import segments as needed
from neuralpower.layers import Layer
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.movement import Movement
from neuralpower.layers.softmax import Softmax
from neuralpower.layers.training import backward_of
from neuralpower.trace.tracer import trace

ATTENTION = "as_measured"
AUTO = {
    ("BertLMHeadModel", "inf"): "SequenceClassification",
    ("BertLMHeadModel", "train"): "PreTraining",
    ("SwitchTransformersForConditionalGeneration", "inf"): "Seq2SeqLM",
    ("SwitchTransformersForConditionalGeneration", "train"): "Seq2SeqLM",
}  # the head that a configuration was measured with; others are causal language models


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float = 1.0,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Eager attention as transformers 4.38 had it: the same passes over the scores, in the same order."""
    scores = query @ key.transpose(2, 3)
    if position_bias is not None:  # Switch: the mask is added to the bias, once for all layers
        scores = scores + position_bias
    elif "GPT2" in type(module).__name__:
        allowed = torch.empty(1, 1, *scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = torch.where(allowed, scores / math.sqrt(query.shape[-1]), -math.inf)
    elif mask is not None and scaling == 1:  # OPT: its queries are scaled
        scores = torch.maximum(scores + mask, torch.tensor(-1e38, device=scores.device))
    elif mask is not None:
        scores = scores / math.sqrt(query.shape[-1]) + mask
    weights = nn.functional.dropout(torch.softmax(scores, dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class Experts(nn.Module):
    """All experts, each with as many tokens as it may take; which ones is data, how many was not."""

    def __init__(self, experts: nn.ModuleDict, rows: int) -> None:
        super().__init__()
        self.experts, self.rows = experts, rows

    def forward(self, hidden: Tensor, selected: Tensor, weights: Tensor) -> Tensor:
        """Hidden [tokens, width], in and out."""
        changed = hidden.clone()
        for expert in self.experts.values():
            changed[: self.rows] = expert(hidden[: self.rows])
        return changed * weights


def build(config: Path, mode: str, batch_size: int) -> nn.Module:
    """The network of a configuration, without weights, as it was measured in a mode ("inf" or "train")."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, eager_mask)
    fields = json.loads(config.read_text())
    (architecture,) = fields.pop("architectures")
    fields |= {"use_cache": False, "dtype": "float32"}
    fields.pop("torch_dtype", None)
    task = AUTO.get((architecture, mode), "CausalLM")
    auto: Any = getattr(transformers, f"AutoModelFor{task}")
    with torch.device("meta"):
        model: nn.Module = auto.from_config(
            transformers.AutoConfig.for_model(**fields), attn_implementation=ATTENTION
        )
    for module in list(model.modules()):
        experts = getattr(module, "experts", None)
        if isinstance(experts, nn.ModuleDict):
            module.experts = Experts(experts, batch_size * fields["expert_capacity"])
    return model


@functools.cache
def forward(config: Path, mode: str, batch_size: int, length: int) -> tuple[Layer, ...]:
    """Layers of a forward pass, dropout included where `mode` is "train"."""
    model = build(config, mode, batch_size)
    tokens, inputs = inputs_of(model, batch_size, length, "cpu")
    found = trace(model, (tokens,), inputs, training=mode == "train")
    assert not found.unmodelled, found.unmodelled
    return found.layers


def inputs_of(
    model: nn.Module, batch_size: int, length: int, device: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """Tokens, and what else a network was given."""
    tokens = torch.ones(batch_size, length, dtype=torch.int64, device=device)
    inputs: dict[str, Tensor] = {}
    if "Bert" in type(model).__name__:
        inputs["attention_mask"] = torch.zeros(batch_size, 1, 1, length, device=device)
    if "Conditional" in type(model).__name__:
        inputs |= {"attention_mask": tokens, "decoder_input_ids": tokens}
    return tokens, inputs


@functools.cache
def segments(config: Path, mode: str, batch_size: int, length: int) -> int:
    """How often a forward pass asks CUDA for memory: the cache was emptied before each."""
    model = build(config, mode, batch_size)
    tokens, inputs = inputs_of(model, batch_size, length, "meta")
    return needed(model, (tokens,), inputs, training=mode == "train")


@functools.cache
def backward(config: Path, batch_size: int, length: int) -> tuple[Layer, ...]:
    """Backward of cross-entropy and layers, gradients added to those of the step before; no optimizer."""
    layers = forward(config, "train", batch_size, length)
    tokens, vocabulary = batch_size * length, json.loads(config.read_text())["vocab_size"]
    loss = (
        Movement(function="fill", elements=tokens * vocabulary),
        *backward_of(Softmax(rows=tokens, width=vocabulary)),
    )
    back = tuple(part for layer in reversed(layers) for part in _backward(layer))
    grown = tuple(
        Elementwise(function="add", elements=layer.parameters(), operands=2, broadcast=False, inplace=True)
        for layer in layers
        if layer.parameters()
    )
    return loss + back + grown


def _backward(layer: Layer) -> tuple[Layer, ...]:
    """As the layer; CUDA multiplies a softmax's gradient and output first (ATen/native/cuda/SoftMax.cu)."""
    if not isinstance(layer, Softmax):
        return backward_of(layer)
    elements = layer.rows * layer.width
    product = Elementwise(function="mul", elements=elements, operands=2, broadcast=False)
    return (product, *backward_of(layer))
