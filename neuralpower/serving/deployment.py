"""A model under an engine on devices: what its steps take and draw, and what its cache holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neuralpower.devices.cluster import ONE, Cluster, Layout
from neuralpower.devices.spec import known_spec
from neuralpower.errors import InputError
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.layers.collective import Collective, on_links
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import NINETY
from neuralpower.learn.watts import idle_power
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.phases import Step
from neuralpower.networks.source import Source
from neuralpower.networks.sources import resolve
from neuralpower.prediction.beside import KIND
from neuralpower.prediction.memory.engines import (
    CACHE_TYPES,
    EngineRequest,
    board_of,
    check_ranks,
    served,
)
from neuralpower.prediction.request import dtype_for
from neuralpower.prediction.rows import BOUNDS
from neuralpower.serving.kept import Forms, KeptTables, kept
from neuralpower.serving.policies import POLICIES, host_of
from neuralpower.serving.results import Drawn, Load, Target
from neuralpower.serving.simulator import Engine, Ran, Served, simulate
from neuralpower.serving.step_times import StepTimes
from neuralpower.serving.surface import StepSurface, surface_of
from neuralpower.serving.workload import Workload
from neuralpower.trace.question import ENGINE

Array = np.ndarray
LARGE = 2**27  # numbers of an exchange whose speed is that of the link
LOOKED_AT = 48  # steps of a run whose joules and parts stand for all
HOST = "host"  # part of the steps' time
# What the time of a run errs besides its layers: the laws of steps, the scheduler, clocks; the standard
# deviation of the logarithm.
SERVED = 0.05
HOST_DEVIATION = 0.3  # the same of the host's time
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
    known: KeptTables = field(default_factory=KeptTables, repr=False, compare=False)
    _tables: dict[tuple[str | None, int], StepTimes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.layout.ranks

    def keep(self) -> None:
        """Write what was priced to the disk, where that is wanted."""
        self.known.keep()

    def times(self, longest: int, *, joules: str | None = None) -> StepTimes:
        """The tables of steps for requests of at most `longest` tokens; kept."""
        room = 2 ** max(int(np.ceil(np.log2(longest))), 8)
        if (joules, room) not in self._tables:
            drafter = None if self.drafts is None else self._priced(self.drafts, room, joules, 0, None)
            tables = self._priced(self.surface, room, joules, self.engine.draft, drafter)
            self._tables[joules, room] = tables
        return self._tables[joules, room]

    def _priced(
        self, surface: StepSurface, room: int, joules: str | None, verified: int, drafter: StepTimes | None
    ) -> StepTimes:
        return StepTimes(
            surface,
            budget=self.engine.budget,
            requests=self.engine.requests,
            longest=room,
            joules=joules,
            graphs_prompts=POLICIES[self.engine.policy].graphs_prompts,
            verified=verified,
            drafter=drafter,
            known=self.known.at(f"{surface.model}, {room} tokens"),
        )

    def serves(self, workload: Workload, replicas: int = 1) -> list[Served]:
        """Serve a workload; requests go to the replicas in turn. Raises InputError as `simulate`."""
        times = self.times(int((workload.prompt + workload.output).max()) + self.engine.draft)
        if self.prefills:
            return [self._apart(workload, replicas, times)]
        return _simulated(workload, replicas, self.engine, times)

    def paced(self, factor: float, host: float) -> Deployment:
        """The same where the device takes `factor` times as long for each step, and the host."""
        step_s, request_s = self.engine.host_s
        engine = replace(
            self.engine, pace=self.engine.pace * factor, host_s=(step_s * host, request_s * host)
        )
        return replace(self, engine=engine)

    def bounds(self, served: Sequence[Served]) -> tuple[Deployment, Deployment]:
        """The same at the lowest and at the highest time of a run's steps, taken together.

        All steps of a run call the same layers: what one regressor errs repeats in each of them, what
        several err is not of one sign.
        """
        looked = _looked_at([step for one in served for step in one.ran])
        steps, weights = _steps(looked), np.array([weight for _, weight in looked])
        low, value, high = self.surface.together(steps, weights)
        size = np.sqrt((np.log(high / low) / 2) ** 2 + (NINETY * SERVED) ** 2)
        host = NINETY * HOST_DEVIATION
        return self.paced(np.exp(-size), np.exp(-host)), self.paced(np.exp(size), np.exp(host))

    def _apart(self, workload: Workload, replicas: int, times: StepTimes) -> Served:
        """Prompts on replicas of their own; what became of all requests, in their order."""
        if workload.users:
            raise InputError("prompts on devices of their own: requests come at a rate; leave the users out")
        alone = replace(workload, output=np.ones_like(workload.output))
        read = _simulated(alone, self.prefills, replace(self.engine, draft=0), times)
        first = np.concatenate([part.first_s for part in read])
        order = np.argsort(np.concatenate(_turns(workload.count, self.prefills, self.engine.data)))
        first, last = first[order], first[order].copy()
        sent = first + workload.prompt * self.cache_bytes / self._link_bytes_per_s(replicas)
        made, gaps = list(read), []
        later = np.flatnonzero(workload.output > 1)
        later = later[np.argsort(sent[later], kind="stable")]
        if len(later):
            decodes = Workload(sent[later], workload.prompt[later], workload.output[later])
            parts = _simulated(decodes, replicas, replace(self.engine, brings=True), times)
            turns = _turns(len(later), replicas, self.engine.data)
            for turn, part in zip(turns, parts, strict=True):
                last[later[turn]] = part.last_s
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
        targets: Sequence[Target] = (),
    ) -> Load:
        """What users see of a workload. Raises as `serves`."""
        return self.seen(self.serves(workload, replicas), workload, rate, replicas=replicas, targets=targets)

    def seen(
        self,
        served: Sequence[Served],
        workload: Workload,
        rate: float | None,
        *,
        replicas: int = 1,
        targets: Sequence[Target] = (),
        bound: str = BOUNDS[0],
        parts: bool = False,
    ) -> Load:
        """What users see of a workload that was served, with the joules of a bound.

        `parts`: also what the time is spent on.
        """
        tokens = sum(int(one.output.sum()) for one in served)
        duration = max(one.duration_s for one in served)
        devices = self.devices * (replicas + self.prefills)
        longest = int((workload.prompt + workload.output).max()) + self.engine.draft
        looked = _looked_at([step for one in served for step in one.ran])
        energy = self._energy_j(looked, self.times(longest, joules=bound), duration * devices)
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
        working = (
            sum(
                weight * joules.seconds(np.full(one.decodes, one.context), one.chunks, one.ending)
                for one, weight in looked
            )
            / self.engine.stages
        )
        on_device = sum(weight * one.device_s for one, weight in looked)
        found = ranks * working + idle_w * max(device_s - ranks * on_device, 0.0)
        return found if np.isfinite(found) else None

    def _parts(self, looked: Sequence[tuple[Ran, float]]) -> dict[str, float]:
        """Share of the steps' time by the kinds of their layers, the largest first."""
        weights = np.array([weight for _, weight in looked])
        by_kind = self.surface.by_kind(_steps(looked))
        seconds = {kind: float(weights @ each) / self.engine.stages for kind, each in by_kind.items()}
        whole = sum(weight * one.seconds for one, weight in looked)
        device = sum(weight * one.device_s for one, weight in looked)
        seconds[HOST] = whole - device
        seconds[KIND] = device - sum(seconds.values()) + seconds[HOST]
        known = {kind: part / whole for kind, part in seconds.items() if part > 1e-3 * whole}
        return dict(sorted(known.items(), key=lambda one: -one[1]))


