"""A model under an engine on devices: what its steps take and draw, and what its cache holds."""

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
from neuralpower.learn.watts import idle_power
from neuralpower.networks.inputs import InputRequest
from neuralpower.networks.phases import Step
from neuralpower.networks.source import Source
from neuralpower.networks.sources import resolve
from neuralpower.prediction.beside import KIND
from neuralpower.prediction.explore.outcomes import Outcomes
from neuralpower.prediction.memory.engines import EngineRequest, board_of, check_ranks, served
from neuralpower.prediction.request import dtype_for
from neuralpower.prediction.rows import BOUNDS
from neuralpower.serving.kept import Facts, Made, kept
from neuralpower.serving.load import Drawn, Load, Target
from neuralpower.serving.policies import POLICIES
from neuralpower.serving.simulator import Engine, Ran, Served, simulate
from neuralpower.serving.step_times import JOULES, StepTimes
from neuralpower.serving.surface import StepSurface, surface_of
from neuralpower.serving.workload import Workload
from neuralpower.trace.question import ENGINE

Array = np.ndarray
Priced = dict[str, Outcomes]
LARGE = 2**27  # numbers of an exchange whose speed is that of the link
LOOKED_AT = 48  # steps of a run whose joules and parts stand for all
HOST = "host"  # part of the steps' time
NODE = 8  # devices of a node: caches go to others over the network


