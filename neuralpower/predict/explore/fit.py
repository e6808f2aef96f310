"""Whether a network fits into a memory, and the largest batch and longest context that do.

The memory's upper bound must stay below the device's memory, on a CPU minus what the process itself takes, so
that the sizes reported do fit. On an accelerator without such a bound a share of the memory is kept free.
`verdict.py` has the rule of the verdict, `remedies.py` the changes that make a network fit.
Memory grows nearly in line with the batch and no faster than squarely with the length: two probes give a
guess, each further one narrows the bracket. The length is the prompt's in a prefill, the context's in a
decoder's step; their memory holds the KV cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any

import torch

from neuralpower.devices.cluster import Cluster
from neuralpower.errors import InputError, ModelError, unknown
from neuralpower.files.stages import stage
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.layout import ONE, Layout
from neuralpower.networks.adapters import with_lora
from neuralpower.networks.inputs import TOKENS, check_count
from neuralpower.networks.phases import DECODE, GENERATE, PREFILL, Pass, Phase, pass_of
from neuralpower.networks.sharding import sharded
from neuralpower.networks.source import Source
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.optimizers.registry import States
from neuralpower.platforms import CPU, PLATFORMS, Platform
from neuralpower.predict.case import sharding_of
from neuralpower.predict.explore.engine_fit import check_engine, engine_memory, memory_of
from neuralpower.predict.explore.remedies import Remedy, Situation, remedies
from neuralpower.predict.explore.verdict import DOES_NOT_FIT, FITS, probability_of, verdict_of
from neuralpower.predict.memory.engines import EngineMemory, EngineRequest
from neuralpower.predict.memory.over_time import Lived, lived
from neuralpower.predict.memory.peak import Memory, forward_memory, training_memory
from neuralpower.predict.parallel import one_micro_batch, stage_memories
from neuralpower.predict.weights import chosen, scheme_asked
from neuralpower.quantisation.totals import Quantised, totals
from neuralpower.shown import Shown
from neuralpower.trace.casts import cast_dtype
from neuralpower.trace.follow import Followed, follow, frozen, shape_of
from neuralpower.trace.master_weights import check_masters
from neuralpower.trace.passes import OF_CALLS, applied
from neuralpower.trace.passes.quantisation import quantised
from neuralpower.trace.quantised_step import with_quantised
from neuralpower.trace.question import COMPILE, Question, checked_run, usual_run
from neuralpower.trace.recipe import TRAINING, Recipe
from neuralpower.trace.records import Trace
from neuralpower.trace.step_lifetimes import training_lifetimes
from neuralpower.trace.step_settings import optimizer_named, recipe_of
from neuralpower.trace.tracer import trace
from neuralpower.trace.weights import weights_of

PHASES = (FORWARD, TRAINING, PREFILL, DECODE, GENERATE)
MOST = 2**24  # of a batch or a length: beyond, nobody asks
CLOSE = 0.01  # of the answer: how far the bracket is closed for sizes above a hundred
MOST_CALLS = 20_000  # in a trace, which takes seconds: a scan in Python makes more with each token


@dataclass(frozen=True)
class Request:
    """The network and sizes that have to fit."""

    model: Any
    batch_size: int = 1
    seq_len: int | None = None
    input_shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    phase: str = FORWARD
    optimizer: str = "adamw"  # of training: here "sgd" keeps nothing, "momentum" a number per parameter
    platform: Platform = CPU
    context: int | None = None  # decode: tokens in the cache before the step
    accumulation: int = 1  # training: micro-batches of `batch_size` per step
    checkpointing: bool = False  # training: repeated blocks keep their inputs alone
    margin: float | None = None  # share of the memory that is kept free; None: as the platform says
    run: str | None = None  # one of `trace.question.RUNS`; None: the usual one of the phase, as in `predict`
    weights: str | None = None  # a name that `--weights` takes; None: the checkpoint's own
    new_tokens: int | None = None  # generate: made after a prompt of `seq_len` tokens; None: as in `predict`
    # training: what an optimizer of any other name keeps, in numbers per parameter: 2, or "2:bfloat16"
    optimizer_states: float | str | None = None
    autocast: str | None = None  # training: the low precision that products are cast to
    lora: str | int | None = None  # training: rank of adapters, such as 16 or "16:q_proj,v_proj"
    master_weights: bool = False  # training: 16-bit weights have float32 masters, gradients and states

    layout: Layout = ONE  # over several devices: the fullest of them has to hold its part
    cluster: Cluster | None = None  # these devices
    strict: bool = False  # whether a model without a plan for tensor ranks is refused
    engine: EngineRequest | None = None  # under this engine; None: under PyTorch alone
    remedies: bool = True  # whether changes that help are sought where it does not fit

    @property
    def replicas(self) -> int:
        """Batches of `batch_size` that all devices have in one step or pass."""
        return self.layout.data * self.accumulation

    @property
    def states(self) -> States | None:
        """What an unknown optimizer keeps; raises InputError."""
        return None if self.optimizer_states is None else States.parsed(self.optimizer_states)

    @property
    def cast(self) -> torch.dtype | None:
        """The low precision that products are cast to; raises InputError."""
        return None if self.autocast is None else cast_dtype(self.autocast)

    @property
    def length(self) -> int | None:
        """The name of the length whose largest value is searched."""
        return self.context if self.phase == DECODE else self.seq_len


@dataclass(frozen=True, repr=False)
class Fit(Shown):
    """The answer; sizes are None where they do not apply. `print` gives the command's table."""

    fits: bool  # for sure: the upper bound is within the memory
    memory: Memory
    room_bytes: float
    largest_batch: int | None  # at the request's length; 0 where not even one sample fits
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
    remedies: tuple[Remedy, ...] = ()  # what makes it fit, the cheapest first; none where it fits

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
        if self.request is None or self.request.phase not in (DECODE, GENERATE):
            return None
        return self.largest_whole_batch

    @property
    def sequence_bytes(self) -> float | None:
        """Keys and values of one sequence on one device; None for a phase without a cache of its own."""
        if self.sequences is None or self.request is None:
            return None
        return self.memory.cache_bytes / self.request.batch_size

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "schema": 1,
            "fits": self.fits,
            "verdict": self.verdict,
            "probability": self.probability,
            "room_bytes": self.room_bytes,
            "process_bytes": self.process_bytes,
            "margin": self.margin,
            "notes": list(self.notes),
            "memory_bytes": self.memory.bounds_json(),
            "memory": self.memory.to_json(),
            "largest_batch_size": self.largest_batch,
            "longest_seq_len": self.longest,
            "longest_reason": self.longest_reason or None,
            "concurrent_sequences": self.sequences,
            "sequence_cache_bytes": self.sequence_bytes,
            "remedies": [one.to_json() for one in self.remedies],
            "traces": self.traces,
            "weights": None if self.weights is None else self.weights.to_json(),
            **self._layout_json(),
            **({} if self.engine is None else {"engine": self.engine.to_json()}),
        }

    def _layout_json(self) -> dict[str, Any]:
        """What is said of several devices; nothing for one."""
        if self.request is None or self.request.layout.alone:
            return {}
        stages = [memory.bounds_json() for memory in self.stages]
        return {
            "layout": vars(self.request.layout),
            "ranks": self.request.layout.ranks,
            "largest_whole_batch_size": self.largest_whole_batch,
            "stages_memory_bytes": stages,
        }

    @property
    def largest_whole_batch(self) -> int | None:
        """The largest batch of all replicas and micro-batches together."""
        if self.largest_batch is None or self.request is None:
            return self.largest_batch
        return self.largest_batch * self.request.replicas


