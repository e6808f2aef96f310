"""What generating text takes: a prefill, then one step per token against a context that grows.

Between the lengths at which a cache fills its windows, every size in a step's trace grows by the same number with each token.
So a few steps are traced, those between them follow by interpolating their layers' sizes, and each piece's middle is traced
to see whether that is so; where it is not, the piece is halved. Of the steps whose layers are so known, as many as CALLS
allows are predicted, evenly spaced: all of them for a small model or a short text. The others lie on the straight lines
between these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from neuralpower.layers import Layer
from neuralpower.layers.movement import APPENDED
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.inputs import TOKENS
from neuralpower.networks.phases import GENERATE, Decoder, Pass, Phase, cache_bytes
from neuralpower.predict.compose import compose
from neuralpower.predict.memory.peak import forward_memory
from neuralpower.predict.prediction import Interval, Prediction, joined
from neuralpower.predict.timeline import Omitted, Seen, Stage
from neuralpower.trace.records import Trace

CALLS = 100_000  # layer calls of all steps that are predicted: a second
FEWEST_STEPS = 9  # that are predicted, whatever a step costs
SUMMED = ("runtime_s", "low_s", "high_s", "flops", "bytes")  # of rows
SHOWN = 3  # first steps that a timeline shows, beside the last
MOST_TRACES = 24  # past it, what lies between two traced steps is interpolated as it is

Traced = Callable[[Pass], Trace]


@dataclass(frozen=True)
class Step:
    """A prefill or one step of a decoder, beside what its prediction says."""

    context: int  # tokens in the cache before it
    tokens: int  # of each sample that it reads or makes
    tokens_per_s: Interval  # of all samples together
    energy_per_token_j: Interval | None
    cache_bytes: int  # of all samples, before it

    def to_json(self) -> dict[str, object]:
        """As a JSON object."""
        return {
            "context": self.context,
            "tokens": self.tokens,
            "tokens_per_s": self.tokens_per_s.to_json(),
            "energy_per_token_j": None if self.energy_per_token_j is None else self.energy_per_token_j.to_json(),
            "cache_bytes": self.cache_bytes,
        }


@dataclass(frozen=True)
class Generation:
    """A prefill and all steps after it; times per token are those of a step, which makes one token of each sample."""

    prompt: int
    new_tokens: int  # of each sample; the prefill makes the first
    time_to_first_token_s: Interval
    time_per_output_token_s: Interval | None  # mean of the steps; None where one token is all
    first_step_s: Interval | None
    last_step_s: Interval | None
    tokens_per_s: Interval  # new ones of all samples together, over the whole time
    energy_per_token_j: Interval | None
    cache_bytes: int  # of all samples, at the end
    traced: tuple[int, ...]  # contexts of the traced steps
    predicted: int  # steps of which every layer was predicted; the others lie on lines between these

    def to_json(self) -> dict[str, object]:
        """As a JSON object."""
        intervals = {
            name: None if (value := getattr(self, name)) is None else value.to_json()
            for name in (
                "time_to_first_token_s",
                "time_per_output_token_s",
                "first_step_s",
                "last_step_s",
                "tokens_per_s",
                "energy_per_token_j",
            )
        }
        return {
            "prompt": self.prompt,
            "new_tokens": self.new_tokens,
            **intervals,
            "cache_bytes": self.cache_bytes,
            "traced_contexts": list(self.traced),
            "predicted_steps": self.predicted,
        }


def with_step(prediction: Prediction, one: Pass) -> Prediction:
    """The prediction of a prefill or a step, with what it means for tokens."""
    count = prediction.batch_size * max(one.tokens, 1)
    rate, energy = _rate(count, prediction.runtime_s), _scaled(prediction.energy_j, 1 / count)
    memory = None if prediction.memory is None else replace(prediction.memory, phase=one.name)
    step = Step(one.context, one.tokens, rate, energy, one.cache_bytes)
    return replace(prediction, phase=one.name, memory=memory, generation=step)


def predict_generation(
    decoder: Decoder,
    phase: Phase,
    predictor: Predictor,
    traced: Traced,
    about: dict[str, Any],
    seen: Seen | None,
) -> tuple[Prediction, Trace]:
    """The prediction of a whole generation, and its prefill's trace.

    Args:
        decoder: the model with its request.
        phase: its prompt and new tokens.
        predictor: of the device.
        traced: how a pass is traced.
        about: what `compose` is told of the model.
        seen: told of the prefill, the first SHOWN steps, those between together, and the last.

    Raises:
        InputError: more tokens than the model has positions for.
        PredictorError: a dtype that was not learnt.
    """
    new_tokens = phase.new_tokens or TOKENS
    before, steps = decoder.tokens_before(phase.prompt), new_tokens - 1
    decoder.fits(before + steps, f"a prompt and {new_tokens} new tokens take")
    trace = traced(decoder.prefill(phase.prompt))
    first = compose(trace, predictor, **about)
    growing = Growing(decoder, traced, before, before + steps - 1)
    contexts, weights = growing.spread() if steps else ([], [])
    nodes = [compose(growing.at(context), predictor, **about) for context in contexts]
    decode = _sum([node.runtime_s for node in nodes], weights)
    runtime, energy = first.runtime_s, first.energy_j
    joules = _sum([node.energy_j for node in nodes], weights)
    if decode is not None:
        runtime = _added(first.runtime_s, decode)
        energy = None if energy is None or joules is None else _added(energy, joules)
    count = first.batch_size * new_tokens
    generation = Generation(
        decoder.prompt(phase.prompt),
        new_tokens,
        first.runtime_s,
        _scaled(decode, 1 / max(steps, 1)),
        nodes[0].runtime_s if nodes else None,
        nodes[-1].runtime_s if nodes else None,
        _rate(count, runtime),
        _scaled(energy, 1 / count),
        cache_bytes(decoder.cache(before + steps)),
        tuple(sorted(growing.traces)),
        len(nodes),
    )
    if seen is not None:
        seen(Stage("prefill", trace, first))
        if decode is not None:
            _show(seen, growing, partial(compose, predictor=predictor, **about), decode, joules)
    whole = joined(first, _typical(nodes, weights), runtime, energy)
    ends = (trace, growing.at(growing.last)) if steps else (trace,)  # between them nothing needs more
    memories = [forward_memory(one, platform=predictor.platform) for one in ends]
    memory = replace(max(memories, key=lambda one: one.high_bytes), phase=GENERATE)
    return replace(whole, phase=GENERATE, memory=memory, generation=generation), trace


def _show(
    seen: Seen, growing: Growing, predicted: Callable[[Trace], Prediction], decode: Interval, joules: Interval | None
) -> None:
    """Tell of single steps, and of what all steps take beside them; an interpolated step's memory is its shorter neighbour's."""
    stages = []
    for context in [*range(growing.first, min(growing.first + SHOWN, growing.last)), growing.last]:
        trace = growing.at(context)
        number = context - growing.first + 1
        stages.append(Stage(f"decode step {number}, context {context}", trace, predicted(trace)))
    for stage in stages[:-1]:
        seen(stage)
    omitted = growing.last - growing.first + 1 - len(stages)
    if omitted:
        energies = [e.value for stage in stages if (e := stage.prediction.energy_j) is not None]
        known = joules is not None and len(energies) == len(stages)
        energy = max(joules.value - sum(energies), 0.0) if known and joules is not None else None
        seconds = max(decode.value - sum(stage.prediction.runtime_s.value for stage in stages), 0.0)
        seen(Omitted(f"{omitted} steps that are not drawn", seconds, energy))
    seen(stages[-1])


def _typical(nodes: Sequence[Prediction], weights: Sequence[float]) -> list[Prediction]:
    """All steps together as one prediction: each row sums up its like; where steps differ in these, the middle one's share it."""
    if not nodes:
        return []
    at, steps = len(nodes) // 2, round(sum(weights))
    middle = nodes[at]
    alike = len({tuple((row.path, row.kind, row.count) for row in node.rows) for node in nodes}) == 1
    sums: dict[str, list[float]] = {}  # of all steps, by row
    for name in SUMMED:
        values = [[float(getattr(row, name)) for row in node.rows] for node in nodes]
        if alike:
            sums[name] = np.dot(weights, values).tolist()
        else:
            total, one = np.dot(weights, [sum(some) for some in values]), sum(values[at])
            sums[name] = [value * total / one if one else 0.0 for value in values[at]]
    for name in ("flops", "bytes"):
        sums[name] = [round(value) for value in sums[name]]
    of_rows: list[dict[str, Any]] = [{name: sums[name][i] for name in SUMMED} for i in range(len(middle.rows))]
    rows = tuple(replace(r, count=r.count * steps, **of) for r, of in zip(middle.rows, of_rows, strict=True))
    busy = sum(row.runtime_s for row in middle.rows)
    factor = sum(sums["runtime_s"]) / busy if busy else 0.0
    missing = tuple(replace(u, count=u.count * steps, runtime_s=u.runtime_s * factor) for u in middle.unmodelled)
    return [replace(middle, rows=rows, unmodelled=missing)]


