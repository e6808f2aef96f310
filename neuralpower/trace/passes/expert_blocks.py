"""Experts of a mixture in one call, as engines run them.

A mixture is found by what it computes: products with stacked weights [experts, inner, columns], two one after
the other, made by one module, from rows that a choice among all experts assigns to them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from neuralpower.layers import OWN
from neuralpower.layers.collective import Collective
from neuralpower.layers.experts import Experts
from neuralpower.layers.linear import Linear
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.reduction import Reduction
from neuralpower.trace.dataflow import Dataflow, Edit, Node
from neuralpower.trace.parts.serving import (
    before,
    border,
    by_module,
    layer_of,
    moves,
    served,
    serving,
    weights_read,
)
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, Trace

GROUPED = ("aten._grouped_mm", "aten.bmm")
STACKED = 3  # axes of stacked weights


@trace_pass(place="blocks", applies=lambda trace, asked: served(trace, asked) and bool(_modules(trace)))
def expert_blocks(trace: Trace, question: Question) -> Trace:
    """Make one call of all that the experts of a mixture do, the choice among them included."""
    flow = Dataflow(trace)
    edit = Edit(flow)
    notes: dict[str, None] = {}
    for path, nodes in by_module(flow, _modules(trace)).items():
        block = _block(flow, nodes, path in trace.about.placed)
        if block is None:
            continue
        load = question.routing.load(block.tokens * block.top_k, block.top_k, block.experts)
        layer = replace(block.layer, **load._asdict())
        region = set(block.nodes)
        region |= _choice(flow, region)
        region |= _sums(flow, block)
        region |= _returned(flow, block) if path in trace.about.placed else set()
        edit.gone |= region
        region -= _dispatched(edit, region)
        parts = ("choice", "up", "down")
        edit.add(flow.nodes[block.down], path, layer, border(flow, region), parts)
        notes[
            f"routing {question.routing.name}: {load.hit} of {block.experts} experts assumed active for "
            f"{block.tokens} token{'s' * (block.tokens != 1)}, {load.fullest} at most for one"
        ] = None
    return edit.made(granted=(*trace.granted, *notes)) if edit.gone else trace


@dataclass(frozen=True)
class _Block:
    nodes: Sequence[int]
    down: int  # the node of the last product
    layer: Experts  # without its load
    tokens: int
    top_k: int
    experts: int


def _modules(trace: Trace) -> tuple[str, ...]:
    """Paths of the modules that make products with stacked weights, in order."""
    found = {
        call.path: None
        for call in trace.calls
        if call.operator in GROUPED and len(call.inputs) > 1 and len(call.inputs[1]) == STACKED
    }
    return tuple(found)


def _block(flow: Dataflow, nodes: Sequence[int], placed: bool) -> _Block | None:
    """The experts that a module's nodes are; None where they do something else.

    Rows of `placed` ones are choices that have come from all ranks.
    """
    products = [i for i in nodes if _stacked(flow, flow.nodes[i])]
    if len(products) not in (2, 3):
        return None
    shapes = [_shape(flow.nodes[i]) for i in products]
    (experts, hidden, columns), (others, inner, outputs) = shapes[0], shapes[-1]
    gated = len(products) == 3 or columns == 2 * inner
    if experts != others or outputs != hidden or inner * (1 + (gated and len(products) == 2)) != columns:
        return None
    rows = _rows(flow.nodes[products[0]])
    counted = (rows, 1) if placed else _tokens(flow, nodes, rows, experts)
    if counted is None:
        return None
    tokens, top_k = counted
    product = layer_of(flow.nodes[products[0]])
    assert isinstance(product, Matmul)  # as `_stacked` has seen
    layer = Experts(
        dtype=product.dtype,
        tokens=tokens,
        hidden=hidden,
        intermediate=inner,
        experts=experts,
        top_k=top_k,
        pairs=0,
        hit=0,
        fullest=0,
        gated=gated,
        **{name: getattr(product, name) for name in OWN},
    )
    return _Block(nodes, products[-1], layer, tokens, top_k, experts)


def _stacked(flow: Dataflow, node: Node) -> bool:
    """Whether a node multiplies rows by stacked weights of the model."""
    call = node.call
    if not isinstance(call, LayerCall) or not isinstance(call.layer, Matmul) or call.operator not in GROUPED:
        return False
    shaped = len(call.inputs) > 1 and len(call.inputs[1]) == STACKED
    return shaped and any(place == 1 for place, _ in weights_read(flow, node))


def _shape(node: Node) -> tuple[int, int, int]:
    """Experts, inner side and columns of stacked weights, as the product takes them."""
    assert isinstance(node.call, LayerCall)  # as `_stacked` has seen
    experts, inner, columns = node.call.inputs[1]
    return experts, inner, columns


def _rows(node: Node) -> int:
    """Rows of a product, of all experts together."""
    assert isinstance(node.call, LayerCall)  # as `_stacked` has seen
    return math.prod(node.call.inputs[0][:-1])


def _tokens(flow: Dataflow, nodes: Sequence[int], rows: int, experts: int) -> tuple[int, int] | None:
    """(tokens, experts of each); None where they cannot be told.

    Where every expert computes all tokens, as in Llama 4's own code, the choice says how many count.
    """
    about = flow.trace.about
    tokens = about.batch * about.tokens
    if not tokens or rows % tokens:
        return None
    each = rows // tokens
    if each != experts:
        return tokens, each
    widths = [one for i in sorted(_choice(flow, nodes)) if (one := _chosen(flow.nodes[i], tokens))]
    return tokens, widths[-1] if widths else each


def _chosen(node: Node, tokens: int) -> int:
    """Number of experts that a choice takes for each token; 0 for other calls."""
    call = node.call
    if not isinstance(call, LayerCall) or not call.operator.endswith(".topk") or not call.outputs:
        return 0
    *rows, width = call.outputs[0]
    return width if math.prod(rows) == tokens else 0


def _sums(flow: Dataflow, block: _Block) -> set[int]:
    """Sums over experts outside of their module: where each computes all tokens, one is there."""
    numbers = block.tokens * block.layer.hidden
    last = flow.nodes[block.nodes[-1]]
    found = set()
    for i in last.readers:
        layer = layer_of(flow.nodes[i])
        if isinstance(layer, Reduction) and layer.outputs == numbers and layer.elements > numbers:
            found.add(i)
    return found if found.issuperset(last.readers) else set()


def _returned(flow: Dataflow, block: _Block) -> set[int]:
    """What brings rows of placed experts back to their tokens, on the rank itself."""
    found: set[int] = set()
    i = block.nodes[-1]
    while len(flow.nodes[i].readers) == 1 and moves(flow.nodes[flow.nodes[i].readers[0]]):
        i = flow.nodes[i].readers[0]
        found.add(i)
    return found | serving(flow, found | {*block.nodes}, lambda j: moves(flow.nodes[j])) if found else found


def _dispatched(edit: Edit, region: Collection[int]) -> set[int]:
    """Keep the exchange that brings rows to placed experts; what makes these rows ready belongs to it.

    Returns the nodes of a region that this takes.
    """
    flow, taken = edit.flow, set[int]()
    for i in sorted(region):
        node = flow.nodes[i]
        if isinstance(node.call, LayerCall) and isinstance(node.call.layer, Collective):
            own = before(flow, [i]) & {*region} - taken
            edit.put(node.call, border(flow, own)._replace(writes=node.flow.writes))
            taken |= own
    return taken


def _choice(flow: Dataflow, region: Collection[int]) -> set[int]:
    """The calls between the router's product and the experts that serve these alone."""
    return serving(flow, region, lambda i: not isinstance(layer_of(flow.nodes[i]), (Linear, Collective)))


