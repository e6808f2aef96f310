"""What to measure in which order, in which batches, how long it takes; keys of equal measurements."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from neuralpower.devices.host import MODEL
from neuralpower.devices.machine import installed
from neuralpower.version import __version__

PROTOCOL_VERSION = 5
LIBRARIES = ("torch", "transformers", "numpy", "scikit-learn")
MEASURED = ("torch", "cuda", "driver")  # software that decides how long a call takes


def versions() -> dict[str, str]:
    """Versions of neuralpower and of the installed libraries."""
    return {"neuralpower": __version__, **installed(LIBRARIES)}


def device_key(hardware: Mapping[str, Any]) -> str:
    """Equal for all devices of one model and size."""
    told_by = ("type", "name", *MODEL) if hardware.get("type") == "cpu" else ("type", "name", "cores")
    return _key({name: hardware.get(name) for name in told_by})


def software_key(hardware: Mapping[str, Any], libraries: Mapping[str, Any]) -> str:
    """Equal where torch and the device's driver are the same."""
    return _key({name: libraries.get(name, hardware.get(name)) for name in MEASURED})


def plan_hash(plan: Sequence[Mapping[str, Any]]) -> str:
    """Equal for the same configurations in the same order."""
    return _key({"plan": [item["config_id"] for item in plan]})


def share(config_id: str, purpose: str) -> float:
    """A number in [0, 1) that depends on the configuration's name and on the purpose alone."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {config_id}".encode()).digest()[:6], "big") / 2**48


def _key(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]


# ---- In which order to measure a plan, in which batches, and how long that takes; needs no torch ----
#     runtime     every configuration; whole networks in the second third
#     power       a part, stratified by kind, dtype, phase and size
#     again       some of both in another process (of another shard): the difference is the noise floor
#
# Wherever it is cut off, it leaves a smaller collection of the same make-up. Power gives way when time is
# short: before every batch, as much of it is planned as fits, judged by the time of the tasks so far.


RUNTIME, POWER, NETWORK = "runtime", "power", "network"
REPLICATES = 0.07  # share of the configurations that are measured twice
FEWEST_PER_KIND = 60  # with power
CELL_OCTAVES = 2  # of FLOP, and of bytes, that count as one size
NETWORK_BLOCK = 6  # networks that are timed in turn
MARGIN = 0.05  # of a budget: see `margin_s`
BATCH_BYTES = 3 * 2**30  # of memory for a batch
BATCH_S = 10.0  # of time for a batch: what ends a run takes no more with it
FIRST_TASKS = 2  # of a batch, as long as the machine's speed is unknown
GROWTH = 4  # times as many tasks as in the batch before, at most


@dataclass(frozen=True)
class Task:
    """One measurement of one item of a plan."""

    item: dict[str, Any]
    tier: str  # runtime or power
    replicate: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.item["config_id"], self.replicate


@dataclass(frozen=True)
class Batch:
    """Tasks that are measured in turn, and how to do it."""

    tasks: tuple[Task, ...]
    patience_s: float  # a process that does not answer for longer hangs
    fresh: bool = False  # in a process that has measured nothing before

    @property
    def tier(self) -> str:
        return self.tasks[0].tier


@dataclass(frozen=True)
class Schedule:
    """All tasks of one shard, in order."""

    runtime: list[Task]
    power: list[Task]
    runtime_again: list[Task]
    power_again: list[Task]

    @property
    def tasks(self) -> list[Task]:
        return [*self.runtime, *self.power, *self.runtime_again, *self.power_again]

    def without(self, timed: Set[tuple[str, int]], metered: Set[tuple[str, int]]) -> Schedule:
        """The schedule without the tasks of these keys: of runtime, and of power."""
        tiers = (
            (self.runtime, timed),
            (self.power, metered),
            (self.runtime_again, timed),
            (self.power_again, metered),
        )
        return Schedule(*([task for task in tasks if task.key not in done] for tasks, done in tiers))

    def last(self, tried: Container[tuple[str, int]]) -> Schedule:
        """The schedule with the runtimes of these keys at the end: a run repeats what was noisy last."""
        runtime, again = (
            sorted(tasks, key=lambda task: task.key in tried) for tasks in (self.runtime, self.runtime_again)
        )
        return replace(self, runtime=runtime, runtime_again=again)


def make_schedule(
    plan: Sequence[dict[str, Any]],
    power: int = 0,
    shard: tuple[int, int] = (1, 1),
    replicates: float = REPLICATES,
    per_kind: int = FEWEST_PER_KIND,
) -> Schedule:
    """The tasks of a shard (its number, number of shards).

    Power is planned for `power` configurations of the whole plan, or `per_kind` of each kind if that is more,
    and for none where `power` is 0. The hash of a configuration's name decides its shard; its replicate
    belongs to the next.
    """
    number, shards = shard

    def mine(item: dict[str, Any], replicate: int) -> bool:
        return (math.floor(share(item["config_id"], "shard") * shards) + replicate) % shards == number - 1

    def tasks(items: Iterable[dict[str, Any]], tier: str, replicate: int) -> list[Task]:
        return [Task(item, tier, replicate) for item in items if mine(item, replicate)]

    twice = [item for item in plan if share(item["config_id"], "replicate") < replicates]
    names = {item["config_id"] for item in twice}
    kinds = {item["kind"] for item in plan}
    metered = [item for item in plan if item.get("power", True)]
    chosen = stratified(metered, max(power, per_kind * len(kinds))) if power else []
    return Schedule(
        tasks(_ordered(plan), RUNTIME, 0),
        tasks(chosen, POWER, 0),
        tasks(twice, RUNTIME, 1),
        tasks((item for item in chosen if item["config_id"] in names), POWER, 1),
    )


def _ordered(plan: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Layers as they come, whole networks spread over their second third."""
    layers = [item for item in plan if item["kind"] != NETWORK]
    networks = [item for item in plan if item["kind"] == NETWORK]
    blocks = [networks[i : i + NETWORK_BLOCK] for i in range(0, len(networks), NETWORK_BLOCK)]
    order: list[dict[str, Any]] = []
    position = 0
    for index, block in enumerate(blocks):
        until = len(layers) * (len(blocks) + index) // (3 * len(blocks))
        order += [*layers[position:until], *block]
        position = until
    return order + layers[position:]


