"""A network on several devices: its ranks' work, put together in time.

    tensor, expert ranks   exchange within their own work, which is that of one rank's module
    stages                 the rank's trace is cut between blocks; a schedule says when each part runs
    replicas               exchange gradients and weights while layers run

The slowest rank decides: the prediction's rows are its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from neuralpower.devices.cluster import Cluster, Layout, enough_for
from neuralpower.devices.spec import known_spec
from neuralpower.errors import InputError
from neuralpower.layers.base import BACKWARD
from neuralpower.layers.collective import Collective
from neuralpower.layers.embedding import Embedding
from neuralpower.learn.network_estimates import Answer, ask
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.compose import Whole, assembled, rows_of
from neuralpower.prediction.costs.energy import energy_of
from neuralpower.prediction.memory.fresh_memory import fresh_row
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.parallel.lanes import Lane, lanes_of_stage, lanes_of_stages
from neuralpower.prediction.parallel.memory import (
    NOTE,
    Activations,
    StepMemory,
    activations_of,
    communicators,
    serving_memory,
    training_rank_memory,
)
from neuralpower.prediction.parallel.pieces import Course, Piece, merged, pieces_of, repeats_of, times_of_rank
from neuralpower.prediction.parallel.schedules import held, order_of
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.rows import BOUNDS, Interval, Row
from neuralpower.prediction.several_devices import Parallel, StageResult
from neuralpower.trace.followed import Followed
from neuralpower.trace.lifetimes import StepLifetimes
from neuralpower.trace.parts.exchanges import per_node
from neuralpower.trace.parts.stages import Part, cut
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import OPTIMIZER, TRAINING
from neuralpower.trace.records import Task, Trace


class Shared:
    """What layouts of one followed pass have in common, kept from one to the next."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], list[Part]] = {}
        self.pieces: dict[tuple[object, ...], list[Piece]] = {}


def predict_layout(
    followed: Followed,
    predictor: Predictor,
    question: Question,
    *,
    model: str,
    shared: Shared | None = None,
) -> Prediction:
    """The prediction of a pass or a step on several devices.

    Args:
        followed: one micro-batch of one rank's module, followed for `one_micro_batch(question)`. It serves
            all layouts with the same tensor and expert ranks.
        predictor: of one of the devices.
        question: with the layout, the cluster, and in `recipe.accumulation` the micro-batches.
        model: its name.
        shared: with those before, where several layouts of the same `followed` and recipe are predicted.

    Raises:
        InputError: the layout does not fit the cluster or the network.
    """
    trace = followed.trace if question.phase == TRAINING else followed.work
    one = _Composed(
        trace, followed.lifetimes, predictor, question, followed.asked.batch_size, shared or Shared()
    )
    prediction = one.prediction(model)
    return replace(prediction, assumptions=(*prediction.assumptions, *followed.notes))


def predict_work(
    work: Trace, predictor: Predictor, question: Question, *, model: str, batch_size: int
) -> Prediction:
    """The prediction of a forward pass on several devices, from the tasks of one rank's module."""
    return _Composed(work, None, predictor, question, batch_size).prediction(model)


def lanes(
    work: Trace | Followed, predictor: Predictor, question: Question, *, batch_size: int = 1
) -> tuple[Lane, ...]:
    """What each stage's streams do when, for the same arguments as `predict_layout` or `predict_work`."""
    lifetimes = None
    if isinstance(work, Followed):
        trace = work.trace if question.phase == TRAINING else work.work
        lifetimes, batch_size = work.lifetimes, work.asked.batch_size
    else:
        trace = work
    return tuple(_Composed(trace, lifetimes, predictor, question, batch_size).lanes())


