"""Data parallelism: replicas exchange gradients, and shards of weights, while layers run.

DDP      buckets of gradients are summed over all replicas during the backward pass (Li et al.,
         "PyTorch Distributed", 2020): the first of 1 MiB, the others of 25 MiB, each once it is full
zero1    buckets are reduced to the rank that steps them, and the new weights are gathered after the step
zero2    the same in time; a rank keeps its part of the gradients alone (Rajbhandari et al., "ZeRO", 2020)
zero3    a block's weights are gathered while the block before it runs, in both passes, and its gradients
         are reduced and scattered after it (FSDP: Zhao et al., 2023)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from neuralpower.devices.layout import DATA
from neuralpower.dtypes import DTYPES
from neuralpower.layers import Layer
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.movement import Movement
from neuralpower.trace.parts.exchanges import exchanged
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.paths import block_of, module_of, prefixes
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER, TRAINING, Recipe
from neuralpower.trace.records import Task, Trace

FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20  # bytes: `torch.nn.parallel.DistributedDataParallel`
ZERO_BUCKET = 40_000_000  # numbers: Megatron-LM's distributed optimizer


@dataclass(frozen=True)
class Parameter:
    name: str
    dtype: str
    numbers: int
    experts: bool  # expert ranks share it out
    kept: str  # type of its gradient

    @property
    def bytes(self) -> int:
        return int(self.numbers * DTYPES[self.kept].itemsize)

    @property
    def weight_bytes(self) -> int:
        return int(self.numbers * DTYPES[self.dtype].itemsize)


def parameters_of(trace: Trace, recipe: Recipe) -> list[Parameter]:
    """Those that are trained, in the order of the module."""
    return [
        Parameter(name, dtype, numbers, name in trace.of_experts, recipe.gradient_dtype(dtype))
        for name, (dtype, numbers) in zip(trace.trained_names, trace.trained, strict=True)
    ]


def replicated(trace: Trace, question: Question) -> bool:
    """Whether a step exchanges something with replicas."""
    layout = question.layout
    return question.phase == TRAINING and max(layout.data, layout.expert_replicas) > 1


@trace_pass(place="backward", applies=replicated)
def data_parallel(trace: Trace, question: Question) -> Trace:
    """Add the exchanges of gradients, and of weights that are shared out, where their data is ready."""
    tasks = _sharded(trace, question) if question.layout.shard == "zero3" else _bucketed(trace, question)
    return replace(trace, tasks=tuple(tasks))


def alike(parameters: Sequence[Parameter]) -> Iterator[Parameter]:
    """The parameters of one type and one group, as one that has the numbers of all."""

    def sort(one: Parameter) -> tuple[str, bool]:
        return one.dtype, one.experts

    for _, group in groupby(sorted(parameters, key=sort), key=sort):
        first, *others = group
        yield replace(first, numbers=first.numbers + sum(one.numbers for one in others))


def _ready(trace: Trace, question: Question) -> list[tuple[int, Parameter]]:
    """(number of the task that makes its gradient, parameter), the first ready first."""
    last: dict[str, int] = {}
    for i, task in enumerate(trace.tasks):
        if task.step == BACKWARD and not task.again:
            for path in ("", *prefixes(task.path), task.path):
                last[path] = i
    end = len(trace.tasks) - 1
    found = []
    for one in reversed(parameters_of(trace, question.recipe)):
        module = module_of(one.name)
        above = (module, *reversed(prefixes(module)), "")
        found.append((next((last[path] for path in above if path in last), end), one))
    return sorted(found, key=lambda pair: pair[0])


def _bucketed(trace: Trace, question: Question) -> list[Task]:
    """The tasks with an exchange for each bucket of gradients, once it is full."""
    after: dict[int, list[Task]] = {}
    back: list[Task] = []
    shared = bool(question.layout.shard)
    for bucket, ready in _buckets(_ready(trace, question), shared):
        if not shared:  # gradients are divided by the replicas on their way into the bucket, and copied back
            for place, one in bucket:
                after.setdefault(place, []).append(_step(one, _divided(one)))
                back.append(_step(one, _copied(one.kept, one.numbers), waits=(DATA,)))
        first, numbers = bucket[0][1], sum(one.numbers for _, one in bucket)
        function = "reduce_scatter" if shared else "all_reduce"
        layer = exchanged(question, function, first.kept, numbers, experts=first.experts)
        after.setdefault(ready, []).append(Task("", layer, BACKWARD, stream=DATA, event=DATA, last=True))
    tasks: list[Task] = []
    for i, task in enumerate(trace.tasks):
        tasks += (task, *after.get(i, ()))
    return [*tasks, *back]


def _buckets(
    ready: Sequence[tuple[int, Parameter]], shared: bool
) -> Iterator[tuple[list[tuple[int, Parameter]], int]]:
    """(its parameters with the task that makes each gradient, the last of these) of each bucket."""
    open_ones: dict[tuple[str, bool], list[tuple[int, Parameter]]] = {}
    first = True
    for place, one in ready:
        bucket = open_ones.setdefault((one.kept, one.experts), [])
        bucket.append((place, one))
        limit = ZERO_BUCKET * DTYPES[one.kept].itemsize if shared else FIRST_BUCKET if first else BUCKET
        if sum(other.bytes for _, other in bucket) >= limit:
            yield open_ones.pop((one.kept, one.experts)), place
            first = False
    yield from ((bucket, max(place for place, _ in bucket)) for bucket in open_ones.values())


def _step(one: Parameter, layer: Layer, waits: tuple[str, ...] = ()) -> Task:
    return Task(module_of(one.name), layer, BACKWARD, waits=waits, last=True)


def _divided(one: Parameter) -> Layer:
    return Elementwise(dtype=one.kept, function="mul", elements=one.numbers, operands=1, broadcast=False)


def _copied(dtype: str, numbers: int) -> Layer:
    return Movement(dtype=dtype, function="copy", elements=numbers)


def _sharded(trace: Trace, question: Question) -> list[Task]:
    """The tasks with the gathers of each block's weights before it, and its gradients scattered after it.

    The gather of the next block starts with a block: weights of two are there at once. What lies in no block
    is gathered first, and stays until the backward pass has ended.
    """
    units: dict[str, list[Parameter]] = {}
    for one in parameters_of(trace, question.recipe):
        units.setdefault(block_of(module_of(one.name)), []).append(one)
    tasks: list[Task] = []
    for step in (FORWARD, BACKWARD):
        own = [task for task in trace.tasks if task.step == step]
        tasks += _gathered(own, units, question, step)
    tasks += _scattered("", units.get("", ()), question)
    return tasks


def _gathered(
    own: Sequence[Task], units: Mapping[str, Sequence[Parameter]], question: Question, step: str
) -> Iterator[Task]:
    """One pass with its gathers; the block that runs last forward keeps its weights for its backward pass."""
    runs = [(block, list(some)) for block, some in groupby(own, key=lambda task: block_of(task.path))]
    order = [block for block in dict.fromkeys(block for block, _ in runs) if block and block in units]
    following = dict(pairwise(order))
    if step == FORWARD:
        for block in ("", *order[:1]):
            yield from _gather(block, units.get(block, ()), question, step)
    for i, (block, tasks) in enumerate(runs):
        begins = block in order
        if begins:
            order.remove(block)
            if block in following:
                yield from _gather(following[block], units[following[block]], question, step)
            if step == FORWARD or block in following.values():
                yield from _copied_out(block, units[block], step)
        elif step == FORWARD and not i:
            yield from _copied_out("", units.get("", ()), step)
        yield from tasks
        if step == BACKWARD and begins:
            yield from _scattered(block, units.get(block, ()), question)


def _event(block: str, step: str) -> str:
    return f"{step} weights of {block}"


def _gather(block: str, parameters: Sequence[Parameter], question: Question, step: str) -> Iterator[Task]:
    for whole in alike(parameters):
        layer = exchanged(question, "all_gather", whole.dtype, whole.numbers, experts=whole.experts)
        yield Task(block, layer, step, stream=DATA, event=_event(block, step))


def _copied_out(block: str, parameters: Sequence[Parameter], step: str) -> Iterator[Task]:
    """The copy of a block's gathered weights out of the buffer of all ranks' parts, once they are there."""
    for whole in alike(parameters):
        layer = _copied(whole.dtype, whole.numbers)
        yield Task(block, layer, step, waits=(_event(block, step),))


def _scattered(block: str, parameters: Sequence[Parameter], question: Question) -> Iterator[Task]:
    """What reduces a block's gradients, and leaves each rank its part; they are put in one buffer before."""
    for whole in alike(parameters):
        layer = exchanged(question, "reduce_scatter", whole.kept, whole.numbers, experts=whole.experts)
        yield Task(block, _copied(whole.kept, whole.numbers), BACKWARD, last=True)
        yield Task(block, layer, BACKWARD, stream=DATA, event=DATA, last=True)


# ---- The optimizer's step of replicas ----


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
        for whole in alike(parameters_of(trace, question.recipe)):
            gathered = exchanged(question, "all_gather", whole.dtype, whole.numbers, experts=whole.experts)
            tasks.append(Task("", gathered, OPTIMIZER, stream=DATA, event=DATA))
    return replace(trace, tasks=tuple(tasks))
