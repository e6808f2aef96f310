"""Shared by the passes of serving engines: the traces that they change, and the search in a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuralpower.layers.attention import Attention
from neuralpower.layers.embedding import Embedding
from neuralpower.layers.linear import Linear
from neuralpower.layers.movement import Movement
from neuralpower.networks.phases import DECODE, PREFILL
from neuralpower.trace.dataflow import Dataflow, Node
from neuralpower.trace.fusion import space_of
from neuralpower.trace.question import ENGINE, Question
from neuralpower.trace.records import LayerCall, Trace


def served(trace: Trace, question: Question) -> bool:
    """Whether an engine runs a language model: a prompt, or a step against a cache."""
    return question.run == ENGINE and trace.about.phase in (PREFILL, DECODE)


def product_of(node: Node) -> Linear | None:
    """The product that a call is, of rows with a matrix of weights."""
    call = node.call
    return call.layer if isinstance(call, LayerCall) and isinstance(call.layer, Linear) else None


def attention_of(node: Node) -> Attention | None:
    """The attention that a call is."""
    call = node.call
    return call.layer if isinstance(call, LayerCall) and isinstance(call.layer, Attention) else None


def movement_of(node: Node) -> Movement | None:
    """The movement that a call is."""
    call = node.call
    return call.layer if isinstance(call, LayerCall) and isinstance(call.layer, Movement) else None


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