@dataclass(frozen=True)
class _Composed:
    """One layout of a followed pass."""

    trace: Trace
    lifetimes: StepLifetimes | None
    predictor: Predictor
    question: Question
    batch_size: int
    shared: Shared = field(default_factory=Shared)

    def __post_init__(self) -> None:
        """Raise InputError for a layout that does not fit."""
        layout, cluster = self.layout, self.question.cluster
        if cluster is not None:
            cluster.check(layout)
        if self.question.phase == BACKWARD:
            raise InputError(
                f"phase {BACKWARD} of {layout}: several devices run whole steps; choose phase {TRAINING}"
            )
        if layout.schedule != "1f1b" and layout.pipeline == 1:
            raise InputError(
                f"schedule {layout.schedule}: orders pipeline stages, and there is one; "
                "choose pipeline of 2 or more"
            )

    @property
    def layout(self) -> Layout:
        return self.question.layout

    @property
    def trains(self) -> bool:
        return self.question.phase == TRAINING

    @property
    def count(self) -> int:
        """Micro-batches of a step; in inference, batches in flight."""
        return self.question.recipe.accumulation

    @cached_property
    def parts(self) -> list[Part]:
        sizes = self.layout.pipeline, self.layout.interleave
        if sizes not in self.shared.parts:
            self.shared.parts[sizes] = cut(self.trace, self.layout)
        return self.shared.parts[sizes]

    @cached_property
    def pieces(self) -> list[Piece]:
        """The same with their times."""
        layout = replace(self.layout, schedule="interleaved" if self.layout.interleave > 1 else "1f1b")
        key = (layout, per_node(self.question))
        if key not in self.shared.pieces:
            self.shared.pieces[key] = pieces_of(self.parts, self.predictor, self.question)
        return self.shared.pieces[key]

    def of_rank(self, rank: int) -> list[Piece]:
        return self.pieces[rank :: self.layout.pipeline]

    @cached_property
    def course(self) -> Course:
        timings, outputs = [piece.timing for piece in self.pieces], [part.output for part in self.parts[:-1]]
        return Course(self.question, self.predictor, timings, outputs)

    def lanes(self) -> list[Lane]:
        if self.layout.pipeline == 1:
            return lanes_of_stage(self.pieces, self.course.count)
        return lanes_of_stages(self.course.pipeline, self.count, self.course.endings_s, not self.trains)

    def prediction(self, model: str) -> Prediction:
        slowest = self.course.slowest
        work, answer = self._whole(slowest)
        whole = replace(self._times(slowest, answer), fresh=self._fresh(work))
        found = assembled(
            answer, work, self.predictor, self.question, whole, model=model, batch_size=self.batch_size
        )
        memories = [self._memory(rank) for rank in range(self.layout.pipeline)]
        known = [memory for memory in memories if memory is not None]
        memory = max(known, key=lambda one: one.high_bytes, default=None)
        parallel = self._parallel(found, memories)
        training = found.training
        if training is not None:
            training = replace(training, model_flops=self._model_flops // self.layout.pipeline)
        said = (NOTE,) if communicators(self.layout) and memory is not None and memory.assumed else ()
        return replace(
            found,
            memory=memory,
            training=training,
            parallel=parallel,
            parameters=sum(part.trace.parameters for part in self.parts),
            assumptions=(*found.assumptions, *said),
            warned=(*found.warned, *self._warnings()),
        )

    def _whole(self, rank: int) -> tuple[Trace, Answer]:
        """All work of a rank, and what the predictor says of it."""
        own = self.of_rank(rank)
        if len(own) == 1:
            return own[0].work, own[0].answer
        work = merged(own)
        return work, ask(self.predictor, work, self.question)

    def _fresh(self, work: Trace) -> Row | None:
        """Fresh memory of a rank in all micro-batches; a stage of a step takes its share of the whole's."""
        count = self.course.count
        if not self.trains:
            return fresh_row(work.storages, self.question.phase, self.predictor, count)
        storages = () if self.lifetimes is None else self.lifetimes.storages
        return fresh_row(storages, TRAINING, self.predictor, count / self.layout.pipeline)

    def _times(self, rank: int, answer: Answer) -> Whole:
        """How long all takes, and the rows of a rank."""
        course = self.course
        whole = times_of_rank(answer, course.of_rank(rank), course.count, course.runtime_s)
        return replace(whole, waits_s=course.runtime_s - course.busy_s[rank])

    @cached_property
    def _model_flops(self) -> int:
        """FLOP of a step of all stages: forward and backward of one tensor rank, without what runs again."""
        return round(
            sum(times * _model_flops(answer, self.count) for answer, times in _distinct(self.pieces))
        )

    def _memory(self, rank: int) -> Memory | None:
        """The memory of one device of a stage; None where it is not known."""
        own = [piece.part for piece in self.of_rank(rank)]
        platform = self.predictor.platform
        if not self.trains:
            return serving_memory(own, self.layout, platform, self.count)
        if self.lifetimes is None or len(self.lifetimes.passes) < 2:
            return None
        most = held(order_of(self.layout, self.count)[rank])
        own_activations = self._activations[rank :: self.layout.pipeline]
        return training_rank_memory(self._step_memory, own, own_activations, most, self.question)

    @cached_property
    def _step_memory(self) -> StepMemory:
        """What all ranks have in common."""
        assert self.lifetimes is not None  # the caller has checked it
        return StepMemory.of(self.lifetimes, self.predictor.platform)

    @cached_property
    def _activations(self) -> list[Activations]:
        """[pieces] what each keeps of a micro-batch."""
        assert self.lifetimes is not None  # the caller has checked it
        return activations_of(self.lifetimes, self.parts, self.predictor.platform)

    def _parallel(self, prediction: Prediction, memories: Sequence[Memory | None]) -> Parallel:
        """What is said of all devices."""
        layout, runtime = self.layout, prediction.runtime_s
        samples = self.batch_size * layout.data * self.count
        course, (cycle_s, idle_s) = self.course, self.course.cycle_s
        rate = runtime.times(cycle_s / course.runtime_s).rate(samples)
        tokens = _tokens(self.trace)
        training = prediction.training
        peak = training.peak_flops_per_s if training else None
        flops = self._model_flops * layout.of_stage
        return Parallel(
            layout=layout,
            cluster=self._cluster,
            micro_batches=self.count,
            samples=samples,
            tokens=tokens * layout.data * self.count,
            communication_s=sum(timing.exchange_s(course.count) for timing in course.of_rank(course.slowest)),
            exposed_s=runtime.times(course.exposed_s / runtime.value),
            bubble_s=max(course.runtime_s - course.busy_s[course.slowest], 0.0),
            samples_per_s=rate,
            tokens_per_s=rate.times(tokens / self.batch_size) if tokens else None,
            utilisation=flops / runtime.value / layout.ranks / peak if peak else None,
            energy_j=self._energy(runtime),
            stages=tuple(self._stage(rank, memories[rank]) for rank in range(layout.pipeline)),
            runtime_s=runtime.value,
            cycle_s=cycle_s,
            idle_s=idle_s,
            notes=tuple(self._notes()),
        )

    @property
    def _cluster(self) -> Cluster | None:
        """The devices; None where none is described."""
        if self.question.cluster is not None:
            return self.question.cluster
        spec = known_spec(self.predictor.device)
        return None if spec is None else enough_for(spec, self.layout)

    def _stage(self, rank: int, memory: Memory | None) -> StageResult:
        own = self.of_rank(rank)
        return StageResult(
            blocks=tuple(block for piece in own for block in piece.part.blocks),
            forward_s=sum(piece.timing.forward_s for piece in own),
            backward_s=sum(piece.timing.backward_s for piece in own),
            busy_s=self.course.busy_s[rank],
            memory=memory,
            parameters=sum(piece.part.trace.parameters for piece in own),
        )

    def _energy(self, runtime: Interval) -> Interval | None:
        """The energy of all devices in a cycle: each stage's own work, and idle power while it waits."""
        batches = 1 if self.trains else self.count
        cycle = runtime.times(self.course.cycle_s[0] / self.course.runtime_s)
        sums = dict.fromkeys(BOUNDS, 0.0)
        known: dict[int, Interval | None] = {}
        for rank in range(self.layout.pipeline):
            key = hash(tuple(id(piece.answer) for piece in self.of_rank(rank)))
            if key not in known:
                _, answer = self._whole(rank)
                whole = self._times(rank, answer)
                rows = rows_of(answer, whole)
                hardware, setting = self.predictor.hardware, self.predictor.setting
                known[key] = energy_of(rows, whole.busy_s.times(batches), cycle, hardware, setting)[1]
            energy = known[key]
            if energy is None:
                return None
            for bound in BOUNDS:
                sums[bound] += getattr(energy, bound) * self.layout.of_stage
        return Interval(**sums)

    def _notes(self) -> list[str]:
        """How the network is cut, as text."""
        shares = [len(part.blocks) for part in self.parts]
        if len(shares) > 1 and len(set(shares)) > 1:
            return [f"{sum(shares)} blocks on {len(shares)} parts: {min(shares)} or {max(shares)} each"]
        return []

    def _warnings(self) -> list[str]:
        stages = self.layout.pipeline
        if self.trains and stages > max(self.count, 1):
            return [
                f"{self.count} micro-batches for {stages} pipeline stages: stages wait most of the time. "
                f"Fix: --micro-batches {4 * stages}"
            ]
        return []


def _model_flops(answer: Answer, count: int) -> float:
    """FLOP of a piece in a step of `count` micro-batches: forward and backward, without what runs again."""
    times: dict[tuple[object, ...], tuple[Task, int]] = {}
    for task, repeats in zip(answer.tasks, repeats_of(answer, count), strict=True):
        if task.step != OPTIMIZER and not task.again and not isinstance(task.layer, Collective):
            key = (id(task.layer), task.share, task.asked)
            times[key] = task, repeats + (times[key][1] if key in times else 0)
    return sum(repeats * task.flops_and_bytes()[0] for task, repeats in times.values())


def _distinct(pieces: Sequence[Piece]) -> Iterator[tuple[Answer, int]]:
    """(answer, the pieces that it is of) of different pieces."""
    count: dict[int, int] = {}
    for piece in pieces:
        count[id(piece.answer)] = count.get(id(piece.answer), 0) + 1
    answers = {id(piece.answer): piece.answer for piece in pieces}
    return ((answers[one], times) for one, times in count.items())


def _tokens(trace: Trace) -> int:
    """Tokens of one pass of one replica; 0 where it reads none."""
    if trace.picture is not None:
        return 0
    about = trace.about
    if about.tokens:
        return about.batch * about.tokens
    return next((c.layer.tokens for c in trace.calls if isinstance(c.layer, Embedding)), 0)
