"""The results of following a pass or a generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuralpower.networks.passes import Pass
from neuralpower.trace.lifetimes import StepLifetimes
from neuralpower.trace.records import Trace

if TYPE_CHECKING:
    from neuralpower.networks.requests import Generating


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
    steps: Iterator[Trace]  # those to look at, one by one: together they are large
    begin: Sequence[Trace]  # the first few, but for the last
    end: Sequence[Trace]  # the last; none where one token is all
