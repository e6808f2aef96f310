"""Where the weights of a rank lie: bytes of each, and in which blocks of the network.

What lies before all blocks is the first pipeline stage's, the head is the last one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
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


def attention_shared(
    weights: Sequence[Weight],
    whole: Sequence[Weight],
    sizes: Mapping[str, int],
    blocks: Collection[int],
    ranks: int,
) -> dict[str, int]:
    """The sizes with products of attention shared out by heads in `blocks`, whose plan leaves them whole."""
    before, found = {w.name: w.shape for w in whole}, dict(sizes)
    for weight in weights:
        block = block_of(weight.module)
        if not block or int(block.rpartition(".")[2]) not in blocks or weight.sort != LINEAR:
            continue
        if "att" in weight.module.removeprefix(block) and before.get(weight.name) == weight.shape:
            found[weight.name] //= ranks
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
