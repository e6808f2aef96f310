"""Attention that a model writes as products and a softmax: one kernel of an engine.

Models do so for scores that are capped, biased or have a sink, which engines' kernels know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from neuralpower.layers.attention import Attention
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.softmax import Softmax
from neuralpower.trace.dataflow import Dataflow, Edit, Node
from neuralpower.trace.lifetimes import Access, Flow
from neuralpower.trace.parts.serving import passes_through, served
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, Trace


@trace_pass(place="serving", applies=served)
def fused_attention(trace: Trace, question: Question) -> Trace:
    """Make one attention of a product of queries and keys, a softmax, and a product with values."""
    edit = Edit(Dataflow(trace))
    for i in range(len(edit.flow.nodes)):
        if (written := _written_out(edit.flow, i)) is not None:
            edit.gone |= {*written.inside}
            edit.put(*_made(edit.flow, written))
    return edit.made() if edit.gone else trace


@dataclass(frozen=True)
class _Written:
    """Attention as it is written out, by the numbers of its calls."""

    first: int  # product of queries and keys
    second: int  # product with values
    inside: tuple[int, ...]  # all but the second


def _written_out(flow: Dataflow, at: int) -> _Written | None:
    """The attention around a softmax; None where there is none, or something else reads what lies inside."""
    call = flow.nodes[at].call
    if not isinstance(call, LayerCall) or not isinstance(call.layer, Softmax) or call.layer.strided:
        return None
    before, firsts = _until_products(flow, at, back=True)
    after, seconds = _until_products(flow, at, back=False)
    if len(firsts) != 1 or len(seconds) != 1:
        return None
    first, second = firsts[0], seconds[0]
    one, other = _product(flow.nodes[first]), _product(flow.nodes[second])
    inside = {first, at, *before, *after}
    alone = all(inside.union({second}).issuperset(flow.nodes[i].readers) for i in inside)
    if one is None or other is None or not alone or any(flow.nodes[i].final for i in inside):
        return None
    scores = flow.nodes[second].sources[0] in inside and flow.nodes[second].sources[1] not in inside
    fits = one.batch == other.batch and one.rows == other.rows and one.inner == other.columns
    heads = one.batch % max(flow.trace.about.batch, 1) == 0
    if not (scores and fits and heads and other.inner <= call.layer.width <= other.inner + 1):
        return None
    return _Written(first, second, tuple(sorted(inside)))


def _until_products(flow: Dataflow, start: int, *, back: bool) -> tuple[list[int], list[int]]:
    """(calls that numbers go through, products that they come from or end in)."""
    through, products = {start}, set[int]()
    before = 0
    while len(through) > before:
        before = len(through)
        for i in sorted(through):
            node = flow.nodes[i]
            for j in (j for j in node.sources if j is not None) if back else node.readers:
                if _product(flow.nodes[j]) is not None:
                    products.add(j)
                # what a mask or a bias is made of is read by all blocks
                elif passes_through(flow.nodes[j]) and (
                    not back or through.issuperset(flow.nodes[j].readers)
                ):
                    through.add(j)
    return sorted(through - {start}), sorted(products)


def _product(node: Node) -> Matmul | None:
    call = node.call
    return call.layer if isinstance(call, LayerCall) and isinstance(call.layer, Matmul) else None


def _made(flow: Dataflow, written: _Written) -> tuple[LayerCall, Flow]:
    """The attention, in place of the second product."""
    first, second = flow.nodes[written.first], flow.nodes[written.second]
    product, call = _product(first), second.call
    assert product is not None and isinstance(call, LayerCall)  # as it was found
    batch = max(flow.trace.about.batch, 1)
    beside: dict[Access, None] = {}
    for i in written.inside:
        node = flow.nodes[i]
        for access, source in zip(node.flow.reads, node.sources, strict=True):
            if i != written.first and source not in written.inside:
                beside[access] = None
    layer = Attention(
        dtype=product.dtype,
        batch=batch,
        query_heads=product.batch // batch,
        key_heads=product.batch // batch,
        query_length=product.rows,
        key_length=product.columns,
        head_size=product.inner,
        causal=False,
        masked=bool(beside),
    )
    reads = (first.flow.reads[0], first.flow.reads[1], second.flow.reads[1], *beside)
    return replace(call, layer=layer, operator=""), Flow(reads, second.flow.writes)
