"""What users wait for at a rate: a workload served by replicas of an engine, with bounds.

The bounds are those of whole simulations in which each step takes its lowest or its highest time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neuralpower.devices.cluster import Cluster
from neuralpower.devices.layout import ONE, Layout
from neuralpower.devices.spec import known_spec
from neuralpower.errors import InputError
from neuralpower.layers.base import torch_dtype
from neuralpower.layers.collective import Collective, on_links
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.inputs import InputRequest
from neuralpower.networks.source import Source
from neuralpower.networks.sources import resolve
from neuralpower.prediction.memory.engines import EngineMemory, EngineRequest, board_of, check_ranks, served
from neuralpower.prediction.request import dtype_for
from neuralpower.prediction.rows import BOUNDS, Interval
from neuralpower.serving.simulator import Engine, Served, simulate
from neuralpower.serving.step_times import StepTimes
from neuralpower.serving.surface import StepSurface, surface_of
from neuralpower.serving.workload import Workload
from neuralpower.trace.question import ENGINE

Array = np.ndarray
POINTS = ("mean", "p50", "p90", "p95", "p99")  # that are shown of each measure
MEASURES = ("ttft_s", "tpot_s", "latency_s")
BUDGETS = {"vllm": (2_048, 256), "sglang": (8_192, 256)}
"""New tokens and requests of a step, by default (vLLM 0.19; SGLang 0.5 on cards of 35 to 60 GB)."""
EMPTY = 1e-3  # requests per second that never meet
MOST_RATE = 1e5
DRAIN = 3  # times as long as a request alone takes: a longer end is a queue that has grown all the time
LARGE = 2**27  # numbers of an exchange whose speed is that of the link


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
        known = measure in MEASURES and equals and number.endswith("s")
        if not known or not (np.isfinite(seconds) and seconds > 0) or not 1 <= rank <= 99:
            raise InputError(
                f"target {part.strip()!r}: write ttft, tpot or latency with a time and a percentile, "
                "such as ttft=500ms,tpot=30ms@p95"
            )
        found.append(Target(measure, seconds, rank))
    return tuple(found)


@dataclass(frozen=True)
class Deployment:
    """A model under an engine on one replica's devices: what its steps take, and what its cache holds."""

    surface: StepSurface
    engine: Engine
    memory: EngineMemory
    devices: int
    notes: tuple[str, ...] = ()
    _tables: dict[tuple[str, int], StepTimes] = field(default_factory=dict, repr=False, compare=False)

    def times(self, longest: int, bound: str = BOUNDS[0]) -> StepTimes:
        """The tables of steps for requests of at most `longest` tokens; kept."""
        room = 2 ** max(int(np.ceil(np.log2(longest))), 8)
        if (bound, room) not in self._tables:
            self._tables[bound, room] = StepTimes(
                self.surface,
                budget=self.engine.budget,
                requests=self.engine.requests,
                longest=room,
                bound=bound,
            )
        return self._tables[bound, room]

    def serves(self, workload: Workload, replicas: int = 1, bound: str = BOUNDS[0]) -> list[Served]:
        """Serve a workload; requests go to the replicas in turn. Raises InputError as `simulate`."""
        longest = int((workload.prompt + workload.output).max())
        parts = [workload] if replicas == 1 else [workload.part(i, replicas) for i in range(replicas)]
        return [simulate(part, self.engine, self.times(longest, bound)) for part in parts if part.count]


