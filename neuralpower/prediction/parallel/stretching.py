"""Times and memory of many layouts of a deep network, from a short one with the same blocks.

A stage of k blocks is linear in k: what its blocks take, and what surrounds them. The short network, cut once
into two stages and once into three, says both:

    per block   = (first of two stages) - (first of three stages), which has one block less
    a stage     = that of the short network + (k - its blocks) * per block

A network that is not shortened is cut as it is meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from neuralpower.devices.cluster import Layout
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.watts import idle_power
from neuralpower.prediction.compose import rows_of
from neuralpower.prediction.costs.energy import energy_of, with_time
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.parallel.memory import (
    Activations,
    StepMemory,
    activations_of,
    communicator_bytes,
    serving_memory,
    training_rank_memory,
)
from neuralpower.prediction.parallel.pieces import Course, Piece, pieces_of, times_of_rank
from neuralpower.prediction.parallel.schedules import held, order_of
from neuralpower.prediction.parallel.timing import Sums, Timing
from neuralpower.prediction.rows import BOUNDS, Interval
from neuralpower.trace.followed import Followed
from neuralpower.trace.parts.stages import Part, cut, shares_of
from neuralpower.trace.passes.data_parallel import ZERO_BUCKET
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import TRAINING

SHORT = 6  # blocks of the short network: two stages of three, three of two
PAIR, TRIPLE = 2, 3
Numbers = TypeVar("Numbers", Timing, Memory, Sums, Interval)


@dataclass(frozen=True)
class Estimate:
    """What is said of one layout."""

    runtime_s: Interval
    cycle_s: float  # seconds until the next step, or the next batches in flight, are done
    exposed_s: float  # of exchanges, of the slowest stage
    bubble_s: float  # that the slowest stage waits in a cycle
    energy_j: Interval | None  # of all devices in a cycle


@dataclass(frozen=True)
class Stretched:
    """A network of `blocks` blocks by what was followed of a short one; or, without `blocks`, of itself.

    What several layouts have in common is kept from one to the next.

    Args:
        found: one micro-batch of one rank's module, followed for `one_micro_batch(question)`.
        blocks: of the network that is meant; None: it is the one that was followed.
        predictor: of one of the devices; one that remembers layers saves most of the work.
        question: of any layout with the same tensor and expert ranks.
    """

    found: Followed
    blocks: int | None
    predictor: Predictor
    question: Question
    parts: dict[int, list[Part]] = field(default_factory=dict, compare=False, repr=False)
    pieces: dict[tuple[object, ...], list[Piece]] = field(default_factory=dict, compare=False, repr=False)
    kept: dict[int, list[Activations]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def trains(self) -> bool:
        return self.question.phase == TRAINING

    def on(self, layout: Layout, count: int) -> StretchedLayout:
        """A layout with its micro-batches."""
        recipe = replace(self.question.recipe, accumulation=count)
        return StretchedLayout(self, replace(self.question, layout=layout, recipe=recipe))

    def cut(self, stages: int) -> list[Part]:
        """The short network in its stages; raises InputError for more stages than blocks."""
        if stages not in self.parts:
            trace = self.found.trace if self.trains else self.found.work
            self.parts[stages] = cut(trace, Layout(pipeline=stages))
        return self.parts[stages]

    def timed(self, stages: int, count: int, question: Question) -> list[Piece]:
        """The first `count` of its stages, timed; schedules, and states alone, change nothing."""
        shard = "zero1" if question.layout.shard == "zero2" else question.layout.shard
        layout = replace(question.layout, pipeline=stages, shard=shard, schedule="1f1b", interleave=1)
        key = (layout, count)
        if key not in self.pieces:
            asked = replace(question, layout=layout)
            self.pieces[key] = pieces_of(self.cut(stages)[:count], self.predictor, asked)
        return self.pieces[key]

    def activations(self, stages: int) -> list[Activations]:
        """Values of each of its stages; raises InputError for more stages than blocks."""
        if stages not in self.kept:
            assert self.found.lifetimes is not None  # the caller has checked it
            platform = self.question.platform
            self.kept[stages] = activations_of(self.found.lifetimes, self.cut(stages), platform)
        return self.kept[stages]

    @cached_property
    def step(self) -> StepMemory:
        """What all ranks' memory has in common."""
        assert self.found.lifetimes is not None  # the caller has checked it
        return StepMemory.of(self.found.lifetimes, self.question.platform)