def _simulated(workload: Workload, replicas: int, engine: Engine, times: StepTimes) -> list[Served]:
    """Requests go to the replicas in turn."""
    return [one for part in workload.shared(replicas) for one in simulate(part, engine, times)]


def _turns(count: int, *among: int) -> list[Array]:
    """Which of the requests each rank of each replica gets, as `Workload.shared` shares them out."""
    turns = [np.arange(count)]
    for most in among:
        turns = [
            turn[place :: min(most, len(turn))] for turn in turns for place in range(min(most, len(turn)))
        ]
    return turns


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


def _steps(looked: Sequence[tuple[Ran, float]]) -> list[Step]:
    """Steps of a run with their decodes at the mean of their cached tokens."""
    return [Step((max(round(one.context), 1),) * one.decodes, one.chunks, one.ending) for one, _ in looked]


@dataclass(frozen=True)
class Facts:
    """What an engine's pool holds, and how it serves the model."""

    dtype: str
    blocks: int
    block: int  # tokens
    block_bytes: int
    most_tokens: int | None  # of a step
    most_requests: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setup:
    """A model under an engine on devices: what `deployed` makes of it depends on these.

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
        keeps: whether what is priced can be kept on the disk: the predictor is the one that its device's
            name chooses.
        budget, requests, overlaps, host_s, prefix_hit, draft, acceptance: as of `Engine`; None: as the
            engine's version has them.
    """

    model: str | Source
    predictor: Predictor
    engine: str = "vllm"
    dtype: str | None = None
    layout: Layout = ONE
    cluster: Cluster | None = None
    weights: str | None = None
    longest: int | None = None
    link_bytes_per_s: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prefills: int = 0
    drafts: str | None = None
    price: float | None = None
    keeps: bool = False
    budget: int | None = None
    requests: int | None = None
    overlaps: bool | None = None
    host_s: tuple[float, float] | None = None
    prefix_hit: float | None = None
    draft: int | None = None
    acceptance: float | None = None

    def deployed(self) -> Deployment:
        """The model on the devices.

        Raises:
            InputError: an engine that is not known, a layout that it cannot run, or a model that leaves no
                pool.
        """
        if self.engine not in POLICIES:
            raise InputError(
                f"engine {self.engine!r}: its steps are known for {', '.join(POLICIES)}; choose one of them"
            )
        if self.drafts is not None and not self.draft:
            raise InputError(f"draft {self.drafts}: say how many tokens it drafts: --draft-tokens 3")
        linked = self
        if self.link_bytes_per_s is not None:
            linked = replace(self, predictor=with_link(self.predictor, self.link_bytes_per_s))
        surface, facts = linked._made()
        notes, blocks, drafter = facts.notes, facts.blocks, None
        if self.drafts is not None:
            drafter = surface_of(self.drafts, self.predictor, dtype=facts.dtype)
            blocks = _beside_draft(facts, drafter)
        elif self.draft:
            notes = (*notes, "drafting takes no time, as by looking up n-grams; with a model: --draft MODEL")
        replica = self._replica(facts, blocks)
        return Deployment(
            surface=surface,
            engine=replica,
            layout=self.layout,
            cache_bytes=facts.block_bytes / facts.block,
            prefills=self.prefills,
            drafts=drafter,
            price=self.price,
            notes=notes,
            known=linked._known(facts.dtype, surface, replica),
        )

    @property
    def _pool_options(self) -> dict[str, Any]:
        """The options of the engine's memory."""
        sizes = {"max_model_len": self.longest, "max_num_batched_tokens": self.budget}
        sizes |= {"max_num_seqs": self.requests}
        return {**self.options, **{name: value for name, value in sizes.items() if value is not None}}

    def _replica(self, facts: Facts, blocks: int) -> Engine:
        """The engine of a replica."""
        host = host_of(self.engine, self.options.get("engine_version"))
        names = ("budget", "requests", "overlaps", "host_s", "prefix_hit", "draft", "acceptance")
        asked = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        usual: dict[str, Any] = {"budget": facts.most_tokens, "requests": facts.most_requests}
        usual |= {"host_s": host.seconds, "overlaps": host.overlaps}
        return Engine(
            blocks,
            facts.block,
            policy=self.engine,
            data=self.layout.data,
            stages=self.layout.pipeline,
            **{**usual, **asked},
        )

    def _known(self, dtype: str, surface: StepSurface, replica: Engine) -> KeptTables:
        """What is priced of it already."""
        if not self.keeps or self.drafts is not None or not isinstance(self.model, str):
            return KeptTables()
        sizes = {"captured": surface.captured, "budget": replica.budget, "requests": replica.requests}
        priced = {**self._asked(dtype), **sizes, "draft": replica.draft}
        cache = self.options.get("cache_dtype")
        return KeptTables.of(self.model, self.predictor, {**priced, "cache": cache})

    def _asked(self, dtype: str) -> dict[str, Any]:
        """What the steps depend on besides model and device, in plain values."""
        nodes = None if self.cluster is None else [self.cluster.per_node, self.cluster.nodes]
        return {
            "engine": self.engine,
            "layout": str(self.layout),
            "nodes": nodes,
            "weights": self.weights,
            "dtype": dtype,
        }

    def _made(self) -> tuple[StepSurface, Facts]:
        """The steps of the model, and what the engine's pool holds; raises as `deployed`."""
        predictor, layout, options = self.predictor, self.layout, self._pool_options
        spec = predictor.sheet or known_spec(predictor.device)
        room = None if spec is None else spec.get("memory_bytes")
        if spec is None or room is None:
            raise InputError(f"{predictor.device}: its memory is not known; add --device-spec FILE")
        request = EngineRequest(self.engine, options, None, board_of(spec, room, predictor.device))
        request.settings()
        name = self.model if isinstance(self.model, str) else str(self.model.name)
        dtype, notes = dtype_for(name, self.dtype, predictor, ENGINE, self.engine)
        predictor.check(dtype, FORWARD)
        if isinstance(self.model, str):
            forms = kept(self.model, predictor, self._asked(dtype), lambda: self._formed(dtype))
        else:
            forms = self._formed(dtype)
        surface = replace(forms.surface, layout=replace(layout, pipeline=1))
        if options.get("enforce_eager"):
            surface = replace(surface, captured=0)
        if layout.data > 1 and not surface.mixes:
            raise InputError(
                f"data ranks {layout.data} of a model without experts need not wait for one another; "
                "choose replicas"
            )
        memory = request.memory(forms.network, room)
        if not memory.fits:
            raise InputError(f"{surface.model} on {layout} of {predictor.device}: {memory.reason}")
        if cached := CACHE_TYPES[memory.cache_dtype]:
            surface = surface.with_cache("" if cached == dtype else cached)
        pool, tokens, requests = memory.pool, memory.most_tokens, memory.most_sequences
        facts = Facts(dtype, pool.blocks, pool.block_size, pool.block_bytes, tokens, requests, notes)
        return surface, facts

    def _formed(self, dtype: str) -> Forms:
        """Trace the model on the layout; raises as `deployed`."""
        source = resolve(self.model) if isinstance(self.model, str) else self.model
        whole = source.build("meta", torch_dtype(dtype))
        config: Any = getattr(whole, "config", None)
        if hasattr(config, "get_text_config"):
            text = config.get_text_config(decoder=True)
            check_ranks(text, self.layout, self.engine, str(source.name))
        surface = surface_of(
            source,
            self.predictor,
            dtype=dtype,
            layout=replace(self.layout, pipeline=1),  # stages have a part of each step's time
            cluster=self.cluster,
            weights=self.weights,
        )
        assert surface.module is not None  # as `surface_of` has kept it
        network = served(
            surface.module,
            InputRequest(dtype=torch_dtype(dtype)),
            str(source.name),
            surface.weights_bytes,
            self.layout,
            None if self.layout.alone else whole,
        )
        return Forms(surface, network)


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