def assumed(memory: str | float) -> tuple[Platform, str]:
    """The platform of a memory whose device is not named, and what it is called."""
    platform = PLATFORMS["nvidia"]
    return platform, f"{platform.called} of {memory if isinstance(memory, str) else f'{memory:g} B'}"


def fit(request: Request, room_bytes: float, seen: Callable[[Lived], None] | None = None) -> Fit:
    """Whether the request fits into `room_bytes`, the largest sizes that do, and else what would help.

    `seen` receives what lives when in each pass of the request, on one device.

    Raises:
        InputError: an unknown phase or optimizer, what belongs to another phase, more positions than the
            model has, a step of a model that keeps no cache, a memory below the framework's alone.
        ModelError: the model cannot be built or traced as asked, or has no checkpointing of its own.
    """
    margin = _checked_margin(request)
    if request.run is None:
        request = replace(request, run=usual_run(request.platform, request.phase))
    if request.engine is not None:
        check_engine(request)
    _check_room(request.platform, room_bytes)
    probe = _Probe(request)
    if request.engine is not None:
        return _under_engine(request, probe, room_bytes)
    process_bytes = request.platform.framework.process_bytes
    left_bytes = room_bytes * (1 - margin) - process_bytes
    probe.seen = seen
    own = probe(request.batch_size, request.length)
    probe.seen = None  # of other sizes, nothing is drawn
    start = request.length or probe.own_length
    batch, longest, reason = 0, None if start is None else 0, "" if start is None else "memory"
    if own.weights_bytes <= left_bytes:  # else there is nothing to be sought
        batch = largest(lambda size: probe(size, request.length).high_bytes, left_bytes, request.batch_size)
        if start is not None:
            longest, reason = _longest(probe, request.batch_size, start, left_bytes)
    fits, helpful, tried = own.high_bytes <= left_bytes, tuple[Remedy, ...](), _Changed(probe)
    if request.remedies and not fits and left_bytes > own.framework_bytes:  # else nothing helps
        helpful = remedies(Situation(request, own, left_bytes, batch, longest or 0), tried)
    return Fit(
        fits=fits,
        memory=own,
        room_bytes=room_bytes,
        largest_batch=batch,
        longest=longest,
        longest_reason=reason,
        traces=probe.traces + tried.traces,
        process_bytes=process_bytes,
        margin=margin,
        notes=tuple(filter(None, (*probe.notes, request.platform.memory_note(request.phase)))),
        weights=probe.quantised,
        request=replace(request, model=str(probe.source.name)),
        stages=tuple(probe.stages.get((request.batch_size, request.length), ())),
        remedies=helpful,
    )


