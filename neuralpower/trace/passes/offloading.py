"""Offloading: weights of a pipeline lie in the host's memory, and on the device while they are needed.

model       a part's weights come before its first call and go back after its last: two copies
sequential  each module's weights come before its call and are dropped after it, in every run of its part
group       the same by blocks, of which the next is fetched while one runs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from neuralpower.networks.diffusion.pictures import GROUP, MODEL
from neuralpower.trace.lifetimes import WEIGHTS, Storage
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace

Span = tuple[int, int]  # first and last operator call


@trace_pass(place="calls", applies=lambda trace, _: bool(trace.offload))
def offloading(trace: Trace, question: Question) -> Trace:
    """Let weights be on the device while they are needed, and count the bytes that are fetched for that."""
    spans, times = _spans(trace), trace.picture.times if trace.picture else {}
    fetched: dict[str, int] = {}
    storages = []
    for storage in trace.storages:
        part = storage.name.partition(".")[0]
        if storage.part == WEIGHTS and part in spans:
            storage = _resident(storage, trace.offload, spans)
            runs = 2 if trace.offload == MODEL else times.get(part, 1)
            fetched[part] = fetched.get(part, 0) + runs * storage.bytes
        storages.append(storage)
    return replace(trace, storages=tuple(storages), fetched=fetched)


def _spans(trace: Trace) -> Mapping[str, Span]:
    """Path of a module -> its first and last operator call."""
    spans: dict[str, Span] = {}
    for call in trace.every_call:
        for path in _above(call.path):
            first, last = spans.get(path, (call.at, call.at))
            spans[path] = min(first, call.at), max(last, call.at)
    return spans


def _above(path: str) -> Iterable[str]:
    """The path and those of the modules around it, the innermost first."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _resident(storage: Storage, offload: str, spans: Mapping[str, Span]) -> Storage:
    """The storage with the calls between which it is on the device."""
    paths = list(_above(storage.name))[1:]
    if offload == MODEL:
        first, last = spans[paths[-1]]
    elif offload == GROUP:
        block = next((path for path in reversed(paths) if path.rpartition(".")[2].isdigit()), paths[-1])
        first, last = spans.get(block, spans[paths[-1]])
        first -= last - first + 1  # fetched while the block before it runs
    else:
        first, last = next(spans[path] for path in paths if path in spans)
    return storage._replace(birth=max(first, 1), death=last)