# ---- One sum over tensor ranks for a mixture, as engines make it ----
# A mixture adds what its shared expert makes to what the chosen ones make. Both are parts on a rank, so that
# one exchange of their sum is enough. vLLM makes its shared experts with `reduce_results=False` and sums once
# (vllm/model_executor/models/deepseek_v2.py, qwen2_moe.py). So does SGLang (sglang/srt/models/deepseek_v2.py,
# `forward_normal` and `forward_normal_dual_stream`; llama4.py), unless a later exchange sums for it: that of
# the next norm, or a reduce-scatter. With DeepEP each of its ranks holds the shared experts whole.


@trace_pass(place="blocks", applies=lambda trace, asked: served(trace, asked) and bool(_mixtures(trace)))
def shared_sums(trace: Trace, question: Question) -> Trace:
    """Sum what the experts of a mixture make over tensor ranks in one exchange, not in two."""
    edit = Edit(Dataflow(trace))
    for path in _mixtures(trace):
        for i in [*_exchanges(edit.flow, path)][:-1]:
            edit.skip(i)
    return edit.made() if edit.gone else trace


def _mixtures(trace: Trace) -> set[str]:
    """Paths of the modules that hold experts."""
    return {call.path.rpartition(".")[0] for call in trace.calls if isinstance(call.layer, Experts)} - {""}


def _exchanges(flow: Dataflow, path: str) -> Iterator[int]:
    """Exchanges of a mixture that sum a whole tensor of outputs, in order."""
    return (i for i, node in enumerate(flow.nodes) if _is_sum(node, path))


def _is_sum(node: Node, path: str) -> bool:
    call = node.call
    if not isinstance(call, LayerCall) or not isinstance(call.layer, Collective):
        return False
    inside = call.path == path or call.path.startswith(f"{path}.")
    return (
        inside and call.layer.function == "all_reduce" and len(node.flow.reads) == len(node.flow.writes) == 1
    )
