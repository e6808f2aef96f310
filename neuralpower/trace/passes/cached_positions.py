"""Positions, rotary tables and masks: engines make them once, not in each pass."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.layers.embedding import Embedding
from neuralpower.trace.dataflow import Dataflow, Node
from neuralpower.trace.fusion import without
from neuralpower.trace.lifetimes import CACHE, INPUTS
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, Trace
from neuralpower.trace.serving import served

IDS = 2  # axes of token numbers and of masks over them: what has more is content, such as sound


@trace_pass(place="serving", applies=served)
def cached_positions(trace: Trace, question: Question) -> Trace:
    """Drop calls that follow from positions alone: an engine keeps cosines and sines, and needs no mask."""
    flow = Dataflow(trace)
    content = [False] * len(flow.nodes)
    for i, node in enumerate(flow.nodes):
        content[i] = _brings_content(trace, node) or any(content[j] for j in node.sources if j is not None)
    gone = {node.at for i, node in enumerate(flow.nodes) if not content[i]}
    read = {access.storage for node in flow.nodes if node.at not in gone for access in node.flow.reads}
    made = {access.storage for node in flow.nodes if node.at in gone for access in node.flow.writes}
    return replace(
        trace,
        calls=tuple(call for call in trace.calls if call.at not in gone),
        unmodelled=tuple(call for call in trace.unmodelled if call.at not in gone),
        flows={at: one for at, one in trace.flows.items() if at not in gone},
        storages=without(trace, made - read),
    )


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
