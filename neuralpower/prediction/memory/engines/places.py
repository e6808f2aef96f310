"""Where the weights of a rank lie: bytes of each, and in which blocks of the network.

What lies before all blocks is the first pipeline stage's, the head is the last one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuralpower.quantisation.weights import EMBEDDING, EXPERTS, HEAD, LINEAR, Weight
from neuralpower.trace.paths import block_of, pattern


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