@dataclass(frozen=True)
class Load:
    """What users see of a workload, in one bound; seconds."""

    rate: float | None  # requests per second that arrive; None: of a closed loop
    requests: int
    ttft_s: Mapping[str, float]  # mean, p50, p90, p95, p99
    tpot_s: Mapping[str, float]
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

    @classmethod
    def of(cls, parts: Sequence[Served], rate: float | None, targets: Sequence[Target] = ()) -> Load:
        """From what became of the requests of each replica."""
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in MEASURES}
        duration = max(part.duration_s for part in parts)
        count = sum(len(part.output) for part in parts)
        busy = sum(part.busy_s for part in parts)

        def mean(name: str) -> float:
            return float(sum(getattr(part, name) * part.busy_s for part in parts) / max(busy, 1e-30))

        held = sum(int(_held(part, targets).sum()) for part in parts)
        return cls(
            rate=rate,
            requests=count,
            **{name: _summary(columns[name]) for name in MEASURES},
            requests_per_s=count / duration,
            tokens_per_s=sum(int(part.output.sum()) for part in parts) / duration,
            drain_s=max(part.duration_s - float(part.arrival_s.max()) for part in parts),
            goodput_per_s=held / duration if targets else None,
            cache_share=mean("cache_share"),
            batch=mean("batch"),
            busy=busy / duration / len(parts),
            reading=sum(part.reading_s for part in parts) / max(busy, 1e-30),
            preemptions=sum(part.preemptions for part in parts),
            recomputed=sum(part.recomputed for part in parts),
        )

    def holds(self, targets: Sequence[Target]) -> bool:
        """Whether all targets are held, and requests leave as fast as they come."""
        return all(getattr(self, one.measure)[f"p{one.percentile}"] <= one.seconds for one in targets)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; of each measure the points that are shown."""
        return {
            name: {point: value[point] for point in POINTS} if isinstance(value, Mapping) else value
            for name, value in vars(self).items()
        }


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
        if target.measure == "tpot_s":
            held[part.output > 1] &= part.tpot_s <= target.seconds
        else:
            held &= getattr(part, target.measure) <= target.seconds
    return held


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
    highest: float | None = None  # requests per second at which all targets hold; None: not searched
    curve: tuple[Load, ...] = ()  # over the rate
    notes: tuple[str, ...] = ()

    def interval(self, measure: str, point: str = "mean") -> Interval:
        """A measure with its bounds."""
        found = [getattr(getattr(self, bound), measure)[point] for bound in BOUNDS]
        return Interval(found[0], min(found), max(found))

    @property
    def devices(self) -> int:
        """All devices."""
        return self.replicas * self.layout.ranks

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; times in seconds."""
        return {
            "schema": 1,
            "model": self.model,
            "device": self.device,
            "layout": str(self.layout),
            "replicas": self.replicas,
            "devices": self.devices,
            "engine": self.engine,
            "dtype": self.dtype,
            "blocks": self.blocks,
            "block_size": self.block,
            "targets": [str(target) for target in self.targets],
            "highest_rate": self.highest,
            **{bound: getattr(self, bound).to_json() for bound in BOUNDS},
            "curve": [load.to_json() for load in self.curve],
            "notes": list(self.notes),
        }


