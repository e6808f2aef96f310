"""The results of following a pass or a generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuralpower.networks.passes import Pass
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.totals import sizes
from neuralpower.quantisation.weights import Weight
from neuralpower.trace.lifetimes import ACTIVATIONS, StepLifetimes, Storage
from neuralpower.trace.passes import OF_CALLS, applied
from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace

if TYPE_CHECKING:
    from torch import nn

    from neuralpower.networks.inputs.requests import Generating


@dataclass(frozen=True)
class Outline:
    """The modules of a network, without their tensors."""

    modules: tuple[tuple[str, str, bool], ...]  # (path, class, whether it holds no other)
    parameters: frozenset[str]  # names
    itemsize: int  # B of an activation: of the first floating weight's type

    @classmethod
    def of(cls, module: nn.Module) -> Outline:
        floating = (p.element_size() for p in module.parameters() if p.is_floating_point())
        return cls(
            tuple(
                (path, type(part).__name__, next(part.children(), None) is None)
                for path, part in module.named_modules()
            ),
            frozenset(name for name, _ in module.named_parameters()),
            next(floating, 4),
        )


@dataclass(frozen=True)
class Recorded:
    """What following a pass has shown, before trace passes: it serves every device of a platform."""

    asked: Pass
    trace: Trace
    outline: Outline
    lifetimes: StepLifetimes | None = None  # of a backward pass or a step, of plain weights
    notes: tuple[str, ...] = ()  # what its inputs take for granted, and why a step's memory is not known


@dataclass(frozen=True)
class Followed:
    asked: Pass  # what was followed
    trace: Trace  # as it was recorded, after the passes that change calls
    work: Trace  # after the trace passes: its tasks answer the question
    lifetimes: StepLifetimes | None = None  # of a backward pass or a step; a forward pass's are the trace's
    notes: tuple[str, ...] = ()  # as `Recorded.notes`
    outline: Outline | None = None


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


def worked(recorded: Recorded, question: Question) -> Followed:
    """What was recorded of a pass, with the tasks of a question; a step of an engine has further passes."""
    found = applied(recorded.trace, question, OF_CALLS)
    lifetimes = recorded.lifetimes
    if lifetimes is not None and question.weights is not None:
        lifetimes = with_quantised(lifetimes, found.weights, question.weights)
    work = applied(found, question)
    return Followed(recorded.asked, found, work, lifetimes, recorded.notes, recorded.outline)


# ---- A training step whose frozen weights are quantised, as QLoRA has them ----


def with_quantised(step: StepLifetimes, weights: Sequence[Weight], scheme: Scheme) -> StepLifetimes:
    """The step with frozen weights in a scheme's formats; each product widens its own while it runs.

    Raises InputError where a group does not divide a product's inputs.
    """
    forms = scheme.forms(weights, {})
    found = sizes(weights, forms, {})
    plain = {one.name: one.bytes for one in weights if forms.get(one.name) is not None}
    widened = [Storage(call, call, plain[name], ACTIVATIONS) for call, name in step.products if name in plain]
    storages = [one._replace(bytes=found.get(one.name, one.bytes)) for one in step.storages]
    return step._replace(storages=(*storages, *widened))
