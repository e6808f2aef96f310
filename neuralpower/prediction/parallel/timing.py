"""How long the parts of a rank's work take: its layers on one stream, exchanges on others.

    own stream     layers, and exchanges that the next layer needs at once, in order
    other streams  an exchange starts once what stands before it on the own stream has ended
    waits          a layer that needs what was exchanged starts after it

A step of several micro-batches repeats one: the first and the last differ by what is added to gradients, and
by what is exchanged between replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from neuralpower.layers.base import FORWARD
from neuralpower.layers.collective import Collective
from neuralpower.learn.network_estimates import Answer
from neuralpower.prediction.streams import Array, At, Plan, Rank, times_of
from neuralpower.trace.recipe import OPTIMIZER
from neuralpower.trace.records import Task

FURTHER = "added"  # event of what all micro-batches but the first add to a step


@dataclass(frozen=True)
class Timing:
    """Seconds of one part of the network on one rank, without waits for others.

    `each` is of a micro-batch without what follows the last one; `last` is of the last one with all of it.
    """

    forward_s: float  # of one micro-batch
    backward_s: float  # of one micro-batch, without exchanges between replicas
    further_s: float  # that each micro-batch after the first adds to its backward pass
    ending_s: float  # after the last micro-batch: exchanges that nothing hides, and the optimizer's step
    each: Sums
    last: Sums

    @property
    def micro_batch_s(self) -> float:
        """Both passes of one that is not the first."""
        return self.forward_s + self.backward_s + self.further_s

    def alone_s(self, count: int) -> float:
        """A step of `count` micro-batches without waits for other stages."""
        return count * self.micro_batch_s - self.further_s + self.ending_s

    def exchange_s(self, count: int) -> float:
        return (count - 1) * self.each.exchange_s + self.last.exchange_s

    def exposed_s(self, count: int) -> float:
        """The part of the exchanges that the step is longer for."""
        return max((count - 1) * self.each.exposed_s + self.last.exposed_s, 0.0)

    def busy_s(self, count: int) -> float:
        """All calls of a step, exchanges among them, one after the other."""
        return (count - 1) * (self.each.busy_s + self.further_s) + self.last.busy_s


@dataclass(frozen=True)
class Sums:
    """Seconds of one micro-batch's calls."""

    exchange_s: float
    exposed_s: float
    busy_s: float


def timed_part(answer: Answer) -> Timing:
    """The timing of a part from what a predictor has said of its tasks for one micro-batch.

    Tasks with the event `FURTHER` are not in the first micro-batch.
    """
    steady = _Laid(answer, lambda task: not (task.last or task.step == OPTIMIZER or task.event == FURTHER))
    whole = _Laid(answer, lambda task: task.event != FURTHER)
    further = _Laid(answer, lambda task: task.event == FURTHER)
    forward, once, ends = steady.end_s(FORWARD), steady.end_s(), whole.end_s()
    each = Sums(steady.exchange_s, once - steady.end_s(bare=True), steady.busy_s)
    last = Sums(whole.exchange_s, ends - whole.end_s(bare=True), whole.busy_s)
    return Timing(forward, once - forward, further.busy_s, ends - once, each, last)


class _Laid:
    """Some tasks of an answer on their streams."""

    def __init__(self, answer: Answer, which: Callable[[Task], bool]) -> None:
        self.index = [i for i, task in enumerate(answer.tasks) if which(task)]
        self.tasks = [answer.tasks[i] for i in self.index]
        unknown_s = sum(answer.unknown_s) / max(len(answer.tasks), 1)  # they stand nowhere: all are longer
        self.seconds = answer.device_s[self.index] + unknown_s
        self.issue_s = None if answer.issue is None else answer.issue.tasks_s[self.index]
        self.exchanges = np.array([isinstance(task.layer, Collective) for task in self.tasks], dtype=bool)

    @property
    def exchange_s(self) -> float:
        return float(np.sum(self.seconds[self.exchanges])) if len(self.tasks) else 0.0

    @property
    def busy_s(self) -> float:
        """All calls one after the other."""
        return float(np.sum(self.seconds)) if len(self.tasks) else 0.0

    def end_s(self, step: str = "", *, bare: bool = False) -> float:
        """When all of it has ended, or the own stream's calls of a step; `bare`: exchanges take no time."""
        if not self.tasks:
            return 0.0
        seconds = np.where(self.exchanges, 0.0, self.seconds) if bare else self.seconds
        (times,) = times_of(Plan([self._rank(seconds)], waits_of(self.tasks)))
        wanted = [
            i for i, task in enumerate(self.tasks) if not step or (task.step == step and not task.stream)
        ]
        return float(times.end_s[wanted].max()) if wanted else 0.0

    def _rank(self, seconds: Array) -> Rank:
        return Rank(seconds, self.issue_s, streams_of(self.tasks))


def streams_of(tasks: Sequence[Task]) -> Array:
    """[tasks] the number of each one's stream; 0 runs the layers."""
    names = dict.fromkeys(["", *(task.stream for task in tasks)])
    numbers = {name: i for i, name in enumerate(names)}
    return np.array([numbers[task.stream] for task in tasks], dtype=int)


def waits_of(tasks: Sequence[Task]) -> list[tuple[At, At]]:
    """(a task, one that has to end before it) of tasks on one rank, but for those of its own stream."""
    waits: list[tuple[At, At]] = []
    latest: dict[str, int] = {}  # the last task of each event and stream
    for i, task in enumerate(tasks):
        if task.stream and "" in latest:
            waits.append((At(0, i), At(0, latest[""])))
        waits += [(At(0, i), At(0, latest[name])) for name in task.waits if name in latest]
        latest[task.stream] = i
        if task.event:
            latest[task.event] = i
    return waits
