"""Repeated parts: a pipeline's denoiser runs once in a trace, and once a step in a call."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.layers.base import FORWARD
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace


@trace_pass(place="micro-batches", applies=lambda trace, _: trace.picture is not None)
def repeated_parts(trace: Trace, question: Question) -> Trace:
    """Count the tasks of each part as often as it runs."""
    times = trace.picture.times if trace.picture and question.phase == FORWARD else {}
    tasks = (
        replace(task, share=task.share * times.get(task.path.partition(".")[0], 1)) for task in trace.tasks
    )
    return replace(trace, tasks=tuple(tasks))
