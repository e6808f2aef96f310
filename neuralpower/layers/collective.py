"""Collectives: what the ranks of a group exchange.

The base is latency and bandwidth, by topology (Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", 2005). With n ranks, S bytes, links of B bytes/s and h seconds a hop:

    ring       all_reduce 2 (n - 1) / n S / B and 2 (n - 1) h; all_gather and reduce_scatter half of both
    tree       2 S / B and 2 log2(n) h
    in switch  (1 + 1 / n) S / B and 2 h, where the switch sums (NVLink SHARP)
    pairs      all_to_all (n - 1) / n S / B and (n - 1) h; send_recv S / B and h; broadcast log2(n) h

On several nodes a collective works in two phases: within each node, then between nodes with what one device
holds of the result, S / k for k devices in a node, over the network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

from neuralpower.devices.hardware import Hardware
from neuralpower.late import Tensor, torch
from neuralpower.layers import Bytes, Call, Described, Draw, KindLaw, Layer, Training, View, Views, layer_kind
from neuralpower.layers.fused import fused_operator
from neuralpower.layers.operands import by_dtype as by_name
from neuralpower.layers.tensors import torchs_dtype_name
from neuralpower.layers.terms import past
from neuralpower.layers.training import no_layers

FUNCTIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
NCCL, ENGINE, GLOO = LIBRARIES = ("nccl", "engine", "gloo")
"""Who moves the data: NCCL; the all-reduce kernels of serving engines, which NCCL replaces where a message is
too large for them; gloo, between processes on CPUs."""

HOP_S = 1e-6  # between two devices of a node: in a term that rows weigh any factor will do, if it stays
# Where no row tells: seconds before the first byte and of each hop, by library, and shares of the links that
# large messages reach: 0.74 to 0.85 of NVLink on A100 to B300 by NCCL 2.27 to 2.29, ring all-reduce.
START_S: Mapping[str, float] = {NCCL: 6e-6, ENGINE: 3e-6, GLOO: 60e-6}
STEP_S: Mapping[str, float] = {NCCL: 1.5e-6, ENGINE: 0.2e-6, GLOO: 30e-6}
NETWORK_STEP_S = 10e-6  # of a hop between nodes
REACHED = 0.8
LOOPBACK = 1e9  # B/s between two processes of a CPU: gloo, 16 to 64 MiB on two busy cores, 0.2 to 0.9
# Bytes on each link at which another protocol or algorithm may take over, and time grows more slowly.
TURNS = tuple(2.0**octave for octave in range(13, 27, 2))
BEYOND = (2, 4)  # ranks from which on some may lie behind another switch or socket


def _exchanged(function: str) -> Callable[..., Tensor]:
    """What an exchange returns, on tensors without values; of real ones the rank's own part, repeated."""

    def exchanged(x: Tensor, ranks: int, nodes: int, library: str, dim: int = 0) -> Tensor:
        if function == "all_gather":
            return torch.cat([x] * ranks, dim)
        if function == "reduce_scatter":
            return x.narrow(dim, 0, x.shape[dim] // ranks).clone()
        return x.clone()

    return exchanged


for _function in FUNCTIONS:
    _schema = f"{_function}(Tensor x, int ranks, int nodes, str library, int dim=0) -> Tensor"
    fused_operator(_schema)(_exchanged(_function))


def traffic(function: Any, ranks: Any) -> Any:
    """Bytes that cross a device's link for each byte of the buffer, in the direction that has more."""
    passes = by_name(function, lambda name: 2.0 if name == "all_reduce" else 1.0)
    whole = by_name(function, lambda name: float(name in ("broadcast", "send_recv")))
    return passes * (whole + (1 - whole) * (ranks - 1) / ranks)


def ring_steps(function: Any, ranks: Any) -> Any:
    """Hops in a row of a ring."""
    passes = by_name(function, lambda name: 2.0 if name == "all_reduce" else 1.0)
    alone = by_name(function, lambda name: float(name == "send_recv"))
    return passes * (alone + (1 - alone) * (ranks - 1))


def _group(layer: Collective) -> Any:
    label = np.char.add(np.char.add(np.asarray(layer.function, dtype=str), " "), layer.library)
    label = np.where(np.asarray(layer.nodes) > 1, np.char.add(label, " network"), label)
    return label if label.ndim else str(label)


def _instead(layer: Collective) -> Collective | None:
    """The same by NCCL, which an engine runs where that is faster, as for messages of some MB."""
    if not np.any(np.asarray(layer.library) == ENGINE):
        return None
    return replace(layer, library=_by_maker(layer))


def _by_maker(layer: Collective) -> Any:
    """The library, with NCCL in the place of an engine's kernels."""
    return by_name(layer.library, lambda name: NCCL if name == ENGINE else name)


def on_links(layer: Collective) -> Any:
    """Bytes that cross a device's link, in the direction that has more."""
    return traffic(layer.function, layer.ranks) * layer.elements * layer.itemsize


def _bound_s(layer: Collective, hardware: Hardware) -> Any:
    """Start, hops and bytes, by the better of ring and sums in the switch.

    Exchanges within nodes and between them run at once, so the slower of both counts.
    """
    size, per_node = layer.elements * layer.itemsize, np.ceil(layer.ranks / layer.nodes)
    mover = np.where(np.asarray(layer.function) == "all_reduce", layer.library, _by_maker(layer))
    start, step = (by_name(mover if mover.ndim else str(mover), of.__getitem__) for of in (START_S, STEP_S))
    inside = traffic(layer.function, per_node) * size
    if hardware.switch_sums:
        sums = (np.asarray(layer.function) == "all_reduce") & (np.asarray(layer.nodes) == 1)
        inside = np.where(sums, np.minimum(inside, (1 + 1 / per_node) * size), inside)
    local = by_name(layer.library, lambda name: float(name == GLOO))
    link = local * LOOPBACK + (1 - local) * hardware.peer_bytes_per_s
    near = inside / link * (per_node > 1)
    own = by_name(layer.function, lambda name: name in ("send_recv", "all_to_all"))  # not shared in a node
    crossing = traffic(layer.function, layer.nodes) * size / np.where(own, 1, per_node)
    far = crossing / hardware.between_nodes_bytes_per_s * (layer.nodes > 1)
    hops = step * ring_steps(layer.function, per_node)
    hops = hops + NETWORK_STEP_S * ring_steps(layer.function, layer.nodes) * (layer.nodes > 1)
    return start + hops + np.maximum(near, far) / REACHED


def _bound_by(layer: Collective, hardware: Hardware) -> str:
    peer, network = hardware.peer_bytes_per_s / 1e9, hardware.between_nodes_bytes_per_s / 1e9
    links = f"links of {peer:.3g} GB/s"
    if np.all(np.asarray(layer.library) == GLOO):
        links = f"{LOOPBACK / 1e9:.3g} GB/s between processes"
    elif hardware.link_bytes_per_s is None:
        links = f"PCI Express of {peer:.3g} GB/s"
        if hardware.pcie_bytes_per_s is None:
            links = f"PCI Express 4.0, {peer:.3g} GB/s, as its sheet names no link"
    if not np.any(np.asarray(layer.nodes) > 1):
        return links
    assumed = ", as its sheet names no card" if hardware.network_bytes_per_s is None else ""
    return f"{links}, and a network of {network:.3g} GB/s{assumed}"


def _kernel_terms(layer: Collective, hardware: Hardware) -> Described:
    """Seconds on links and hops: ring, tree and sums in the switch; copies within memory."""
    link, size = hardware.peer_bytes_per_s, layer.elements * layer.itemsize
    return {
        "links": on_links(layer) / link,
        "buffer": size / link,
        "part": size / layer.ranks / link,
        "memory": 2 * size / hardware.memory_bytes_per_s,
        "ring_hops": HOP_S * ring_steps(layer.function, layer.ranks),
        "tree_hops": HOP_S * np.log2(layer.ranks),
    }


def _own_terms(layer: Collective, hardware: Hardware) -> Described:
    """Where protocols take over, by bytes on the links; and more of each for distant ranks.

    A pair, four and eight devices may share a switch, a socket, or none.
    """
    link, terms = hardware.peer_bytes_per_s, _turning(layer, hardware)
    terms |= {f"bytes_past_{turn:.0f}": past(on_links(layer), turn) / link for turn in TURNS}
    hops = {"hops": HOP_S * ring_steps(layer.function, layer.ranks), "links": on_links(layer) / link}
    farther = {
        f"{name}_beyond_{ranks}": value * (layer.ranks > ranks)
        for name, value in {**terms, **hops}.items()
        for ranks in BEYOND
    }
    return terms | farther


def _pooled_terms(layer: Collective, hardware: Hardware) -> Described:
    """Where protocols take over; sums in the switch; hops through the host by PCI Express."""
    link, hops = hardware.peer_bytes_per_s, ring_steps(layer.function, layer.ranks)
    size = layer.elements * layer.itemsize
    through_host = float(hardware.link_bytes_per_s is None)
    return {
        **_kernel_terms(layer, hardware),
        **_turning(layer, hardware),
        "in_switch": float(hardware.switch_sums) * (1 + 1 / layer.ranks) * size / link,
        "through_host": through_host * on_links(layer) / link,
        "hops_through_host": through_host * HOP_S * hops,
        "sockets": through_host * on_links(layer) / link * (layer.ranks > BEYOND[0]),
    }


def _turning(layer: Collective, hardware: Hardware) -> Described:
    """Seconds of bytes on the links up to each turn."""
    return {
        f"until_{turn:.0f}": np.minimum(on_links(layer), turn) / hardware.peer_bytes_per_s for turn in TURNS
    }


def _kernel_features(layer: Collective, hardware: Hardware) -> Described:
    """Bytes on the links, and those of one rank's part."""
    return {"links": np.log2(on_links(layer) + 1), "ranks_at": np.log2(layer.ranks)}


@layer_kind("collective", *(f"neuralpower.{function}" for function in FUNCTIONS))
@dataclass(frozen=True, kw_only=True)
class Collective(Layer):
    """One exchange of `elements` numbers between `ranks` devices.

    elements: of the whole buffer. all_reduce, broadcast and send_recv: what each rank has; all_gather: the
    gathered result; reduce_scatter: a rank's input; all_to_all: what one rank sends to all.
    """

    function: str
    elements: int
    ranks: int
    nodes: int = 1  # that the ranks are spread over
    library: str = NCCL

    dimensions = ("elements", "ranks")
    by_default: ClassVar[bool] = False
    by_itself: ClassVar[bool] = False
    words: ClassVar[Mapping[str, Collection[str]]] = {"function": FUNCTIONS, "library": LIBRARIES}
    group_names: ClassVar[Collection[str]] = tuple(
        f"{f} {library}{where}" for f in FUNCTIONS for library in LIBRARIES for where in ("", " network")
    )
    alone: ClassVar[frozenset[str]] = frozenset(group_names)
    rule: ClassVar[str] = "2 ranks or more, on as many nodes at most; send_recv has 2"
    views = Views(
        cpu=View(group=_group),
        kernels=View(
            terms=_kernel_terms,
            own_terms=_own_terms,
            features=_kernel_features,
            curve=("links", "ranks_at"),
        ),
        pooled=View(terms=_pooled_terms),
    )
    law = KindLaw(
        instead=_instead,
        bound_s=_bound_s,
        bound_by=_bound_by,
        alike_by=lambda kind, hardware, dtype: hardware.peer_bytes_per_s,
    )
    training = Training(backward=no_layers)  # a trace has its exchanges as calls of their own

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`neuralpower.FUNCTION(tensor, ranks, nodes, library)`; tensor is what the rank has before it."""
        x, ranks, nodes, library = args[:4]
        function = operator.removeprefix("neuralpower.")
        larger = output if function == "all_gather" else x
        dtype = torchs_dtype_name(x)
        return cls(
            dtype=dtype, function=function, elements=larger.numel(), ranks=ranks, nodes=nodes, library=library
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Messages of 1 KiB to 1 GiB, by functions that all libraries are measured with."""
        return cls(function=draw.choice(FUNCTIONS[:3]), elements=2 * draw.octaves(128, 2**27), ranks=2)

    def build(self, device: torch.device) -> Call:
        """The operator that stands for it; `neuralpower.measure.exchanges` times it between processes."""
        size = self.elements // self.ranks if self.function == "all_gather" else self.elements
        operator = getattr(torch.ops.neuralpower, self.function)
        return Call(operator, (self.tensor(size, device=device), self.ranks, self.nodes, self.library))

    def possible(self) -> Any:
        """Whether there are two ranks, and no more nodes than ranks."""
        return (self.ranks >= 2) & (self.nodes >= 1) & (self.nodes <= self.ranks)

    def flops(self) -> int:
        """None is counted: sums of a reduction are hidden by the links."""
        return 0 * self.elements

    def bytes(self) -> Bytes:
        """The buffer is read and written once."""
        size = self.itemsize * self.elements
        return Bytes(size, 0 * size, size)

    def shape(self) -> Self:
        """One of its size, whatever the type and the ranks."""
        same = self.elements * self.itemsize
        dtype = np.full_like(self.dtype, "int8") if isinstance(self.dtype, np.ndarray) else "int8"
        return replace(self, dtype=dtype, elements=same, ranks=0 * self.ranks + 2)
