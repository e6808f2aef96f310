"""A layout: how one network is spread over the devices of a cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from neuralpower.errors import InputError, is_count, unknown

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
