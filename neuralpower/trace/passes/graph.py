"""CUDA graphs: all calls of a pass are captured once, and launched at once from then on."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.layers.base import FORWARD
from neuralpower.networks.phases import PREFILL
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import ENGINE, GRAPH, Question
from neuralpower.trace.records import Trace

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
