"""Collectives: what the ranks of a group exchange."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from neuralpower.errors import Unmodelled
from neuralpower.layers import Bytes, Call, Draw, Layer, layer_kind
from neuralpower.layers.fused import fused_operator

FUNCTIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
LIBRARIES = ("nccl", "engine", "gloo")
"""Who moves the data: NCCL; the all-reduce kernels of serving engines, which NCCL replaces where a message is
too large for them; gloo, between processes on CPUs."""


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
    library: str = "nccl"

    dimensions = ("elements", "ranks")
    by_default: ClassVar[bool] = False
    words: ClassVar[Mapping[str, Collection[str]]] = {"function": FUNCTIONS, "library": LIBRARIES}
    group_names: ClassVar[Collection[str]] = tuple(
        f"{f} {library}" for f in FUNCTIONS for library in LIBRARIES
    )

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`neuralpower.FUNCTION(tensor, ranks, nodes, library)`; tensor is what the rank has before it."""
        x, ranks, nodes, library = args[:4]
        function = operator.removeprefix("neuralpower.")
        larger = output if function == "all_gather" else x
        dtype = str(x.dtype).removeprefix("torch.")
        return cls(
            dtype=dtype, function=function, elements=larger.numel(), ranks=ranks, nodes=nodes, library=library
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Messages of 1 KiB to 1 GiB."""
        return cls(function=draw.choice(FUNCTIONS), elements=draw.octaves(256, 2**28), ranks=2)

    def build(self, device: torch.device) -> Call:
        """Needs several processes: `neuralpower.measure.collectives` times it."""
        raise Unmodelled("a collective needs several processes")

    def flops(self) -> int:
        """None is counted: sums of a reduction are hidden by the links."""
        return 0 * self.elements

    def bytes(self) -> Bytes:
        """The buffer is read and written once."""
        size = self.itemsize * self.elements
        return Bytes(size, 0 * size, size)

    def group(self) -> Any:
        """Function and library."""
        return f"{self.function} {self.library}"
