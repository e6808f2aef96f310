"""Waiting times over the rate of requests: at once by the mean step, then by simulations.

With n requests in the cache, a step takes s(n) and gives each a token; reading a prompt takes c(n) more. In a
steady state the rate r has n = r o s(n) / (1 - r c(n)), for o tokens of an answer (Little, "L = lambda W",
1961), so each n gives one point of the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neuralpower.networks.phases import Step
from neuralpower.serving.deployment import Deployment
from neuralpower.serving.load import Load
from neuralpower.serving.surface import StepSurface
from neuralpower.serving.traffic import CURVE, MOST_RATE
from neuralpower.serving.workload import Workload

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

    @property
    def knee(self) -> Served:
        """The point with the most answers for their latency (Kleinrock, ICC 1979)."""
        return max(self.points, key=lambda one: one.tokens_per_s / one.whole_s)


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
    seconds = surface.at([Step(chunks=chunk), *steps, *reads]).runtime_s
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


def simulated(
    deployment: Deployment, workload: Workload, stopped: Callable[[], bool]
) -> Iterator[Curve]:
    """Curves with more and more points, as `neuralpower traffic --curve auto` has them."""
    at_once = deployment.load(workload.at_rate(MOST_RATE), MOST_RATE)
    loads: list[Load] = []
    for share in sorted(CURVE, key=_spread):
        if stopped():
            return
        rate = share * at_once.requests_per_s
        loads.append(deployment.load(workload.at_rate(rate), rate))
        if len(loads) >= 3:
            yield Curve(tuple(map(_served, sorted(loads, key=lambda load: load.rate or 0.0))), refined=True)


def _spread(share: float) -> tuple[bool, int]:
    """The ends and the middle first."""
    order: Sequence[float] = (CURVE[0], CURVE[-1], CURVE[len(CURVE) // 2])
    return share not in order, int(np.argsort(CURVE)[0] + list(CURVE).index(share))


def _served(load: Load) -> Served:
    means = (load.ttft_s["mean"], load.tpot_s["mean"], load.latency_s["mean"])
    return Served(load.rate or 0.0, load.tokens_per_s, *means)
