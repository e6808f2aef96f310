"""Does it fit, and how much more would: the largest batch and the longest context within a memory, with a margin.

The upper bound of the memory is held against the device's, less what the process itself takes of a CPU's, so that what is
said to fit does. On an accelerator there is no such bound: a share of the memory is kept free. Memory grows nearly in line
with the batch and no faster than squarely with the length: two probes give a guess, each further one narrows the bracket.
Of a prefill the length is the prompt's, of a decoder's step the context's; their memory holds the cache of keys and values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

from neuralpower.errors import InputError, ModelError, unknown
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.networks.inputs import Inputs
from neuralpower.networks.phases import DECODE, PREFILL, Phase, pass_of
from neuralpower.networks.source import Source
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.platforms import CPU, Platform
from neuralpower.predict.memory.peak import Memory, forward_memory, training_memory
from neuralpower.trace.tracer import trace
from neuralpower.trace.training import TRAINING, Recipe
from neuralpower.trace.training_step import optimizer_named, training_lifetimes

PHASES = (FORWARD, TRAINING, PREFILL, DECODE)
MOST = 2**24  # of a batch or a length: beyond, nobody asks
CLOSE = 0.01  # of the answer: how far the bracket is closed for sizes above a hundred
MOST_CALLS = 20_000  # in a trace, which takes seconds: a scan in Python makes more with each token
UNITS = {
    "b": 1,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


@dataclass(frozen=True)
class Request:
    """What is to fit."""

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

    @property
    def length(self) -> int | None:
        """What a longest context is sought of."""
        return self.context if self.phase == DECODE else self.seq_len


@dataclass(frozen=True)
class Fit:
    """The answer; sizes are None where nothing is to be said of them."""

    fits: bool
    memory: Memory
    room_bytes: float
    largest_batch: int | None  # at the length that was asked for; 0 where not even one sample fits
    longest: int | None  # at the batch size that was asked for
    longest_reason: str  # what ends it: memory, the model's own positions, or calls that grow with it
    traces: int
    process_bytes: int = 0  # of the room: what the process takes before there is a network
    margin: float = 0.0  # share of the room that is kept free, for what is not modelled
    notes: tuple[str, ...] = ()  # what the answer takes for granted

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "schema": 1,
            "fits": self.fits,
            "room_bytes": self.room_bytes,
            "process_bytes": self.process_bytes,
            "margin": self.margin,
            "notes": list(self.notes),
            "memory_bytes": self.memory.bounds_json(),
            "memory": self.memory.to_json(),
            "largest_batch_size": self.largest_batch,
            "longest_seq_len": self.longest,
            "longest_reason": self.longest_reason or None,
            "traces": self.traces,
        }


def bytes_of(text: str | float) -> float:
    """24e9 for "24GB", 24 * 2**30 for "24GiB", a number as it is; raises InputError, also for text without a unit."""
    given = f"{text:f} b" if isinstance(text, Real) else str(text)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", given.lower())
    if not match or match.group(2) not in UNITS or float(match.group(1)) <= 0:
        raise InputError(f"memory {text!r}: write a positive number with a unit, such as 24GB or 80GiB")
    return float(match.group(1)) * UNITS[match.group(2)]


def fit(request: Request, room_bytes: float) -> Fit:
    """Whether the request fits into so many bytes, and what would.

    Raises:
        InputError: a phase or an optimizer that is not known, what belongs to another phase, more positions than the model
            has, a step of a model that keeps no cache.
        ModelError: the model cannot be built or traced as it was asked for, or has no checkpointing of its own.
    """
    if request.phase not in PHASES:
        raise unknown("phase", request.phase, PHASES)
    optimizer_named(request.optimizer)
    Recipe(accumulation=request.accumulation)
    if request.context is not None and request.phase != DECODE:
        raise InputError(
            f"context {request.context} belongs to phase decode, not to {request.phase}; leave it out"
        )
    how = (request.optimizer, request.accumulation, request.checkpointing)
    if request.phase != TRAINING and how != (Request.optimizer, Request.accumulation, Request.checkpointing):
        raise InputError(
            f"optimizer, accumulation and checkpointing belong to phase training, not to {request.phase}; leave them out"
        )
    margin = request.platform.margin(request.phase) if request.margin is None else request.margin
    if isinstance(margin, bool) or not isinstance(margin, Real) or not 0 <= margin < 1:
        raise InputError(
            f"margin {margin!r}: the share of the memory that is kept free is 0 or more and below 1; choose 0.3"
        )
    probe = _Probe(request)
    process_bytes = request.platform.framework.process_bytes
    left_bytes = room_bytes * (1 - float(margin)) - process_bytes
    notes = tuple(filter(None, [request.platform.memory_note]))
    answer = partial(Fit, process_bytes=process_bytes, margin=float(margin), notes=notes)
    own = probe(request.batch_size, request.length)
    start = request.length or probe.own_length
    if own.weights_bytes > left_bytes:  # nothing to be sought
        longest, reason = (None, "") if start is None else (0, "memory")
        return answer(False, own, room_bytes, 0, longest, reason, probe.traces)
    batch = largest(lambda size: probe(size, request.length).high_bytes, left_bytes, request.batch_size)
    longest, reason = None, ""
    if start is not None:
        longest, reason = _longest(probe, request.batch_size, start, left_bytes)
    fits = own.high_bytes <= left_bytes
    return answer(fits, own, room_bytes, batch, longest, reason, probe.traces)


class _TooManyCalls(Exception):  # noqa: N818  # a verdict on a length
    """A text so long that tracing it would take minutes."""


def _longest(probe: _Probe, batch: int, start: int, room_bytes: float) -> tuple[int | None, str]:
    limit = MOST

    def size_at(length: int) -> float:
        if length > probe.longest_traced(batch):
            raise _TooManyCalls
        return memory_at(length)

    def memory_at(length: int) -> float:
        nonlocal limit
        try:
            return probe(batch, length).high_bytes
        except InputError:  # the model has no such positions
            limit = min(limit, length - 1)
            return float("inf")

    try:
        found = largest(size_at, room_bytes, start)
    except _TooManyCalls:
        end = int(probe.longest_traced(batch))
        if memory_at(end) <= room_bytes:
            return end, "the calls, which grow with it: beyond, they are too many to be traced"
        found = largest(memory_at, room_bytes, end)
    return found, "the model's positions" if found == limit < MOST else "memory"


def largest(bytes_at: Callable[[int], float], room_bytes: float, start: int = 1, close: float = CLOSE) -> int:
    """The largest size whose bytes, which grow with it, are at most `room_bytes`; 0 where even 1 takes more.

    Exact up to a hundred and where sizes end (their bytes are infinite), beyond within the share `close` and on the safe
    side: every answer has been looked at.
    """
    known: dict[int, float] = {}

    def at(size: int) -> float:
        if size not in known:
            known[size] = bytes_at(size)
        return known[size]

    low, high = 0, MOST
    guess = max(start, 1)
    while high - low > (max(1, int(close * low)) if low > 100 and known.get(high) != float("inf") else 1):
        if at(guess) <= room_bytes:
            low = max(low, guess)
        else:
            high = min(high, guess)
        if low >= MOST:
            break
        guess = _next(known, low, high, room_bytes)
    return low


def _next(known: dict[int, float], low: int, high: int, room_bytes: float) -> int:
    """Where the line through the two nearest sizes meets the room, kept inside the bracket; else a halving of it."""
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


class _Probe:
    """Memory of the request at other sizes; each is traced once."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.dtype = torch_dtype(request.dtype)
        self.source: Source = resolve(request.model)
        self.module = self.source.build("meta", self.dtype)
        self.own_length: int | None = None
        self._known: dict[tuple[int, int | None], Memory] = {}
        self._calls: dict[tuple[int, int | None], int] = {}

    @property
    def traces(self) -> int:
        """How many were made."""
        return len(self._known)

    def __call__(self, batch: int, length: int | None) -> Memory:
        """At the peak; raises InputError or ModelError."""
        if (batch, length) not in self._known:
            self._known[batch, length] = self._memory(batch, length)
        return self._known[batch, length]

    def longest_traced(self, batch: int) -> float:
        """Where a trace reaches MOST_CALLS, as the two longest that were looked at say; infinite where calls do not grow."""
        known = sorted(
            (size, calls) for (b, size), calls in self._calls.items() if b == batch and size is not None
        )
        if len(known) < 2:
            return float("inf")
        (before, fewer), (last, calls) = known[-2:]
        more = MOST_CALLS - calls
        return last + max(more, 0) * (last - before) / (calls - fewer) if calls > fewer else float("inf")

    def _memory(self, batch: int, length: int | None) -> Memory:
        inputs = self._inputs(batch, length)
        if self.request.phase == TRAINING:
            step = training_lifetimes(
                self.module,
                inputs.args,
                inputs.kwargs,
                optimizer=self.request.optimizer,
                platform=self.request.platform,
                accumulation=self.request.accumulation,
                checkpointing=self.request.checkpointing,
            )
            self._calls[batch, length] = step.end
            return training_memory(step, platform=self.request.platform)
        try:
            traced = trace(self.module, inputs.args, inputs.kwargs)
        except ModelError as error:
            if length is not None and ("index" in str(error) or "size" in str(error)):
                raise InputError(str(error)) from error
            raise
        self._calls[batch, length] = len(traced.every_call)
        memory = forward_memory(traced, platform=self.request.platform)
        return replace(memory, phase=self.request.phase)

    def _inputs(self, batch: int, length: int | None) -> Inputs:
        """Shapes alone; notes the length that a model takes by itself."""
        phase = self.request.phase
        about = InputRequest(batch, length, self.request.input_shape, self.dtype)
        if phase == DECODE:
            asked = replace(about, seq_len=self.request.seq_len)
            one = pass_of(self.source, asked, Phase.decode(context=length), self.module)
            own: int | None = one.context
        else:
            name = PREFILL if phase == PREFILL else FORWARD
            one = pass_of(self.source, about, Phase(name), self.module)
            ids = one.inputs.kwargs.get("input_ids")
            own = None if ids is None else int(ids.shape[-1])
        if length is None:
            self.own_length = own
        return one.inputs
