"""The time of generating text: a prefill, then one step per token with a growing context.

The steps that `trace.parts.decoder_steps` chooses are predicted; the others are interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuralpower.files.json_files import Declared
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.passes import Pass
from neuralpower.networks.phases import GENERATE, PREFILL
from neuralpower.prediction.compose import composed
from neuralpower.prediction.memory.peak import forward_memory
from neuralpower.prediction.parallel import lanes, predict_work
from neuralpower.prediction.prediction import Prediction, joined
from neuralpower.prediction.rows import BOUNDS, Interval
from neuralpower.prediction.several_devices import Parallel
from neuralpower.prediction.timeline import Omitted, Seen, Stage
from neuralpower.trace.followed import Grown
from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace

SUMMED = ("runtime_s", "low_s", "high_s", "flops", "bytes")  # of rows


@dataclass(frozen=True)
class Step(Declared):
    """A prefill or one step of a decoder: what its prediction means for tokens."""

    in_json = "context tokens tokens_per_s energy_per_token_j cache_bytes lengths"

    context: int  # tokens in the cache before it
    tokens: int  # of each sample that it reads or makes
    tokens_per_s: Interval  # of all samples together
    energy_per_token_j: Interval | None
    cache_bytes: int  # of all samples, before it
    lengths: tuple[int, ...] = ()  # of the samples, where they differ; context or tokens is their mean


@dataclass(frozen=True)
class Generation(Declared):
    """A prefill and all steps after it; a time per token is that of a step: one token of each sample."""

    in_json = """
        prompt new_tokens time_to_first_token_s time_per_output_token_s first_step_s last_step_s tokens_per_s
        energy_per_token_j prefill_energy_j decode_energy_j cache_bytes lengths traced_contexts=traced
        predicted_steps=predicted
    """

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
    predicted: int  # steps whose every layer was predicted; the others lie on lines between these
    prefill_energy_j: Interval | None = None  # of one device
    decode_energy_j: Interval | None = None  # of all steps after it
    lengths: tuple[int, ...] = ()  # of the prompts, where they differ: `prompt` is their mean, rounded down


def with_step(prediction: Prediction, one: Pass) -> Prediction:
    """The prediction of a prefill or a step, with its `Step`."""
    count = prediction.batch_size * max(one.tokens, 1)
    if one.step is not None:
        prediction = replace(prediction, batch_size=len(one.step.contexts) + len(one.step.chunks))
    if one.lengths and one.name == PREFILL:
        count = sum(one.lengths)
    rate, energy = (
        prediction.runtime_s.rate(count),
        prediction.energy_j and prediction.energy_j.times(1 / count),
    )
    memory = None if prediction.memory is None else replace(prediction.memory, phase=one.name)
    step = Step(one.context, one.tokens, rate, energy, one.cache_bytes, one.lengths)
    return replace(prediction, phase=one.name, memory=memory, generation=step)


def predict_generation(
    grown: Grown, predictor: Predictor, question: Question, *, model: str, seen: Seen | None = None
) -> Prediction:
    """The prediction of a whole generation that was traced.

    `seen` receives the prefill, the first few steps, those between as one, and the last.
    """

    def predicted(work: Trace) -> Prediction:
        how: dict[str, Any] = {"model": model, "batch_size": grown.asked.batch_size}
        if question.layout.alone:
            return composed(work, predictor, question, **how)
        return predict_work(work, predictor, question, **how)

    def staged(name: str, work: Trace, prediction: Prediction) -> Stage:
        drawn = () if question.layout.alone else lanes(work, predictor, question)
        return Stage(name, work, prediction, lanes=drawn)

    first = predicted(grown.work)
    nodes = [predicted(step) for step in grown.steps]
    decode = _sum([node.runtime_s for node in nodes], grown.weights)
    joules = _sum([node.energy_j for node in nodes], grown.weights)
    if seen is not None:
        seen(staged("prefill", grown.work, first))
        if decode is not None:
            _show(seen, grown, lambda name, work: staged(name, work, predicted(work)), decode, joules)
    runtime, energy = first.runtime_s, first.energy_j
    if decode is not None:
        runtime = _sum([runtime, decode], (1, 1)) or runtime
        energy = _sum([energy, joules], (1, 1))
    whole = joined(first, _typical(nodes, grown.weights), runtime, energy)
    ends = (grown.work, *grown.end)  # between them nothing needs more
    memories = [forward_memory(one, platform=predictor.platform, run=question.run) for one in ends]
    if first.parallel is not None:
        whole = replace(whole, parallel=whole_of(first.parallel, nodes, grown.weights, whole))
        memories = [one for work in ends if (one := predicted(work).memory) is not None]
    memory = replace(max(memories, key=lambda one: one.high_bytes), phase=GENERATE)
    generation = _generation(grown, [first, *nodes], whole, decode, joules)
    saved = nodes[0].savings if nodes else first.savings
    return replace(whole, phase=GENERATE, memory=memory, generation=generation, savings=saved)


def _generation(
    grown: Grown,
    predicted: Sequence[Prediction],
    whole: Prediction,
    decode: Interval | None,
    joules: Interval | None,
) -> Generation:
    """What its tokens take: of a prefill and steps as `predicted`, and all steps together."""
    asked, (first, *nodes) = grown.asked, predicted
    count = asked.batch_size * asked.new_tokens
    return Generation(
        prompt=asked.prompt,
        new_tokens=asked.new_tokens,
        time_to_first_token_s=first.runtime_s,
        time_per_output_token_s=decode and decode.times(1 / max(asked.steps, 1)),
        first_step_s=nodes[0].runtime_s if nodes else None,
        last_step_s=nodes[-1].runtime_s if nodes else None,
        tokens_per_s=whole.runtime_s.rate(count),
        energy_per_token_j=whole.energy_j and whole.energy_j.times(1 / count),
        prefill_energy_j=first.energy_j,
        decode_energy_j=joules,
        cache_bytes=asked.cache_bytes,
        traced=tuple(grown.traced),
        lengths=asked.lengths,
        predicted=len(nodes),
    )


def whole_of(
    prefill: Parallel, nodes: Sequence[Prediction], weights: Sequence[float], whole: Prediction
) -> Parallel:
    """What a generation on several devices is in all: sums over its prefill and its steps.

    Each replica makes one token of each of its samples in the prefill, and one in each step.
    """
    steps = [node.parallel for node in nodes if node.parallel is not None]

    def summed(value: Callable[[Parallel], float]) -> float:
        return value(prefill) + float(np.dot(weights, [value(one) for one in steps]))

    def needed(one: Parallel) -> int:
        return max((stage.memory.high_bytes for stage in one.stages if stage.memory), default=0)

    runtime, cycle = whole.runtime_s, summed(lambda one: one.cycle_s)
    each = Interval(*(cycle * getattr(runtime, bound) / runtime.value for bound in BOUNDS))
    exposed = summed(lambda one: one.exposed_s.value)
    tokens = prefill.samples * (1 + round(sum(weights)))
    energies = [prefill.energy_j, *(one.energy_j for one in steps)]
    last = max((prefill, *steps), key=needed)
    return replace(
        prefill,
        tokens=tokens,
        communication_s=summed(lambda one: one.communication_s),
        exposed_s=Interval(*(exposed * getattr(runtime, bound) / runtime.value for bound in BOUNDS)),
        bubble_s=summed(lambda one: one.bubble_s),
        samples_per_s=each.rate(prefill.samples),
        tokens_per_s=each.rate(tokens),
        energy_j=_sum(energies, (1.0, *weights)),
        stages=last.stages,
        runtime_s=runtime.value,
        cycle_s=cycle,
        idle_s=summed(lambda one: one.idle_s),
    )


def _show(
    seen: Seen,
    grown: Grown,
    staged: Callable[[str, Trace], Stage],
    decode: Interval,
    joules: Interval | None,
) -> None:
    """Pass single steps to `seen`, and the time of the other steps.

    An interpolated step's memory is its shorter neighbour's.
    """
    before, count = grown.asked.first - 1, grown.asked.steps
    traces = zip([*range(1, len(grown.begin) + 1), count], (*grown.begin, *grown.end), strict=True)
    stages = [staged(f"decode step {n}, context {before + n}", trace) for n, trace in traces]
    for stage in stages[:-1]:
        seen(stage)
    if omitted := count - len(stages):
        energies = [e.value for stage in stages if (e := stage.prediction.energy_j) is not None]
        energy = None
        if joules is not None and len(energies) == len(stages):
            energy = max(joules.value - sum(energies), 0.0)
        seconds = max(decode.value - sum(stage.prediction.runtime_s.value for stage in stages), 0.0)
        seen(Omitted(f"{omitted} steps that are not drawn", seconds, energy))
    seen(stages[-1])


def _typical(nodes: Sequence[Prediction], weights: Sequence[float]) -> list[Prediction]:
    """All steps together as one prediction: each row sums up equal rows.

    Where steps differ in their rows, those of the middle one share the sum.
    """
    if not nodes:
        return []
    at, steps = len(nodes) // 2, round(sum(weights))
    middle = nodes[at]
    alike = len({tuple((row.path, row.kind, row.count) for row in node.rows) for node in nodes}) == 1
    sums: dict[str, list[Any]] = {}  # of all steps, by row
    for name in SUMMED:
        values = [[float(getattr(row, name)) for row in node.rows] for node in nodes]
        if alike:
            sums[name] = np.dot(weights, values).tolist()
        else:
            total, one = np.dot(weights, [sum(some) for some in values]), sum(values[at])
            sums[name] = [value * total / one if one else 0.0 for value in values[at]]
    for name in ("flops", "bytes"):
        sums[name] = [round(value) for value in sums[name]]
    rows = tuple(
        replace(row, count=row.count * steps, **{name: sums[name][i] for name in SUMMED})
        for i, row in enumerate(middle.rows)
    )
    busy = sum(row.runtime_s for row in middle.rows)
    factor = sum(sums["runtime_s"]) / busy if busy else 0.0
    missing = [replace(u, count=u.count * steps, runtime_s=u.runtime_s * factor) for u in middle.unmodelled]
    return [replace(middle, rows=rows, unmodelled=tuple(missing))]


def _sum(values: Sequence[Interval | None], weights: Sequence[float]) -> Interval | None:
    """Weighed sum; all steps err together, since the same regressors predict them."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return Interval(*(float(np.dot(weights, [getattr(v, bound) for v in known])) for bound in BOUNDS))
