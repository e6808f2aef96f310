"""The optimizer's step of replicas: it waits for exchanges, and steps what a rank has of shared states."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.devices.cluster import DATA
from neuralpower.trace.parts.exchanges import exchanged
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.passes.data_parallel import alike, parameters_of, replicated
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER
from neuralpower.trace.records import Task, Trace


@trace_pass(place="update", applies=replicated)
def replicated_update(trace: Trace, question: Question) -> Trace:
    """Have the optimizer wait for the exchanges, and step a rank's own part of the parameters alone."""
    tasks, layout = list(trace.tasks), question.layout
    steps = [i for i, task in enumerate(tasks) if task.step == OPTIMIZER]
    for i in steps[:1]:
        tasks[i] = replace(tasks[i], waits=(DATA,))
    if not layout.shard:
        return replace(trace, tasks=tuple(tasks))
    for i in steps:
        layer = tasks[i].layer
        if numbers := int(getattr(layer, "elements", 0)):
            own = -(-numbers // layout.data)
            tasks[i] = replace(tasks[i], layer=replace(layer, elements=own))  # type: ignore[call-arg]
    if layout.shard != "zero3":
        for some in alike(parameters_of(trace, question.recipe)):
            numbers = sum(one.numbers for one in some)
            gathered = exchanged(question, "all_gather", some[0].dtype, numbers, experts=some[0].experts)
            tasks.append(Task("", gathered, OPTIMIZER, stream=DATA, event=DATA))
    return replace(trace, tasks=tuple(tasks))
