"""A network as an engine serves it: bytes of its weights, widths that decide the profile run, its cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from neuralpower.errors import InputError
from neuralpower.networks.decoder import Decoder
from neuralpower.networks.inputs import InputRequest
from neuralpower.predict.memory.engines.caches import STATE, CacheLayer, cache_layers
from neuralpower.quantisation.weights import EMBEDDING, EXPERTS, HEAD, LINEAR, Weight
from neuralpower.trace.weights import weights_of

TOP = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k", "moe_top_k", "experts_top_k")


@dataclass(frozen=True)
class Experts:
    """A mixture: experts that a token takes, and numbers that one of them makes of it."""

    chosen: int
    wide: int  # gate and up together
    inner: int  # what the second product reads


@dataclass(frozen=True)
class Served:
    """One rank of a network."""

    name: str
    itemsize: int  # bytes of a number of the network's type
    weights_bytes: int  # parameters and buffers
    rotary_bytes: int  # tables of cosines and sines for all positions
    hidden: int
    vocabulary: int  # whole: each rank gets the logits of all
    block_numbers: int  # that the widest block of products makes of a token
    layers: tuple[CacheLayer, ...]
    experts: Experts | None = None
    positions: int | None = None  # that the model is made for
    wide_state: bool = False  # whether the checkpoint asks for recurrent states in float32
    tensor: int = 1  # ranks

    def check_length(self, length: int | None) -> None:
        """Raise InputError for sequences that are longer than the model's positions."""
        if length is not None and self.positions is not None and length > self.positions:
            raise InputError(
                f"--max-model-len {length}: {self.name} is made for {self.positions} positions; choose "
                f"--max-model-len {self.positions} or less"
            )


def served(
    module: nn.Module,
    request: InputRequest,
    name: str,
    weights_bytes: int | None = None,
    tensor: int = 1,
    whole: nn.Module | None = None,
) -> Served:
    """The facts of a module on the meta device.

    Args:
        module: the model, or one rank of it.
        request: the dtype.
        name: of the model, for messages.
        weights_bytes: of quantised weights; None: as the module has them.
        tensor: ranks that share each product.
        whole: the unsharded model, where `module` is one rank; engines share out states that plans leave.

    Raises:
        InputError: a model that keeps no cache, or has no vocabulary.
    """
    try:
        decoder = Decoder(module, replace(request, batch_size=1, seq_len=None))
        layers = cache_layers(decoder)
    except InputError:
        raise InputError(
            f"{name}: has no KV cache, and engines serve language models that have one; leave --engine out"
        ) from None
    weights = weights_of(module)
    config: Any = decoder.config.get_text_config(decoder=True)
    itemsize = request.dtype.itemsize
    vocabulary = getattr(config, "vocab_size", None)
    table = next((w for sort in (HEAD, EMBEDDING) for w in weights if w.sort == sort), None)
    if table is None or not isinstance(vocabulary, int):
        raise InputError(f"{name}: has no vocabulary, and engines serve language models; leave --engine out")
    own = getattr(config, "hidden_size", None)  # a model with images has other tables
    hidden = own if isinstance(own, int) else table.matrices[2]
    positions = decoder.limit or _positions(config)
    return Served(
        name=name,
        itemsize=itemsize,
        weights_bytes=sum(w.bytes for w in weights) if weights_bytes is None else weights_bytes,
        rotary_bytes=_rotary_numbers(weights) * (positions or 0) * itemsize,
        hidden=hidden,
        vocabulary=vocabulary,
        block_numbers=_block_numbers(weights, hidden),
        layers=_of_rank(layers, whole, request, tensor),
        experts=_experts(weights, config, hidden),
        positions=positions,
        wide_state=str(getattr(config, "mamba_ssm_dtype", "")) in ("float32", "torch.float32"),
        tensor=tensor,
    )


def _of_rank(
    layers: tuple[CacheLayer, ...], whole: nn.Module | None, request: InputRequest, tensor: int
) -> tuple[CacheLayer, ...]:
    """The layers of one rank, with recurrent states shared out among ranks, as engines do by heads."""
    if whole is None or all(layer.kind != STATE for layer in layers):
        return layers
    uncut = cache_layers(Decoder(whole, replace(request, batch_size=1, seq_len=None)))
    return tuple(
        layer.shared(tensor) if layer.kind == STATE and layer == other else layer
        for layer, other in zip(layers, uncut, strict=True)
    )


def _positions(config: Any) -> int | None:
    """Positions that the configuration names, of models that have no table of them."""
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _rotary_numbers(weights: Sequence[Weight]) -> int:
    """Numbers of each position in the tables of rotary embeddings; layers share them."""
    names = [w for w in weights if w.name.endswith("inv_freq") and "original" not in w.name]
    kept = {(w.name.rpartition(".")[2], w.shape) for w in names}
    return sum(2 * shape[-1] for _, shape in kept)


def _block_numbers(weights: Sequence[Weight], hidden: int) -> int:
    """The widest module: what its products make of the hidden state, and what they read to return to it."""
    made: dict[str, int] = defaultdict(int)
    read: dict[str, int] = defaultdict(int)
    for weight in weights:
        if weight.sort != LINEAR:
            continue
        _, outputs, inputs = weight.matrices
        parent = weight.module.rpartition(".")[0]
        if inputs == hidden:
            made[parent] += outputs
        else:
            read[parent] = max(read[parent], inputs)
    return max((made[parent] + read[parent] for parent in made), default=hidden)


def _experts(weights: Sequence[Weight], config: Any, hidden: int) -> Experts | None:
    """The widths of a mixture; None for a network without."""
    stacks = [w for w in weights if w.sort == EXPERTS]
    chosen = next((n for key in TOP if isinstance(n := getattr(config, key, None), int)), None)
    if not stacks or chosen is None:
        return None
    widths = {w.name.rpartition(".")[2]: w.numbers // (w.shape[0] * hidden) for w in stacks}
    inner = next((size for name, size in widths.items() if "down" in name or name == "w2"), 0)
    return Experts(chosen, sum(widths.values()) - inner, inner)
