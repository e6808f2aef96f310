"""All layouts of a network on a cluster, ranked; those that do not fit have a reason.

Each uses every device. Tensor ranks stay within a node. A network is followed once for each set of tensor and
expert ranks and batch size, with a few of its blocks where all are equal (`predict.parallel.stretching`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neuralpower.devices.cluster import PICTURED, SHARDED, Cluster, Layout
from neuralpower.devices.names import gib
from neuralpower.errors import InputError, NeuralPowerError, one_line, unknown
from neuralpower.files.json_files import Declared, plain
from neuralpower.files.stages import stage
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.diffusion.composed import Composed
from neuralpower.networks.diffusion.pictures import Picture
from neuralpower.networks.inputs.size_limits import TOKENS
from neuralpower.networks.passes import Pass
from neuralpower.networks.phases import DECODE, GENERATE, PREFILL, Phase
from neuralpower.prediction.case import device_memory
from neuralpower.prediction.costs.footprint import Made, Terms, each_of
from neuralpower.prediction.costs.prices import Price
from neuralpower.prediction.explore.remembering import remembering
from neuralpower.prediction.fits.shortened import blocks_in, shortened
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.parallel import one_micro_batch
from neuralpower.prediction.parallel.stretching import SHORT, Estimate, Stretched
from neuralpower.prediction.request import Request
from neuralpower.prediction.rows import BOUNDS, Interval
from neuralpower.prediction.shown import Shown
from neuralpower.prediction.weights import with_weights
from neuralpower.trace.follow import follow, record
from neuralpower.trace.followed import Followed, Recorded, worked
from neuralpower.trace.question import Question
from neuralpower.trace.recipe import MOST_MICRO_BATCHES, TRAINING

RANKED = THROUGHPUT, LATENCY, COST, ENERGY = ("throughput", "latency", "cost", "energy")
MOST = 5_000  # layouts
EACH = 4  # samples of a step for each device, where no whole batch is given
PIECES = (2, 4, 8)  # of a rank, where the schedule is interleaved
HOUR_S = 3600.0


@dataclass(frozen=True)
class Wanted:
    """What is laid out, and how layouts are ranked."""

    request: Request  # the network and its phase, with the cluster; its batch size is not read
    batch_sizes: tuple[int, ...] = (1,)  # of one pass of one replica
    global_batch: int | None = None  # training: samples of a step; None: EACH for a device
    sequence: bool = False
    schedule: str = "1f1b"
    by: str = RANKED[0]
    price: Price | None = None  # of a device
    terms: Terms = Terms()  # of the node, the site and its electricity

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be ranked."""
        if self.by not in RANKED:
            raise unknown("ranking", self.by, RANKED)
        if self.by == COST and self.price is None:
            raise InputError("by cost: no price says what a device costs; give --price 2.5, for an hour")
        if self.global_batch is not None and (not self.request.trains or self.global_batch < 1):
            raise InputError(
                f"global batch {self.global_batch}: samples of a training step, 1 or more; "
                "leave it out in other phases"
            )
        if self.schedule == "interleaved" and not self.request.trains:
            raise InputError("schedule interleaved: orders passes of training; choose 1f1b in other phases")

    @property
    def cluster(self) -> Cluster:
        """The devices, which the request must name."""
        assert self.request.cluster is not None
        return self.request.cluster

    @property
    def samples(self) -> int:
        return self.global_batch or EACH * self.cluster.devices

    @property
    def tokens(self) -> int:
        """That a sample makes or reads."""
        phase = self.request.phase
        if phase.name == GENERATE:
            return phase.new_tokens or TOKENS
        if phase.name == DECODE:
            return 1
        return phase.prompt or self.request.seq_len or 1


@dataclass(frozen=True)
class Laid:
    """One layout with its batch; where it does not fit, all numbers but its memory are None."""

    layout: Layout
    batch_size: int
    micro_batches: int
    reason: str = ""  # why it does not fit
    sort: str = ""  # what such reasons have in common
    runtime_s: Interval | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    images_per_hour: float | None = None  # of a pipeline of diffusion: images, films or sounds
    exposed_share: float | None = None
    bubble_share: float | None = None
    memory_bytes: int | None = None  # of a device of the fullest stage
    memory_high_bytes: int | None = None
    cost: float | None = None  # of a million tokens, or samples where there are no tokens
    energy_j: Interval | None = None  # of one, with node and site
    carbon_g: float | None = None  # of a million

    def to_json(self) -> dict[str, Any]:
        shown = {"layout": self.layout, "runtime_s": self.runtime_s, **vars(self)}
        return {name: plain(value) for name, value in shown.items()}