class Growing:
    """The steps of a decoder from one context to another, each with its trace."""

    def __init__(self, decoder: Decoder, traced: Traced, first: int, last: int) -> None:
        self.decoder, self.traced, self.first, self.last = decoder, traced, first, last
        self.traces: dict[int, Trace] = {}  # those that were made
        self.pieces: list[tuple[int, int]] = []

    def spread(self) -> tuple[list[int], list[float]]:
        """(contexts to predict, how many steps each stands for): on straight lines between them the sum is exact."""
        kinks = {APPENDED - 1, APPENDED}  # a cache shorter than that is not appended to, but concatenated
        kinks |= {c for window in self.decoder.windows for c in range(window - 2, window + 1)}
        edges = {self.first, self.last, *(c for c in kinks if self.first < c < self.last)}
        for low, high in zip(sorted(edges), sorted(edges)[1:], strict=False):
            self._split(low, high)
        corners = sorted({self.first, self.last, *(c for piece in self.pieces for c in piece)})
        most = max(CALLS // max(len(self._trace(self.first).calls), 1), FEWEST_STEPS)
        even = np.linspace(self.first, self.last, min(most, self.last - self.first + 1)).round().astype(int)
        contexts = sorted({*corners, *even.tolist()})
        return contexts, lined(contexts)

    def at(self, context: int) -> Trace:
        """The trace of a step, made or interpolated."""
        if context in self.traces:
            return self.traces[context]
        low, high = next(piece for piece in self.pieces if piece[0] <= context <= piece[1])
        return between(self._trace(low), self._trace(high), (context - low) / (high - low))

    def _trace(self, context: int) -> Trace:
        if context not in self.traces:
            self.traces[context] = self.traced(self.decoder.decode(context))
        return self.traces[context]

    def _split(self, low: int, high: int) -> None:
        """Note pieces of the range in which sizes grow evenly."""
        start, stop = self._trace(low), self._trace(high)
        middle = (low + high) // 2
        if high - low > 1 and start.layers != stop.layers and len(self.traces) < MOST_TRACES:
            share = (middle - low) / (high - low)
            if not alike(start, stop) or between(start, stop, share).layers != self._trace(middle).layers:
                self._split(low, middle)
                self._split(middle, high)
                return
        self.pieces.append((low, high))


BYTES = ("bytes", "work_bytes")


def alike(one: Trace, other: Trace) -> bool:
    """Whether two traces make the same calls, but for sizes."""
    if len(one.calls) != len(other.calls) or len(one.unmodelled) != len(other.unmodelled):
        return False
    return all(
        a.layer == b.layer or _form(a.layer) == _form(b.layer) for a, b in zip(one.calls, other.calls, strict=True)
    )


def _form(layer: Layer) -> tuple[object, ...]:
    """What of a layer is no size: its kind, its names and its switches."""
    values = (getattr(layer, f.name) for f in fields(layer))
    return (layer.kind, *(value for value in values if isinstance(value, (str, bool))))


def between(one: Trace, other: Trace, share: float) -> Trace:
    """The trace that lies so far on the way from one to the other: their layers' sizes, interpolated."""
    if not alike(one, other):
        return one if share < 0.5 else other
    made: dict[tuple[Layer, Layer], Layer] = {}
    calls = []
    for a, b in zip(one.calls, other.calls, strict=True):
        pair = (a.layer, b.layer)
        if pair not in made:
            made[pair] = _mixed(a.layer, b.layer, share)
        calls.append(replace(a, layer=made[pair]) if a.layer != b.layer else a)
    missing = tuple(
        replace(a, **{name: round((1 - share) * getattr(a, name) + share * getattr(b, name)) for name in BYTES})
        for a, b in zip(one.unmodelled, other.unmodelled, strict=True)
    )
    return replace(one, calls=tuple(calls), unmodelled=missing)


def _mixed(one: Layer, other: Layer, share: float) -> Layer:
    changes: dict[str, Any] = {}
    for name in (f.name for f in fields(one)):
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, int) and not isinstance(a, bool) and a != b:
            changes[name] = round(a + share * (b - a))
    return replace(one, **changes) if changes else one


def lined(contexts: Sequence[int]) -> list[float]:
    """Weights with which values at `contexts` add up to the sum over all whole numbers between the first and the last.

    Exact for what is straight between neighbours: a gap of n steps gives each of its ends (n - 1) / 2 of what lies inside.
    """
    weights = np.ones(len(contexts))
    inside = (np.diff(contexts) - 1) / 2
    weights[:-1] += inside
    weights[1:] += inside
    return [float(weight) for weight in weights]


def _sum(values: Sequence[Interval | None], weights: Sequence[float]) -> Interval | None:
    """Weighed sum; all steps err together, since the same regressors predict them."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    sums = (float(np.dot(weights, [getattr(v, bound) for v in known])) for bound in ("value", "low", "high"))
    return Interval(*sums)


def _added(one: Interval, other: Interval) -> Interval:
    return Interval(one.value + other.value, one.low + other.low, one.high + other.high)


def _scaled(value: Interval | None, factor: float) -> Interval | None:
    return None if value is None else Interval(value.value * factor, value.low * factor, value.high * factor)


def _rate(count: int, seconds: Interval) -> Interval:
    return Interval(count / seconds.value, count / seconds.high, count / seconds.low)
