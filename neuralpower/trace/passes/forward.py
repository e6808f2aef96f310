"""The forward pass: alone, or at the head of a step of training."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.layers.base import BACKWARD
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import Task, Trace


@trace_pass(place="forward", applies=lambda _, asked: asked.phase != BACKWARD)
def forward(trace: Trace, question: Question) -> Trace:
    """Make a task of each call."""
    tasks = (
        Task(c.path, c.layer, share=c.share, operator=c.operator, at=c.at, parts=c.parts) for c in trace.calls
    )
    return replace(trace, tasks=(*trace.tasks, *tasks))
