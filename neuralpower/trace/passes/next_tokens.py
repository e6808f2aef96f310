"""Next tokens: the logits of a prompt's last token alone, and the choice among each sample's logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuralpower.dtypes import DTYPES
from neuralpower.layers.fused_pointwise import FusedPointwise
from neuralpower.layers.rows import field_names
from neuralpower.networks.phases import PREFILL
from neuralpower.trace.dataflow import Dataflow
from neuralpower.trace.lifetimes import Access, Flow
from neuralpower.trace.parts.serving import head_of, product_of, served
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, PassShape, Trace


@trace_pass(place="serving", applies=lambda trace, asked: served(trace, asked) and _of_prompt(trace))
def last_logits(trace: Trace, question: Question) -> Trace:
    """Compute the logits of each prompt's last token alone."""
    flow, about = Dataflow(trace), trace.about
    head = head_of(flow)
    layer = None if head is None else product_of(flow.nodes[head.product])
    if head is None or layer is None or layer.rows != about.batch * about.tokens:
        return trace
    places = {flow.nodes[i].at for i in (head.product, *head.after)}
    written = {a.storage for at in places for a in trace.flows[at].writes}
    return replace(
        trace,
        calls=tuple(_last(call, about) if call.at in places else call for call in trace.calls),
        flows={at: Flow(*(_fewer(some, written, about) for some in one)) for at, one in trace.flows.items()},
        storages=tuple(
            s._replace(bytes=_share(s.bytes, about)) if i in written else s
            for i, s in enumerate(trace.storages)
        ),
    )


def _of_prompt(trace: Trace) -> bool:
    return trace.about.phase == PREFILL and trace.about.tokens > 1


def _share(number: int, about: PassShape) -> int:
    """The part of a number for all tokens that is of those that end a request."""
    return number * about.ends // (about.batch * about.tokens)


def _last(call: LayerCall, about: PassShape) -> LayerCall:
    """The call for the last token of each request, instead of all tokens."""
    changes: dict[str, Any] = {
        name: _share(getattr(call.layer, name), about)
        for name in ("rows", "elements", "outputs")
        if name in field_names(type(call.layer))
    }
    return replace(call, layer=replace(call.layer, **changes))


def _fewer(some: tuple[Access, ...], written: set[int], about: PassShape) -> tuple[Access, ...]:
    """Accesses, those of logits as small as the last tokens'."""
    return tuple(a._replace(bytes=_share(a.bytes, about)) if a.storage in written else a for a in some)


# ---- Sampling ----

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
