"""Attention that torch runs itself on an accelerator, by kernels other than those of serving engines."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.layers.attention import TORCH, Attention
from neuralpower.platforms import CPU
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import ENGINE, Question
from neuralpower.trace.records import Task, Trace


def _runs_torchs(trace: Trace, question: Question) -> bool:
    """Whether attention runs on an accelerator, and no engine runs it."""
    accelerated = question.platform.family != CPU.family and question.run != ENGINE
    return accelerated and any(isinstance(task.layer, Attention) for task in trace.tasks)


@trace_pass(place="types", applies=_runs_torchs)
def torchs_attention(trace: Trace, question: Question) -> Trace:
    """Let attention be torch's own kernels on an accelerator: they reach less than those of engines."""
    return replace(trace, tasks=tuple(map(_by_torch, trace.tasks)))


def _by_torch(task: Task) -> Task:
    layer = task.layer
    return replace(task, layer=replace(layer, library=TORCH)) if isinstance(layer, Attention) else task
