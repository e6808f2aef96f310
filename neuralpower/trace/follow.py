"""Follow a pass, a step or a generation: its trace, its tasks, and the lifetimes of its memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from neuralpower.errors import ModelError, StepError
from neuralpower.layers.base import FORWARD
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.requests import Asked, Generating
from neuralpower.networks.passes import Pass
from neuralpower.networks.phases import PREFILL
from neuralpower.networks.sharding import placed_experts
from neuralpower.trace.followed import Followed, Grown, Outline, Recorded, worked
from neuralpower.trace.operators.casts import cast_rules
from neuralpower.trace.parts.by_request import stepped
from neuralpower.trace.parts.decoder_steps import Growing, each_length
from neuralpower.trace.passes import OF_CALLS, applied
from neuralpower.trace.question import COMPILE, Question
from neuralpower.trace.recipe import RECIPE, TRAINING, default_loss
from neuralpower.trace.records import PassShape, Trace
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from neuralpower.trace.tracer import trace

SHOWN = 3  # first steps of a generation that are kept, besides the last


def follow(asked: Asked, question: Question) -> Followed | Grown:
    """Follow one pass or a generation on the meta device, and apply the trace passes of the question.

    Raises:
        ModelError: a forward raises, or the model has no activation checkpointing of its own to switch on.
        InputError: there is nothing to train, or an optimizer does not take the gradients.
    """
    return _generation(asked, question) if isinstance(asked, Generating) else _pass(asked, question)


def work_of(one: Pass, question: Question) -> Trace:
    """The tasks of a pass or a step, without its memory; raises as `follow`."""
    return _stepped(one, applied(of_calls(one, question), question), question)


def _stepped(one: Pass, work: Trace, question: Question) -> Trace:
    """The tasks of a pass; of an engine's step by those of its prompt and of requests that get a token."""
    if one.step is None:
        return work
    return stepped(work, None if one.decodes is None else work_of(one.decodes, question), one.step)


def _pass(one: Pass, question: Question) -> Followed:
    """One pass or step, with the requests of a step that get a token."""
    found = worked(record(one, question), question)
    return replace(found, work=_stepped(one, found.work, question))


def record(asked: Pass, question: Question) -> Recorded:
    """Follow one pass or step; one that asks for values has no lifetimes, and a note that says so.

    Raises as `follow`.
    """
    traced = _recorded(asked, question)
    idle = traced.idle if asked.name == FORWARD else ""  # other passes leave the encoder out, as they should
    notes = [note for note in (asked.inputs.note, idle) if note]
    lifetimes = None
    if question.phase != FORWARD:
        trains = question.phase == TRAINING
        notes += frozen(asked.module) if trains else []
        try:
            lifetimes = training_lifetimes(
                asked.module,
                asked.inputs.args,
                asked.inputs.kwargs,
                recipe=question.recipe if trains else RECIPE,
                stepped=trains,
                holds_output=trains and asked.inputs.labelled,
                platform=question.platform,
                autocast=question.autocast,
                compiled=trains and question.run == COMPILE and question.layout.alone,
            )
            notes += [lifetimes.note] if lifetimes.note else []
        except StepError as error:
            notes.append(f"its memory is not known: {error}")
    return Recorded(asked, traced, Outline.of(asked.module), lifetimes, tuple(notes))


def frozen(module: nn.Module) -> list[str]:
    """A note on how much of a network is trained, where that is not all of it."""
    trained = sum(one.numel() for one in module.parameters() if one.requires_grad)
    every = sum(one.numel() for one in module.parameters())
    return (
        [f"{trained:,} of {every:,} parameters are trained, the others are frozen"] if trained < every else []
    )


def _generation(asked: Generating, question: Question) -> Grown:
    """The prefill and a few steps of a generation."""
    prefill = of_calls(asked.prefill, question)
    first, last = asked.first, asked.first + asked.steps - 1
    growing = Growing(asked, partial(of_calls, question=question), first, last)
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


def of_calls(one: Pass, question: Question) -> Trace:
    """The trace of a pass after the passes that change calls: between two steps, what follows is a line."""
    return applied(_recorded(one, question), question, OF_CALLS)


def _recorded(asked: Pass, question: Question) -> Trace:
    """The trace of a pass, with a loss for a training step; raises as `trace`, with a note.

    Samples of different lengths follow from two traces near their mean length.
    """
    if asked.longer is not None:
        shorter = of_calls(replace(asked, longer=None), question)
        return each_length(shorter, of_calls(asked.longer, question), asked)
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
    return repeating(replace(traced, about=shape_of(asked), granted=(*traced.granted, *said)), inputs)


def repeating(traced: Trace, inputs: Inputs) -> Trace:
    """The trace with what a pipeline makes: how often its parts run, and where their weights wait."""
    picture = inputs.picture
    if picture is None:
        return traced
    granted = (*traced.granted, *picture.notes)
    return replace(traced, picture=picture, granted=granted)


def shape_of(asked: Pass) -> PassShape:
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