@dataclass(frozen=True)
class StretchedLayout:
    """One layout of a stretched network; raises InputError for more stages than blocks."""

    base: Stretched
    question: Question

    @property
    def layout(self) -> Layout:
        return self.question.layout

    @property
    def count(self) -> int:
        """Micro-batches; in inference, batches in flight."""
        return self.question.recipe.accumulation

    @property
    def number(self) -> int:
        return self.layout.pipeline * self.layout.interleave

    @cached_property
    def more(self) -> list[int]:
        """[pieces] blocks that each has more than the stage which stands for it."""
        if self.base.blocks is None:
            return [0] * self.number
        parts = self.base.cut(self.stages)
        shares = shares_of(self.base.blocks, self.number)
        return [share - len(parts[self.place(i)].blocks) for i, share in enumerate(shares)]

    @property
    def stages(self) -> int:
        """Stages of the network that was followed, which stand for all pieces."""
        return self.number if self.base.blocks is None or self.number == 1 else TRIPLE

    def place(self, piece: int) -> int:
        """The stage of the network that was followed that stands for a piece."""
        if self.base.blocks is None:
            return piece
        return min(piece, 1) if piece < self.number - 1 else self.stages - 1

    def ranks_pieces(self, rank: int) -> range:
        """Numbers of the pieces of a pipeline rank."""
        return range(rank, self.number, self.layout.pipeline)

    @cached_property
    def whole(self) -> list[Piece]:
        """The network that was followed, in its stages."""
        return self.base.timed(self.stages, self.stages, self.question)

    @cached_property
    def timings(self) -> list[Timing]:
        return [
            _extended(self.whole[self.place(piece)].timing, self._timed_first, self.more[piece])
            for piece in range(self.number)
        ]

    def _first(self, stages: int) -> Piece:
        """The first of two or three stages."""
        # alone, where not all three are asked about anyhow
        whole = stages == self.stages
        return (self.whole if whole else self.base.timed(stages, 1, self.question))[0]

    def _timed_first(self, stages: int) -> Timing:
        return self._first(stages).timing

    @cached_property
    def course(self) -> Course:
        outputs = [self.whole[self.place(piece)].part.output for piece in range(self.number - 1)]
        return Course(self.question, self.base.predictor, self.timings, outputs)

    @property
    def estimate(self) -> Estimate:
        value, low, high = self.whole[-1].answer.busy
        runtime, (cycle_s, idle_s) = self.course.runtime_s, self.course.cycle_s
        return Estimate(
            Interval(runtime, runtime * low / value, runtime * high / value),
            cycle_s,
            self.course.exposed_s,
            idle_s,
            self._energy(cycle_s),
        )

    def _energy(self, cycle_s: float) -> Interval | None:
        """Joules of all devices in a cycle: idle power, and what each stage's work adds to it."""
        if self.base.predictor.hardware is None:
            return None
        added = [
            _extended(self._added(self.whole[self.place(piece)]), self._added_first, self.more[piece])
            for piece in range(self.number)
        ]
        batches, waits_s = 1 if self.base.trains else self.count, cycle_s * self.layout.pipeline
        drawn = Interval(
            *(
                batches * sum(getattr(one, bound) for one in added) + waits_s * getattr(self._idle, bound)
                for bound in BOUNDS
            )
        )
        if not math.isfinite(drawn.value):
            return None
        busy = self.whole[-1].answer.busy
        joules = with_time(drawn, Interval(1.0, *(bound / busy[0] for bound in busy[1:])))
        return joules.times(self.layout.tensor * self.layout.data)

    @property
    def _idle(self) -> Interval:
        """Watts of a device that waits; 0 where they are not known."""
        hardware, setting = self.base.predictor.hardware, self.base.predictor.setting
        clock = 1.0 if setting is None else setting.clock
        return Interval(*(idle_power(hardware, clock) if hardware else (0.0, 0.0, 0.0)))

    def _added_first(self, stages: int) -> Interval:
        return self._added(self._first(stages))

    def _added(self, piece: Piece) -> Interval:
        """Joules that a piece's calls take above idle power; NaN where they are not known."""
        predictor, course = self.base.predictor, self.course
        whole = times_of_rank(piece.answer, [piece.timing], course.count, course.runtime_s)
        rows, busy = rows_of(piece.answer, whole), whole.busy_s
        power, _, _ = energy_of(rows, busy, busy, predictor.hardware, predictor.setting)
        power = power or Interval(math.nan, math.nan, math.nan)
        return Interval(
            *((getattr(power, bound) - getattr(self._idle, bound)) * busy.value for bound in BOUNDS)
        )

    @cached_property
    def memory(self) -> Memory | None:
        """A device's memory in the fullest stage; None where a step's lifetimes are not known."""
        step, most = self.base.found.lifetimes, self.layout.pipeline - 1
        if not self.base.trains:
            memories = [self._serving(piece) for piece in self._standing or sorted({0, min(1, most), most})]
        elif step is None or len(step.passes) < 2:
            return None
        else:
            order = order_of(self.layout, self.count)
            ranks = self._standing or sorted({0, most})
            memories = [self._bounded(self._training(rank, held(order[rank]))) for rank in ranks]
        return max(memories, key=lambda memory: memory.high_bytes)

    @property
    def _standing(self) -> range:
        """All ranks, where none stands for others."""
        return range(self.layout.pipeline if self.base.blocks is None else 0)

    def _serving(self, piece: int) -> Memory:
        """The memory of a device of a stage in a forward pass."""

        def of(stages: int, place: int = 0) -> Memory:
            part = self.base.cut(stages)[place]
            return serving_memory([part], self.layout, self.question.platform, self.count)

        return _extended(of(self.stages, self.place(piece)), of, self.more[piece])

    def _training(self, rank: int, most: dict[int, int]) -> Memory:
        """The memory of a device of a rank in a step, with the micro-batches of each piece that it holds."""
        own = list(self.ranks_pieces(rank))
        found = self._of_stages([(self.stages, self.place(piece)) for piece in own], most)
        for number, piece in enumerate(own):
            holds = {0: most.get(number, 0)}
            found = _extended(found, partial(self._of_first, holds), self.more[piece])
        return found

    def _of_first(self, holds: dict[int, int], stages: int) -> Memory:
        """The memory of a rank with the first of two or three stages."""
        return self._of_stages([(stages, 0)], holds)

    def _of_stages(self, stages: Sequence[tuple[int, int]], holds: dict[int, int]) -> Memory:
        """The memory of a rank with some stages, (their number, which of them), of the short network."""
        return training_rank_memory(
            self.base.step,
            [self.base.cut(number)[place] for number, place in stages],
            [self.base.activations(number)[place] for number, place in stages],
            holds,
            self.question,
        )

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


def _extended(own: Numbers, first: Callable[[int], Numbers], blocks: int) -> Numbers:
    """The numbers with some blocks more, or fewer; `first`: those of the first of two or three stages."""
    return own if blocks == 0 else _with_blocks(own, first(PAIR), first(TRIPLE), blocks)


def _with_blocks(counted: Numbers, long: Numbers, short: Numbers, blocks: int) -> Numbers:
    changed: dict[str, Any] = {}
    for one in fields(counted):
        value, more, less = (getattr(numbers, one.name) for numbers in (counted, long, short))
        if isinstance(value, Sums):
            changed[one.name] = _with_blocks(value, more, less, blocks)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            changed[one.name] = max(value + blocks * (more - less), 0)
    return replace(counted, **changed)
