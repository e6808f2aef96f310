"""Waiting times over the rate of requests: at once by the mean step, then as `traffic` simulates them.

With n requests in the cache, a step takes s(n) and gives each a token; reading a prompt takes c(n) more. In a
steady state the rate r has n = r o s(n) / (1 - r c(n)), for o tokens of an answer (Little, "L = lambda W",
1961), so each n gives one point of the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuralpower.networks.phases import Step
from neuralpower.prediction.rows import BOUNDS
from neuralpower.serving.surface import StepSurface

COUNTS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)  # requests in a step of the first curve


@dataclass(frozen=True)
class Served:
    """What users see at a rate; means."""

    rate: float  # requests per second
    tokens_per_s: float
    first_s: float
    next_s: float
    whole_s: float


@dataclass(frozen=True)
class Curve:
    """Points by their rates."""

    points: tuple[Served, ...]
    refined: bool = False  # whether they were simulated
    ends: tuple[Curve, Curve] | None = None  # with all steps at a bound: fast, slow

    @property
    def knee(self) -> Served:
        """The point with the most answers for their latency (Kleinrock, ICC 1979)."""
        return max(self.points, key=lambda one: one.tokens_per_s / one.whole_s)

    def between(self, one: Served, value: Callable[[Served], float]) -> tuple[float, float] | None:
        """Bounds of a point's value, by those of the steps; None where slow steps do not hold its rate."""
        if self.ends is None or one.rate > self.ends[1].points[-1].rate:
            return None
        values = [value(one), *(each.at(one.rate, value) for each in self.ends)]
        return min(values), max(values)

    def at(self, rate: float, value: Callable[[Served], float]) -> float:
        """A value between points, on straight lines."""
        return float(np.interp(rate, [p.rate for p in self.points], [value(p) for p in self.points]))


def first_curve(surface: StepSurface, prompt: int, output: int, held: float) -> Curve:
    """By the mean step.

    Args:
        surface: the steps.
        prompt: tokens of a request.
        output: tokens of an answer.
        held: most tokens in the cache, of all requests.
    """
    mean = prompt + output // 2
    most = max(int(held // (prompt + output)), 1)
    counts = [n for n in COUNTS if n <= most]
    chunk = ((prompt, 0),)
    steps = [Step(contexts=(mean,) * n) for n in counts]
    reads = [Step(contexts=(mean,) * n, chunks=chunk) for n in counts]
    found = surface.at([Step(chunks=chunk), *steps, *reads])
    value, fast, slow = (
        _steady(each, counts, output) for each in (found.runtime_s, found.low_s, found.high_s)
    )
    return replace(value, ends=(fast, slow))


def _steady(seconds: np.ndarray, counts: Sequence[int], output: int) -> Curve:
    """The curve of (a prompt alone, steps, steps that read a prompt) [1 + 2 counts], in seconds."""
    alone, rest = float(seconds[0]), seconds[1:]
    points = []
    for n, step, read in zip(counts, rest[: len(counts)], rest[len(counts) :], strict=True):
        more = max(float(read - step), 0.0)
        rate = n / (output * step + n * more)
        each = float(step / (1 - rate * more))
        # a prompt waits for the step that runs, and for prompts before it (a queue M/D/1)
        busy = min(rate * more, 0.99)
        first = alone + float(step) / 2 + busy * more / (2 * (1 - busy))
        points.append(Served(float(rate), float(rate * output), first, each, first + each * (output - 1)))
    rising = [one for i, one in enumerate(points) if i == 0 or one.rate > points[i - 1].rate]
    return Curve(tuple(rising))


def curve_of(answer: Mapping[str, Any]) -> Curve:
    """The curve of what `neuralpower traffic --curve auto --json` prints; raises KeyError."""
    loads = answer["curve"]
    fast, slow = (Curve(_seen([load[end] for load in loads])) for end in BOUNDS[1:])
    return Curve(_seen(loads), refined=True, ends=(fast, slow))


def _seen(loads: Sequence[Mapping[str, Any]]) -> tuple[Served, ...]:
    """What users see, of the JSON of each load."""
    return tuple(
        Served(
            load["rate"],
            load["tokens_per_s"],
            *(load[name]["mean"] for name in ("ttft_s", "tpot_s", "latency_s")),
        )
        for load in loads
    )
