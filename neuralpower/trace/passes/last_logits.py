"""Logits of a prompt's last token alone: it is the one that the next token follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
