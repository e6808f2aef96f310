"""How layers share vLLM's pool: equal pages, and groups of equally many layers.

A block holds one page for each layer of a group; a sequence has blocks of its own in each group. A pipeline
stage has the pages of its own layers, and the stage with the fewest blocks decides for all.

Source: vllm/v1/core/kv_cache_utils.py, `_get_kv_cache_groups_uniform_page_size` and `get_kv_cache_configs`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from neuralpower.prediction.memory.engines.caches import CROSS, FULL, SLIDING, STATE, CacheLayer
from neuralpower.prediction.memory.engines.engine_memory import Pool
from neuralpower.prediction.memory.engines.network import Served


@dataclass(frozen=True)
class Group:
    """Layers whose pages lie in the same blocks."""

    layers: tuple[CacheLayer, ...]
    tokens: int  # of a block

    @property
    def layer(self) -> CacheLayer:
        """Any one of them: they keep the same."""
        return self.layers[0]


@dataclass(frozen=True)
class Pages:
    """The pages and groups of a network."""

    block_size: int  # tokens, of layers with the widest pages
    page_bytes: int
    groups: tuple[Group, ...]
    batched: int
    width: float = 0.0  # bytes of a number, of layers with pages of their own size; 0: pages are equal
    note: str | None = None

    @classmethod
    def of(cls, served: Served, block: int, width: float, batched: int, length: int) -> Pages:
        """The pages of a model; `width` is bytes of a number in the cache."""
        state = max((_state_page(layer, served) for layer in served.layers), default=0)
        tokens = [la.token_bytes(width) for la in served.layers if la.kind != STATE]
        note = None
        if tokens and state:  # blocks grow until a page holds a state
            block = block * math.ceil(state / (block * min(tokens)))
            note = f"blocks are {block} tokens, so that a page holds a state"
        if not tokens:
            block = length
        page = max([block * max(tokens, default=0), state])
        counts = Counter(served.layers)
        if len({layer.kind for layer in counts}) == 1 and len(counts) > 1:
            return cls(block, page, (Group(served.layers, block),), batched, width, note)
        size = _group_size(list(counts.values()))
        groups = []
        for layer, count in counts.items():
            own = block if layer.kind == STATE else page // layer.token_bytes(width)
            alike, number = [one for one in served.layers if one == layer], math.ceil(count / size)
            groups += [Group(tuple(alike[i::number]), own) for i in range(number)]
        return cls(block, page, tuple(groups), batched, note=note)

    @property
    def group_size(self) -> int:
        """Layers of the largest group."""
        return max((len(group.layers) for group in self.groups), default=0)

    def block_bytes(self, layers: Sequence[CacheLayer]) -> int:
        """Bytes of a block on a stage with these layers."""
        inside = {layer.block for layer in layers}
        here = [[layer for layer in group.layers if layer.block in inside] for group in self.groups]
        if self.width:
            return sum(self.block_size * la.token_bytes(self.width) for la in here[0])
        return self.page_bytes * max(map(len, here), default=0)

    def pool(self, blocks: int, each: int) -> Pool:
        """The pool of this many blocks, of `each` bytes."""
        return Pool(
            block_size=self.block_size,
            block_bytes=each,
            blocks=blocks,
            tokens=blocks // max(len(self.groups), 1) * self.block_size,
            sequences=lambda length: blocks // max(self.blocks_of(length), 1),
            sequence_bytes=lambda length: self.blocks_of(length) * each,
        )

    def blocks_of(self, length: int) -> int:
        """Blocks that a sequence takes; a window slides by whole blocks while a step appends to it."""
        total = 0
        for group in self.groups:
            layer = group.layer
            if layer.kind == SLIDING:
                kept = min(layer.window - 1 + self.batched, length)
                total += math.ceil(kept / group.tokens) + 1
            elif layer.kind == STATE:
                total += 1
            else:
                total += math.ceil((layer.tokens if layer.kind == CROSS else length) / group.tokens)
        return total


def usual_block(served: Served) -> int:
    """Tokens of a block: 16, and 64 for latent caches, as FlashMLA reads them."""
    latent = {layer.token_numbers for layer in served.layers if layer.kind == FULL}
    return 64 if latent == {576} else 16


def _state_page(layer: CacheLayer, served: Served) -> int:
    """Bytes of a state: in the model's type, unless its configuration names float32."""
    return layer.state_bytes(4 if served.wide_state else served.itemsize, served.itemsize)


def _group_size(counts: Sequence[int]) -> int:
    """Layers of a group: those of the rarest sort; of the commonest if it has less than 1.5 times as many."""
    least, most = min(counts), max(counts)
    return most if most < 1.5 * least else least
