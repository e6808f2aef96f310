"""Which devices serve a rate and keep a promise: each layout's highest rate, and the replicas that it takes.

A layout that cannot hold the weights, or that misses the promise when empty, is skipped with its reason. The
replicas are the rate over one replica's highest rate, rounded up: requests are shared out evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuralpower.ask.words import PLANNED
from neuralpower.devices.cluster import Cluster
from neuralpower.devices.layout import Layout
from neuralpower.devices.spec import DeviceSpec
from neuralpower.errors import InputError, ModelError, one_line
from neuralpower.files.stages import stage
from neuralpower.learn.predictor import Predictor
from neuralpower.serving.traffic import Load, Target, deployed, highest_rate
from neuralpower.serving.workload import Workload

DEGREES = (1, 2, 4, 8)  # tensor ranks of a replica


@dataclass(frozen=True)
class Choice:
    """One way to serve the rate."""

    device: str
    layout: Layout
    replicas: int
    highest: float  # requests per second of one replica at which the promise holds
    load: Load  # of one replica at that rate
    price: float | None  # of a device for an hour; None: not given

    @property
    def devices(self) -> int:
        """All devices."""
        return self.replicas * self.layout.ranks

    @property
    def cost(self) -> float | None:
        """Price of all devices for an hour."""
        return None if self.price is None else self.price * self.devices

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        p95 = {name: getattr(self.load, name)["p95"] for name in ("ttft_s", "tpot_s", "latency_s")}
        return {
            "device": self.device,
            "layout": str(self.layout),
            "replicas": self.replicas,
            "devices": self.devices,
            "highest_rate": self.highest,
            "cost_per_hour": self.cost,
            "p95": p95,
        }


@dataclass(frozen=True)
class Plan:
    """All ways, the best first, and why others are none."""

    model: str
    rate: float
    targets: tuple[Target, ...]
    choices: tuple[Choice, ...]
    skipped: tuple[tuple[str, str], ...]  # (device and layout, reason)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "schema": 1,
            "model": self.model,
            "rate": self.rate,
            "targets": [str(target) for target in self.targets],
            "choices": [choice.to_json() for choice in self.choices],
            "skipped": [{"what": what, "reason": reason} for what, reason in self.skipped],
            "notes": list(self.notes),
        }


def plan(
    model: str,
    workload: Workload,
    rate: float,
    targets: Sequence[Target],
    devices: Sequence[tuple[DeviceSpec, Predictor]],
    *,
    prices: Mapping[str, float] | None = None,
    degrees: Sequence[int] = DEGREES,
    by: str = PLANNED[0],
    **how: Any,
) -> Plan:
    """Rank devices and tensor ranks that serve a rate.

    Args:
        model: a name.
        workload: requests as they come; their lengths count, and how bursty they are.
        rate: requests per second in all.
        targets: the promise.
        devices: their sheets and predictors.
        prices: of a device for an hour, by the slug of its sheet.
        degrees: tensor ranks of a replica to try.
        by: "devices" or "cost".
        **how: further arguments of `deployed`.

    Raises:
        InputError: a rate that is none, no targets, or a ranking by cost without prices.
    """
    if not (math.isfinite(rate) and rate > 0):
        raise InputError(f"rate {rate:g}: requests per second, above 0 and finite")
    if not targets:
        raise InputError("a plan needs a promise: ttft=500ms,tpot=30ms@p95")
    if by not in PLANNED:
        raise InputError(f"ranking {by!r}: choose one of {', '.join(PLANNED)}")
    if by == "cost" and not prices:
        raise InputError("a ranking by cost needs prices: --price h100-sxm=2.49,l40s=0.79")
    tries = [(spec, predictor, ranks) for spec, predictor in devices for ranks in degrees]
    choices, skipped, notes = [], [], dict[str, None]()
    for number, (spec, predictor, ranks) in enumerate(tries):
        stage(f"trying {ranks} x {spec.slug}:", number, len(tries))
        layout = Layout(tensor=ranks)
        cluster = None if layout.alone else Cluster(spec, ranks)
        try:
            deployment = deployed(model, predictor, layout=layout, cluster=cluster, **how)
            notes |= dict.fromkeys(deployment.notes)
            highest, tried = highest_rate(deployment, workload, targets)
        except (InputError, ModelError) as error:
            skipped.append((f"{ranks} x {spec.slug}", one_line(error)))
            continue
        load = next(load for load in tried if load.rate == highest)
        replicas = math.ceil(rate / highest)
        choices.append(Choice(spec.slug, layout, replicas, highest, load, (prices or {}).get(spec.slug)))
    ranked = tuple(sorted(choices, key=_order(by)))
    return Plan(model, rate, tuple(targets), ranked, tuple(skipped), tuple(notes))


def _order(by: str) -> Callable[[Choice], tuple[float, ...]]:
    """What choices are ranked by: unknown costs come last."""
    if by == "cost":
        return lambda choice: (math.inf if choice.cost is None else choice.cost, choice.devices)
    return lambda choice: (choice.devices, -choice.highest)
