"""Times and memory of many layouts of a deep network, from a short one with the same blocks.

A stage of k blocks is linear in k: what its blocks take, and what surrounds them. The short network, cut once
into two stages and once into three, says both:

    per block   = (first of two stages) - (first of three stages), which has one block less
    a stage     = that of the short network + (k - its blocks) * per block
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from neuralpower.layout import Layout
from neuralpower.learn.predictor import Predictor
from neuralpower.predict.memory.peak import Memory
from neuralpower.predict.parallel.memory import (
    Activations,
    activations_of,
    communicator_bytes,
    serving_memory,
    training_rank_memory,
)
from neuralpower.predict.parallel.pieces import Piece, pieces_of, sends_s
from neuralpower.predict.parallel.schedules import Pipeline, ends_s, held, orders
from neuralpower.predict.parallel.timing import Sums, Timing
from neuralpower.predict.prediction import Interval
from neuralpower.trace.follow import Followed
from neuralpower.trace.passes.data_parallel import ZERO_BUCKET
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.stages import Part, cut, shares_of

SHORT = 6  # blocks of the short network: two stages of three, three of two
PAIR, TRIPLE = 2, 3
Numbers = TypeVar("Numbers", Timing, Memory, Sums)


@dataclass(frozen=True)
class Estimate:
    """What is said of one layout."""

    runtime_s: Interval
    cycle_s: float  # seconds until the next step, or the next batches in flight, are done
    exposed_s: float  # of exchanges, of the slowest stage
    bubble_s: float  # that the slowest stage waits
    memory: Memory | None  # of a device of the fullest stage


@dataclass(frozen=True)
class Stretched:
    """A network of `blocks` blocks by what was followed of a short one, or of itself where it is short.

    Args:
        found: one micro-batch of one rank's module, followed for `one_micro_batch(question)`.
        blocks: of the network that is meant.
        predictor: of one of the devices.
        question: of any layout with the same tensor and expert ranks.
    """

    found: Followed
    blocks: int
    predictor: Predictor
    question: Question

    @property
    def trains(self) -> bool:
        """Whether steps of training are meant."""
        return self.question.phase == TRAINING

    def estimate(self, layout: Layout, count: int) -> Estimate:
        """A layout with its micro-batches; raises InputError for more stages than blocks."""
        recipe = replace(self.question.recipe, accumulation=count)
        return _Layout(self, replace(self.question, layout=layout, recipe=recipe)).estimate


@dataclass(frozen=True)
class _Layout:
    """One layout of a stretched network."""

    base: Stretched
    question: Question

    @property
    def layout(self) -> Layout:
        """How the network is spread."""
        return self.question.layout

    @property
    def count(self) -> int:
        """Micro-batches."""
        return self.question.recipe.accumulation

    @property
    def shares(self) -> list[int]:
        """[stages] blocks of each."""
        return shares_of(self.base.blocks, self.layout.pipeline)

    def _cut(self, stages: int) -> tuple[Question, list[Part]]:
        """The short network in its stages."""
        layout = replace(self.layout, pipeline=stages, schedule="1f1b", interleave=1)
        found = self.base.found
        return replace(self.question, layout=layout), cut(
            found.trace if self.base.trains else found.work, layout
        )

    @cached_property
    def whole(self) -> tuple[list[Part], list[Piece]]:
        """The short network as one stage, or in three."""
        stages = 1 if self.layout.pipeline == 1 else TRIPLE
        question, parts = self._cut(stages)
        return parts, pieces_of(parts, self.base.predictor, question)

    @cached_property
    def pair(self) -> tuple[list[Part], list[Piece]]:
        """The first stage of two, and the first of three, whose difference is a block."""
        question, two = self._cut(PAIR)
        first = two[0]
        pieces = pieces_of([first], self.base.predictor, question)
        if self.layout.pipeline > 1:
            return [first, self.whole[0][0]], [*pieces, self.whole[1][0]]
        question, three = self._cut(TRIPLE)
        return [first, three[0]], [*pieces, *pieces_of(three[:1], self.base.predictor, question)]

    def _stretched(self, of: Callable[[list[Part], list[Piece]], Sequence[Numbers]]) -> list[Numbers]:
        """[stages] numbers of each, from those of parts of the short network."""
        own = of(*self.whole)
        long, short = of(*self.pair)
        places = [0, *[1] * (self.layout.pipeline - 2), 2] if self.layout.pipeline > 1 else [0]
        sizes = [len(part.blocks) for part in self.whole[0]]
        return [
            _extended(own[place], long, short, share - sizes[place])
            for place, share in zip(places, self.shares, strict=True)
        ]

    @cached_property
    def timings(self) -> list[Timing]:
        """[stages] of each."""
        return self._stretched(lambda _, pieces: [piece.timing for piece in pieces])

    @cached_property
    def busy_s(self) -> list[float]:
        """[stages] what each works without waits for others."""
        return [one.alone_s(self.count if self.base.trains else 1) for one in self.timings]

    @cached_property
    def pipeline(self) -> Pipeline:
        """The schedule's numbers."""
        stages, further = self.layout.pipeline, (self.count - 1) / self.count
        sends = [0.0] * stages
        if self.base.trains and stages > 1:
            each = sends_s(self.whole[1], self.base.predictor, self.question)
            sends = [each[0]] * stages
        return Pipeline(
            [one.forward_s for one in self.timings],
            [one.backward_s + further * one.further_s for one in self.timings],
            sends,
            stages,
            self.layout.schedule,
        )

    @cached_property
    def runtime_s(self) -> float:
        """The work of the pass or the step."""
        if not self.base.trains:
            return sum(self.busy_s)
        if self.layout.pipeline == 1:
            return self.busy_s[0]
        ends = ends_s(self.pipeline, self.count)
        return max(end + one.ending_s for end, one in zip(ends, self.timings, strict=True))

    @property
    def estimate(self) -> Estimate:
        """All that is said."""
        slowest = max(range(self.layout.pipeline), key=lambda stage: self.busy_s[stage])
        value, low, high = self.whole[1][-1].answer.busy
        runtime = self.runtime_s
        cycle = runtime
        if not self.base.trains and self.count > 1:
            cycle = max(self.count * max(self.busy_s), runtime)
        return Estimate(
            Interval(runtime, runtime * low / value, runtime * high / value),
            cycle,
            self.timings[slowest].exposed_s(self.count if self.base.trains else 1),
            max(runtime - self.busy_s[slowest], 0.0),
            self._memory(),
        )

    def _memory(self) -> Memory | None:
        """The memory of the fullest stage."""
        step, layout, platform = self.base.found.lifetimes, self.layout, self.question.platform
        if not self.base.trains:
            found = self._stretched(
                lambda parts, _: [serving_memory([part], layout, platform, self.count) for part in parts]
            )
            return max(found, key=lambda memory: memory.high_bytes)
        if step is None or len(step.passes) < 2:
            return None
        order = orders(self.pipeline, min(self.count, 4 * layout.pipeline))
        stages = []
        for rank in {0, layout.pipeline - 1}:
            most = {0: sum(held(order[rank]).values())}

            def memories(parts: list[Part], _: list[Piece], most: dict[int, int] = most) -> list[Memory]:
                activations = self._activations(len(parts) == PAIR)
                return [
                    training_rank_memory(step, [part], [own], most, self.question)
                    for part, own in zip(parts, activations, strict=True)
                ]

            stages.append(self._bounded(self._stretched(memories)[rank]))
        return max(stages, key=lambda memory: memory.high_bytes)

    def _activations(self, pair: bool) -> list[Activations]:
        """Values of the parts whose difference is one block, or of the stages."""
        step, platform = self.base.found.lifetimes, self.question.platform
        assert step is not None
        if not pair:
            return activations_of(step, self.whole[0], platform)
        return [activations_of(step, self._cut(stages)[1], platform)[0] for stages in (PAIR, TRIPLE)]

    def _bounded(self, memory: Memory) -> Memory:
        """The memory, whose buckets of shared states do not grow with the network."""
        if self.layout.shard not in ("zero1", "zero2"):
            return memory
        most = communicator_bytes(self.layout, self.question.platform) + 4 * ZERO_BUCKET
        more = max(memory.communication_bytes - most, 0)
        return replace(
            memory,
            communication_bytes=memory.communication_bytes - more,
            tensor_bytes=memory.tensor_bytes - more,
        )


def _extended(own: Numbers, long: Numbers, short: Numbers, blocks: int) -> Numbers:
    """The numbers with some blocks more, or fewer."""
    changed: dict[str, Any] = {}
    for field in fields(own):
        value, more, less = (getattr(one, field.name) for one in (own, long, short))
        if isinstance(value, Sums):
            changed[field.name] = _extended(value, more, less, blocks)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            changed[field.name] = max(value + blocks * (more - less), 0)
    return replace(own, **changed)
