"""What users see of a workload, and what it takes: waiting times, throughput, energy and price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuralpower.errors import InputError
from neuralpower.serving.simulator import Served

Array = np.ndarray
POINTS = ("mean", "p50", "p90", "p95", "p99")  # that are shown of each measure
MEASURES = ("ttft_s", "tpot_s", "per_token_s", "itl_s", "latency_s")
SHOWN = ("ttft_s", "tpot_s", "itl_s", "latency_s")  # of these: what promises and tables name


@dataclass(frozen=True)
class Target:
    """A promise to users: a measure's percentile stays below a time."""

    measure: str  # one of MEASURES
    seconds: float
    percentile: int = 95

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.measure.removesuffix('_s')}={self.seconds * 1e3:g}ms@p{self.percentile}"


def targets_of(text: str) -> tuple[Target, ...]:
    """Targets as text: `ttft=500ms,tpot=30ms@p95`; without a percentile the 95th.

    Raises InputError.
    """
    found = []
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        number, at, percentile = value.partition("@")
        measure, unit = f"{name.lower()}_s", 1e-3 if number.endswith("ms") else 1.0
        try:
            seconds = float(number.removesuffix("ms").removesuffix("s")) * unit
            rank = int(percentile.removeprefix("p")) if at else 95
        except ValueError:
            seconds, rank = -1.0, 0
        known = measure in SHOWN and equals and number.endswith("s")
        if not known or not (np.isfinite(seconds) and seconds > 0) or not 1 <= rank <= 99:
            raise InputError(
                f"target {part.strip()!r}: write ttft, tpot, itl or latency with a time and a percentile, "
                "such as ttft=500ms,tpot=30ms@p95"
            )
        found.append(Target(measure, seconds, rank))
    return tuple(found)


@dataclass(frozen=True)
class Drawn:
    """What the devices draw, while they work and while they wait."""

    energy_j: float
    duration_s: float
    tokens: int  # made

    @property
    def power_w(self) -> float:
        """Watts of all devices together."""
        return self.energy_j / self.duration_s

    @property
    def per_token_j(self) -> float:
        """Joules of a token that is made."""
        return self.energy_j / self.tokens


@dataclass(frozen=True)
class Load:
    """What users see of a workload, in one bound; seconds."""

    rate: float | None  # requests per second that arrive; None: of a closed loop, or all at once
    requests: int
    ttft_s: Mapping[str, float]  # mean, p50, p90, p95, p99
    tpot_s: Mapping[str, float]
    per_token_s: Mapping[str, float]  # latency over tokens
    itl_s: Mapping[str, float]  # gaps between outputs, over all gaps
    latency_s: Mapping[str, float]
    requests_per_s: float
    tokens_per_s: float  # made
    drain_s: float  # from the last arrival to the last token
    goodput_per_s: float | None  # requests per second that hold all targets; None without any
    cache_share: float  # of the pool that is held, over time
    batch: float  # requests in a step, over time
    busy: float  # share of the time in which steps run
    reading: float  # share of the steps' time in which prompts are read
    preemptions: int
    recomputed: int  # tokens
    reused: float  # share of the prompts' tokens that the cache already held
    duration_s: float
    drawn: Drawn | None = None  # None: the power is not known
    price_per_million: float | None = None  # of a million tokens that are made; None: no price is given
    parts: Mapping[str, float] = field(default_factory=dict)  # share of the steps' time by what runs

    @classmethod
    def of(
        cls, served: Sequence[Served], rate: float | None, targets: Sequence[Target] = (), **more: Any
    ) -> Load:
        """From what became of the requests of each engine; `more`: what is drawn, and parts."""
        columns = {name: np.concatenate([getattr(one, name) for one in served]) for name in MEASURES}
        duration = max(one.duration_s for one in served)
        count = sum(len(one.output) for one in served)
        busy = sum(one.busy_s for one in served)

        def mean(name: str) -> float:
            return float(sum(getattr(one, name) * one.busy_s for one in served) / max(busy, 1e-30))

        held = sum(int(_held(one, targets).sum()) for one in served)
        measures: dict[str, Any] = {name: _summary(columns[name]) for name in MEASURES}
        return cls(
            rate=rate,
            requests=count,
            **measures,
            requests_per_s=count / duration,
            tokens_per_s=sum(int(one.output.sum()) for one in served) / duration,
            drain_s=max(one.duration_s - float(one.arrival_s.max()) for one in served),
            goodput_per_s=held / duration if targets else None,
            cache_share=mean("cache_share"),
            batch=mean("batch"),
            busy=busy / duration / sum(one.engines for one in served),
            reading=sum(one.reading_s for one in served) / max(busy, 1e-30),
            preemptions=sum(one.preemptions for one in served),
            recomputed=sum(one.recomputed for one in served),
            reused=sum(one.reused for one in served) / sum(int(one.prompt.sum()) for one in served),
            duration_s=duration,
            **more,
        )

    def holds(self, targets: Sequence[Target]) -> bool:
        """Whether all targets are held, and requests leave as fast as they come."""
        return all(getattr(self, one.measure)[f"p{one.percentile}"] <= one.seconds for one in targets)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; of each measure the points that are shown."""
        drawn = self.drawn
        plain: dict[str, Any] = dict(vars(self))
        del plain["drawn"]
        return {
            **plain,
            **{name: {point: plain[name][point] for point in POINTS} for name in MEASURES},
            "energy_j": drawn and drawn.energy_j,
            "power_w": drawn and drawn.power_w,
            "energy_per_token_j": drawn and drawn.per_token_j,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Load:
        """The load of a JSON object, with the points that it has; raises KeyError and TypeError."""
        found = dict(row)
        energy, _, each = (found.pop(name) for name in ("energy_j", "power_w", "energy_per_token_j"))
        drawn = None if energy is None else Drawn(energy, found["duration_s"], round(energy / each))
        return cls(**found, drawn=drawn)


def _summary(values: Array) -> dict[str, float]:
    """Mean and percentiles; all percentiles from 1 to 99."""
    if not len(values):
        return {"mean": 0.0, **{f"p{point}": 0.0 for point in range(1, 100)}}
    points = np.percentile(values, range(1, 100))
    return {"mean": float(values.mean()), **{f"p{i}": float(v) for i, v in enumerate(points, 1)}}


def _held(part: Served, targets: Sequence[Target]) -> Array:
    """[requests] which hold all targets."""
    held = np.ones(len(part.output), dtype=bool)
    for target in targets:
        if target.measure == "itl_s":  # gaps are of all requests together
            continue
        if target.measure == "tpot_s":
            held[part.output > 1] &= part.tpot_s <= target.seconds
        else:
            held &= getattr(part, target.measure) <= target.seconds
    return held
