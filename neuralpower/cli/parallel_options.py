"""Options that spread a network over several devices: of `predict`, `fit`, `sweep` and `compare`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from neuralpower.cli import parsing
from neuralpower.cli.choices import SCHEDULES, ZERO, choice
from neuralpower.cli.commands import OptionGroup
from neuralpower.cli.panels import SEVERAL
from neuralpower.devices.layout import ONE, Layout
from neuralpower.errors import InputError

if TYPE_CHECKING:
    from neuralpower.devices.cluster import Cluster
    from neuralpower.trace.recipe import Recipe

DEGREES = ("tensor", "pipeline", "expert", "data")


def _checked_devices(context: typer.Context, text: str | None) -> str | None:
    """Refuse an unknown device before torch is imported."""
    if text is not None and not context.resilient_parsing:
        from neuralpower.devices.cluster import cluster_of

        cluster_of(text)
    return text


Devices = Annotated[
    str | None,
    Option(
        help="Devices of a node, such as 8xh100-sxm; instead of --device.",
        callback=_checked_devices,
        metavar="<NxDEVICE>",
    ),
]
Nodes = Annotated[int | None, Option(help="Nodes of --devices each; default: 1.")]
RequirePlan = Annotated[
    bool,
    Option("--require-plan", help="Refuse a model without a plan for tensor ranks, instead of using a rule."),
]


def check_used(devices: str, cluster: Cluster, layouts: Sequence[Layout], model: str) -> None:
    """Raise InputError for several devices and no layout that uses them; says how to find one."""
    if cluster.devices == 1 or any(layout != ONE for layout in layouts):
        return
    nodes = f" --nodes {cluster.nodes}" if cluster.nodes > 1 else ""
    raise InputError(
        f"--devices {devices}{nodes}: no layout says how {cluster.devices} devices are used; add "
        f"--tensor-parallel {cluster.per_node}, or: neuralpower parallel {model} --devices {devices}{nodes}"
    )


class Parallel(OptionGroup):
    """How a network is spread over several devices."""

    panel = SEVERAL

    tensor_parallel: Annotated[int, Option(help="Ranks that share each product.")] = 1
    pipeline_parallel: Annotated[int, Option(help="Stages of consecutive blocks.")] = 1
    expert_parallel: Annotated[int, Option(help="Ranks that share the experts of a mixture.")] = 1
    data_parallel: Annotated[int, Option(help="Replicas, each with samples of its own.")] = 1
    zero: Annotated[
        str | None,
        choice("ZeRO stage", ZERO, "--zero", help="What replicas share out, by stage of ZeRO"),
    ] = None
    fsdp: Annotated[bool, Option("--fsdp", help="The same as --zero 3.")] = False
    sequence_parallel: Annotated[
        bool, Option("--sequence-parallel", help="Split norms along the sequence, too.")
    ] = False
    schedule: Annotated[str, choice("pipeline schedule", SCHEDULES, help="Order of pipeline stages")] = "1f1b"
    interleave: Annotated[int, Option(help="Pieces of each stage, for interleaved; default: 2.")] = 1
    micro_batches: Annotated[
        int | None,
        Option(help="Batches of a step, or in flight through a pipeline; the same as --accumulation."),
    ] = None
    devices: Devices = None
    nodes: Nodes = None
    require_plan: RequirePlan = False

    @property
    def layout(self) -> Layout:
        """The degrees; raises InputError for those that contradict each other."""
        return self._layout(*(int(getattr(self, f"{name}_parallel")) for name in DEGREES))

    def _layout(self, *degrees: int) -> Layout:
        """The layout of these degrees and the other options."""
        pieces = 2 if self.schedule == "interleaved" and self.interleave == 1 else self.interleave
        how: dict[str, Any] = {"sequence": self.sequence_parallel, "schedule": self.schedule}
        how |= zip(DEGREES, degrees, strict=True)
        return Layout(shard=self.shard, interleave=pieces, **how)

    @property
    def shard(self) -> str:
        """What replicas share out; raises InputError where two options say it."""
        if self.fsdp and self.zero not in (None, "3"):
            raise InputError(f"--fsdp is --zero 3, and --zero {self.zero} is given; leave one out")
        return "zero3" if self.fsdp else f"zero{self.zero}" if self.zero else ""

    @property
    def cluster(self) -> Cluster | None:
        """The devices; None where none are named. Raises InputError."""
        from neuralpower.devices.cluster import cluster_of

        if self.devices is None:
            if self.nodes is not None:
                raise InputError(
                    f"--nodes {self.nodes}: no --devices says what a node has; add --devices 8xh100-sxm"
                )
            return None
        return cluster_of(self.devices, 1 if self.nodes is None else self.nodes)

    def device(self, named: str | None) -> str | None:
        """The device of --devices, else the named one; raises InputError where both are given."""
        cluster = self.cluster
        if cluster is None:
            return named
        if named is not None:
            raise InputError(
                f"--device {named} and --devices {self.devices} both name a device; leave --device out"
            )
        return cluster.spec.slug

    def check(self, model: str) -> None:
        """Raise InputError for a layout that is larger than the cluster, and for devices without a layout."""
        cluster = self.cluster
        if cluster is None:
            return
        for layout in self.layouts:
            cluster.check(layout)
        check_used(str(self.devices), cluster, self.layouts, model)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """All requested layouts."""
        return (self.layout,)

    def recipe(self, recipe: Recipe, phase: str) -> Recipe:
        """The recipe with the micro-batches; raises InputError where they contradict it or mean nothing."""
        from dataclasses import replace

        from neuralpower.trace.recipe import TRAINING

        count = self.micro_batches
        if count is None:
            return recipe
        if recipe.accumulation not in (1, count):
            raise InputError(
                f"--micro-batches {count} and --accumulation {recipe.accumulation} are the same option; "
                "leave one out"
            )
        if phase != TRAINING and all(layout.pipeline == 1 for layout in self.layouts):
            raise InputError(
                f"--micro-batches {count}: belongs to phase {TRAINING} or to pipeline stages; leave it out"
            )
        return replace(recipe, accumulation=count)


class SweptParallel(Parallel):
    """The same with lists of degrees."""

    tensor_parallel: Annotated[
        str, Option(help="Ranks that share each product: 8, or 1,2,4,8.", metavar="<ranks,...>")
    ] = "1"  # type: ignore[assignment]
    pipeline_parallel: Annotated[
        str, Option(help="Stages of consecutive blocks.", metavar="<stages,...>")
    ] = "1"  # type: ignore[assignment]
    expert_parallel: Annotated[
        str, Option(help="Ranks that share the experts of a mixture.", metavar="<ranks,...>")
    ] = "1"  # type: ignore[assignment]
    data_parallel: Annotated[
        str, Option(help="Replicas, each with samples of its own.", metavar="<replicas,...>")
    ] = "1"  # type: ignore[assignment]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """All combinations; one without replicas shares nothing out, one without tensor ranks no sequence."""
        lists = [
            parsing.numbers(getattr(self, f"{name}_parallel"), f"--{name}-parallel", "1,2,4,8")
            for name in DEGREES
        ]
        found = tuple(self._each(lists))
        return tuple(dict.fromkeys(found))

    def _each(self, lists: list[tuple[int, ...]]) -> Iterator[Layout]:
        own = vars(self)
        for tensor, pipeline, expert, data in itertools.product(*lists):
            given = dict(own)
            if data == 1 and len(lists[-1]) > 1:
                given |= {"zero": None, "fsdp": False}
            if tensor == 1 and len(lists[0]) > 1:
                given |= {"sequence_parallel": False}
            if pipeline == 1 and len(lists[1]) > 1:
                given |= {"schedule": "1f1b", "interleave": 1}
            yield Parallel(**given)._layout(tensor, pipeline, expert, data)
