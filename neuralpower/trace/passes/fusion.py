"""Kernels that a compiler joins, such as norms with what surrounds them, and launches by CUDA graphs."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.layers.base import FORWARD
from neuralpower.layers.embedding import Embedding
from neuralpower.networks.phases import PREFILL
from neuralpower.trace.dataflow import Dataflow, Edit
from neuralpower.trace.parts.fusion import Fusion, is_alias, is_cast, is_copy_of_attention, rewritten
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import COMPILE, ENGINE, GRAPH, Question
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


# ---- CUDA graphs: all calls of a pass are captured once, and launched at once from then on ----

CAPTURED = 512  # tokens of the largest graph that vLLM captures by default (`max_cudagraph_capture_size`)


def captured_sizes(most: int) -> list[int]:
    """Tokens of the graphs that vLLM captures, up to `most`: steps of other sizes run as the next larger.

    Source: vllm/config/vllm.py, `_set_cudagraph_sizes`.
    """
    return [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size <= most]


def _captured(trace: Trace, question: Question) -> bool:
    """Whether the pass is captured: engines capture steps up to a size, not prompts of any length."""
    if question.run == GRAPH:
        return True
    about = trace.about
    steps = about.tokens <= CAPTURED if about.stepped else about.phase != PREFILL
    return question.run == ENGINE and question.phase == FORWARD and steps


@trace_pass(place="fusion", applies=_captured)
def graph(trace: Trace, question: Question) -> Trace:
    """Launch all calls at once, as a CUDA graph does: no call waits for the host."""
    return replace(trace, graphed=True)
