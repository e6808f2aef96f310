"""Savings of joined calls against eager mode, whose work is counted before other passes change it."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import COMPILE, ENGINE, Question
from neuralpower.trace.records import Savings, Trace, counted


@trace_pass(place="fusion", applies=lambda trace, _: trace.baseline is not None)
def savings(trace: Trace, question: Question) -> Trace:
    """Compare the calls and bytes with those of eager mode."""
    before = trace.baseline or counted(trace)
    return replace(trace, savings=Savings(question.run, *before, *counted(trace)))


@trace_pass(place="blocks", applies=lambda _, asked: asked.run in (COMPILE, ENGINE))
def baseline(trace: Trace, question: Question) -> Trace:
    """Count the calls and bytes of eager mode, to say what joining them saves."""
    return replace(trace, baseline=counted(trace))
