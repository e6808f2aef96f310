"""Sampling: the next token of each sample is chosen among its logits."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.dtypes import DTYPES
from neuralpower.layers.fused_pointwise import FusedPointwise
from neuralpower.trace.dataflow import Dataflow
from neuralpower.trace.parts.serving import head_of, product_of, served
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, Trace

HEADLESS = (
    "the network has no head: neither logits nor the choice of the next token are priced; "
    "a class with a head, such as transformers:LlamaForCausalLM, has them"
)
PLACES = DTYPES["int64"].itemsize  # bytes of a token's number


@trace_pass(place="serving", applies=served)
def sampling(trace: Trace, question: Question) -> Trace:
    """Choose the likeliest token of each sample: one pass over its logits in float32.

    A network without a head has no logits, and nothing is chosen; a note says so.
    """
    flow = Dataflow(trace)
    head = head_of(flow)
    layer = None if head is None else product_of(flow.nodes[head.product])
    if head is None or layer is None:
        return replace(trace, granted=(*trace.granted, HEADLESS))
    rows = min(layer.rows, trace.about.ends)
    numbers = rows * layer.out_features
    chosen = FusedPointwise(
        bytes_read=int(numbers * layer.itemsize),
        bytes_written=int(rows * PLACES),
        operations=numbers,
        row=layer.out_features,
        dtype=layer.dtype,
    )
    at = max(call.at for call in trace.every_call) + 1
    return replace(trace, calls=(*trace.calls, LayerCall("", chosen, at=at, parts=("argmax",))))
