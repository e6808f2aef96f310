"""Multi-head latent attention as engines run it: expanded for a prompt, absorbed for a step.

It is found by what it computes: one product makes both the keys, next to a rotary part, and the values of an
attention from the whole cache. In a step, engines multiply the matrix for the keys into the queries and the
one for the values into the results, so that all heads attend to the cache itself. (DeepSeek-V2, arXiv
2405.04434, section 2.1.2.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from neuralpower.layers.attention import Attention
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.fused_pointwise import FusedPointwise
from neuralpower.layers.latent_attention import LatentAttention
from neuralpower.layers.linear import Linear
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.softmax import Softmax
from neuralpower.networks.phases import DECODE
from neuralpower.trace.dataflow import Dataflow, Edit, Node
from neuralpower.trace.lifetimes import CACHE, Access, Flow
from neuralpower.trace.parts.serving import after, before, is_plain_copy, layer_of, moves, served, serving
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace

WRITE = "cache"  # name of the part that writes the cache
ABSORBED = "latent attention is absorbed: its heads read the cache itself"


@trace_pass(place="blocks", applies=lambda trace, asked: served(trace, asked) and _may_have(trace))
def latent_blocks(trace: Trace, question: Question) -> Trace:
    """Let latent attention read its cache as engines do, without making keys and values of it in a step."""
    flow = Dataflow(trace)
    edit = Edit(flow)
    absorbed = trace.about.phase == DECODE
    for block in _blocks(flow):
        if absorbed:
            _absorb(flow, block, edit)
        else:
            _expand(flow, block, edit)
    if not edit.gone:
        return trace
    granted = (*trace.granted, ABSORBED) if absorbed else trace.granted
    return edit.made(granted=granted)


@dataclass(frozen=True)
class _Attends:
    """An attention in a trace: one call, or two products with a softmax between."""

    first: int  # the node that reads queries and keys
    last: int  # the node that reads values
    batch: int
    heads: int
    query_length: int
    key_length: int
    key_size: int
    value_size: int

    @property
    def values(self) -> int:
        """The place of the values among the operands of `last`."""
        return 2 if self.first == self.last else 1


@dataclass(frozen=True)
class _Block:
    attends: _Attends
    expander: int  # the product that makes keys and values of latents
    path: str
    dtype: str
    latent: int
    nope: int
    rope: int


def _may_have(trace: Trace) -> bool:
    """Whether a product may make keys and values of the whole cache; cheap."""
    about = trace.about
    rows = about.batch * (about.tokens + about.context)
    return any(isinstance(c.layer, Linear) and c.layer.rows == rows for c in trace.calls)


def _blocks(flow: Dataflow) -> Iterator[_Block]:
    for attends in _attentions(flow):
        makers = _makers(flow, flow.nodes[attends.last].sources[attends.values])
        if len(makers) != 1 or not makers < _makers(flow, flow.nodes[attends.first].sources[1]):
            continue
        (expander,) = makers
        layer = layer_of(flow.nodes[expander])
        assert isinstance(layer, Linear)  # of products
        nope = layer.out_features // attends.heads - attends.value_size
        fits = layer.out_features % attends.heads == 0 and layer.rows == attends.batch * attends.key_length
        if fits and 0 < nope < attends.key_size:
            call = flow.nodes[attends.first].call
            path = call.path if call is not None else ""
            rope = attends.key_size - nope
            dtype = layer.output_dtype or layer.dtype  # quantised weights multiply in another
            yield _Block(attends, expander, path, dtype, layer.in_features, nope, rope)


def _makers(flow: Dataflow, end: int | None) -> set[int]:
    """The products that an operand is made of, with nothing but arithmetic between."""
    is_product = partial(_is_product, flow)
    return set() if end is None else {i for i in before(flow, [end], is_product) if is_product(i)}


def _is_product(flow: Dataflow, i: int) -> bool:
    return isinstance(layer_of(flow.nodes[i]), Linear)


def _attentions(flow: Dataflow) -> Iterator[_Attends]:
    """All attention, whole or in its parts."""
    batch = flow.trace.about.batch
    for i, node in enumerate(flow.nodes):
        layer = layer_of(node)
        if isinstance(layer, Attention) and len(node.flow.reads) > 2:
            size = layer.head_size
            sizes = layer.batch, layer.query_heads, layer.query_length, layer.key_length, size, size
            yield _Attends(i, i, *sizes)
        if isinstance(layer, Softmax) and (found := _of_parts(flow, i, batch)) is not None:
            yield found


def _of_parts(flow: Dataflow, softmax: int, batch: int) -> _Attends | None:
    """Attention around a softmax: scores before it, and their product with values after it."""
    first, last = _product_before(flow, softmax), _product_after(flow, softmax)
    if first is None or last is None:
        return None
    scores, context = layer_of(flow.nodes[first]), layer_of(flow.nodes[last])
    assert isinstance(scores, Matmul) and isinstance(context, Matmul)  # as they were found
    if scores.columns != context.inner or scores.batch != context.batch or scores.batch % batch:
        return None
    heads = scores.batch // batch
    return _Attends(first, last, batch, heads, scores.rows, scores.columns, scores.inner, context.columns)


def _product_before(flow: Dataflow, start: int) -> int | None:
    i: int | None = start
    while i is not None and not isinstance(layer_of(flow.nodes[i]), Matmul):
        sources = flow.nodes[i].sources
        i = sources[0] if sources and not isinstance(layer_of(flow.nodes[i]), Linear) else None
    return i


def _product_after(flow: Dataflow, start: int) -> int | None:
    i = start
    while not isinstance(layer_of(flow.nodes[i]), Matmul):
        # torch's attention by parts also returns its weights, cast, which nothing reads
        readers = [j for j in flow.nodes[i].readers if flow.nodes[j].readers]
        if len(readers) != 1 or isinstance(layer_of(flow.nodes[i]), Linear):
            return None
        i = readers[0]
    return i


def _kernel(block: _Block, absorbed: bool) -> LatentAttention:
    a = block.attends
    return LatentAttention(
        dtype=block.dtype,
        batch=a.batch,
        query_heads=a.heads,
        query_length=a.query_length,
        key_length=a.key_length,
        absorbed=absorbed,
        causal=a.query_length > 1,
        latent=block.latent,
        rope=block.rope,
        head_size=block.nope,
        value_size=a.value_size,
    )


def _between(flow: Dataflow, start: int, end: int) -> set[int]:
    """The nodes on the way from one node to another, and both."""
    return before(flow, [end], since=start) & after(flow, start, end)


def _copies(flow: Dataflow, region: set[int]) -> set[int]:
    """Copies, masks and scalings that only the attention reads, and that its kernel does without.

    Past a concatenation lies the rotary embedding, which stays one call.
    """
    return serving(flow, region, partial(_passes, flow), lambda i: _function(flow.nodes[i]) == "cat")


def _function(node: Node) -> str:
    return str(getattr(layer_of(node), "function", ""))


def _passes(flow: Dataflow, i: int) -> bool:
    node = flow.nodes[i]
    layer = layer_of(node)
    return moves(node) or (isinstance(layer, Elementwise) and layer.function == "mul" and layer.operands == 1)


def _expand(flow: Dataflow, block: _Block, edit: Edit) -> None:
    """One kernel instead of two products and a softmax; keys and values stay as they are made."""
    attends = block.attends
    region = _between(flow, attends.first, attends.last)
    last = flow.nodes[attends.last]
    region |= _scalings(flow, region)
    written = _in_order(flow, last, region)
    reads = [_origin(flow, attends.first, place, region) for place in (0, 1)]
    reads.append(last.flow.reads[attends.values])
    edit.gone |= region
    edit.add(last, block.path, _kernel(block, absorbed=False), Flow(tuple(reads), written))
    _write_cache(flow, block, edit)


def _in_order(flow: Dataflow, last: Node, region: set[int]) -> tuple[Access, ...]:
    """The place of results: kernels write in the order of tokens, so that a copy after them is dropped."""
    for i in last.readers:
        if len(last.readers) == 1 and is_plain_copy(flow.nodes[i]):
            region.add(i)
            return flow.nodes[i].flow.writes
    return last.flow.writes


def _scalings(flow: Dataflow, region: set[int]) -> set[int]:
    """Products with a number, and masks, that stand before the scores alone."""
    return serving(flow, region, lambda i: _passes(flow, i) and not moves(flow.nodes[i]))


def _origin(flow: Dataflow, node: int, place: int, gone: set[int]) -> Access:
    """The operand before the calls that are dropped."""
    access, source = flow.nodes[node].flow.reads[place], flow.nodes[node].sources[place]
    while source is not None and source in gone and flow.nodes[source].flow.reads:
        access, source = flow.nodes[source].flow.reads[0], flow.nodes[source].sources[0]
    return access


def _absorb(flow: Dataflow, block: _Block, edit: Edit) -> None:
    """Queries into latents, a kernel over the cache, latents into results; nothing is made of the cache."""
    attends = block.attends
    region = _between(flow, attends.first, attends.last)
    for end in (attends.first, attends.last):
        region |= _between(flow, block.expander, end)
    region |= _copies(flow, region)
    at = max(i for i in region if i not in (block.expander, attends.last))
    middle, last = flow.nodes[block.expander], flow.nodes[attends.last]
    written = _in_order(flow, last, region)
    rows, heads, size = attends.batch * attends.query_length, attends.heads, int(last.flow.writes[0].bytes)
    size = size // (rows * heads * attends.value_size)  # of one number
    into = _product(block, heads, rows, block.nope, block.latent)
    out = _product(block, heads, rows, block.latent, attends.value_size)
    asked = _origin(flow, attends.first, 0, region)
    weights = middle.flow.reads[1:2]
    cached = tuple(a for i in _appends(flow, block) for a in flow.nodes[i].flow.writes)
    queries, results = (flow.nodes[i].flow.writes[0] for i in (block.expander, at))
    queries = queries._replace(offset=0, bytes=size * rows * heads * (block.latent + block.rope))
    results = results._replace(offset=0, bytes=size * rows * heads * block.latent)
    edit.gone |= region
    edit.sizes |= {queries.storage: queries.bytes, results.storage: results.bytes}
    edit.add(middle, block.path, into, Flow((asked, *weights), (queries,)), ("queries into latents",))
    edit.add(flow.nodes[at], block.path, _kernel(block, absorbed=True), Flow((queries, *cached), (results,)))
    edit.add(last, block.path, out, Flow((results, *weights), written), ("latents into values",))
    _write_cache(flow, block, edit)


def _product(block: _Block, heads: int, rows: int, inner: int, columns: int) -> Matmul:
    """A product for each head, with a part of the matrix that expands latents."""
    return Matmul(dtype=block.dtype, batch=heads, rows=rows, inner=inner, columns=columns)


def _appends(flow: Dataflow, block: _Block) -> list[int]:
    """Calls that copy the cache to put what is new at its end."""
    ends = (*flow.nodes[block.expander].sources, *flow.nodes[block.attends.first].sources)
    found = before(flow, [i for i in ends if i is not None], partial(_is_product, flow))
    return [i for i in sorted(found) if _is_append(flow, flow.nodes[i])]


def _is_append(flow: Dataflow, node: Node) -> bool:
    """Whether it concatenates the cache, which may be empty, with what is new."""
    if _function(node) not in ("append", "cat") or len(node.flow.reads) != 2:
        return False
    old, storages = node.flow.reads[0], flow.trace.storages
    return not old.bytes or (0 <= old.storage < len(storages) and storages[old.storage].part == CACHE)


def _write_cache(flow: Dataflow, block: _Block, edit: Edit) -> None:
    """Write new latents and rotary keys to a paged cache in one call, instead of copying the cache."""
    appended = _appends(flow, block)
    if not appended:
        return
    tokens = block.attends.batch * block.attends.query_length
    size = int(_kernel(block, absorbed=True).itemsize) * tokens * (block.latent + block.rope)
    layer = FusedPointwise(dtype=block.dtype, bytes_read=size, bytes_written=size, operations=0)
    node = flow.nodes[appended[0]]
    reads = tuple(flow.nodes[i].flow.reads[1] for i in appended)
    writes = tuple(access for i in appended for access in flow.nodes[i].flow.writes)
    edit.gone |= set(appended)
    edit.add(node, block.path, layer, Flow(reads, writes), (WRITE,))