@dataclass(frozen=True, repr=False)
class Layouts(Declared, Shown):
    """The layouts, the best first, then those that do not fit. `print` gives the command's table."""

    in_json = """
        schema model=wanted.request.called device per_node=wanted.cluster.per_node nodes=wanted.cluster.nodes
        phase=wanted.request.phase.name ranked_by=wanted.by traces notes reasons layouts=found
    """

    wanted: Wanted
    found: tuple[Laid, ...]
    device: str
    run: str
    traces: int
    notes: tuple[str, ...] = field(default=())
    picture: Picture | None = None  # what a pipeline of diffusion makes

    @property
    def fitting(self) -> tuple[Laid, ...]:
        return tuple(one for one in self.found if not one.reason)

    @property
    def reasons(self) -> dict[str, int]:
        """Why others do not fit, with their numbers."""
        return dict(Counter(one.sort for one in self.found if one.reason).most_common())


def layouts(wanted: Wanted, predictor: Predictor) -> Layouts:
    """Every layout that uses all devices, ranked.

    Raises:
        InputError: a batch size or phase that cannot be; the model cannot be built.
        PredictorError: a dtype or phase that was not trained.
    """
    return _Search(wanted, predictor).result()


class _Search:
    """The network at each set of tensor and expert ranks and batch size, followed once."""

    def __init__(self, wanted: Wanted, predictor: Predictor) -> None:
        self.wanted, self.predictor, self.request = wanted, remembering(predictor), wanted.request
        self.source = self.request.source()
        module = self.source.build("meta", torch_dtype(self.request.dtype))
        _, self.blocks = blocks_in(module)
        self.experts = _experts_of(module)
        self.pictured = isinstance(module, Composed)
        self.blocks = 0 if self.pictured else self.blocks  # all parts run whole on each device
        self.source_followed = shortened(self.source, SHORT) if self.blocks > SHORT else self.source
        self.run = self.request.run_on(predictor.platform)
        self.room = device_memory(predictor)
        self.known: dict[tuple[object, ...], Stretched | str] = {}
        self.recorded: dict[tuple[object, ...], Recorded] = {}  # of pictures, by what a rank has of them
        self.picture: Picture | None = None
        self.notes: dict[str, None] = {}
        if self.blocks > SHORT:
            self.notes[f"traced {SHORT} of {self.blocks} identical blocks; the others count the same"] = None

    def result(self) -> Layouts:
        every = list(self._candidates())
        if len(every) > MOST:
            raise InputError(f"{len(every)} layouts: at most {MOST} are ranked; give fewer batch sizes")
        self.request.check(self.predictor)
        found = [self._laid(*one) for one in every]
        found.sort(key=lambda one: (bool(one.reason), self._rank(one)))
        wanted, device = self.wanted, self.predictor.device
        traces = len(self.recorded) if self.pictured else len(self.known)
        return Layouts(wanted, tuple(found), device, self.run, traces, tuple(self.notes), self.picture)

    def _rank(self, laid: Laid) -> float:
        """The smaller, the better; of those that do not fit, the nearest to it."""
        if laid.runtime_s is None:
            return math.inf if laid.memory_high_bytes is None else laid.memory_high_bytes
        if self.wanted.by == LATENCY:
            return laid.runtime_s.value
        if self.wanted.by == ENERGY:
            return math.inf if laid.energy_j is None else laid.energy_j.value
        return laid.cost or 0.0 if self.wanted.by == COST else -(laid.samples_per_s or 0.0)

    # ---- which there are ----

    def _candidates(self) -> Iterator[tuple[Layout, int, int]]:
        """(layout, batch size, micro-batches) that use all devices."""
        cluster, wanted = self.wanted.cluster, self.wanted
        if self.pictured:
            yield from ((layout, batch, 1) for layout in self._of_pictures() for batch in wanted.batch_sizes)
            return
        for tensor in _divisors(cluster.devices):
            for pipeline in _divisors(cluster.devices // tensor) if tensor <= cluster.per_node else ():
                data = cluster.devices // tensor // pipeline
                for expert in self._expert_degrees(tensor, data):
                    for shard in SHARDED if self.request.trains and data > 1 else ("",):
                        sequence = wanted.sequence and tensor > 1
                        for schedule, pieces in self._schedules(pipeline):
                            degrees = tensor, pipeline, expert, data
                            layout = Layout(*degrees, shard, sequence, schedule, pieces)
                            for batch in wanted.batch_sizes:
                                for count in self._micro_batches(layout, batch):
                                    yield layout, batch, count

    def _of_pictures(self) -> Iterator[Layout]:
        """Sequence ranks and those of guidance, within a node, and replicas of them."""
        devices, per_node = self.wanted.cluster.devices, self.wanted.cluster.per_node
        for guidance in (1, 2) if devices % 2 == 0 else (1,):
            for ulysses in _divisors(devices // guidance):
                for ring in _divisors(devices // guidance // ulysses):
                    ranks = guidance * ulysses * ring
                    if ranks <= per_node:
                        replicas = devices // ranks
                        yield Layout(data=replicas, ulysses=ulysses, ring=ring, guidance=guidance)

    def _schedules(self, pipeline: int) -> list[tuple[str, int]]:
        """(schedule, pieces of a rank): interleaved with as many pieces as there are blocks for."""
        if pipeline == 1:
            return [("1f1b", 1)]
        if self.wanted.schedule != "interleaved":
            return [(self.wanted.schedule, 1)]
        return [
            ("interleaved", pieces) for pieces in PIECES if pieces <= max(self.blocks // pipeline, PIECES[0])
        ]

    def _expert_degrees(self, tensor: int, data: int) -> list[int]:
        """How experts are placed: split as tensor ranks, or spread over these, or over replicas, too."""
        some = {1, tensor, tensor * data} if self.experts else {1}
        return sorted(one for one in some if one == 1 or self.experts % one == 0)

    def _micro_batches(self, layout: Layout, batch: int) -> list[int]:
        """In training what makes the whole batch, 0 where nothing does; else one, or one for each stage."""
        if not self.request.trains:
            return [1] if layout.pipeline == 1 else [1, layout.pipeline]
        count, rest = divmod(self.wanted.samples, batch * layout.data)
        return [0 if rest or count > MOST_MICRO_BATCHES else count]

    # ---- what is said of each ----

    def _laid(self, layout: Layout, batch: int, count: int) -> Laid:
        """One layout, with numbers or with a reason."""
        refused = self._refused(layout, batch, count)
        if refused:
            return Laid(layout, batch, count, *refused)
        try:
            return self._with_figures(layout, batch, count)
        except NeuralPowerError as error:
            text = one_line(error)
            return Laid(layout, batch, count, text, text.partition("; choose")[0])

    def _refused(self, layout: Layout, batch: int, count: int) -> tuple[str, str] | None:
        """(reason, its sort) of what is known before anything is followed."""
        pieces = layout.pipeline * layout.interleave
        if self.blocks and pieces > self.blocks:
            what = "stages" if layout.interleave == 1 else "pieces"
            return f"{pieces} {what} for {self.blocks} blocks", "more stages than blocks"
        if layout.interleave > 1 and count % layout.pipeline:
            text = f"{count} micro-batches are no multiple of {layout.pipeline} stages"
            return text, "micro-batches that interleaved stages do not divide"
        if count == 0:
            text = f"{self.wanted.samples} samples are no multiple of {batch} x {layout.data} replicas"
            return text, "replicas and batches that do not divide the whole batch"
        return None

    def _with_figures(self, layout: Layout, batch: int, count: int) -> Laid:
        """The layout's numbers, its memory alone where that is too small. Raises InputError."""
        parts = [
            (times, self._stretched(phase, layout, batch).on(layout, count))
            for times, phase in self._passes()
        ]
        memories = [one.memory for _, one in parts if one.memory is not None]
        most = max(memories, key=lambda memory: memory.high_bytes, default=None)
        laid = Laid(layout, batch, count)
        if most is not None:
            laid = replace(laid, memory_bytes=most.value_bytes, memory_high_bytes=most.high_bytes)
            if reason := self._too_little(most):
                return replace(laid, reason=reason, sort="too little memory")
        return replace(
            laid, **self._figures([(times, one.estimate) for times, one in parts], layout, batch, count)
        )

    def _too_little(self, most: Memory) -> str:
        """Why a device's memory is too small; "" where it is not."""
        if self.room is None:
            return ""
        platform, way = self.predictor.platform, TRAINING if self.request.trains else FORWARD
        process = platform.framework.process_bytes
        left = platform.left_bytes(self.room, way, self.request.margin)
        fits = most.high_bytes <= left
        return "" if fits else f"needs {gib(most.high_bytes + process)} of {gib(left + process)}"

    def _passes(self) -> list[tuple[int, Phase]]:
        """(times, phase) of what runs: of a generation its prefill, and its steps at their mean context."""
        phase = self.request.phase
        if phase.name != GENERATE:
            return [(1, phase)]
        prompt, new = phase.prompt or self.request.seq_len or TOKENS, phase.new_tokens or TOKENS
        steps = [(new - 1, Phase(DECODE, None, prompt + new // 2))] if new > 1 else []
        return [(1, Phase(PREFILL, None, None, prompt)), *steps]

    def _figures(
        self, parts: Sequence[tuple[int, Estimate]], layout: Layout, batch: int, count: int
    ) -> Mapping[str, Any]:
        """Times, rates and cost of all passes together."""

        def total(of: Callable[[Estimate], float]) -> float:
            return sum(times * of(one) for times, one in parts)

        runtime = Interval(
            total(lambda one: one.runtime_s.value),
            total(lambda one: one.runtime_s.low),
            total(lambda one: one.runtime_s.high),
        )
        cycle = total(lambda one: one.cycle_s)
        rate = batch * layout.data * count / cycle
        each, images = self.wanted.tokens, None if self.picture is None else rate * self.picture.images
        told = images is None and (each > 1 or self.request.phase.name == DECODE)
        tokens, price = rate * each if told else None, self.wanted.price
        made = images or tokens or rate
        paid = None if price is None else price.per_hour * layout.ranks / HOUR_S / made * 1e6
        return {
            "runtime_s": runtime,
            "samples_per_s": rate,
            "tokens_per_s": tokens,
            "images_per_hour": images and HOUR_S * images,
            "exposed_share": total(lambda one: one.exposed_s) / runtime.value,
            "bubble_share": total(lambda one: one.bubble_s) / cycle,
            "cost": paid,
            **self._drawn(parts, cycle, tokens or rate, layout.ranks),
        }

    def _drawn(
        self, parts: Sequence[tuple[int, Estimate]], cycle: float, rate: float, devices: int
    ) -> dict[str, Any]:
        """Joules and carbon of what is made at `rate`; none where a pass's joules are not known."""
        known = [one.energy_j.times(times) for times, one in parts if one.energy_j is not None]
        if len(known) < len(parts):
            return {}
        joules = Interval(*(sum(getattr(one, bound) for one in known) for bound in BOUNDS))
        taken = Interval(cycle, cycle, cycle)
        made = Made(self.predictor.device, "", rate * cycle, taken, joules, devices)
        each = each_of(made, self.wanted.terms)
        return {"energy_j": each.energy_j, "carbon_g": each.carbon_g and each.carbon_g.value}

    def _stretched(self, phase: Phase, layout: Layout, batch: int) -> Stretched:
        """One pass of the ranks' network; raises InputError for ranks that the network does not take."""
        ranks = (layout.tensor, layout.expert, *(layout.size(group) for group in PICTURED))
        key = (*ranks, batch, phase.label)
        if key not in self.known:
            part = f"{layout.sequences} sequence ranks" if self.pictured else f"tensor {layout.tensor}"
            stage(f"following {self.source.name}, {part}, batch {batch}")
            try:
                self.known[key] = self._followed(phase, layout, batch)
            except NeuralPowerError as error:
                self.known[key] = one_line(error)
        found = self.known[key]
        if isinstance(found, str):
            raise InputError(found)
        return found

    def _followed(self, phase: Phase, layout: Layout, batch: int) -> Stretched:
        """The network of one rank."""
        request = replace(self.request, batch_size=batch, phase=phase, layout=layout)
        question = request.question(self.predictor.platform, knows=self.predictor.knows, run=self.run)
        question = with_weights(question, self.source.weights, self.predictor)
        if self.pictured:
            return self._pictures(request, question, layout)
        asked = request.asked(self.source_followed, self.run)
        found = follow(asked, one_micro_batch(question))
        assert isinstance(found, Followed)  # a generation comes pass by pass
        self.notes |= dict.fromkeys([] if asked.sharding is None else asked.sharding.notes)
        return Stretched(found, self.blocks if self.blocks > SHORT else None, self.predictor, question)

    def _pictures(self, request: Request, question: Question, layout: Layout) -> Stretched:
        """A pipeline on one rank: how its ranks divide heads and keys changes nothing that is recorded."""
        key = (layout.sequences, layout.guidance, request.batch_size)
        if key not in self.recorded:
            asked = request.asked(self.source, self.run)
            assert isinstance(asked, Pass)  # pipelines have no generations
            self.recorded[key] = record(asked, question)
        recorded = self.recorded[key]
        picture = recorded.trace.picture
        assert picture is not None  # a pipeline makes one
        self.picture = replace(picture, layout=layout)
        trace = replace(recorded.trace, picture=self.picture)
        found = worked(replace(recorded, trace=trace), one_micro_batch(question))
        return Stretched(found, None, self.predictor, question)


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _experts_of(module: Any) -> int:
    """The experts of a mixture's block; 0 where there are none."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    config = getattr(module, "config", None)
    counts = [getattr(config, name, None) for name in names]
    return next((count for count in counts if isinstance(count, int) and count > 1), 0)
