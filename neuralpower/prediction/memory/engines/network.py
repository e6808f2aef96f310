"""A network as an engine serves it: bytes of its weights, widths that decide the profile run, its cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from neuralpower.devices.cluster import ONE, Layout
from neuralpower.errors import InputError
from neuralpower.late import nn
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.prediction.memory.engines.caches import STATE, CacheLayer, cache_layers
from neuralpower.prediction.memory.engines.encoder import ImageEncoder, image_encoder
from neuralpower.quantisation.weights import EMBEDDING, EXPERTS, HEAD, LINEAR, Weight
from neuralpower.trace.paths import block_of, pattern

if TYPE_CHECKING:
    from neuralpower.networks.decoder import Decoder

# ---- Where the weights of a rank lie: bytes of each, and in which blocks of the network ----
# What lies before all blocks is the first pipeline stage's, the head is the last one's.


@dataclass(frozen=True)
class Places:
    """Where a rank's weights lie, in bytes: in which blocks, before them, after them, or on every stage."""

    blocks: tuple[int, ...]
    first: int  # tables of embeddings
    last: int  # the head; with tied weights the same table again
    every: int  # norms, and what encodes images
    experts: tuple[bool, ...] = ()  # whether a block has some


def sizes_of(weights: Sequence[Weight], total: int | None) -> dict[str, int]:
    """Bytes of each weight; where quantised ones are `total` together, products share what is saved."""
    plain = {w.name: w.bytes for w in weights}
    if total is None:
        return plain
    packed = [w.name for w in weights if w.sort in (LINEAR, EXPERTS)]
    before = sum(plain[name] for name in packed)
    after = total - (sum(plain.values()) - before)
    if not packed or after <= 0:  # other weights are quantised, too
        packed, before, after = list(plain), sum(plain.values()), total
    shares = {name: plain[name] * after // max(before, 1) for name in packed}
    shares[packed[-1]] += after - sum(shares.values())
    return {**plain, **shares}


def shared_out(
    weights: Sequence[Weight], whole: Sequence[Weight], sizes: Mapping[str, int], ranks: int
) -> dict[str, int]:
    """The sizes with modules shared out that a plan leaves whole, as engines do.

    These are modules of blocks with two products or more, none of which is cut: attention, multilayer
    perceptrons, state-space layers, and those of an encoder of images. Routers have one product. Latents lie
    next to products that are cut.
    """
    before, modules = {w.name: w.shape for w in whole}, defaultdict[str, list[Weight]](list)
    for weight in weights:
        if weight.sort == LINEAR and block_of(weight.module):
            modules[weight.module.rpartition(".")[0]].append(weight)
    found = dict(sizes)
    for products in modules.values():
        uncut = all(before.get(weight.name) == weight.shape for weight in products)
        if ranks > 1 and uncut and len(products) > 1:
            found |= {weight.name: sizes[weight.name] // ranks for weight in products}
    return found


def places_of(weights: Sequence[Weight], sizes: Mapping[str, int], count: int) -> Places:
    """Where weights lie; the decoder's blocks are the last list with as many members as it has layers."""
    lists: dict[str, list[str]] = defaultdict(list)
    for weight in weights:
        block = block_of(weight.module)
        if block and block not in lists[pattern(block)]:
            lists[pattern(block)].append(block)
    own = next((blocks for blocks in reversed(lists.values()) if len(blocks) == count), [])
    inside, mixed = dict.fromkeys(own, 0), dict.fromkeys(own, False)
    first = last = every = 0
    for weight in weights:
        size, block = sizes[weight.name], block_of(weight.module)
        if block in inside:
            inside[block] += size
            mixed[block] |= weight.sort == EXPERTS
        elif weight.sort == EMBEDDING and not block:
            first, last = first + size, last + size * weight.tied
        elif weight.sort == HEAD:
            last += size
        else:
            every += size
    return Places(tuple(inside.values()), first, last, every, tuple(mixed.values()))


# ---- The network ----


LEFT = "the engine shares out what the plan leaves whole"  # a note
TOP = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k", "moe_top_k", "experts_top_k")


@dataclass(frozen=True)
class Experts:
    """A mixture: experts that a token takes, and numbers that one of them makes of it."""

    chosen: int
    wide: int  # gate and up together
    inner: int  # what the second product reads


@dataclass(frozen=True)
class Served:
    """One rank of a network, or one pipeline stage of it."""

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
    layout: Layout = ONE
    images: ImageEncoder | None = None
    first: bool = True  # whether it has the table of embeddings
    last: bool = True  # whether it makes the logits
    places: Places = field(default=Places((), 0, 0, 0), repr=False)
    experts_bytes: int = 0  # of the weights
    experts_ranks: int = 1  # that share the experts in `weights_bytes`
    notes: tuple[str, ...] = ()

    @property
    def tensor(self) -> int:
        """Ranks that share each product."""
        return self.layout.tensor

    @cached_property
    def exchanges(self) -> bool:
        """Whether the profile run exchanges anything: sums of tensor ranks, tokens of experts' ranks."""
        return self.tensor > 1 or (self.experts is not None and self.layout.data > 1)

    def check_length(self, length: int | None) -> None:
        """Raise InputError for sequences that are longer than the model's positions."""
        if length is not None and self.positions is not None and length > self.positions:
            raise InputError(
                f"--max-model-len {length}: {self.name} is made for {self.positions} positions; choose "
                f"--max-model-len {self.positions} or less"
            )

    def experts_over(self, ranks: int) -> Served:
        """The same with all experts shared out over `ranks` ranks, as engines do whatever a plan says."""
        ranks_now = self.experts_ranks
        if self.experts is None or ranks == ranks_now:
            return self
        kept = self.experts_bytes * ranks_now // ranks
        places, lost = self.places, self.experts_bytes - kept
        count = max(sum(places.experts), 1)
        blocks = tuple(
            size - lost * has // count for size, has in zip(places.blocks, places.experts, strict=True)
        )
        experts = self.experts
        if self.layout.expert == 1:  # each is cut, else whole
            experts = replace(
                experts, wide=experts.wide * ranks_now // ranks, inner=experts.inner * ranks_now // ranks
            )
        return replace(
            self,
            weights_bytes=self.weights_bytes - lost,
            experts_bytes=kept,
            experts_ranks=ranks,
            notes=tuple(dict.fromkeys((*self.notes, LEFT))),
            experts=experts,
            places=replace(places, blocks=blocks),
        )

    def stages(self, shares: Sequence[int]) -> tuple[Served, ...]:
        """Its pipeline stages, with these numbers of blocks each."""
        if len(shares) == 1:
            return (self,)
        stages_served, done = [], 0
        for number, share in enumerate(shares):
            first, last = number == 0, number == len(shares) - 1
            inside = range(done, done + share)
            weights = sum(self.places.blocks[done : done + share]) + self.places.every
            weights += self.places.first * first + self.places.last * last
            layers = tuple(layer for layer in self.layers if layer.block in inside)
            stages_served.append(replace(self, weights_bytes=weights, layers=layers, first=first, last=last))
            done += share
        return tuple(stages_served)


def served(
    module: nn.Module,
    request: InputRequest,
    name: str,
    weights_bytes: int | None = None,
    layout: Layout = ONE,
    whole: nn.Module | None = None,
) -> Served:
    """The facts of a module.

    Args:
        module: the model, or one rank of it, on the meta device.
        request: the dtype.
        name: of the model, for messages.
        weights_bytes: of quantised weights; None: as the module has them.
        layout: the ranks that share the model.
        whole: the unsharded model, where `module` is one rank; engines share out what plans leave.

    Raises:
        InputError: a model that keeps no cache, or has no vocabulary.
    """
    from neuralpower.trace.weights import weights_of

    decoder, layers = _decoder(module, request, name)
    weights = weights_of(module)
    config: Any = decoder.config.get_text_config(decoder=True)
    vocabulary, hidden, positions = _widths(decoder, config, weights, name)
    planned = sizes_of(weights, weights_bytes)
    sizes = planned if whole is None else shared_out(weights, weights_of(whole), planned, layout.tensor)
    images = image_encoder(decoder.config, weights, hidden)
    text = [w for w in weights if images is None or not w.name.startswith(images.modules)]
    return Served(
        name=name,
        itemsize=request.dtype.itemsize,
        weights_bytes=sum(sizes.values()),
        rotary_bytes=_rotary_numbers(text, config, positions) * request.dtype.itemsize,
        hidden=hidden,
        vocabulary=vocabulary,
        block_numbers=_block_numbers(text, hidden),
        layers=_of_rank(layers, whole, request, config, layout.tensor),
        experts=_experts(weights, config, hidden),
        positions=positions or None,
        wide_state=str(getattr(config, "mamba_ssm_dtype", "")) in ("float32", "torch.float32"),
        layout=layout,
        images=images,
        places=places_of(weights, sizes, int(getattr(config, "num_hidden_layers", 0) or 0)),
        experts_bytes=sum(sizes[w.name] for w in weights if w.sort == EXPERTS),
        notes=() if sizes == planned else (LEFT,),
        experts_ranks=1 if whole is None else _experts_ranks(weights, whole),
    )


def _decoder(module: nn.Module, request: InputRequest, name: str) -> tuple[Decoder, tuple[CacheLayer, ...]]:
    """A model as a decoder, and what each of its layers keeps; raises InputError for one without a cache."""
    from neuralpower.networks.decoder import Decoder

    try:
        decoder = Decoder(module, replace(request, batch_size=1, seq_len=None))
        return decoder, cache_layers(decoder)
    except InputError:
        raise InputError(
            f"{name}: has no KV cache, and engines serve language models that have one; leave --engine out"
        ) from None


def _widths(decoder: Decoder, config: Any, weights: Sequence[Weight], name: str) -> tuple[int, int, int]:
    """(Words, numbers of a hidden state, positions or 0); raises InputError for a model without words."""
    vocabulary = getattr(config, "vocab_size", None)
    table = next((w for sort in (HEAD, EMBEDDING) for w in weights if w.sort == sort), None)
    if table is None or not isinstance(vocabulary, int):
        raise InputError(f"{name}: has no vocabulary, and engines serve language models; leave --engine out")
    hidden = getattr(config, "hidden_size", None)  # a model with images has other tables
    hidden = hidden if isinstance(hidden, int) else table.matrices[2]
    return vocabulary, hidden, decoder.limit or _positions(config) or 0


def _of_rank(
    layers: tuple[CacheLayer, ...], whole: nn.Module | None, request: InputRequest, config: Any, tensor: int
) -> tuple[CacheLayer, ...]:
    """The layers of one rank. Engines share out heads, and states by heads, also where a plan leaves them."""
    if whole is None or tensor == 1:
        return layers
    uncut = layers
    if any(layer.kind == STATE for layer in layers):
        from neuralpower.networks.decoder import Decoder

        uncut = cache_layers(Decoder(whole, replace(request, batch_size=1, seq_len=None)))
    queries = getattr(config, "num_attention_heads", None) or 1
    heads = getattr(config, "num_key_value_heads", None) or queries
    size = getattr(config, "head_dim", None) or (getattr(config, "hidden_size", None) or 0) // queries
    return tuple(
        layer if layer != other else layer.shared(tensor, heads, 2 * heads * size)
        for layer, other in zip(layers, uncut, strict=True)
    )


def _experts_ranks(weights: Sequence[Weight], whole: nn.Module) -> int:
    """Ranks among which a rank's weights share the experts of the whole model."""
    from neuralpower.trace.weights import weights_of

    own, every = (sum(w.numbers for w in some if w.sort == EXPERTS) for some in (weights, weights_of(whole)))
    return round(every / own) if own else 1


def _positions(config: Any) -> int | None:
    """Positions that the configuration names, of models that have no table of them."""
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _rotary_numbers(weights: Sequence[Weight], config: Any, positions: int) -> int:
    """Numbers in the tables of rotary embeddings; layers share them.

    Tables of embeddings that are stretched linearly have a row for each position times the factor
    (vllm/model_executor/layers/rotary_embedding/linear_scaling_rope.py): 0.5 GiB of Gemma 3.
    """
    kept = {
        (w.name.rpartition(".")[2], w.shape[-1])
        for w in weights
        if w.name.endswith("inv_freq") and "original" not in w.name
    }
    return sum(2 * size * int(positions * _stretched(config, name)) for name, size in kept)


def _stretched(config: Any, table: str) -> float:
    """By how much the rows of a table are more than the positions."""
    found = getattr(config, "rope_parameters", None) or {}
    own = found.get(table.removesuffix("_inv_freq"), found)
    return float(own.get("factor", 1)) if own.get("rope_type") in ("linear", "dynamic") else 1.0


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
