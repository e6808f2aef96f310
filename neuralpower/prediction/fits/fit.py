"""Whether a network fits into a memory, and the largest batch and longest context that do.

The memory's upper bound must stay below the device's memory, on a CPU minus what the process itself takes, so
that the sizes reported do fit. On an accelerator without such a bound a share of the memory is kept free.
`verdict.py` has the rule of the verdict, `remedies.py` the changes that make a network fit. The length is the
prompt's in a prefill, the context's in a decoder's step; their memory holds the KV cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from operator import attrgetter
from typing import Any, NamedTuple

from neuralpower.ask.options import Training, given_in
from neuralpower.ask.spread import Given
from neuralpower.errors import FixedSizeError, InputError, unknown
from neuralpower.files.json_files import named
from neuralpower.files.stages import stage
from neuralpower.layers.base import FORWARD, TRAINING
from neuralpower.networks.diffusion.families import AUDIO
from neuralpower.networks.inputs.size_limits import check_count
from neuralpower.networks.phases import DECODE, GENERATE, PREDICTED, PREFILL
from neuralpower.platforms import CPU, PLATFORMS, Platform
from neuralpower.prediction.fits.engine_fit import check_engine, engine_memory, memory_of
from neuralpower.prediction.fits.largest import MOST, largest
from neuralpower.prediction.fits.largest_picture import LargestPicture, largest_picture
from neuralpower.prediction.fits.probe import Probe
from neuralpower.prediction.fits.remedies import Remedy, Situation, remedies
from neuralpower.prediction.fits.verdict import DOES_NOT_FIT, FITS, TIGHT, probability_of, verdict_of
from neuralpower.prediction.memory.engines import EngineMemory
from neuralpower.prediction.memory.over_time import Lived
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.request import Request
from neuralpower.prediction.shown import Shown
from neuralpower.quantisation.totals import Quantised

PHASES = (FORWARD, TRAINING, PREFILL, DECODE, GENERATE)
# bytes that count for a size that fits for sure, and for one that is expected to
_UPPER, _EXPECTED = attrgetter("high_bytes"), attrgetter("value_bytes")


@dataclass(frozen=True, repr=False)
class Fit(Shown):
    """The answer; sizes are None where they do not apply. `print` gives the command's table."""

    fits: bool  # for sure: the upper bound is within the memory
    memory: Memory
    room_bytes: float
    # at the request's length, for sure: by the upper bound; 0 where not even one sample fits so
    largest_batch: int | None
    longest: int | None  # at the request's batch size
    longest_reason: str  # what ends it: memory, the model's own positions, or calls that grow with it
    traces: int
    process_bytes: int = 0  # of the memory: taken by the process before there is a network
    margin: float = 0.0  # share of the memory that is kept free, for what is not modelled
    notes: tuple[str, ...] = ()  # what the answer takes for granted
    weights: Quantised | None = None  # None where they are as the dtype says
    # the request, with the model's name
    request: Request | None = field(default=None, compare=False)
    device: str = ""  # whose memory it is
    stages: tuple[Memory, ...] = ()  # of one device of each pipeline stage; `memory` is the largest
    engine: EngineMemory | None = None  # its pool, where the request names an engine
    likely_batch: int | None = None  # where it is tight: the largest whose expected peak is within the memory
    likely_longest: int | None = None  # the same of the longest text
    remedies: tuple[Remedy, ...] = ()  # what makes it fit, the cheapest first; none where it fits
    picture: LargestPicture | None = None  # of a pipeline of diffusion, with the cheapest change that fits

    @property
    def left_bytes(self) -> float:
        """What the network may take: the memory without the process, and without what is kept free."""
        return self.room_bytes * (1 - self.margin) - self.process_bytes

    @property
    def verdict(self) -> str:
        """One of "fits", "tight" and "does not fit": see `verdict.py`."""
        found = verdict_of(self.memory, self.left_bytes)
        return FITS if self.fits else DOES_NOT_FIT if found == FITS else found

    @property
    def probability(self) -> float:
        """How sure it is that the network fits, 0 to 1."""
        return probability_of(self.memory, self.left_bytes)

    @property
    def sequences(self) -> int | None:
        """The most sequences at a time, over all replicas; None for a phase without a cache of its own."""
        if self.request is None or self.request.phase.name not in (DECODE, GENERATE):
            return None
        return self.largest_whole_batch

    @property
    def sequence_bytes(self) -> float | None:
        """Keys and values of one sequence on one device; None for a phase without a cache of its own."""
        if self.sequences is None or self.request is None:
            return None
        return self.memory.cache_bytes / self.request.batch_size

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            **named(
                self,
                """
                fits verdict probability room_bytes process_bytes margin notes memory_bytes=memory.bounds
                memory largest_batch_size=largest_batch longest_seq_len=longest longest_reason?
                likely_batch_size=likely_batch likely_seq_len=likely_longest concurrent_sequences=sequences
                sequence_cache_bytes=sequence_bytes remedies largest_picture=picture? traces weights
                """,
            ),
            **self._layout_json(),
            **({} if self.engine is None else {"engine": self.engine.to_json()}),
        }

    def _layout_json(self) -> dict[str, Any]:
        """What is said of several devices; nothing for one."""
        if self.request is None or self.request.layout.alone:
            return {}
        names = (
            "layout=request.layout ranks=request.layout.ranks largest_whole_batch_size=largest_whole_batch"
        )
        return {**named(self, names), "stages_memory_bytes": [memory.bounds for memory in self.stages]}

    @property
    def largest_whole_batch(self) -> int | None:
        """The largest batch of all replicas and micro-batches together."""
        if self.largest_batch is None or self.request is None:
            return self.largest_batch
        return self.largest_batch * self.request.replicas