def _under_engine(request: Request, probe: _Probe, room_bytes: float) -> Fit:
    """The answer under the request's engine; raises InputError and ModelError as `fit`."""
    request = replace(request, model=str(probe.source.name))
    whole = None if request.layout.alone else probe.source.build("meta", probe.dtype)
    found = engine_memory(request, probe.module, room_bytes, probe.quantised_bytes(), whole)
    by_model = found.longest == found.positions
    return Fit(
        fits=found.fits,
        memory=memory_of(found, request.phase),
        room_bytes=room_bytes,
        largest_batch=found.sequences,
        longest=found.longest,
        longest_reason="the model's positions" if by_model else "memory",
        traces=probe.traces,
        notes=(*probe.notes, *found.notes),
        weights=probe.quantised,
        request=request,
        engine=found,
    )


def memory(request: Request) -> Memory:
    """The memory of the request at its sizes, from one trace; nothing else is predicted.

    Raises InputError and ModelError as `fit`.
    """
    _checked_margin(request)
    check_count("batch_size", request.batch_size)
    return _Probe(request)(request.batch_size, request.length)


def _check_room(platform: Platform, room_bytes: float) -> None:
    """Raise InputError for a device's memory that is below what the framework alone takes of it."""
    context = platform.overheads[0].value_bytes if platform.overheads else platform.framework.forward_bytes
    least = max(context, 0)
    if platform.family != CPU.family and room_bytes <= least:
        raise InputError(
            f"memory of {room_bytes / 2**20:.4g} MiB: the framework alone takes {least / 2**20:.0f} MiB of "
            f"{platform.called}; choose a larger memory"
        )


