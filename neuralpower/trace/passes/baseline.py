"""Count the work of eager mode before other passes change it."""

from __future__ import annotations

from dataclasses import replace

from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import COMPILE, ENGINE, Question
from neuralpower.trace.records import Trace, counted


@trace_pass(place="blocks", applies=lambda _, asked: asked.run in (COMPILE, ENGINE))
def baseline(trace: Trace, question: Question) -> Trace:
    """Count the calls and bytes of eager mode, to say what joining them saves."""
    return replace(trace, baseline=counted(trace))