FIXED = "the file fixes its batch: export it with dynamic sizes to try others"


def assumed(memory: str | float) -> tuple[Platform, str]:
    """The platform of a memory whose device is not named, and what it is called."""
    platform = PLATFORMS["nvidia"]
    return platform, f"{platform.called} of {memory if isinstance(memory, str) else f'{memory:g} B'}"


def check_room(platform: Platform, room_bytes: float) -> None:
    """Raise InputError for a device's memory that is below what the framework alone takes of it."""
    context = platform.overheads[0].value_bytes if platform.overheads else platform.framework.forward_bytes
    least = max(context, 0)
    if platform.family != CPU.family and room_bytes <= least:
        raise InputError(
            f"memory of {room_bytes / 2**20:.4g} MiB: the framework alone takes {least / 2**20:.0f} MiB of "
            f"{platform.called}; choose a larger memory"
        )


def check_phase(options: Given) -> None:
    """Raise InputError for options of another phase."""
    phase = options.get("phase", FORWARD)
    if not isinstance(phase, str):
        return
    if phase not in PHASES:
        raise unknown("phase", phase, PHASES)
    for name, owner in (("context", DECODE), ("new_tokens", GENERATE)):
        if (value := options.get(name)) is not None and phase != owner:
            raise InputError(f"{name} {value} belongs to phase {owner}, not to {phase}; leave it out")
    training = given_in(Training, options)
    for name in ("optimizer_states", "master_weights"):
        if phase != TRAINING and name in training:
            raise InputError(
                f"{name} {training[name]} belongs to phase {TRAINING}, not to {phase}; leave it out"
            )
    if phase != TRAINING and {*training} & {"optimizer", "accumulation", "checkpointing"}:
        what = "optimizer, accumulation and checkpointing"
        raise InputError(f"{what} belong to phase training, not to {phase}; leave them out")