def stratified(items: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """`count` items in an order whose every beginning is spread over all kinds and sizes.

    Kinds come in turn; within a kind its dtypes and phases, which are fitted apart; within these the sizes.
    """
    generator = random.Random(0)
    kinds: dict[str, dict[tuple[str, str], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        kinds[item["kind"]][item["row"].get("dtype", ""), item["row"].get("phase", "")].append(item)
    rows = [
        list(_in_turn([_by_size(some, generator) for _, some in sorted(variants.items())]))
        for _, variants in sorted(kinds.items())
    ]
    return list(_in_turn(rows))[:count]


def _by_size(items: Sequence[dict[str, Any]], generator: random.Random) -> list[dict[str, Any]]:
    cells: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for item in items:
        flops, size = (int(math.log2(max(item[name], 1)) / CELL_OCTAVES) for name in ("flops", "bytes"))
        cells[flops, size].append(item)
    sizes = [cells[cell] for cell in sorted(cells)]
    generator.shuffle(sizes)
    return list(_in_turn(sizes))


def _in_turn(rows: Sequence[Sequence[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """The first of each, then the second of each, and so on."""
    return (item for some in zip_longest(*rows) for item in some if item is not None)


@dataclass
class BatchSizes:
    """How many tasks a batch has: `block`, or as many as took at most BATCH_S before."""

    block: int
    found: dict[str, int] = field(default_factory=dict)  # by group of tasks

    def of(self, task: Task) -> int:
        """The number for a batch that begins with that task."""
        return min(self.found.get(_group(task), FIRST_TASKS), self.block)

    def add(self, tasks: Sequence[Task], seconds: float) -> None:
        """Learn from a batch; one that was short for other reasons makes no later one shorter."""
        fitting = max(int(len(tasks) * min(GROWTH, BATCH_S / max(seconds, 1e-9))), 1)
        before = self.of(tasks[0]) if seconds <= BATCH_S else 0
        self.found[_group(tasks[0])] = max(fitting, before)


def batched(tasks: Iterable[Task], sizes: BatchSizes, alone: set[tuple[str, int]]) -> Iterator[list[Task]]:
    """Batches of as many tasks as `sizes` has them then, in order; fewer where memory exceeds BATCH_BYTES.

    Networks come apart from layers; power, and the tasks in `alone`, one by one.
    """
    batch: list[Task] = []
    size = 0
    for task in tasks:
        need = task.item["bytes"]
        single = task.tier == POWER or task.key in alone or (bool(batch) and batch[-1].key in alone)
        mixed = bool(batch) and (task.item["kind"] == NETWORK) != (batch[-1].item["kind"] == NETWORK)
        if batch and (single or mixed or len(batch) >= sizes.of(batch[0]) or size + need > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += need
    if batch:
        yield batch


@dataclass(frozen=True)
class Prior:
    """Planning values of a class of devices (s): how long tasks take before any has been measured."""

    start_s: float  # until the first batch: process, libraries, self-test
    restart_s: float  # of the process alone
    runtime_s: float
    power_s: float
    network_s: float
    passes: int  # of a call while its runtime is measured
    network_passes: int  # of a whole network
    flops_per_s: float
    cooling_s: float = 0.0  # that the worker itself may wait for a hot device, for each runtime


PRIORS = {
    "cpu": Prior(8, 4, 0.03, 0.8, 0.7, 10, 22, 8e10),
    "accelerator": Prior(45, 15, 0.18, 0.8, 2.0, 10, 10, 5e13, cooling_s=20.0),
}
PRIOR_TASKS = 20  # measured tasks that count as much as the planning value
PATIENCE = 20  # times the estimate
LEAST_PATIENCE_S = 40.0  # a machine on which much else runs takes that long for a few tasks


@dataclass
class Costs:
    """Expected time of tasks: the planning value of each, times the ratio of measured to planned so far.

    A tier with few measurements is taken to be as much slower than planned as all measured tasks together.
    """

    prior: Prior
    start_s: float  # as the last start took
    restart_s: float
    expected: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    taken: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @classmethod
    def planned_for(cls, device_type: str) -> Costs:
        """The planning values of a class of devices; accelerators of all makes share theirs."""
        prior = PRIORS.get(device_type, PRIORS["accelerator"])
        return cls(prior, prior.start_s, prior.restart_s)

    def add(self, tasks: Sequence[Task], seconds: float) -> None:
        """Update the ratio with tasks that took `seconds` together."""
        total: float = sum(self._planned(task) for task in tasks)
        for task in tasks:
            part = self._planned(task)
            self.expected[_group(task)] += part
            self.taken[_group(task)] += seconds * part / total

    def parts(self, tasks: Sequence[Task], seconds: float) -> list[float]:
        """The seconds of a batch, divided among its tasks."""
        total = self.of(tasks)
        return [seconds * self.of([task]) / total for task in tasks]

    def of(self, tasks: Iterable[Task]) -> float:
        seconds: dict[str, float] = defaultdict(float)
        for task in tasks:
            seconds[_group(task)] += self._planned(task)
        return sum(planned * self._correction(group) for group, planned in seconds.items())

    def patience(self, tasks: Sequence[Task]) -> float:
        """Seconds after which the tasks are taken to hang; a device may cool down in between."""
        cooling_s = self.prior.cooling_s * sum(task.tier == RUNTIME for task in tasks)
        return max(LEAST_PATIENCE_S, PATIENCE * self.of(tasks)) + cooling_s

    def _planned(self, task: Task) -> float:
        whole = _group(task) == NETWORK
        passes = self.prior.network_passes if whole else self.prior.passes
        calls: float = passes * task.item.get("flops", 0) / self.prior.flops_per_s
        if task.tier == POWER:
            return self.prior.power_s + calls
        return (self.prior.network_s if whole else self.prior.runtime_s) + calls

    def _correction(self, group: str) -> float:
        base = {RUNTIME: self.prior.runtime_s, POWER: self.prior.power_s, NETWORK: self.prior.network_s}
        least = PRIOR_TASKS * self.prior.runtime_s
        overall = (least + sum(self.taken.values())) / (least + sum(self.expected.values()))
        weight = PRIOR_TASKS * base[group]
        return (weight * overall + self.taken[group]) / (weight + self.expected[group])


def _group(task: Task) -> str:
    return NETWORK if task.item["kind"] == NETWORK and task.tier == RUNTIME else task.tier


@dataclass(frozen=True)
class Estimate:
    """The remaining work of a collection, and its time."""

    runtime: int  # tasks
    power: int
    seconds: float  # all runs together, their starts included
    runs: int  # of the same command


def estimate(tasks: Sequence[Task], costs: Costs, budget_s: float, lanes: int = 1) -> Estimate:
    """The time that `lanes` take for the tasks together, in runs of `budget_s`, each with its own start."""
    again = any(task.replicate for task in tasks)
    work = costs.of(tasks) / lanes + costs.restart_s * again
    useful = budget_s - margin_s(budget_s) - costs.start_s
    # a run measures one task at least, however short it is
    runs = max(math.ceil(min(work / useful, len(tasks)) if useful > 0 else len(tasks)), 1)
    power = sum(task.tier == POWER for task in tasks)
    return Estimate(len(tasks) - power, power, work + runs * costs.start_s, runs)


def shortest_budget_s(device_type: str) -> float:
    """The shortest budget that leaves a run the time to measure one task, by planning values."""
    prior = Costs.planned_for(device_type).prior
    return math.ceil((prior.start_s + prior.runtime_s) / (1 - MARGIN))


def margin_s(budget_s: float) -> float:
    """How long before a budget's end to stop: to write tables, and in case a batch takes too long."""
    return min(20.0, MARGIN * budget_s)