def _checked_margin(request: Request) -> float:
    """The share of the memory that is kept free; raises InputError for what the request cannot be."""
    phase = request.phase
    if phase not in PHASES:
        raise unknown("phase", phase, PHASES)
    optimizer_named(request.optimizer, request.platform, request.states)
    if request.run is not None:
        checked_run(request.run, phase)
    Recipe(accumulation=request.accumulation)
    if request.cluster is not None:
        request.cluster.check(request.layout)
    if request.context is not None and phase != DECODE:
        raise InputError(f"context {request.context} belongs to phase decode, not to {phase}; leave it out")
    check_count("new_tokens", request.new_tokens)
    if request.new_tokens is not None and phase != GENERATE:
        raise InputError(
            f"new_tokens {request.new_tokens} belongs to phase generate, not to {phase}; leave it out"
        )
    in_flight = phase != TRAINING and request.layout.pipeline > 1
    for name in ("optimizer_states", "autocast", "lora", "master_weights"):
        if phase != TRAINING and (value := getattr(request, name)) not in (None, False):
            raise InputError(f"{name} {value} belongs to phase {TRAINING}, not to {phase}; leave it out")
    check_masters(request.master_weights, request.dtype, autocast=request.autocast, lora=request.lora)
    how = (request.optimizer, 1 if in_flight else request.accumulation, request.checkpointing)
    if phase != TRAINING and how != (Request.optimizer, Request.accumulation, Request.checkpointing):
        what = "optimizer, accumulation and checkpointing"
        raise InputError(f"{what} belong to phase training, not to {phase}; leave them out")
    margin = request.platform.margin(phase) if request.margin is None else request.margin
    if isinstance(margin, bool) or not isinstance(margin, Real) or not 0 <= margin < 1:
        what = "the share of memory to keep free must be 0 or more and below 1"
        raise InputError(f"margin {margin!r}: {what}; choose 0.3")
    return float(margin)


class _TooManyCalls(Exception):  # noqa: N818  # a verdict on a length
    """A text so long that tracing it would take minutes."""


def _longest(probe: _Probe, batch: int, start: int, room_bytes: float) -> tuple[int, str]:
    """The longest text that fits, and what ends it."""
    limit = MOST

    def memory_at(length: int, bounded: bool = False) -> float:
        nonlocal limit
        if bounded and length > probe.longest_traced(batch):
            raise _TooManyCalls
        try:
            return probe(batch, length).high_bytes
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


def largest(bytes_at: Callable[[int], float], room_bytes: float, start: int = 1, close: float = CLOSE) -> int:
    """The largest size whose bytes, which grow with it, are at most `room_bytes`; 0 where even 1 takes more.

    Exact up to a hundred and where sizes end (their bytes are infinite); beyond, within the share `close` and
    on the safe side. Every answer has been looked at. That the next is too large may follow from three
    sizes on one line.
    """
    known: dict[int, float] = {}
    low, high, guess = 0, MOST, max(start, 1)
    while high - low > (max(1, int(close * low)) if low > 100 and known.get(high) != float("inf") else 1):
        if guess not in known:
            known[guess] = bytes_at(guess)
        if known[guess] <= room_bytes:
            low = max(low, guess)
            if _on_line(known, low) and _line(known, low, low + 1) > room_bytes:
                high = min(high, low + 1)
        else:
            high = min(high, guess)
        if low >= MOST:
            break
        guess = _next(known, low, high, room_bytes)
    return low


def _on_line(known: dict[int, float], size: int) -> bool:
    """Whether the bytes of a size lie on the line through the two sizes below it."""
    below = sorted(one for one in known if one < size)[-2:]
    return len(below) == 2 and abs(_line(known, below[1], size) - known[size]) < 1


def _line(known: dict[int, float], size: int, at: int) -> float:
    """Bytes at another size, by the line through a size and the one below it."""
    before = max(one for one in known if one < size)
    slope = (known[size] - known[before]) / (size - before)
    return known[size] + (at - size) * slope


def _next(known: dict[int, float], low: int, high: int, room_bytes: float) -> int:
    """Where the line through the two nearest sizes meets the available memory, else the bracket's middle."""
    below = sorted(size for size in known if size <= low)
    above = [size for size in known if size >= high and known[size] < float("inf")]
    points = below[-2:] if not above else [*below[-1:], min(above)]
    if len(points) == 2 and known[points[1]] > known[points[0]]:
        slope = (known[points[1]] - known[points[0]]) / (points[1] - points[0])
        guess = int(points[1] + (room_bytes - known[points[1]]) / slope)
        if not above:
            guess = min(guess, 16 * max(low, 1))
        elif guess in known:
            guess = guess + 1 if guess <= low else guess - 1
        if low < guess < high:
            return guess
        if guess <= low and low + 1 < high:
            return low + 1 if (low + 1) not in known else (low + high) // 2
    if high >= MOST and not above:
        return min(max(2 * low, 1), MOST)
    return (low + high) // 2


