"""What users wait for at a rate: a workload served by replicas of an engine, with bounds.

The bounds are those of whole simulations in which all steps take their lowest, or their highest time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neuralpower.devices.cluster import Layout
from neuralpower.errors import InputError
from neuralpower.files.stages import stage
from neuralpower.prediction.costs.footprint import Footprint, Line, Made, Terms, each_of, energy_lines, times
from neuralpower.prediction.costs.prices import price_of
from neuralpower.prediction.rows import BOUNDS, Interval
from neuralpower.serving.deployment import Deployment
from neuralpower.serving.results import Compared, Load, Target
from neuralpower.serving.workload import Workload

EMPTY = 1e-3  # requests per second that never meet
MOST_RATE = 1e5
EXACT = 1.02  # two rates that are alike: the search for the highest ends there
FULL = 0.85  # of a pool, over time: requests wait for blocks
LONE = 48  # requests that stand for all where they do not meet
DRAIN = 3  # times as long as a request alone takes: a longer end is a queue that has grown all the time
AUTO = "auto"
CURVE = (
    0.1,
    0.25,
    0.4,
    0.55,
    0.7,
    0.8,
    0.9,
    1.0,
    1.1,
)  # points of a curve, as shares of the highest throughput


@dataclass(frozen=True)
class Traffic:
    """A workload on replicas of a deployment: expected, and at the bounds of the steps' times."""

    model: str
    device: str
    layout: Layout
    replicas: int
    engine: str
    dtype: str
    blocks: int
    block: int
    value: Load
    low: Load  # where each step takes its lowest time
    high: Load
    targets: tuple[Target, ...] = ()
    prefills: int = 0  # replicas that read prompts alone; 0: each replica does both
    price: float | None = None  # of a device for an hour
    highest: float | None = None  # requests per second at which all targets hold; None: not searched
    curve: tuple[Load, ...] = ()  # over the rate
    ends: Mapping[float, tuple[Load, Load]] = field(
        default_factory=dict
    )  # low and high, by the curve's rates
    notes: tuple[str, ...] = ()
    tool: str = ""  # that has measured what is compared
    compared: tuple[Compared, ...] = ()
    footprint: Footprint | None = None  # energy, money and carbon, where options request them

    def interval(self, measure: str, point: str = "mean") -> Interval:
        """A measure with its bounds."""
        found = [getattr(getattr(self, bound), measure)[point] for bound in BOUNDS]
        return Interval(found[0], min(found), max(found))

    def between(self, load: Load, value: Callable[[Load], float]) -> tuple[float, float] | None:
        """Bounds of a value of a point of the curve; None where only its expected steps were served."""
        values = [value(end) for end in self._ends(load)]
        return (min(values), max(values)) if values else None

    @property
    def devices(self) -> int:
        """All devices."""
        return (self.replicas + self.prefills) * self.layout.ranks

    @property
    def knee(self) -> float | None:
        """The rate of the curve with the most throughput for its latency; None without a curve.

        That is the largest power, answers a second over the mean latency (Kleinrock, ICC 1979).
        """
        if not self.curve:
            return None
        return max(self.curve, key=lambda load: load.requests_per_s / load.latency_s["mean"]).rate

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; times in seconds."""
        return {
            "schema": 1,
            "model": self.model,
            "device": self.device,
            "layout": str(self.layout),
            "replicas": self.replicas,
            "prefill_replicas": self.prefills,
            "devices": self.devices,
            "price_per_device_hour": self.price,
            "engine": self.engine,
            "dtype": self.dtype,
            "blocks": self.blocks,
            "block_size": self.block,
            "targets": [str(target) for target in self.targets],
            "highest_rate": self.highest,
            **{bound: getattr(self, bound).to_json() for bound in BOUNDS},
            "curve": [self._point(load) for load in self.curve],
            "knee_rate": self.knee,
            "notes": list(self.notes),
            "tool": self.tool or None,
            "compared": [{**vars(one), "off": one.off} for one in self.compared],
            "footprint": self.footprint and self.footprint.to_json(),
        }

    def _point(self, load: Load) -> dict[str, Any]:
        """A point of the curve, and where it has them its `low` and `high`."""
        ends = zip(BOUNDS, self._ends(load), strict=False)
        return {**load.to_json(), **{name: end.to_json() for name, end in ends if name != BOUNDS[0]}}

    def _ends(self, load: Load) -> tuple[Load, ...]:
        """A point of the curve, as expected, low and high; none where its bounds were not served."""
        ends = self.ends.get(load.rate or 0.0)
        return () if ends is None else (load, *ends)


def with_footprint(found: Traffic, terms: Terms, workload: Workload) -> Traffic:
    """The traffic with what a token takes; raises InputError where energy is needed and not known.

    Money for prompts and for answers is that of the steps' time in which prompts are read, or not.
    """
    if terms == Terms():
        return found
    loads, drawn = [found.value, found.low, found.high], found.value.drawn
    tokens = round(found.value.tokens_per_s * found.value.duration_s)
    lengths = [load.duration_s for load in loads]
    joules = [load.drawn.energy_j for load in loads if load.drawn is not None]
    made = Made(
        found.device,
        "token",
        tokens,
        Interval(lengths[0], min(lengths), max(lengths)),
        Interval(joules[0], min(joules), max(joules)) if drawn is not None else None,
        found.devices,
        "its power is not known",
    )
    lines = [*energy_lines(made, terms)]
    if terms.price is not None:
        price = price_of(terms.price, terms.currency, found.device)
        read = int(workload.prompt.sum()) * found.value.requests / workload.count
        reading, hour = found.value.reading, f"{price.per_hour:g} {price.currency}/h for each device"
        for side, share, count, about in (
            ("", 1.0, float(tokens), f"that are made, {hour}"),
            (" in", reading, read, f"{reading:.0%} of the steps' time"),
            (" out", 1 - reading, float(tokens), f"{1 - reading:.0%} of it"),
        ):
            paid = each_of(replace(made, count=max(count, 1.0)), terms).price
            assert paid is not None
            lines.append(Line(f"price per million tokens{side}", times(paid, share), price.currency, about))
    notes = (*terms.warnings, *found.notes)
    return replace(found, footprint=Footprint(tuple(lines), terms.warnings), notes=notes)


def traffic(
    deployment: Deployment,
    workload: Workload,
    *,
    rate: float | None = None,
    replicas: int = 1,
    targets: Sequence[Target] = (),
) -> Traffic:
    """Serve a workload, expected and at both bounds; `rate` is what it was drawn at, by default its mean.

    Raises:
        InputError: a request that the cache cannot hold.
    """
    rate = workload.rate if rate is None else rate
    served = deployment.serves(workload, replicas)
    value = deployment.seen(served, workload, rate, replicas=replicas, targets=targets, parts=True)
    low, high = (
        end.seen(
            end.serves(workload, replicas), workload, rate, replicas=replicas, targets=targets, bound=bound
        )
        for end, bound in zip(deployment.bounds(served), BOUNDS[1:], strict=True)
    )
    surface, engine = deployment.surface, deployment.engine
    return Traffic(
        model=surface.model,
        device=surface.predictor.device,
        layout=deployment.layout,
        prefills=deployment.prefills,
        price=deployment.price,
        replicas=replicas,
        engine=engine.policy,
        dtype=surface.dtype,
        blocks=engine.blocks,
        block=engine.block,
        value=value,
        low=low,
        high=high,
        targets=tuple(targets),
        notes=deployment.notes,
    )


def served_at(
    deployment: Deployment,
    workload: Workload,
    *,
    rate: float | None = None,
    replicas: int = 1,
    targets: Sequence[Target] = (),
    curve: Sequence[float] | str = (),
    find: bool = False,
) -> Traffic:
    """Serve a workload, at further rates too; `find`: at the highest rate at which the targets hold.

    A `curve` of "auto" goes from a tenth of the highest throughput to above it.

    Raises:
        InputError: a rate that is none; as `traffic` and `highest_rate`.
    """
    stage(f"serving {len(workload.prompt):,} requests in a simulation")
    loads: list[Load] = []
    ends: dict[float, tuple[Load, Load]] = {}
    notes: list[str] = []
    highest = None
    if find:
        highest, tried = highest_rate(deployment, workload, targets, replicas=replicas)
        loads, rate, workload = [*tried], highest, workload.at_rate(highest)
        notes.append(f"what limits it is {_limit(highest, tried, targets)}")
    if curve == AUTO and not workload.users:
        at_once = deployment.load(workload.at_rate(MOST_RATE), MOST_RATE, replicas=replicas)
        curve = [share * at_once.requests_per_s for share in CURVE]
    elif isinstance(curve, str):
        raise InputError(f"curve {curve!r}: rates, or auto for requests that come at a rate; write 1,2,4")
    for point in curve:
        if not (np.isfinite(point) and point > 0) or workload.users:
            raise InputError(f"rate {point:g}: requests per second, above 0, of requests that come at a rate")
        each = traffic(deployment, workload.at_rate(point), rate=point, replicas=replicas, targets=targets)
        loads.append(each.value)
        ends[point] = (each.low, each.high)
    found = traffic(deployment, workload, rate=rate, replicas=replicas, targets=targets)
    if rate is not None and not find:
        notes += _drawn_otherwise(workload, rate)
        notes += _more_than_held(deployment, workload, rate, found.value, targets, replicas)
    by_rate = tuple(sorted(loads, key=lambda load: load.rate or 0.0))
    return replace(found, highest=highest, curve=by_rate, ends=ends, notes=(*found.notes, *notes))


def _drawn_otherwise(workload: Workload, rate: float) -> list[str]:
    """A note, where requests that were drawn at a rate happen to arrive at another."""
    arrive = workload.rate
    if arrive is None or 1 / EXACT < arrive / rate < EXACT:
        return []
    return [
        f"the {workload.count:,} drawn requests arrive at {arrive:.3g} a second in the mean, not {rate:g}; "
        "take more with --requests, or --burstiness inf"
    ]


def _more_than_held(
    deployment: Deployment,
    workload: Workload,
    rate: float,
    load: Load,
    targets: Sequence[Target],
    replicas: int,
) -> list[str]:
    """A note, where a rate is more than the deployment holds: how much that is, and what limits it."""
    alone = deployment.load(_lone(workload), EMPTY, targets=targets)
    if load.holds(targets) and not _grows(load, alone):
        return []
    said = f"{rate:g} requests/s are more than this holds"
    try:
        highest, tried = highest_rate(
            deployment, workload, targets, replicas=replicas, guess=min(rate, 0.9 * load.requests_per_s)
        )
    except InputError as error:
        return [f"{said}: {error}"]
    return [f"{said}: at most {highest:.3g}; what limits it is {_limit(highest, tried, targets)}"]


def _grows(load: Load, alone: Load) -> bool:
    """Whether requests come faster than they leave, so that their queue grows all the time."""
    return load.drain_s > DRAIN * alone.latency_s["p99"]


def _limit(highest: float, tried: Sequence[Load], targets: Sequence[Target]) -> str:
    """What a rate just above the highest meets first."""
    above = next((load for load in tried if (load.rate or 0.0) > highest), None)
    if above is None:
        return f"the run: {tried[-1].requests:,} requests tell no higher rate; take more with --requests"
    missed = [target for target in targets if not above.holds([target])]
    if missed:
        times = ", ".join(
            f"{one} takes {getattr(above, one.measure)[f'p{one.percentile}'] * 1e3:.3g} ms" for one in missed
        )
        full = f"; {above.cache_share:.0%} of the pool is held" if above.cache_share > FULL else ""
        return f"the promise: at {above.rate:.3g} requests/s {times}{full}"
    if above.preemptions or above.cache_share > FULL:
        return f"the pool: {above.cache_share:.0%} of it is held, and requests wait for blocks"
    return f"compute: steps with {above.batch:.3g} requests cannot be faster"


def highest_rate(
    deployment: Deployment,
    workload: Workload,
    targets: Sequence[Target],
    *,
    replicas: int = 1,
    guess: float | None = None,
) -> tuple[float, tuple[Load, ...]]:
    """(requests per second at which all targets hold, up to `EXACT`; the loads that were tried, by rate).

    The workload's arrivals are drawn together or apart for each rate. `guess`: where the search begins.

    Raises:
        InputError: an empty system misses a target, or requests of a closed loop.
    """
    if workload.users:
        raise InputError("the highest rate is of requests that arrive at a rate; leave the users out")
    tried: dict[float, Load] = {}

    def load(rate: float) -> Load:
        if rate not in tried:
            tried[rate] = deployment.load(workload.at_rate(rate), rate, replicas=replicas, targets=targets)
        return tried[rate]

    def holds(rate: float) -> bool:
        found = load(rate)
        return found.holds(targets) and not _grows(found, alone)

    alone = deployment.load(_lone(workload), EMPTY, targets=targets)
    if not alone.holds(targets):
        missed = [t for t in targets if not alone.holds([t])]
        said = ", ".join(
            f"{t} takes {getattr(alone, t.measure)[f'p{t.percentile}'] * 1e3:.3g} ms" for t in missed
        )
        raise InputError(f"an empty system misses its target: {said}; choose more ranks, or a later target")
    # by Little's law all requests are in the system at once at that rate: they cannot tell a higher one
    most = min(MOST_RATE, len(workload.prompt) / alone.latency_s["mean"])
    low = high = min(guess or 1.0, most)
    while high < most and holds(high):
        low, high = high, min(2 * high, most)
    while low == high or (low > EMPTY and not holds(low)):
        low, high = low / 2, low
    load(low)
    while high / low > EXACT:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, tuple(tried[rate] for rate in sorted(tried))


def _lone(workload: Workload) -> Workload:
    """Requests that never meet: of each size one; of very many sizes some, the longest among them."""
    if workload.prefixes:
        return workload.at_rate(EMPTY)
    sizes = np.unique(np.stack([workload.prompt, workload.output], axis=1), axis=0)
    chosen = sizes[np.unique(np.linspace(0, len(sizes) - 1, LONE).round().astype(int))]
    return Workload(np.arange(len(chosen)) / EMPTY, chosen[:, 0], chosen[:, 1])
