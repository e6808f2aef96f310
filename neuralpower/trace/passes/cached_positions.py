"""Positions, rotary tables and masks: engines make them once, not in each pass."""

from __future__ import annotations

from neuralpower.layers.embedding import Embedding
from neuralpower.trace.dataflow import Dataflow, Edit, Node
from neuralpower.trace.lifetimes import CACHE, INPUTS
from neuralpower.trace.parts.serving import served
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, Trace

IDS = 2  # axes of token numbers and of masks over them: what has more is content, such as sound


@trace_pass(place="serving", applies=served)
def cached_positions(trace: Trace, question: Question) -> Trace:
    """Drop calls that follow from positions alone: an engine keeps cosines and sines, and needs no mask."""
    flow = Dataflow(trace)
    content = [False] * len(flow.nodes)
    for i, node in enumerate(flow.nodes):
        content[i] = _brings_content(trace, node) or any(content[j] for j in node.sources if j is not None)
    return Edit(flow, {i for i, brings in enumerate(content) if not brings}).made()


def _brings_content(trace: Trace, node: Node) -> bool:
    """Whether a call brings words, sounds or what was read before into the pass."""
    for call in node.calls:
        layer = call.layer if isinstance(call, LayerCall) else None
        if layer is not None and (layer.multiplies or isinstance(layer, Embedding)):
            return True
        given = any(_part(trace, access.storage) == INPUTS for access in node.flow.reads)
        if given and any(len(shape) > IDS for shape in call.inputs):
            return True
    return any(_part(trace, access.storage) == CACHE and access.bytes for access in node.flow.reads)


def _part(trace: Trace, place: int) -> str:
    return trace.storages[place].part if 0 <= place < len(trace.storages) else ""
