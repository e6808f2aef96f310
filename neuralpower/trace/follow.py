"""Follow a pass, a step or a generation: its trace, its tasks, and the lifetimes of its memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from neuralpower.errors import ModelError, StepError
from neuralpower.layers.base import FORWARD
from neuralpower.networks.decoder import Pass
from neuralpower.networks.inputs import Inputs
from neuralpower.networks.phases import PREFILL
from neuralpower.networks.requests import Asked, Generating
from neuralpower.networks.sharding import placed_experts
from neuralpower.trace.by_request import stepped
from neuralpower.trace.casts import cast_rules
from neuralpower.trace.decoder_steps import Growing
from neuralpower.trace.passes import OF_CALLS, applied
from neuralpower.trace.question import COMPILE, Question
from neuralpower.trace.ragged import each_length
from neuralpower.trace.recipe import TRAINING, default_loss, settings_of
from neuralpower.trace.records import PassShape, Trace
from neuralpower.trace.step_lifetimes import StepLifetimes, training_lifetimes, with_quantised
from neuralpower.trace.tracer import trace

SHOWN = 3  # first steps of a generation that are kept, besides the last


@dataclass(frozen=True)
class Followed:
    """The result of following a pass."""

    asked: Pass  # what was followed
    trace: Trace  # as it was recorded
    work: Trace  # after the trace passes: its tasks answer the question
    lifetimes: StepLifetimes | None = None  # of a backward pass or a step; a forward pass's are the trace's
    notes: tuple[str, ...] = ()  # what its inputs take for granted, and why a step's memory is not known


@dataclass(frozen=True)
class Grown:
    """The result of following a generation: traces after the trace passes, but for `prefill`."""

    asked: Generating
    prefill: Trace  # as it was recorded
    work: Trace  # of the prefill
    traced: Sequence[int]  # contexts of the steps that were recorded; the others are interpolated
    weights: Sequence[float]  # how many steps each of `steps` stands for
    steps: Iterable[Trace]  # those to look at, one by one: together they are large
    begin: Sequence[Trace]  # the first few, but for the last
    end: Sequence[Trace]  # the last; none where one token is all


def follow(asked: Asked, question: Question) -> Followed | Grown:
    """Follow one pass or a generation on the meta device, and apply the trace passes of the question.

    Raises:
        ModelError: a forward raises, or the model has no activation checkpointing of its own to switch on.
        InputError: there is nothing to train, or an optimizer does not take the gradients.
    """
    return _generation(asked, question) if isinstance(asked, Generating) else _pass(asked, question)


def work_of(one: Pass, question: Question) -> Trace:
    """The tasks of a pass or a step, without its memory; raises as `follow`."""
    return _worked(one, _recorded(one, question), question)


def _worked(one: Pass, found: Trace, question: Question) -> Trace:
    """The tasks of what was recorded of a pass."""
    work = applied(found, question)
    if one.step is None:
        return work
    return stepped(work, None if one.decodes is None else work_of(one.decodes, question), one.step)


def _pass(asked: Pass, question: Question) -> Followed:
    """One pass or step; a step that asks for values has no lifetimes, and a note that says so."""
    recorded = _recorded(asked, question)
    idle = (
        recorded.idle if asked.name == FORWARD else ""
    )  # other passes leave the encoder out, as they should
    notes = [note for note in (asked.inputs.note, idle) if note]
    work = _worked(asked, recorded, question)
    lifetimes = None
    if question.phase != FORWARD:
        settings: dict[str, Any] = {
            "platform": question.platform,
            "optimizer": None,
            "autocast": question.autocast,
        }
        if question.phase == TRAINING:
            settings |= settings_of(question.recipe) | {"holds_output": asked.inputs.labelled}
            settings["compiled"] = question.run == COMPILE and question.layout.alone
            notes += frozen(asked.module)
        try:
            lifetimes = training_lifetimes(asked.module, asked.inputs.args, asked.inputs.kwargs, **settings)
            notes += [lifetimes.note] if lifetimes.note else []
            if question.weights is not None:
                lifetimes = with_quantised(lifetimes, recorded.weights, question.weights)
        except StepError as error:
            notes.append(f"its memory is not known: {error}")
    return Followed(asked, recorded, work, lifetimes, tuple(notes))


def frozen(module: nn.Module) -> list[str]:
    """A note on how much of a network is trained, where that is not all of it."""
    trained = sum(one.numel() for one in module.parameters() if one.requires_grad)
    every = sum(one.numel() for one in module.parameters())
    return (
        [f"{trained:,} of {every:,} parameters are trained, the others are frozen"] if trained < every else []
    )


def _generation(asked: Generating, question: Question) -> Grown:
    """The prefill and a few steps of a generation."""
    prefill = _recorded(asked.prefill, question)
    first, last = asked.first, asked.first + asked.steps - 1
    growing = Growing(asked, partial(_recorded, question=question), first, last)
    contexts, weights = growing.spread() if asked.steps else ([], [])

    def step(context: int) -> Trace:
        return applied(growing.at(context), question)

    return Grown(
        asked=asked,
        prefill=prefill,
        work=applied(prefill, question),
        traced=sorted(growing.traces),
        weights=weights,
        steps=map(step, contexts),
        begin=[step(context) for context in range(first, min(first + SHOWN, last))],
        end=[step(last)] if asked.steps else [],
    )


def _recorded(asked: Pass, question: Question) -> Trace:
    """The trace of a pass, with a loss for a training step; raises as `trace`, with a note.

    The trace passes that change calls have run: what lies between two steps is interpolated after them.
    Samples of different lengths follow from two traces near their mean length.
    """
    if asked.longer is not None:
        shorter = _recorded(replace(asked, longer=None), question)
        return each_length(shorter, _recorded(asked.longer, question), asked)
    inputs = asked.inputs
    try:
        with cast_rules(question.platform):
            traced = trace(
                asked.module,
                inputs.args,
                inputs.kwargs,
                training=question.phase != FORWARD,
                loss=default_loss if question.phase == TRAINING else None,
                autocast=question.autocast,
                routing=question.routing,
            )
    except ModelError as error:
        raise (ModelError(f"{error}; {inputs.note}") if inputs.note else error) from error.__cause__
    said = () if asked.sharding is None else asked.sharding.notes
    traced = replace(traced, about=shape_of(asked), granted=(*traced.granted, *said))
    traced = repeating(traced, inputs)
    return applied(traced, question, OF_CALLS)


def repeating(traced: Trace, inputs: Inputs) -> Trace:
    """The trace with how often a pipeline's parts run, and where their weights wait."""
    picture = inputs.picture
    if picture is None:
        return traced
    granted = (*traced.granted, *picture.notes)
    return replace(traced, times=picture.times, offload=picture.offload, granted=granted)


def shape_of(asked: Pass) -> PassShape:
    """The shape of a trace's pass."""
    windows = {} if asked.name == FORWARD else windows_of(asked.module)
    placed = placed_experts(asked.module)
    if asked.step is not None:  # the passes of a prompt make it
        return PassShape(PREFILL, asked.batch_size, asked.tokens, 0, windows, placed, asked.step.sequences)
    return PassShape(asked.name, asked.batch_size, asked.tokens, asked.context, windows, placed)


def windows_of(module: nn.Module) -> dict[str, int]:
    """The sliding windows of a language model's attention, by the path of its module."""
    found = {path: _window(part) for path, part in module.named_modules() if hasattr(part, "layer_idx")}
    return {path: window for path, window in found.items() if isinstance(window, int) and window > 0}


def _window(part: nn.Module) -> Any:
    """The window of a block's part: its own attribute, else its configuration's for the block."""
    if hasattr(part, "sliding_window"):
        return part.sliding_window
    config: Any = getattr(part, "config", None)
    sorts, place = getattr(config, "layer_types", None) or (), part.layer_idx
    slides = not sorts or (isinstance(place, int) and sorts[place % len(sorts)] == "sliding_attention")
    return getattr(config, "sliding_window", None) if slides else None
