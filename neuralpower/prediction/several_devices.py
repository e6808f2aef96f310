"""What a prediction of several devices says of all of them."""

from __future__ import annotations

from dataclasses import dataclass

from neuralpower.devices.cluster import Cluster, Layout
from neuralpower.files.json_files import Declared
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.rows import Interval


@dataclass(frozen=True)
class StageResult(Declared):
    """One pipeline stage; all its tensor and data ranks do the same."""

    in_json = "blocks forward_s backward_s busy_s memory_bytes=memory.bounds memory parameters"

    blocks: tuple[str, ...]  # paths of its repeated blocks
    forward_s: float  # of one micro-batch
    backward_s: float
    busy_s: float  # of all its work in the pass or the step, without waits for other stages
    memory: Memory | None
    parameters: int  # that one of its ranks has


@dataclass(frozen=True)
class Parallel(Declared):
    """A network on several devices; the prediction's own time is that of the pass or the step of all."""

    in_json = """
        layout cluster=described ranks micro_batches samples tokens communication_s exposed_s exposed_share
        bubble_s bubble_share samples_per_s tokens_per_s model_flops_utilisation=utilisation energy_j
        slowest_stage=slowest stages notes
    """

    layout: Layout
    cluster: Cluster | None
    micro_batches: int  # of a step of training; in inference, batches in flight through the pipeline
    samples: int  # of all replicas and micro-batches together
    tokens: int  # the same; 0 where the network reads none
    communication_s: float  # of all exchanges of the slowest rank, one after the other
    exposed_s: Interval  # the part of the time that is longer for exchanges
    bubble_s: float  # of `runtime_s`, that the slowest rank waits for other stages
    samples_per_s: Interval  # of all devices
    tokens_per_s: Interval | None
    utilisation: float | None  # of all devices' peak by the model's own FLOP (MFU)
    energy_j: Interval | None  # of all devices
    stages: tuple[StageResult, ...]
    runtime_s: float
    cycle_s: float  # until the same is done again: shorter than all batches in flight one after the other
    idle_s: float  # of `cycle_s`, that the slowest rank waits for other stages
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    @property
    def exposed_share(self) -> float:
        """The share of the time that exchanges add."""
        return self.exposed_s.value / self.runtime_s

    @property
    def bubble_share(self) -> float:
        """The share of the time that the slowest rank waits, with all batches in flight."""
        return self.idle_s / self.cycle_s

    @property
    def slowest(self) -> int:
        """The number of the stage with the most work, from 0."""
        return max(range(len(self.stages)), key=lambda i: self.stages[i].busy_s)

    @property
    def described(self) -> dict[str, object] | None:
        c = self.cluster
        return None if c is None else {"device": c.spec.slug, "per_node": c.per_node, "nodes": c.nodes}
