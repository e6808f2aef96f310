"""Search in a trace for what serving engines run as their own kernels, and the traces that they change."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from neuralpower.layers import Layer
from neuralpower.layers.attention import Attention
from neuralpower.layers.embedding import Embedding
from neuralpower.layers.linear import Linear
from neuralpower.layers.movement import Movement
from neuralpower.networks.phases import DECODE, PREFILL
from neuralpower.trace.dataflow import Dataflow, Node
from neuralpower.trace.lifetimes import WEIGHTS, Access, Flow
from neuralpower.trace.parts.fusion import space_of
from neuralpower.trace.paths import prefixes
from neuralpower.trace.question import ENGINE, Question
from neuralpower.trace.records import LayerCall, Trace


def served(trace: Trace, question: Question) -> bool:
    """Whether an engine runs a language model: a prompt, or a step against a cache."""
    return question.run == ENGINE and trace.about.phase in (PREFILL, DECODE)


def product_of(node: Node) -> Linear | None:
    """The product that a call is, of rows with a matrix of weights."""
    layer = layer_of(node)
    return layer if isinstance(layer, Linear) else None


def attention_of(node: Node) -> Attention | None:
    layer = layer_of(node)
    return layer if isinstance(layer, Attention) else None


def movement_of(node: Node) -> Movement | None:
    layer = layer_of(node)
    return layer if isinstance(layer, Movement) else None


def passes_through(node: Node) -> bool:
    """Whether numbers go through a call in their places: arithmetic, norms, copies, growing a cache."""
    movement = movement_of(node)
    if movement is not None and movement.function == "append":
        return True
    return isinstance(node.call, LayerCall) and space_of(node.call.layer) is not None


@dataclass(frozen=True)
class Head:
    """The product that makes logits, and the point-wise calls after it, by their numbers."""

    product: int
    after: tuple[int, ...]


def head_of(flow: Dataflow) -> Head | None:
    """The last product, as wide as a table of words, whose results are the pass's."""
    tables = {call.layer.vocabulary for call in flow.trace.calls if isinstance(call.layer, Embedding)}
    for i in range(len(flow.nodes) - 1, -1, -1):
        layer = product_of(flow.nodes[i])
        if layer is None:
            continue
        after = tuple(_after(flow, i))
        ends = all(flow.nodes[j].final or flow.nodes[j].readers for j in (i, *after))
        return Head(i, after) if layer.out_features in tables and ends else None
    return None


def _after(flow: Dataflow, start: int) -> Iterator[int]:
    """Point-wise calls that follow a call, one after the other."""
    seen, queue = {start}, [start]
    while queue:
        for reader in flow.nodes[queue.pop()].readers:
            if reader not in seen and passes_through(flow.nodes[reader]):
                seen.add(reader)
                queue.append(reader)
                yield reader


Sort = Callable[[int], bool]  # of nodes, by number


def nothing(i: int) -> bool:
    return False


def by_module(flow: Dataflow, wanted: Collection[str]) -> dict[str, list[int]]:
    """Nodes of each wanted module and of those below it, by number."""
    found: dict[str, list[int]] = {path: [] for path in wanted}
    for i, node in enumerate(flow.nodes):
        for path in {above for call in node.calls for above in (*prefixes(call.path), call.path)}:
            if path in found:
                found[path].append(i)
    return found


def border(flow: Dataflow, region: Collection[int]) -> Flow:
    """The reads of a region of nodes from outside, and its writes for others."""
    inside = set(region)
    reads: dict[Access, None] = {}
    writes: dict[Access, None] = {}
    for i in sorted(inside):
        node = flow.nodes[i]
        for access, source in zip(node.flow.reads, node.sources, strict=True):
            if source not in inside:
                reads[access] = None
        if node.final or not inside.issuperset(node.readers):
            writes |= dict.fromkeys(node.flow.writes)
    return Flow(tuple(reads), tuple(writes))


def serving(flow: Dataflow, region: Collection[int], takes: Sort, ends: Sort = nothing) -> set[int]:
    """Nodes before a region that nothing but it, or others of them, reads.

    Args:
        flow: all nodes.
        region: numbers of nodes.
        takes: which nodes may be among them.
        ends: those of them past which nothing is looked for.
    """
    inside, serve = set(region), set()
    queue = [-j for i in inside for j in flow.nodes[i].sources if j is not None]
    heapq.heapify(queue)
    while queue:  # the last first, so that all that reads a node has been looked at
        i = -heapq.heappop(queue)
        node = flow.nodes[i]
        if i in inside or node.final or not takes(i) or not inside.issuperset(node.readers):
            continue
        inside.add(i)
        serve.add(i)
        if not ends(i):
            for j in node.sources:
                if j is not None:
                    heapq.heappush(queue, -j)
    return serve


def before(flow: Dataflow, ends: Iterable[int], stops: Sort = nothing, since: int = 0) -> set[int]:
    """Nodes from `since` on that the ends follow from, and these; not what the stops follow from."""
    earlier: set[int] = set()
    queue = list(ends)
    while queue:
        i = queue.pop()
        if i not in earlier and i >= since:
            earlier.add(i)
            if not stops(i):
                queue += [j for j in flow.nodes[i].sources if j is not None]
    return earlier


def after(flow: Dataflow, start: int, until: int) -> set[int]:
    """Nodes up to `until` that follow from one, and itself."""
    later: set[int] = set()
    queue = [start]
    while queue:
        i = queue.pop()
        if i not in later and i <= until:
            later.add(i)
            queue += flow.nodes[i].readers
    return later


def layer_of(node: Node) -> Layer | None:
    """The layer that a node is, where it is one."""
    return node.call.layer if isinstance(node.call, LayerCall) else None


def moves(node: Node) -> bool:
    """Whether a node only moves numbers."""
    return movement_of(node) is not None


def is_plain_copy(node: Node) -> bool:
    """Whether a node writes what it reads in another order."""
    layer = layer_of(node)
    plain = isinstance(layer, Movement) and layer.function == "copy"
    return plain and len(node.flow.reads) == len(node.flow.writes) == 1


def weights_read(flow: Dataflow, node: Node) -> Iterator[tuple[int, Access]]:
    """(place among the node's operands, access) of each weight that it reads."""
    storages = flow.trace.storages
    for place, access in enumerate(node.flow.reads):
        if 0 <= access.storage < len(storages) and storages[access.storage].part == WEIGHTS:
            yield place, access
