"""Kernels that a compiler joins: chains of point-wise calls, norms with what surrounds them."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.layers.embedding import Embedding
from neuralpower.trace.dataflow import Dataflow, Edit
from neuralpower.trace.parts.fusion import Fusion, is_alias, is_cast, is_copy_of_attention, rewritten
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import COMPILE, ENGINE, Question
from neuralpower.trace.records import Trace


@trace_pass(place="fusion", applies=lambda _, asked: asked.run in (COMPILE, ENGINE))
def fusion(trace: Trace, question: Question) -> Trace:
    """Join point-wise calls and reductions into kernels, as torch.compile's Inductor does."""
    trace = replace(trace, calls=tuple(call for call in trace.calls if not is_alias(call)))
    edit = Edit(Dataflow(trace))
    for i, node in enumerate(edit.flow.nodes):
        if is_copy_of_attention(edit.flow, node) or is_cast(edit.flow, node):
            edit.skip(i)
    trace = edit.made()
    flow = Dataflow(trace)
    own = {one.at for one in trace.own_backward}
    if question.run == ENGINE:  # engines have a kernel of their own for it
        own |= {call.at for call in trace.calls if isinstance(call.layer, Embedding)}
    apart = [i for i, node in enumerate(flow.nodes) if node.at in own]
    return rewritten(flow, Fusion(flow, apart).found())
