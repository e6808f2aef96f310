"""Packed products: queries, keys and values in one, gate and up in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neuralpower.layers.linear import Linear
from neuralpower.trace.dataflow import Dataflow, Edit
from neuralpower.trace.lifetimes import Access, Flow
from neuralpower.trace.parts.serving import attention_of, passes_through, product_of, served
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.paths import module_of
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, Trace


@trace_pass(place="serving", applies=served)
def packed_products(trace: Trace, question: Question) -> Trace:
    """Make one product of those that read the same rows and whose results meet again.

    Results meet in one attention, as queries, keys and values do, or in arithmetic, as a gate does with what
    it gates.
    """
    flow = Dataflow(trace)
    alike: dict[tuple[Access, Linear], list[int]] = {}
    for i, node in enumerate(flow.nodes):
        layer = product_of(node)
        if layer is not None and node.flow.reads:
            alike.setdefault((node.flow.reads[0], _form(layer)), []).append(i)
    edit = Edit(flow)
    for (rows, _), products in alike.items():
        for together in _meeting(flow, products):
            edit.gone |= {*together}
            edit.put(*_packed(flow, together, rows))
    return edit.made() if edit.gone else trace


def _form(layer: Linear) -> Linear:
    """The properties that products must share."""
    return replace(layer, out_features=1, bias=False)


def _meeting(flow: Dataflow, products: Sequence[int]) -> list[list[int]]:
    """The products in groups whose results meet; only groups of several."""
    if len(products) == 1:  # such as a block's last, whose result reaches all blocks after it
        return []
    groups: list[tuple[list[int], set[int]]] = []
    for i in products:
        members, reached = [i], _reached(flow, i)
        for other in [group for group in groups if group[1] & reached]:
            groups.remove(other)
            members, reached = [*other[0], *members], reached | other[1]
        groups.append((members, reached))
    return [sorted(members) for members, _ in groups if len(members) > 1]


def _reached(flow: Dataflow, start: int) -> set[int]:
    """Calls that a product's results go through in their places, and attention that they end in."""
    reached: set[int] = set()
    queue = [start]
    while queue:
        for reader in flow.nodes[queue.pop()].readers:
            node = flow.nodes[reader]
            if reader in reached or not (attention_of(node) or passes_through(node)):
                continue
            reached.add(reader)
            if not attention_of(node):
                queue.append(reader)
    return reached


def _packed(flow: Dataflow, products: Sequence[int], rows: Access) -> tuple[LayerCall, Flow]:
    """The product that several become, at the place of the first."""
    nodes = [flow.nodes[i] for i in products]
    calls = [call for node in nodes for call in node.calls if isinstance(call, LayerCall)]
    layers = [call.layer for call in calls if isinstance(call.layer, Linear)]
    layer = replace(
        layers[0],
        out_features=sum(one.out_features for one in layers),
        bias=any(one.bias for one in layers),
    )
    reads = (rows, *(access for node in nodes for access in node.flow.reads[1:]))
    writes = tuple(access for node in nodes for access in node.flow.writes)
    names = tuple(call.path.rpartition(".")[2] for call in calls)
    first = calls[0]
    return replace(first, path=module_of(first.path), layer=layer, parts=names), Flow(reads, writes)
