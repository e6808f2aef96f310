"""Operators of other libraries as layers of the product's kinds, by their names and recorded tensors.

An entry of RULES is all that a kind of operator needs. What no rule describes is a pass over its tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from neuralpower.layers import Layer
from neuralpower.layers.attention import Attention
from neuralpower.layers.collective import Collective
from neuralpower.layers.embedding import Embedding
from neuralpower.layers.expert_load import equal_load
from neuralpower.layers.experts import Experts
from neuralpower.layers.fused_pointwise import FusedPointwise
from neuralpower.layers.linear import Linear
from neuralpower.layers.movement import Movement
from neuralpower.layers.tensors import torchs_dtype_name

PER_NODE = 8  # devices of a node, where a trace does not say more than how many there are in all
# vLLM's name of a step: "execute_context_1(888_788544)_generation_0(0)", or with sums of tokens (sq), keys
# (sk), squares of tokens (sqsq) and their products (sqsk) of all requests
STEP = re.compile(r"context_(\d+)\(([^)]*)\)_generation_(\d+)\(([^)]*)\)")
SUMS = re.compile(r"sq(\d+)sk(\d+)sqsq\d+sqsk(\d+)")
TILED = re.compile(r"_t(\d+)x(\d+)x\d+")  # of a product's result, in names of kernels: columns, rows


@dataclass(frozen=True)
class Recorded:
    """What a trace says of an operator."""

    name: str
    tensors: Sequence[Tensor]  # on meta, those of lists, too
    texts: Sequence[str] = ()  # of numbers
    step: str = ""  # annotation around it that says its requests
    ranks: int = 0  # devices that it exchanges with; 0: not known
    kernels: Sequence[tuple[str, str]] = ()  # (name, grid)
    tables: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # `table_of` of all lookups

    def shaped(self, axes: int) -> list[Tensor]:
        """Tensors of `axes` axes at least that are no indices."""
        return [t for t in self.tensors if t.dim() >= axes and t.dtype not in (torch.int32, torch.int64)]

    @property
    def backward(self) -> bool:
        return re.search("backward|bwd|CppNode", self.name, re.IGNORECASE) is not None


Rule = Callable[[Recorded], Sequence[Layer]]  # no layers: it does not describe the operator


def _attention(call: Recorded) -> Sequence[Layer]:
    """Attention of operands [batch, length, heads, size], or of requests' [tokens, heads, size]."""
    shaped = call.shaped(3)
    triples = zip(shaped, shaped[1:], shaped[2:], strict=False)
    fit = (some for some in triples if _attends(*some))
    first = next(fit, (shaped[0],) * 3 if call.backward and shaped else None)
    if first is None:
        return _paged(call, shaped)
    query, key, value = first
    name = torchs_dtype_name(value)
    truths = [text for text in call.texts if text in ("True", "False")]
    causal = truths[0] == "True" if truths else not call.backward
    packed = query.dim() == 3
    whole = (1, query.shape[-3], key.shape[-3]) if packed else (query.shape[0], query.shape[1], key.shape[1])
    requests = _requests(call, query.shape[0]) if packed else [whole]
    layers = [_attended(query, key.shape[-2], one, name, causal) for one in requests]
    return [part for one in layers for part in one.training.backward(one)] if call.backward else layers


def _paged(call: Recorded, shaped: Sequence[Tensor]) -> Sequence[Layer]:
    """Attention to pages of a cache: [pages, a page's tokens, heads, size], or [pages, heads, size, ...].

    Only the step says how long its requests are.
    """
    query = shaped[0] if shaped else None
    cache = next(
        (t for t in shaped if t.dim() > 3 and query is not None and query.shape[-1] in t.shape[-2:]), None
    )
    if query is None or cache is None or not STEP.search(call.step):
        return ()
    heads = cache.shape[-2] if cache.shape[-1] == query.shape[-1] else cache.shape[-3]
    name = torchs_dtype_name(query)
    return [_attended(query, heads, one, name, True) for one in _requests(call, query.shape[0])]


