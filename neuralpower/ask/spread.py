"""Several devices, as options say them: the cluster, the layouts, and the device that both name.

Nothing here imports torch: the command line refuses what contradicts before it does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neuralpower.ask.texts import counts
from neuralpower.devices.cluster import ONE, PICTURED, Cluster, Layout, cluster_of, is_cluster
from neuralpower.devices.names import is_size
from neuralpower.errors import InputError

DEGREES: Mapping[str, str] = {
    **{name: f"{name}_parallel" for name in ("tensor", "pipeline", "expert", "data")},
    **{name: f"{name}_degree" for name in PICTURED},
}
"""Field of a layout -> its option."""
ALONE: Mapping[
    str, Mapping[str, Any]
] = {  # the options that mean nothing where a grid's point has one rank of a group
    "data": {"zero": None, "fsdp": False},
    "tensor": {"sequence_parallel": False},
    "pipeline": {"schedule": "1f1b", "interleave": 1},
}
Given = Mapping[str, Any]


def layouts_in(options: Given) -> tuple[Layout, ...]:
    """The layout of the options, or all of a sweep's lists of degrees; raises InputError."""
    named = options.get("layout")
    if named is not None:
        several = named if isinstance(named, (list, tuple)) else [named]
        if not several or not all(isinstance(one, Layout) for one in several):
            raise InputError(
                f"layout {named!r:.60}: must be a Layout, such as neuralpower.Layout(tensor=8); a "
                "sweep takes a list of them"
            )
        return tuple(several)
    lists = {
        name: counts(options.get(option, 1), f"--{option.replace('_', '-')}")
        for name, option in DEGREES.items()
    }
    return tuple(dict.fromkeys(_each(options, lists)))


def _each(options: Given, lists: Mapping[str, Sequence[int]]) -> Iterator[Layout]:
    """All combinations; one without replicas shares nothing out, one without tensor ranks no sequence."""
    for numbers in itertools.product(*lists.values()):
        degrees, how = dict(zip(lists, numbers, strict=True)), dict(options)
        for name, alone in ALONE.items():
            if degrees[name] == 1 and len(lists[name]) > 1:
                how |= alone
        schedule, interleave = how.get("schedule", "1f1b"), how.get("interleave", 1)
        pieces = 2 if schedule == "interleaved" and interleave == 1 else interleave
        sequence = bool(how.get("sequence_parallel"))
        yield Layout(**degrees, shard=_shard(how), sequence=sequence, schedule=schedule, interleave=pieces)


def _shard(options: Given) -> str:
    """What replicas share out; raises InputError where two options say it."""
    zero = options.get("zero")
    if not options.get("fsdp"):
        return f"zero{zero}" if zero else ""
    if zero not in (None, "3"):
        raise InputError(f"--fsdp is --zero 3, and --zero {zero} is given; leave one out")
    return "zero3"


def cluster_in(options: Given) -> Cluster | None:
    """The cluster of `devices` and `nodes`; None where none is named. Raises InputError."""
    devices, nodes = options.get("devices"), options.get("nodes")
    if devices is None and nodes is not None:
        raise InputError(f"--nodes {nodes}: no --devices says what a node has; add --devices 8xh100-sxm")
    if devices is None or isinstance(devices, Cluster):
        return devices
    if not isinstance(devices, str):
        raise InputError(f"devices {devices!r:.40}: must be a text, such as '8xh100-sxm'")
    return cluster_of(devices, 1 if nodes is None else nodes)


def device_in(options: Given) -> Any:
    """The device of `devices`, else `device`; raises InputError where both are given."""
    cluster, device = cluster_in(options), options.get("device")
    if cluster is not None and device is not None:
        raise InputError(
            f"--device {device} and --devices {options['devices']} both name a device; leave --device out"
        )
    return device if cluster is None else cluster.spec.slug


def check_used(cluster: Cluster | None, layouts: Sequence[Layout], options: Given, model: object) -> None:
    """Raise InputError for layouts that the devices do not have, and for devices that no layout uses."""
    if cluster is None:
        return
    for layout in layouts:
        cluster.check(layout)
    if cluster.devices == 1 or any(layout != ONE for layout in layouts):
        return
    nodes = f" --nodes {cluster.nodes}" if cluster.nodes > 1 else ""
    devices = options.get("devices") or f"{cluster.per_node}x{cluster.spec.slug}"
    raise InputError(
        f"--devices {devices}{nodes}: no layout says how {cluster.devices} devices are used; add "
        f"--tensor-parallel {cluster.per_node}, or: neuralpower parallel {model} --devices {devices}{nodes}"
    )


def fitted_in(options: Given, model: object) -> tuple[dict[str, Any], str]:
    """(options, note) where the device may be a memory, 24GB, or several devices, 8xh100-sxm.

    Several devices without a layout get the usual one, and a note. Raises InputError for two that contradict.
    """
    spread = dict(options)
    device, memory = spread.get("device"), spread.get("memory")
    if is_size(device):
        if memory is not None:
            raise InputError(f"--device {device} and --memory {memory} both are a size; leave one out")
        spread |= {"device": None, "memory": device}
    elif is_cluster(device):
        if spread.get("devices") is not None:
            device_in(spread)  # raises: both name devices
        spread |= {"device": None, "devices": device}
    cluster, (layout, *_) = cluster_in(spread), layouts_in(spread)
    if cluster is None or cluster.devices == 1 or not layout.alone:
        return spread, ""
    spread["layout"] = usual = cluster.usual_layout(spread.get("phase") == "training")
    others = f"neuralpower parallel {model} --devices {spread['devices']}"
    return spread, f"no layout is given: {usual} is assumed. Others: {others}"
