"""A cluster, as `8xh100-sxm` and a number of nodes describe it, and how a network is laid out over it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from neuralpower.devices.spec import DeviceSpec, find_spec
from neuralpower.errors import InputError, is_count, unknown

# A layout: how one network is spread over the devices of a cluster.

TENSOR, EXPERT, DATA, PIPELINE = "tensor", "expert", "data", "pipeline"
ULYSSES, RING, GUIDANCE = "ulysses", "ring", "guidance"
PICTURED = (ULYSSES, RING, GUIDANCE)
"""Groups of a pipeline of diffusion: ranks with a part of the tokens, or one of a guided step's passes."""
GROUPS = (TENSOR, EXPERT, DATA, PIPELINE, *PICTURED)
"""Groups of ranks that exchange data: each has its own communicator."""
GROUP = "neuralpower_group"  # attribute of a parameter: the group that shares it out, where that is its own

SHORT = {
    **{"tp": TENSOR, "pp": PIPELINE, "ep": EXPERT, "dp": DATA},
    **{"ulysses": ULYSSES, "ring": RING, "cfg": GUIDANCE},
}
"""Letters of degrees, as engines write them."""

SHARDED = ("", "zero1", "zero2", "zero3")
"""What data-parallel ranks share out.

    ""      nothing: each keeps weights, gradients and optimizer states whole (DDP)
    zero1   optimizer states
    zero2   optimizer states and gradients
    zero3   optimizer states, gradients and weights (FSDP's full sharding)
"""

SCHEDULES = ("1f1b", "gpipe", "interleaved")


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism; 1 is none.

    Ranks are numbered with the tensor group innermost, then Ulysses, ring and guidance, data, and pipeline.
    Experts are spread over the tensor and data ranks of one pipeline stage, so `expert` divides
    `tensor * data`.
    """

    tensor: int = 1  # ranks that share each product
    pipeline: int = 1  # stages of consecutive blocks
    expert: int = 1  # ranks that share the experts of a mixture; 1: each expert is split as `tensor` says
    data: int = 1  # replicas, each with samples of its own
    shard: str = ""  # one of SHARDED
    sequence: bool = False  # whether norms and the like between products are split along the sequence
    schedule: str = "1f1b"  # of pipeline stages in training, one of SCHEDULES
    interleave: int = 1  # pieces of the network that one pipeline rank holds
    ulysses: int = 1  # ranks with a part of a picture's tokens, which attend with a part of the heads
    ring: int = 1  # ranks with a part of the tokens, to which the keys of all others come
    guidance: int = 1  # 2: one rank denoises with the text, the other without

    def __post_init__(self) -> None:
        for name in (*GROUPS, "interleave"):
            if not is_count(getattr(self, name)):
                raise InputError(
                    f"{name} {getattr(self, name)!r}: a degree is a whole number from 1; choose 1"
                )
        if self.shard not in SHARDED:
            raise unknown("sharding of data-parallel ranks", self.shard, [one for one in SHARDED if one])
        if self.schedule not in SCHEDULES:
            raise unknown("pipeline schedule", self.schedule, SCHEDULES)
        if (self.tensor * self.data) % self.expert:
            raise InputError(
                f"expert {self.expert}: experts lie on the {self.tensor} tensor x {self.data} data ranks; "
                f"choose a divisor of {self.tensor * self.data}"
            )
        if self.shard and self.data == 1:
            raise InputError(
                f"{self.shard} shares states among data-parallel ranks; choose data of 2 or more"
            )
        if self.guidance > 2:
            raise InputError(
                f"guidance {self.guidance}: a guided step has two passes, with the text and without; choose 2"
            )
        if self.sequence and self.tensor == 1:
            raise InputError("sequence splits what tensor ranks repeat; choose tensor of 2 or more")
        if (self.schedule == "interleaved") != (self.interleave > 1):
            raise InputError(
                f"schedule {self.schedule} with {self.interleave} pieces a rank: "
                "interleaved needs 2 or more, the others 1"
            )

    @property
    def ranks(self) -> int:
        return self.pipeline * self.of_stage

    @property
    def of_stage(self) -> int:
        """Ranks of one pipeline stage."""
        return self.stride(PIPELINE)

    @property
    def sequences(self) -> int:
        """Ranks that share the tokens of a picture."""
        return self.ulysses * self.ring

    @property
    def alone(self) -> bool:
        return self.ranks == 1

    def stride(self, group: str) -> int:
        """The distance of neighbours of a group, in ranks."""
        inside = {
            **{TENSOR: (), EXPERT: (), ULYSSES: (TENSOR,), RING: (TENSOR, ULYSSES)},
            **{GUIDANCE: (TENSOR, ULYSSES, RING), DATA: (TENSOR, *PICTURED)},
            PIPELINE: (TENSOR, *PICTURED, DATA),
        }
        return math.prod(self.size(one) for one in inside[group])

    def size(self, group: str) -> int:
        return int(getattr(self, group))

    def nodes(self, group: str, per_node: int) -> int:
        """Nodes that one group of ranks reaches, with `per_node` devices in a node."""
        return nodes_of(self.size(group), self.stride(group), per_node)

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts: they exchange these experts' gradients."""
        return self.tensor * self.data // self.expert if self.expert > 1 else self.data

    @property
    def short(self) -> str:
        """In few letters, as engines write it: `tp8 pp2`; `vpp2` is two pieces for each pipeline rank."""
        degrees = [
            f"{letters}{getattr(self, name)}" for letters, name in SHORT.items() if getattr(self, name) > 1
        ]
        pieces = f"vpp{self.interleave}" if self.interleave > 1 else ""
        return " ".join([*degrees, *filter(None, [pieces, self.shard])]) or "one device"

    def __str__(self) -> str:
        return ", ".join(self._said()) or "one device"

    def _said(self) -> Iterator[str]:
        usual = {field.name: field.default for field in fields(self)}
        for name in (*GROUPS, "shard", "schedule", "interleave"):
            if (value := getattr(self, name)) != usual[name]:
                yield str(value) if name in ("shard", "schedule") else f"{name} {value}"
        if self.sequence:
            yield "sequence"