def checked_margin(request: Request) -> float:
    """The share of the memory that is kept free; raises InputError for what the request cannot be."""
    phase = request.phase.name
    if phase not in PHASES:
        raise unknown("phase", phase, PHASES)
    request.phase.check(PREDICTED)
    if request.phase.lengths is not None and phase == GENERATE:
        raise InputError("--lengths with --phase generate: fit follows one step; choose prefill or decode")
    if request.cluster is not None:
        request.cluster.check(request.layout)
    for name in ("autocast", "lora"):
        if not request.trains and (value := getattr(request, name)) is not None:
            raise InputError(f"{name} {value} belongs to phase {TRAINING}, not to {phase}; leave it out")
    request.check_masters()
    margin = request.platform.margin(phase) if request.margin is None else request.margin
    if isinstance(margin, bool) or not isinstance(margin, Real) or not 0 <= margin < 1:
        what = "the share of memory to keep free must be 0 or more and below 1"
        raise InputError(f"margin {margin!r}: {what}; choose 0.3")
    return float(margin)


def fit(request: Request, room_bytes: float, seen: Callable[[Lived], None] | None = None) -> Fit:
    """Whether the request fits into `room_bytes`, the largest sizes that do, and else what would help.

    `seen` receives what lives when in each pass of the request, on one device.

    Raises:
        InputError: an unknown phase or optimizer, what belongs to another phase, more positions than the
            model has, a step of a model that keeps no cache, a memory below the framework's alone.
        ModelError: the model cannot be built or traced as asked, or has no checkpointing of its own.
    """
    margin = checked_margin(request)
    if request.engine is not None:
        check_engine(request)
    check_room(request.platform, room_bytes)
    probe = Probe(request)
    request = probe.request
    if request.engine is not None:
        return _under_engine(request, probe, room_bytes)
    left_bytes = request.platform.left_bytes(room_bytes, request.phase.name, margin)
    probe.seen = seen
    memory = probe(request.batch_size, request.length)
    probe.seen = None  # of other sizes, nothing is drawn
    largest = _Largest(0, None if (request.length or probe.own_length) is None else 0)
    if memory.weights_bytes <= left_bytes:  # else there is nothing to be sought
        largest = _largest(probe, left_bytes, _UPPER)
    likely = _largest(probe, left_bytes, _EXPECTED) if verdict_of(memory, left_bytes) == TIGHT else _Largest()
    fits, helpful, tried = memory.high_bytes <= left_bytes, tuple[Remedy, ...](), _Changed(probe)
    if request.remedies and not fits and left_bytes > memory.framework_bytes:  # else nothing helps
        sizes = largest.batch or 0, largest.length or 0
        helpful = remedies(Situation(request, memory, left_bytes, *sizes), tried)
    picture = _picture(request, probe, tried, left_bytes, next((r for r in helpful if r.fits), None), fits)
    return Fit(
        fits=fits,
        memory=memory,
        room_bytes=room_bytes,
        largest_batch=largest.batch or 0,
        longest=largest.length,
        longest_reason="" if largest.length is None else largest.reason,
        traces=probe.traces + tried.traces,
        process_bytes=request.platform.framework.process_bytes,
        margin=margin,
        notes=tuple(filter(None, (*probe.notes, request.platform.memory_note(request.phase.name)))),
        weights=probe.quantised,
        request=replace(request, model=str(probe.source.name)),
        stages=tuple(probe.stages.get((request.batch_size, request.length), ())),
        remedies=helpful,
        picture=picture,
        likely_batch=likely.batch,
        likely_longest=likely.length,
    )


class _Largest(NamedTuple):
    """The largest sizes that fit, each alone; a length is None where the network has none."""

    batch: int | None = None
    length: int | None = None
    reason: str = "memory"  # what ends the length


def _largest(probe: Probe, left_bytes: float, bound: Callable[[Memory], int]) -> _Largest:
    """The largest batch and length whose memory, its `bound`, fits into `left_bytes`."""
    request = probe.request
    batch, start = _largest_batch(probe, left_bytes, bound), request.length or probe.own_length
    if start is None:
        return _Largest(batch, None)
    return _Largest(batch, *_longest(probe, request.batch_size, start, left_bytes, bound))


