"""A single run in words, which stand in `single.jinja`."""

from __future__ import annotations

from neuralpower.suites.paradnn.formulas import FLOP_PER_WEIGHT, counted
from neuralpower.suites.paradnn.points import family_named
from neuralpower.suites.paradnn.result import SHORT, Result
from neuralpower.suites.words import template


def single_text(result: Result) -> str:
    """Version, hyper-parameters, Duration and TFLOPS, each on a line; FLOP are 2 per multiply-add."""
    return (
        template("neuralpower.suites.paradnn", "single.jinja")
        .render(
            result=result,
            setup=result.setup,
            short=SHORT[result.setup.dtype],
            selects=family_named(result.point.family).selects,
            work=counted(result.point),
            per_weight=FLOP_PER_WEIGHT[result.setup.mode],
        )
        .rstrip("\n")
    )