def deployed(
    model: str | Source,
    predictor: Predictor,
    *,
    engine: str = "vllm",
    dtype: str | None = None,
    layout: Layout = ONE,
    cluster: Cluster | None = None,
    weights: str | None = None,
    longest: int | None = None,
    link_bytes_per_s: float | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Deployment:
    """A model under an engine on devices.

    Args:
        model: a name, as on the command line.
        predictor: of one device.
        engine: "vllm" or "sglang".
        dtype: of the weights; by default as the engine serves the model's.
        layout: tensor, expert and data ranks of a replica.
        cluster: its devices.
        weights: their quantisation; by default the checkpoint's.
        longest: tokens of the longest request; by default the model's positions.
        link_bytes_per_s: what a large exchange between two devices reaches, in one direction; by default as
            predicted.
        options: of the engine's memory, by name, such as `gpu_memory_utilization`.
        **settings: fields of `Engine`: `budget`, `requests`, `overlaps`, `host_s`, `prefix_hit`.

    Raises:
        InputError: an engine that is not known, a layout that it cannot run, or a model that leaves no pool.
    """
    if engine not in BUDGETS:
        raise InputError(
            f"engine {engine!r}: its steps are known for {', '.join(BUDGETS)}; choose one of them"
        )
    source = resolve(model) if isinstance(model, str) else model
    spec = predictor.sheet or known_spec(predictor.device)
    room = None if spec is None else spec.get("memory_bytes")
    if spec is None or room is None:
        raise InputError(f"{predictor.device}: its memory is not known; add --device-spec FILE")
    request = EngineRequest(engine, dict(options or {}), None, board_of(spec, room, predictor.device))
    dtype, notes = dtype_for(str(source.name), dtype, predictor, ENGINE, engine)
    whole = source.build("meta", torch_dtype(dtype))
    config: Any = getattr(whole, "config", None)
    if hasattr(config, "get_text_config"):
        check_ranks(config.get_text_config(decoder=True), layout, engine, str(source.name))
    linked = predictor if link_bytes_per_s is None else with_link(predictor, link_bytes_per_s)
    surface = surface_of(source, linked, dtype=dtype, layout=layout, cluster=cluster, weights=weights)
    if longest is not None:
        request = replace(request, options={**request.options, "max_model_len": longest})
    about = InputRequest(dtype=torch_dtype(dtype))
    assert surface.module is not None  # as `surface_of` has kept it
    network = served(
        surface.module,
        about,
        str(source.name),
        surface.weights_bytes,
        layout,
        None if layout.alone else whole,
    )
    memory = request.memory(network, room)
    if not memory.fits:
        raise InputError(f"{source.name} on {layout} of {predictor.device}: {memory.reason}")
    budget, requests = BUDGETS[engine]
    usual = {"budget": budget, "requests": memory.most_sequences or requests}
    replica = Engine(
        memory.pool.blocks,
        memory.pool.block_size,
        policy=engine,
        **{**usual, **{name: value for name, value in settings.items() if value is not None}},
    )
    return Deployment(surface, replica, memory, layout.ranks, notes)


def with_link(predictor: Predictor, bytes_per_s: float) -> Predictor:
    """The predictor for devices whose link carries a large exchange at this speed.

    Raises InputError for a speed that is none.
    """
    if not (np.isfinite(bytes_per_s) and bytes_per_s > 0):
        raise InputError(f"link {bytes_per_s:g} B/s: a speed above 0; write 14GB/s")
    hardware = predictor.hardware
    if hardware is None:
        raise InputError(f"{predictor.device} has no sheet with its links; add --device-spec FILE")
    exchange = Collective(dtype="bfloat16", phase="forward", function="all_reduce", elements=LARGE, ranks=2)
    reached = float(on_links(exchange) / predictor.estimate([exchange]).runtime_s[0])
    name = "pcie_bytes_per_s" if hardware.link_bytes_per_s is None else "link_bytes_per_s"
    speed = hardware.peer_bytes_per_s * bytes_per_s / reached
    changes: dict[str, Any] = {name: speed}
    return replace(predictor, hardware=replace(hardware, **changes))


def traffic(
    deployment: Deployment,
    workload: Workload,
    *,
    rate: float | None = None,
    replicas: int = 1,
    targets: Sequence[Target] = (),
) -> Traffic:
    """Serve a workload, expected and at both bounds; `rate` is what it was drawn at.

    Raises:
        InputError: a request that the cache cannot hold.
    """
    value, low, high = (
        Load.of(deployment.serves(workload, replicas, bound), rate, targets) for bound in BOUNDS
    )
    surface, engine = deployment.surface, deployment.engine
    return Traffic(
        model=surface.model,
        device=surface.predictor.device,
        layout=surface.layout,
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
    curve: Sequence[float] = (),
    find: bool = False,
) -> Traffic:
    """Serve a workload, at further rates too; `find`: at the highest rate at which the targets hold.

    Raises:
        InputError: a rate that is none; as `traffic` and `highest_rate`.
    """
    loads: list[Load] = []
    highest = None
    if find:
        highest, tried = highest_rate(deployment, workload, targets, replicas=replicas)
        loads, rate, workload = [*tried], highest, workload.at_rate(highest)
    for point in curve:
        if not (np.isfinite(point) and point > 0) or workload.users:
            raise InputError(f"rate {point:g}: requests per second, above 0, of requests that come at a rate")
        parts = deployment.serves(workload.at_rate(point), replicas)
        loads.append(Load.of(parts, point, targets))
    found = traffic(deployment, workload, rate=rate, replicas=replicas, targets=targets)
    return replace(found, highest=highest, curve=tuple(sorted(loads, key=lambda load: load.rate or 0.0)))


def highest_rate(
    deployment: Deployment, workload: Workload, targets: Sequence[Target], *, replicas: int = 1
) -> tuple[float, tuple[Load, ...]]:
    """(requests per second at which all targets hold, to 2 %; the loads that were tried, by rate).

    The workload's arrivals are drawn together or apart for each rate.

    Raises:
        InputError: an empty system misses a target, or requests of a closed loop.
    """
    if workload.users:
        raise InputError("the highest rate is of requests that arrive at a rate; leave the users out")
    tried: dict[float, Load] = {}

    def load(rate: float) -> Load:
        if rate not in tried:
            tried[rate] = Load.of(deployment.serves(workload.at_rate(rate), replicas), rate, targets)
        return tried[rate]

    def holds(rate: float) -> bool:
        found = load(rate)
        return found.holds(targets) and found.drain_s <= DRAIN * alone.latency_s["p99"]

    alone = load(EMPTY)
    if not alone.holds(targets):
        missed = [t for t in targets if not alone.holds([t])]
        said = ", ".join(
            f"{t} takes {getattr(alone, t.measure)[f'p{t.percentile}'] * 1e3:.3g} ms" for t in missed
        )
        raise InputError(f"an empty system misses its target: {said}; choose more ranks, or a later target")
    low, high = EMPTY, 1.0
    while holds(high) and high < MOST_RATE:
        low, high = high, 2 * high
    while high / low > 1.02:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, tuple(tried[rate] for rate in sorted(tried))
