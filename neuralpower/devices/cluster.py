"""A cluster: equal devices in equal nodes, as `8xh100-sxm` and a number of nodes describe it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from neuralpower.devices.layout import Layout
from neuralpower.devices.spec import DeviceSpec, find_spec
from neuralpower.errors import InputError, is_count

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