def _attended(
    query: Tensor, key_heads: int, lengths: tuple[int, int, int], dtype: str, causal: bool
) -> Layer:
    """Attention of equal requests; `lengths`: their number, and the new tokens and keys of each."""
    batch, queries, keys = lengths
    return Attention(
        batch=batch,
        query_heads=query.shape[-2],
        key_heads=key_heads,
        query_length=queries,
        key_length=keys,
        head_size=query.shape[-1],
        causal=causal,
        masked=False,
        dtype=dtype,
    )


def _attends(query: Tensor, key: Tensor, value: Tensor) -> bool:
    heads = query.shape[-2], key.shape[-2]
    alike = key.shape == value.shape and query.dim() == key.dim() and query.shape[-1] == key.shape[-1]
    return alike and heads[1] > 0 and heads[0] % heads[1] == 0


def _requests(call: Recorded, tokens: int) -> list[tuple[int, int, int]]:
    """(requests, new tokens and keys of each) of tokens side by side: by the step, else by their offsets."""
    if found := STEP.search(call.step):
        parts = [(int(found[1]), found[2]), (int(found[3]), found[4])]
        return [(count, *_lengths(count, text)) for count, text in parts if count]
    offsets = [t.shape[0] - 1 for t in call.tensors if t.dim() == 1 and t.dtype == torch.int32]
    count = min([one for one in offsets if one > 0], default=1)
    length = max(round(tokens / count), 1)
    return [(count, length, length)]