def _picture(
    request: Request, probe: Probe, tried: _Changed, room_bytes: float, change: Remedy | None, fits: bool
) -> LargestPicture | None:
    """The largest picture as it is or with a change that makes it fit; None where there is no picture."""
    found = probe.picture
    if found is None or not found.multiple or found.task == AUDIO or request.trains:
        return None
    changed, options = (request, "") if fits or change is None else (change.request, change.options)
    return largest_picture(changed, found, room_bytes, tried, options)


def _under_engine(request: Request, probe: Probe, room_bytes: float) -> Fit:
    """The answer under the request's engine; raises InputError and ModelError as `fit`."""
    request = replace(request, model=str(probe.source.name))
    whole = None if request.layout.alone else probe.source.build("meta", probe.dtype)
    served = engine_memory(request, probe.module, probe.dtype, room_bytes, probe.quantised_bytes(), whole)
    by_model = served.longest == served.positions
    return Fit(
        fits=served.fits,
        memory=memory_of(served, request.phase.name),
        room_bytes=room_bytes,
        largest_batch=served.sequences,
        longest=served.longest,
        longest_reason="the model's positions" if by_model else "memory",
        traces=probe.traces,
        notes=(*probe.notes, *served.notes),
        weights=probe.quantised,
        request=request,
        engine=served,
    )


def memory(request: Request) -> Memory:
    """The memory of the request at its sizes, from one trace; nothing else is predicted.

    Raises InputError and ModelError as `fit`.
    """
    checked_margin(request)
    check_count("batch_size", request.batch_size)
    return Probe(request)(request.batch_size, request.length)


def _largest_batch(probe: Probe, room_bytes: float, of: Callable[[Memory], int]) -> int:
    """The largest batch of the request whose bytes are within the memory; no other where a file fixes it."""
    request = probe.request

    def memory_at(size: int) -> float:
        try:
            return of(probe(size, request.length))
        except FixedSizeError:
            probe.notes = (*probe.notes, FIXED) if FIXED not in probe.notes else probe.notes
            return float("inf")

    return largest(memory_at, room_bytes, request.batch_size)


class _TooManyCalls(Exception):  # noqa: N818  # a verdict on a length
    """A text so long that tracing it would take minutes."""


def _longest(
    probe: Probe, batch: int, start: int, room_bytes: float, of: Callable[[Memory], int]
) -> tuple[int, str]:
    """The longest text whose bytes are within the memory, and what ends it."""
    limit = MOST

    def memory_at(length: int, bounded: bool = False) -> float:
        nonlocal limit
        if bounded and length > probe.longest_traced(batch):
            raise _TooManyCalls
        try:
            return of(probe(batch, length))
        except InputError:  # the model has no such positions
            limit = min(limit, length - 1)
            return float("inf")

    try:
        found = largest(partial(memory_at, bounded=True), room_bytes, start)
    except _TooManyCalls:
        end = int(probe.longest_traced(batch))
        if memory_at(end) <= room_bytes:
            return end, "the number of calls: longer texts need too many to be traced"
        found = largest(memory_at, room_bytes, end)
    return found, "the model's positions" if found == limit < MOST else "memory"


class _Changed:
    """Memory of changed requests."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.traces = 0  # so far, besides those of the probe

    def __call__(self, request: Request) -> Memory:
        """At the peak; raises InputError or ModelError."""
        own, batch, length = self.probe.request, request.batch_size, request.length
        if replace(own, batch_size=batch).of_length(length) == request:
            return self.probe(batch, length)
        if request.layout.pipeline == 1:  # a third micro-batch takes what a second one takes
            recipe = replace(request.recipe, accumulation=min(request.recipe.accumulation, 2))
            request = replace(request, recipe=recipe)
        self.traces += 1
        stage(f"looking for changes that save memory (trace {self.traces})")
        return Probe(request, self.probe)(batch, length)
