"""Activation functions of one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from typing_extensions import Self

from neuralpower.layers.base import Bytes, Layer, contiguous_run, strided
from neuralpower.layers.call import Call
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.pointwise import EFFORTS, Pointwise, effort, per_function
from neuralpower.layers.registry import layer_kind
from neuralpower.layers.sweep import Draw

FUNCTIONS: dict[str, Any] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "softplus": F.softplus,
    "mish": F.mish,
    "relu6": F.relu6,
    "log_sigmoid": F.logsigmoid,
    "selu": F.selu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "celu": F.celu,
    "prelu": lambda x: F.prelu(x, x.new_ones(1)),
}
INPLACE = {
    "relu": torch.relu_,
    "silu": lambda x: F.silu(x, inplace=True),
    "relu6": lambda x: F.relu6(x, inplace=True),
    "hardtanh": lambda x: F.hardtanh(x, inplace=True),
}
COMMON = (
    "relu",
    "relu",
    "gelu",
    "gelu",
    "silu",
    "sigmoid",
    "tanh",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
    "leaky_relu",
    "elu",
    "softplus",
    "mish",
    "gelu_tanh",
)
# FLOP per element: the additions, multiplications and comparisons of the usual formula, 1 for a root or an exponential
FLOPS = {
    "gelu": 8,
    "gelu_tanh": 8,
    "silu": 4,
    "sigmoid": 3,
    "tanh": 5,
    "mish": 8,
    "softplus": 3,
    "hardswish": 4,
    "hardsigmoid": 3,
    "elu": 3,
    "log_sigmoid": 3,
}

RECOMPUTED = frozenset(
    "gelu gelu_tanh silu mish softplus log_sigmoid".split()
)  # derivatives that are no arithmetic of y


@layer_kind(
    "activation",
    *(f"aten.{name}{suffix}" for name in FUNCTIONS if name != "gelu_tanh" for suffix in ("", "_")),
)
@dataclass(frozen=True, kw_only=True)
class Activation(Pointwise):
    """y = function(x), element by element."""

    sweep_share = 1.5
    recurring_share = 0.2
    words = {"function": FUNCTIONS}
    group_names = EFFORTS

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.gelu(x, approximate=...)`, `aten.relu_(x)` and their like."""
        name, x = operator.removeprefix("aten."), args[0]
        y = output[0] if isinstance(output, (tuple, list)) else output
        function = name.rstrip("_")
        if function == "gelu" and kwargs.get("approximate", "none") == "tanh":
            function = "gelu_tanh"
        return cls(
            function=function, elements=y.numel(), inplace=name.endswith("_"), run=contiguous_run(x, y)
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Common functions, a few elements to a large map."""
        function = draw.choice(COMMON)
        return cls(
            function=function, elements=draw.size(16, 2**24), inplace=function in INPLACE and draw.chance(0.4)
        )

    def build(self, device: torch.device) -> Call:
        """The functional call."""
        x = strided(self, self.elements, self.run, device, dense=False)
        table = INPLACE if self.inplace and self.function in INPLACE else FUNCTIONS
        return Call(table[self.function], (x,), warm=(x,))

    def flops(self) -> int:
        """By the function's formula, 1 for what is a comparison."""
        return self.elements * per_function(self.function, FLOPS, 1)

    def bytes(self) -> Bytes:
        """X in, y out."""
        size = self.itemsize * self.elements
        return Bytes(size, 0, size)

    def group(self) -> Any:
        """Comparisons run at memory speed, exponentials do not."""
        return effort(self.function)

    def backward(self) -> tuple[Layer, ...]:
        """One pass: the gradient and x (or y) in, the gradient of x out; functions of exponentials compute them again."""
        function = self.function if self.function in RECOMPUTED else "mul"
        return (
            Elementwise(
                dtype=self.dtype, function=function, elements=self.elements, operands=2, broadcast=False
            ),
        )