def _lengths(count: int, text: str) -> tuple[int, int]:
    """The new tokens and the keys of each of `count` requests: those of equal work."""
    if sums := SUMS.search(text):
        new, keys, both = map(int, sums.groups())
        return max(round(new / count), 1), max(round(both / max(new, 1)), keys // count, 1)
    new = int(re.match(r"\d*", text)[0] or 0)  # type: ignore[index]  # an empty match is one
    return (max(round(new / count), 1),) * 2


def _product(call: Recorded) -> Sequence[Layer]:
    """A product of rows and weights; some libraries give the result's tensor first."""
    shaped = call.shaped(2)
    orders = (
        [shaped[:2]] if len(shaped) == 2 else [[*shaped[1:3], shaped[0]], shaped[:2]] if shaped[2:] else []
    )
    for x, weights, *result in orders:
        rows, inside = math.prod(x.shape[:-1]), x.shape[-1]
        if weights.dim() != 2 or inside not in weights.shape:
            continue
        out = weights.shape[0] if weights.shape[1] == inside else weights.shape[1]
        if result and result[0].shape[-1] != out:
            continue
        names = [torchs_dtype_name(t) for t in (x, weights)]
        other = "" if names[1] == names[0] else names[1]
        return (
            Linear(
                rows=rows,
                in_features=inside,
                out_features=out,
                bias=False,
                dtype=names[0],
                weights_dtype=other,
            ),
        )
    return ()


def _experts(call: Recorded) -> Sequence[Layer]:
    """A mixture: hidden states [tokens, hidden], and either all weights or the router's scores.

    Without weights, the tiles and grids of its products say their sizes: columns of the first one are twice
    the inner side of the second.
    """
    shaped = call.shaped(2)
    weights = [t for t in shaped if t.dim() == 3]
    x = next((t for t in shaped if t.dim() == 2), None)
    if x is None:
        return ()
    tokens, hidden = x.shape
    name = torchs_dtype_name(x)
    if len(weights) > 1:
        experts, rows, _ = weights[0].shape
        inner = weights[1].shape[2]
        chosen = [t.shape[1] for t in call.tensors if t.dim() == 2 and t.shape[0] == tokens and t is not x]
        top_k = min([one for one in chosen if one <= experts], default=1)
        short = weights[0].dtype != x.dtype and weights[0].element_size() == 1
        held = torchs_dtype_name(weights[0]) if short else ""
        return (_mixture((tokens, hidden, inner, experts, top_k), name, held, rows != inner),)
    scores = next((t for t in shaped[1:] if t.dim() == 2 and t.shape[0] == tokens), None)
    tiles = [
        _tiles(kernel, grid) for kernel, grid in call.kernels if re.search("swiglu|silu|gelu", kernel, re.I)
    ]
    if scores is None or not any(tiles):
        return ()
    columns, tile_rows, tile_count = next(one for one in tiles if one)
    experts = scores.shape[1]
    # Tiles are launched for the worst case: an expert each, and those of the other pairs.
    top_k = round((max(tile_count - experts, 0) * tile_rows + experts) / tokens)
    held = "mxfp4" if any("MxE2m1" in kernel for kernel, _ in call.kernels) else ""
    if not 1 <= top_k <= experts:
        return ()
    return (_mixture((tokens, hidden, columns // 2, experts, top_k), name, held, True),)


def _tiles(kernel: str, grid: str) -> tuple[int, int, int] | None:
    """(columns, rows of a tile, tiles of rows) of a product's result."""
    tile, counts = TILED.search(kernel), re.findall(r"\d+", grid)
    if tile is None or len(counts) < 2:
        return None
    return int(tile[1]) * int(counts[0]), int(tile[2]), int(counts[1])


def _mixture(sizes: tuple[int, int, int, int, int], dtype: str, held: str, gated: bool) -> Layer:
    """A mixture with even loads; `sizes`: tokens, hidden, inner side, experts, those of a token."""
    tokens, hidden, inner, experts, top_k = sizes
    return Experts(
        tokens=tokens,
        hidden=hidden,
        intermediate=inner,
        experts=experts,
        top_k=top_k,
        gated=gated,
        dtype=dtype,
        weights_dtype=held,
        **equal_load(tokens, top_k, experts)._asdict(),
    )


def _lookup(call: Recorded) -> Sequence[Layer]:
    """Rows of tables that lie one behind the other, summed by bags; their state has one number a row.

    The backward pass, which has gradients and the indices alone, sorts these, reads a gradient's row for
    each, and writes each row of the tables that is named.
    """
    flat = [t for t in call.tensors if t.dim() == 1]
    indices = max((t.shape[0] for t in flat if not t.is_floating_point()), default=0)
    if call.backward:
        indices = next((t.shape[0] for t in flat if t.shape[0] in call.tables), 0)
        rows, width = call.tables.get(indices, (0, 0))
        size = 4 * width
        updated = FusedPointwise(
            bytes_read=size * (indices + min(indices, rows)),
            bytes_written=size * min(indices, rows),
            operations=indices * width,
        )
        order = Movement(dtype="int64", function="sort", elements=indices, run=indices)
        return (order, updated) if width else ()
    bags = sorted(t.shape[0] - 1 for t in flat if t.dtype == torch.int64)[-2:-1]
    table = table_of(call.tensors)
    if table is None or not bags:
        return ()
    rows, width = table[indices]
    return (Embedding(tokens=indices, vocabulary=rows, width=width, bags=max(bags[0], 0)),)


def table_of(tensors: Sequence[Tensor]) -> Mapping[int, tuple[int, int]] | None:
    """The number of a lookup's indices -> (rows of all tables, mean width of a row)."""
    flat = [t for t in tensors if t.dim() == 1]
    numbers = sorted((t.shape[0] for t in flat if t.is_floating_point() and t.numel()), reverse=True)
    indices = max((t.shape[0] for t in flat if not t.is_floating_point()), default=0)
    numbers = [one for one in numbers if one != indices]  # those are weights of the sums
    if len(numbers) < 2 or not indices:
        return None
    return {indices: (numbers[1], max(round(numbers[0] / numbers[1]), 1))}


def _exchange(call: Recorded) -> Sequence[Layer]:
    """An exchange of its largest tensor between the devices."""
    words = re.sub("[^a-z]", "", call.name.lower())
    function = next((function for word, function in EXCHANGES.items() if word in words), None)
    largest = max(call.tensors, key=lambda t: t.numel(), default=None)
    if function is None or largest is None or call.ranks < 2 or not largest.numel():
        return ()
    gathers = function == "all_gather" and len(call.tensors) < 2
    return (
        Collective(
            function=function,
            elements=largest.numel() * (call.ranks if gathers else 1),
            ranks=2 if function == "send_recv" else call.ranks,
            nodes=1 if function == "send_recv" else -(-call.ranks // PER_NODE),
            dtype=torchs_dtype_name(largest),
        ),
    )


EXCHANGES: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "send": "send_recv",
    "recv": "send_recv",
}
"""Functions by parts of their names, in which only letters count."""


def _kept(call: Recorded) -> Sequence[Layer]:
    """Keys and values are read, and written into a cache, of which nothing else is touched."""
    return (_pass(call.shaped(2)[:2], twice=True),)


def _in_place(call: Recorded) -> Sequence[Layer]:
    """A pass that writes each tensor that it reads."""
    return (_pass(_touched(call), twice=True),)


def _one_pass(call: Recorded) -> Sequence[Layer]:
    return (_pass(_touched(call)),)


def _touched(call: Recorded) -> list[Tensor]:
    """Its tensors with as many rows as the first one: others are weights, scales or caches."""
    first = next((t for t in call.tensors if t.numel() > 1), None)
    rows = first.shape[0] if first is not None and first.dim() else 0
    return [t for t in call.shaped(1) if t.shape[0] == rows]


def _pass(tensors: Sequence[Tensor], *, twice: bool = False, rows: bool = True) -> Layer:
    """One pass over memory: the first tensor is written, others are read; `twice`: each is both.

    `rows`: it may reduce them.
    """
    sizes = [t.nbytes for t in tensors]
    row = tensors[0].shape[-1] if rows and tensors and tensors[0].dim() > 1 else 0
    read, written = (sum(sizes), sum(sizes)) if twice else (sum(sizes[1:]) or sum(sizes), sum(sizes[:1]))
    dtype = torchs_dtype_name(tensors[0]) if tensors else "float32"
    numbers = max((t.numel() for t in tensors), default=0)
    return FusedPointwise(bytes_read=read, bytes_written=written, operations=numbers, row=row, dtype=dtype)


def _of_inductor(call: Recorded) -> Sequence[Layer]:
    """A kernel that Inductor wrote: it reads its tensors once, and writes the last one."""
    tensors = [t for t in call.tensors if t.dim()]
    reduces = re.match("triton_(red|per)", call.name) is not None
    if not tensors:
        return ()
    return (_pass([tensors[-1], *tensors[:-1]], rows=reduces),)


RULES: Sequence[tuple[re.Pattern[str], Rule]] = tuple(
    (re.compile(pattern, re.IGNORECASE), rule)
    for pattern, rule in (
        # the first that matches
        (r"^triton_", _of_inductor),
        (r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|^nccl:|^record_param_comms", _exchange),
        (r"moe|experts", _experts),
        (r"reshape_and_cache|cache_update|store_(kv|cache)|set_kv_buffer|concat_and_cache", _kept),
        (r"attention|attn|[fm]mha|mha_|_mla|::mla", _attention),
        (r"^(?!.*TorchDynamo).*lookup", _lookup),
        (r"fused_add|rotary|rope", _in_place),
        (r"(?<!fb)gemm|scaled_mm|matmul|linear|wvsplitk|::mm$", _product),
        (r"::.*(norm|quant|and_mul|silu|gelu|softmax|permute|CppNode)", _one_pass),
    )
)
AUTOGRAD = "autograd::"  # what runs a backward pass, around its operators


def knows(name: str) -> bool:
    """Whether a rule describes an operator of that name, with all that runs within it."""
    return not name.startswith(AUTOGRAD) and any(pattern.search(name) for pattern, _ in RULES)


def layers_of(call: Recorded) -> tuple[tuple[Layer, ...], str]:
    """(an operator's layers, why they do not describe all of its work)."""
    rule = next((rule for pattern, rule in RULES if pattern.search(call.name)), None)
    if rule is not None and (layers := tuple(rule(call))):
        return layers, ""
    if rule in (_exchange, _attention, _experts) or not (tensors := _touched(call) or call.tensors):
        return (), f"{call.name}: its recorded tensors do not tell its work"
    return (_pass(tensors),), f"{call.name}: by the bytes of its tensors"
