"""Follow a pass, a step or a generation: its trace, its tasks, and the lifetimes of its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from torch import nn

from neuralpower.errors import ModelError, StepError
from neuralpower.layers.base import FORWARD
from neuralpower.networks.decoder import Pass
from neuralpower.networks.phases import PREFILL
from neuralpower.networks.requests import Asked, Generating
from neuralpower.networks.sharding import placed_experts
from neuralpower.trace.by_request import stepped
from neuralpower.trace.casts import cast_rules
from neuralpower.trace.decoder_steps import Growing
from neuralpower.trace.passes import OF_CALLS, applied
from neuralpower.trace.question import COMPILE, Question, everything
from neuralpower.trace.ragged import each_length
from neuralpower.trace.recipe import TRAINING, default_loss, settings_of
from neuralpower.trace.records import PassShape, Trace
from neuralpower.trace.step_lifetimes import StepLifetimes, training_lifetimes, with_quantised
from neuralpower.trace.tracer import trace

T = TypeVar("T")
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


class Known:
    """What was recorded of the passes of one network at one size, for questions about several devices."""

    def __init__(self) -> None:
        self._kept: list[tuple[tuple[Any, ...], Any]] = []

    def of(self, what: str, one: Pass, question: Question, make: Callable[[], T]) -> T:
        """What was made of a pass for the same question, or is made now."""
        sizes = one.name, one.batch_size, one.tokens, one.context, one.lengths
        about = question if question.phase != FORWARD else replace(question, knows=everything)
        key = what, sizes, about
        if (kept := next((value for other, value in self._kept if other == key), None)) is not None:
            return kept  # type: ignore[no-any-return]
        self._kept.append((key, make()))
        return self._kept[-1][1]  # type: ignore[no-any-return]


def follow(asked: Asked, question: Question, known: Known | None = None) -> Followed | Grown:
    """Follow one pass or a generation on the meta device, and apply the trace passes of the question.

    `known` keeps what is recorded, for another question about the same `asked`.

    Raises:
        ModelError: a forward raises, or the model has no activation checkpointing of its own to switch on.
        InputError: there is nothing to train, or an optimizer does not take the gradients.
    """
    known = known or Known()
    if isinstance(asked, Generating):
        return _generation(asked, question, known)
    return _pass(asked, question, known)


def work_of(one: Pass, question: Question, known: Known | None = None) -> Trace:
    """The tasks of a pass or a step, without its memory; raises as `follow`."""
    return _worked(one, recorded(one, question, known), question, known)


def _worked(one: Pass, found: Trace, question: Question, known: Known | None) -> Trace:
    """The tasks of what was recorded of a pass."""
    work = (known or Known()).of("work", one, question, lambda: applied(found, question))
    if one.step is None:
        return work
    return stepped(work, None if one.decodes is None else work_of(one.decodes, question, known), one.step)


def _pass(asked: Pass, question: Question, known: Known) -> Followed:
    """One pass or step; a step that asks for values has no lifetimes, and a note that says so."""
    found = recorded(asked, question, known)
    idle = found.idle if asked.name == FORWARD else ""  # other passes leave the encoder out, as they should
    notes = [note for note in (asked.inputs.note, idle) if note]
    work = _worked(asked, found, question, known)
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
            given = asked.inputs.args, asked.inputs.kwargs
            make = partial(training_lifetimes, asked.module, *given, **settings)
            lifetimes = known.of("lifetimes", asked, replace(question, knows=everything), make)
            notes += [lifetimes.note] if lifetimes.note else []
            if question.weights is not None:
                lifetimes = with_quantised(lifetimes, found.weights, question.weights)
        except StepError as error:
            notes.append(f"its memory is not known: {error}")
    return Followed(asked, found, work, lifetimes, tuple(notes))


def frozen(module: nn.Module) -> list[str]:
    """A note on how much of a network is trained, where that is not all of it."""
    trained = sum(one.numel() for one in module.parameters() if one.requires_grad)
    every = sum(one.numel() for one in module.parameters())
    return (
        [f"{trained:,} of {every:,} parameters are trained, the others are frozen"] if trained < every else []
    )


def _generation(asked: Generating, question: Question, known: Known) -> Grown:
    """The prefill and a few steps of a generation."""
    prefill = recorded(asked.prefill, question, known)
    first, last = asked.first, asked.first + asked.steps - 1
    growing = Growing(asked, partial(recorded, question=question, known=known), first, last)
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


def recorded(asked: Pass, question: Question, known: Known | None = None) -> Trace:
    """The trace of a pass, with a loss for a training step; raises as `trace`, with a note.

    The trace passes that change calls have run: what lies between two steps is interpolated after them.
    Samples of different lengths follow from two traces near their mean length.
    """
    if asked.longer is not None:
        shorter = recorded(replace(asked, longer=None), question, known)
        return each_length(shorter, recorded(asked.longer, question, known), asked)
    return (known or Known()).of("trace", asked, question, lambda: _recorded(asked, question))


def _recorded(asked: Pass, question: Question) -> Trace:
    """The same of samples of one length."""
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
    return applied(traced, question, OF_CALLS)


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