class _Changed:
    """Memory of changed requests."""

    def __init__(self, probe: _Probe) -> None:
        self.probe = probe
        self.traces = 0  # so far, besides those of the probe

    def __call__(self, request: Request) -> Memory:
        """At the peak; raises InputError or ModelError."""
        own, batch, length = self.probe.request, request.batch_size, request.length
        if replace(own, batch_size=batch, seq_len=request.seq_len, context=request.context) == request:
            return self.probe(batch, length)
        if request.layout.pipeline == 1:  # a third micro-batch takes what a second one takes
            request = replace(request, accumulation=min(request.accumulation, 2))
        self.traces += 1
        stage(f"looking for changes that save memory (trace {self.traces})")
        return _Probe(request)(batch, length)


class _Probe:
    """Memory of the request at other sizes; each is traced once."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.run = request.run or usual_run(request.platform, request.phase)
        self.dtype = torch_dtype(request.dtype)
        self.source: Source = with_lora(resolve(request.model), request.lora, request.phase, request.layout)
        phase = TRAINING if request.phase == TRAINING else FORWARD
        self.module = self.source.build("meta", self.dtype)
        self.scheme = chosen(scheme_asked(request.weights), self.source.weights, phase, self.module)
        self.quantised: Quantised | None = None
        # what is frozen, and how it is sharded
        self.notes: tuple[str, ...] = tuple(frozen(self.module) if phase == TRAINING else ())
        # the memory of each stage, where there are several
        self.stages: dict[tuple[int, int | None], list[Memory]] = {}
        if not request.layout.alone:
            self._shard(request)
        self.own_length: int | None = None
        self.seen: Callable[[Lived], None] | None = None
        self._known: dict[tuple[int, int | None], Memory] = {}
        self._calls: dict[tuple[int, int | None], int] = {}

    def _shard(self, request: Request) -> None:
        """Make the module that of one rank; raises InputError as `sharded`."""
        way = TRAINING if request.phase == TRAINING else FORWARD
        how = sharding_of(request.layout, request.cluster, self.run, way, strict=request.strict)
        about = InputRequest(request.batch_size, request.length, request.input_shape, self.dtype)
        self.module, done = sharded(self.module, how, partial(self.source.inputs, self.module, about, "meta"))
        self.notes += done.notes

    def quantised_bytes(self) -> int | None:
        """Bytes of the weights under the scheme; None without one. Traces a pass of two tokens."""
        if self.scheme is None:
            return None
        one = self._asked(1, 2, PREFILL)
        self._weighed(trace(self.module, one.inputs.args, one.inputs.kwargs))
        return None if self.quantised is None else self.quantised.bytes

    @property
    def traces(self) -> int:
        """Number of traces so far."""
        return len(self._known)

    def __call__(self, batch: int, length: int | None) -> Memory:
        """At the peak; raises InputError or ModelError."""
        if (batch, length) not in self._known:
            self._known[batch, length] = self._memory(batch, length)
        return self._known[batch, length]

    def longest_traced(self, batch: int) -> float:
        """Where a trace reaches MOST_CALLS by the two longest so far; infinite where calls do not grow."""
        sizes = ((size, calls) for (b, size), calls in self._calls.items() if b == batch and size is not None)
        if len(known := sorted(sizes)) < 2:
            return float("inf")
        (before, fewer), (last, calls) = known[-2:]
        more = max(MOST_CALLS - calls, 0)
        return last + more * (last - before) / (calls - fewer) if calls > fewer else float("inf")

    def _memory(self, batch: int, length: int | None) -> Memory:
        """Memory of one pass; for a generation, the larger of its prefill and its last step."""
        size = f"batch {batch}{f', length {length}' if length else ''}"
        stage(f"tracing {self.source.name}, {size} (trace {self.traces + 1})")
        if self.request.phase != GENERATE:
            return self._pass_memory(self._asked(batch, length, self.request.phase), batch, length)
        passes = [self._asked(batch, length, PREFILL)]
        made = self.request.new_tokens or TOKENS  # the first by the prefill
        if made > 1:
            context = (length or self.own_length or TOKENS) + made - 2
            passes.append(self._asked(batch, context, DECODE))
        found = (self._pass_memory(one, batch, length) for one in passes)
        return max(found, key=lambda memory: memory.high_bytes)

    def _pass_memory(self, one: Pass, batch: int, length: int | None) -> Memory:
        inputs = one.inputs
        request, platform = self.request, self.request.platform
        if not request.layout.alone:
            return self._rank_memory(one, batch, length)
        if request.phase == TRAINING:
            step = training_lifetimes(
                self.module,
                inputs.args,
                inputs.kwargs,
                optimizer=request.optimizer,
                platform=platform,
                accumulation=request.accumulation,
                checkpointing=request.checkpointing,
                states=request.states,
                autocast=request.cast,
                masters=request.master_weights,
                compiled=self.run == COMPILE,
            )
            if step.note and step.note not in self.notes:
                self.notes += (step.note,)
            if self.scheme is not None:
                weights = weights_of(self.module)
                self.quantised = totals(self.scheme, weights, self.scheme.forms(weights, {}), {})
                step = with_quantised(step, weights, self.scheme)
            self._calls[batch, length] = step.end
            if self.seen is not None:
                self.seen(lived(self.source.name, TRAINING, step, platform))
            return training_memory(step, platform=platform)
        try:
            traced = self._weighed(trace(self.module, inputs.args, inputs.kwargs))
            question = Question(dtype=request.dtype, run=self.run, platform=platform)
            traced = applied(replace(traced, about=shape_of(one)), question, OF_CALLS)
        except ModelError as error:
            if length is not None and ("index" in str(error) or "size" in str(error)):
                raise InputError(str(error)) from error
            raise
        self._calls[batch, length] = len(traced.calls) + len(traced.unmodelled)
        if self.seen is not None:
            self.seen(lived(self.source.name, one.name, traced, platform))
        return replace(forward_memory(traced, platform=platform, run=self.run), phase=request.phase)

    def _rank_memory(self, one: Pass, batch: int, length: int | None) -> Memory:
        """Memory of the fullest device of a layout."""
        request = self.request
        trains = request.phase == TRAINING
        recipe = Recipe(accumulation=request.accumulation).on(request.platform)
        if trains:
            recipe = replace(
                recipe_of(request.optimizer, request.platform, request.states),
                accumulation=request.accumulation,
                checkpointing=request.checkpointing,
                masters=request.master_weights,
            )
        question = Question(
            TRAINING if trains else FORWARD,
            request.dtype,
            recipe,
            autocast=request.cast,
            platform=request.platform,
            run=self.run,
            weights=self.scheme,
            layout=request.layout,
            cluster=request.cluster,
        )
        found = follow(one, one_micro_batch(question))
        assert isinstance(found, Followed)  # generations come pass by pass
        # here without momentum
        if trains and request.states is None and request.optimizer.partition(":")[0] == "sgd":
            settings: dict[str, Any] = {
                "optimizer": request.optimizer,
                "checkpointing": request.checkpointing,
            }
            settings |= {"autocast": request.cast, "masters": request.master_weights}
            args = (one.module, one.inputs.args, one.inputs.kwargs)
            step = training_lifetimes(*args, platform=request.platform, **settings)
            found = replace(found, lifetimes=step)
        self.quantised = found.work.quantised
        self._calls[batch, length] = len(found.trace.calls) + len(found.trace.unmodelled)
        stages = stage_memories(found, question)
        if not stages:
            raise InputError(f"{self.source.name}: its memory is not known: {'; '.join(found.notes)}")
        most = max(stages, key=lambda memory: memory.high_bytes)
        known = self.stages.get((batch, length))
        if known is None or most.high_bytes > max(memory.high_bytes for memory in known):
            self.stages[batch, length] = stages
        return replace(most, phase=request.phase)

    def _weighed(self, traced: Trace) -> Trace:
        """The trace with its weights quantised, where they are."""
        if self.scheme is None:
            return traced
        traced = quantised(traced, self.scheme)
        self.quantised = traced.quantised
        return traced

    def _asked(self, batch: int, length: int | None, name: str) -> Pass:
        """Shapes alone; notes the length that a model takes by itself."""
        about = InputRequest(batch, length, self.request.input_shape, self.dtype)
        phase = Phase(PREFILL if name == PREFILL else FORWARD)
        if decodes := name == DECODE:
            own = self.request.seq_len if self.request.phase == DECODE else None
            about, phase = replace(about, seq_len=own), Phase.decode(context=length)
        one = pass_of(self.source, about, phase, self.module)
        if length is None:
            ids = one.inputs.kwargs.get("input_ids")
            self.own_length = one.context if decodes else None if ids is None else int(ids.shape[-1])
        return one