def layout_of(text: str) -> Layout:
    """The layout that a text such as `tp4pp2` describes; raises InputError."""
    found = re.findall(rf"({'|'.join(SHORT)})([0-9]{{1,9}})", text)
    names = [SHORT[letters] for letters, _ in found]
    if "".join(map("".join, found)) != text.replace(" ", "") or not found or len({*names}) < len(names):
        raise InputError(f"layout {text!r}: write degrees with tp, pp, ep and dp, such as tp4pp2")
    degrees: dict[str, Any] = {name: int(number) for name, (_, number) in zip(names, found, strict=True)}
    return Layout(**degrees)


def nodes_of(ranks: int, stride: int, per_node: int) -> int:
    """Nodes that `ranks` ranks reach, each `stride` after the other, with `per_node` devices in a node."""
    return min(ranks, math.ceil((stride * (ranks - 1) + 1) / per_node))


ONE = Layout()
"""One device."""


MOST_DEVICES = 100_000  # of a cluster: the largest that were built
USUAL_PER_NODE = 8  # devices of a node in servers for several accelerators
_SEVERAL = re.compile(r"[0-9]+\s*[x*]\s*[^0-9\s]")
_TEXT = re.compile(r"(?:([0-9]+)\s*[x*]\s*)?(\S.*)")


@dataclass(frozen=True)
class Cluster:
    """Equal devices; `per_node` of them share the links of a node, and nodes share a network."""

    spec: DeviceSpec
    per_node: int = 1
    nodes: int = 1

    def __post_init__(self) -> None:
        for name in ("per_node", "nodes"):
            if not is_count(getattr(self, name)):
                raise InputError(
                    f"{name} {getattr(self, name)!r}: a count is a whole number from 1; choose 1"
                )
        if self.devices > MOST_DEVICES:
            raise InputError(
                f"{self.devices:,} devices: a cluster has {MOST_DEVICES:,} at most; choose fewer"
            )

    @property
    def devices(self) -> int:
        return self.per_node * self.nodes

    def check(self, layout: Layout) -> None:
        """Raise InputError for a layout that takes more devices than there are."""
        if layout.ranks > self.devices:
            raise InputError(
                f"{layout}: takes {layout.ranks} devices, and the cluster has {self.devices} ({self}); "
                "choose smaller degrees, or more devices"
            )

    def usual_layout(self, trains: bool) -> Layout:
        """Where none is said: replicas that share all states in training, else tensor ranks in each node."""
        if self.devices == 1:
            return Layout()
        if trains:
            return Layout(data=self.devices, shard="zero3")
        return Layout(tensor=self.per_node, pipeline=self.nodes)

    def __str__(self) -> str:
        """As text: `2 nodes of 8 x nvidia-h100-sxm5-80gb`."""
        one = f"{self.per_node} x {self.spec.slug}" if self.per_node > 1 else self.spec.slug
        return f"{self.nodes} nodes of {one}" if self.nodes > 1 else one


def is_cluster(text: object) -> bool:
    """Whether a text is a count of devices, as 8xh100-sxm."""
    return isinstance(text, str) and _SEVERAL.match(text) is not None


def cluster_of(text: str, nodes: int = 1) -> Cluster:
    """The cluster that a text describes, such as `8xh100-sxm` or `h100`.

    Args:
        text: devices of a node, an x and the name of a spec sheet; a name alone is one device.
        nodes: number of nodes.

    Raises:
        InputError: an unknown device, devices of two kinds, or a count below 1.
    """
    kinds = [part for part in re.split(r"[,+]", text) if part.strip()]
    if len(kinds) > 1:
        raise InputError(
            f"cluster {text!r}: devices of two kinds are not supported; choose one, as in 8xh100-sxm, "
            f"or compare them one by one: neuralpower rank MODEL --device {','.join(kinds)}"
        )
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise InputError(f"cluster {text!r}: write a count and a device, as in 8xh100-sxm")
    count, name = match.groups()
    # more digits than any cluster has, of which `int` takes 4,300
    return Cluster(find_spec(name), int((count or "1")[:18]), nodes)


def enough_for(spec: DeviceSpec, layout: Layout) -> Cluster:
    """The smallest cluster of usual nodes that a layout fits on."""
    per_node = min(layout.ranks, USUAL_PER_NODE)
    return Cluster(spec, per_node, -(-layout.ranks // per_node))