@dataclass(frozen=True)
class Deployment:
    """A model under an engine on one replica's devices.

    `prefills` further replicas read the prompts, and send the caches to those that decode.
    """

    surface: StepSurface
    engine: Engine
    layout: Layout
    cache_bytes: float  # of a token, on one device
    prefills: int = 0
    drafts: StepSurface | None = None  # of the model that drafts tokens
    price: float | None = None  # of a device for an hour
    notes: tuple[str, ...] = ()
    _known: dict[tuple[str, int], Priced] = field(default_factory=dict, repr=False, compare=False)
    _tables: dict[tuple[str, int], StepTimes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.layout.ranks

    def times(self, longest: int, bound: str = BOUNDS[0]) -> StepTimes:
        """The tables of steps for requests of at most `longest` tokens; kept."""
        room = 2 ** max(int(np.ceil(np.log2(longest))), 8)
        if (bound, room) not in self._tables:
            drafter = None if self.drafts is None else self._priced(self.drafts, room, bound, 0, None)
            tables = self._priced(self.surface, room, bound, self.engine.draft, drafter)
            self._tables[bound, room] = tables
        return self._tables[bound, room]

    def _priced(
        self, surface: StepSurface, room: int, bound: str, verified: int, drafter: StepTimes | None
    ) -> StepTimes:
        return StepTimes(
            surface,
            budget=self.engine.budget,
            requests=self.engine.requests,
            longest=room,
            bound=bound,
            verified=verified,
            drafter=drafter,
            known=self._known.setdefault((surface.model, room), {}),
        )

    def serves(self, workload: Workload, replicas: int = 1, bound: str = BOUNDS[0]) -> list[Served]:
        """Serve a workload; requests go to the replicas in turn. Raises InputError as `simulate`."""
        times = self.times(int((workload.prompt + workload.output).max()) + self.engine.draft, bound)
        if self.prefills:
            return [self._apart(workload, replicas, times)]
        return _simulated(workload, replicas, self.engine, times)

    def _apart(self, workload: Workload, replicas: int, times: StepTimes) -> Served:
        """Prompts on replicas of their own; what became of all requests, in their order."""
        if workload.users:
            raise InputError("prompts on devices of their own: requests come at a rate; leave the users out")
        alone = replace(workload, output=np.ones_like(workload.output))
        read = _simulated(alone, self.prefills, replace(self.engine, draft=0), times)
        first = np.concatenate([part.first_s for part in read])
        turns = [np.arange(i, workload.count, self.prefills) for i in range(self.prefills)]
        order = np.argsort(np.concatenate(turns))
        first, last = first[order], first[order].copy()
        sent = first + workload.prompt * self.cache_bytes / self._link_bytes_per_s(replicas)
        made, gaps = list(read), []
        later = np.flatnonzero(workload.output > 1)
        later = later[np.argsort(sent[later], kind="stable")]
        if len(later):
            decodes = Workload(sent[later], workload.prompt[later], workload.output[later])
            parts = _simulated(decodes, replicas, replace(self.engine, brings=True), times)
            count = min(replicas, len(later))
            for i, part in enumerate(parts):
                last[later[i::count]] = part.last_s
                gaps.append(part.gaps_s)
            made += parts
        return replace(
            read[0],
            arrival_s=workload.arrival_s,
            prompt=workload.prompt,
            output=workload.output,
            first_s=first,
            last_s=last,
            gaps_s=np.concatenate(gaps) if gaps else np.zeros(0),
            ran=[step for part in made for step in part.ran],
            engines=len(made),
            cache_share=_mean(made, "cache_share"),
            batch=_mean(made, "batch"),
            **{
                name: sum(getattr(part, name) for part in made)
                for name in ("steps", "busy_s", "reading_s", "tokens", "preemptions", "recomputed", "reused")
            },
        )

    def _link_bytes_per_s(self, replicas: int) -> float:
        """What carries caches from one replica to another, for each device."""
        hardware = self.surface.predictor.hardware
        if hardware is None:
            device = self.surface.predictor.device
            raise InputError(f"{device} has no sheet with its links; add --device-spec FILE")
        near = self.devices * (replicas + self.prefills) <= NODE
        return hardware.peer_bytes_per_s if near else hardware.between_nodes_bytes_per_s

    def load(
        self,
        workload: Workload,
        rate: float | None,
        *,
        replicas: int = 1,
        bound: str = BOUNDS[0],
        targets: Sequence[Target] = (),
        parts: bool = False,
    ) -> Load:
        """What users see of a workload; `parts`: also what the time is spent on. Raises as `serves`."""
        served = self.serves(workload, replicas, bound)
        tokens = sum(int(one.output.sum()) for one in served)
        duration = max(one.duration_s for one in served)
        devices = self.devices * (replicas + self.prefills)
        longest = int((workload.prompt + workload.output).max()) + self.engine.draft
        looked = _looked_at([step for one in served for step in one.ran])
        energy = self._energy_j(looked, self.times(longest, JOULES[bound]), duration * devices)
        hours = duration / 3_600 * devices
        return Load.of(
            served,
            rate,
            targets,
            drawn=None if energy is None else Drawn(energy, duration, tokens),
            price_per_million=None if self.price is None else self.price * hours / tokens * 1e6,
            parts=self._parts(looked) if parts else {},
        )

    def _energy_j(
        self,
        looked: Sequence[tuple[Ran, float]],
        joules: StepTimes,
        device_s: float,
    ) -> float | None:
        """Joules of all devices over the whole time; None where power is not known."""
        hardware = self.surface.predictor.hardware
        if hardware is None or (hardware.idle_w is None and hardware.limit_w is None):
            return None
        setting, ranks = self.surface.predictor.setting, self.devices / self.engine.data
        idle_w = idle_power(hardware, 1.0 if setting is None else setting.clock)[0]
        working = sum(
            weight * joules.seconds(np.full(one.decodes, one.context), one.chunks, one.ending)
            for one, weight in looked
        )
        on_device = sum(weight * one.device_s for one, weight in looked)
        found = ranks * working + idle_w * max(device_s - ranks * on_device, 0.0)
        return found if np.isfinite(found) else None

    def _parts(self, looked: Sequence[tuple[Ran, float]]) -> dict[str, float]:
        """Share of the steps' time by the kinds of their layers, the largest first."""
        steps = [
            Step((max(round(one.context), 1),) * one.decodes, one.chunks, one.ending) for one, _ in looked
        ]
        weights = np.array([weight for _, weight in looked])
        seconds = {kind: float(weights @ each) for kind, each in self.surface.by_kind(steps).items()}
        whole = sum(weight * one.seconds for one, weight in looked)
        device = sum(weight * one.device_s for one, weight in looked)
        seconds[HOST] = whole - device
        seconds[KIND] = device - sum(seconds.values()) + seconds[HOST]
        known = {kind: part / whole for kind, part in seconds.items() if part > 1e-3 * whole}
        return dict(sorted(known.items(), key=lambda one: -one[1]))


def _simulated(workload: Workload, replicas: int, engine: Engine, times: StepTimes) -> list[Served]:
    """Requests go to the replicas in turn."""
    parts = [workload] if replicas == 1 else [workload.part(i, replicas) for i in range(replicas)]
    return [one for part in parts if part.count for one in simulate(part, engine, times)]


def _mean(served: Sequence[Served], name: str) -> float:
    """The mean of engines, by the time in which their steps run."""
    busy = sum(part.busy_s for part in served)
    return float(sum(getattr(part, name) * part.busy_s for part in served) / max(busy, 1e-30))


def _looked_at(ran: Sequence[Ran]) -> list[tuple[Ran, float]]:
    """(a step, how many it stands for): evenly drawn from steps of decodes and from steps with prompts."""
    found = []
    for reads in (False, True):
        alike = sorted((one for one in ran if bool(one.chunks) == reads), key=lambda one: one.seconds)
        if alike:
            places = np.unique(np.linspace(0, len(alike) - 1, LOOKED_AT).round().astype(int))
            nearest = np.bincount(
                np.abs(np.arange(len(alike))[:, None] - places).argmin(1), minlength=len(places)
            )
            found += [(alike[place], float(count)) for place, count in zip(places, nearest, strict=True)]
    return found


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
    prefills: int = 0,
    drafts: str | None = None,
    price: float | None = None,
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
        prefills: further replicas that read prompts alone; 0: each replica reads its own.
        drafts: the model that drafts tokens, on one device of each replica; None: drafting takes no time.
        price: of a device for an hour.
        **settings: fields of `Engine`: `budget`, `requests`, `overlaps`, `host_s`, `prefix_hit`, `draft`,
            `acceptance`.

    Raises:
        InputError: an engine that is not known, a layout that it cannot run, or a model that leaves no pool.
    """
    if engine not in POLICIES:
        raise InputError(
            f"engine {engine!r}: its steps are known for {', '.join(POLICIES)}; choose one of them"
        )
    linked = predictor if link_bytes_per_s is None else with_link(predictor, link_bytes_per_s)
    sizes = {"max_model_len": longest, "max_num_batched_tokens": settings.get("budget")}
    sizes |= {"max_num_seqs": settings.get("requests")}
    given = {**(options or {}), **{name: value for name, value in sizes.items() if value is not None}}

    def make() -> Made:
        return _made(model, linked, engine, dtype, layout, cluster, weights, given)

    if isinstance(model, str):
        spread = {"layout": str(layout), "cluster": str(cluster), "weights": weights, "dtype": dtype}
        surface, facts = kept(model, linked, {"engine": engine, **given, **spread}, make)
        surface = replace(surface, layout=replace(layout, pipeline=1))
    else:
        surface, facts = make()
    notes, blocks, drafter = facts.notes, facts.blocks, None
    asked = {name: value for name, value in settings.items() if value is not None}
    if drafts is not None:
        if not asked.get("draft"):
            raise InputError(f"draft {drafts}: say how many tokens it drafts: --draft-tokens 3")
        drafter = surface_of(drafts, predictor, dtype=facts.dtype)
        blocks = _beside_draft(facts, drafter)
    elif asked.get("draft"):
        notes = (*notes, "drafting takes no time, as by looking up n-grams; with a model: --draft MODEL")
    replica = Engine(
        blocks,
        facts.block,
        policy=engine,
        data=layout.data,
        stages=layout.pipeline,
        **{"budget": facts.most_tokens, "requests": facts.most_requests, **asked},
    )
    return Deployment(
        surface=surface,
        engine=replica,
        layout=layout,
        cache_bytes=facts.block_bytes / facts.block,
        prefills=prefills,
        drafts=drafter,
        price=price,
        notes=notes,
    )


def _made(
    model: str | Source,
    predictor: Predictor,
    engine: str,
    dtype: str | None,
    layout: Layout,
    cluster: Cluster | None,
    weights: str | None,
    options: Mapping[str, Any],
) -> Made:
    """Trace the model, and ask what the engine's pool holds; raises as `deployed`."""
    source = resolve(model) if isinstance(model, str) else model
    spec = predictor.sheet or known_spec(predictor.device)
    room = None if spec is None else spec.get("memory_bytes")
    if spec is None or room is None:
        raise InputError(f"{predictor.device}: its memory is not known; add --device-spec FILE")
    request = EngineRequest(engine, options, None, board_of(spec, room, predictor.device))
    dtype, notes = dtype_for(str(source.name), dtype, predictor, ENGINE, engine)
    whole = source.build("meta", torch_dtype(dtype))
    config: Any = getattr(whole, "config", None)
    if hasattr(config, "get_text_config"):
        check_ranks(config.get_text_config(decoder=True), layout, engine, str(source.name))
    within = replace(layout, pipeline=1)  # stages have a part of each step's time
    surface = surface_of(source, predictor, dtype=dtype, layout=within, cluster=cluster, weights=weights)
    if layout.data > 1 and not surface.mixes:
        raise InputError(
            f"data ranks {layout.data} of a model without experts need not wait for one another; "
            "choose replicas"
        )
    assert surface.module is not None  # as `surface_of` has kept it
    network = served(
        surface.module,
        InputRequest(dtype=torch_dtype(dtype)),
        str(source.name),
        surface.weights_bytes,
        layout,
        None if layout.alone else whole,
    )
    memory = request.memory(network, room)
    if not memory.fits:
        raise InputError(f"{source.name} on {layout} of {predictor.device}: {memory.reason}")
    pool = memory.pool
    facts = Facts(
        dtype,
        pool.blocks,
        pool.block_size,
        pool.block_bytes,
        memory.most_tokens,
        memory.most_sequences,
        notes,
    )
    return surface, facts


def _beside_draft(facts: Facts, drafter: StepSurface) -> int:
    """Blocks of the pool where a drafting model's weights and cache share it; raises InputError."""
    left = facts.blocks * facts.block_bytes - drafter.weights_bytes
    blocks = int(left // (facts.block_bytes + facts.block * drafter.cache_bytes))
    if blocks < 1:
        raise InputError(f"draft {drafter.model}: its weights leave no pool; choose a smaller one")
    return blocks


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
