"""Activation functions of one tensor."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from neuralpower.late import F, torch
from neuralpower.layers import Call, Draw, Layer, Training, View, Views, layer_kind
from neuralpower.layers.elementwise import pass_of
from neuralpower.layers.pointwise import EFFORTS, Pointwise, effort, per_function
from neuralpower.layers.tensors import common_dtype, contiguous_run, first, strided

# what gives the function: torch is imported by the first call that is built
FUNCTIONS: dict[str, Any] = {
    "relu": lambda: torch.relu,
    "gelu": lambda: F.gelu,
    "silu": lambda: F.silu,
    "sigmoid": lambda: torch.sigmoid,
    "tanh": lambda: torch.tanh,
    "hardswish": lambda: F.hardswish,
    "hardsigmoid": lambda: F.hardsigmoid,
    "hardtanh": lambda: F.hardtanh,
    "leaky_relu": lambda: F.leaky_relu,
    "elu": lambda: F.elu,
    "softplus": lambda: F.softplus,
    "mish": lambda: F.mish,
    "relu6": lambda: F.relu6,
    "log_sigmoid": lambda: F.logsigmoid,
    "selu": lambda: F.selu,
    "gelu_tanh": lambda: functools.partial(F.gelu, approximate="tanh"),
    "celu": lambda: F.celu,
    "prelu": lambda: lambda x: F.prelu(x, x.new_ones(1)),
}
INPLACE: dict[str, Any] = {
    "relu": lambda: torch.relu_,
    "silu": lambda: functools.partial(F.silu, inplace=True),
    "relu6": lambda: functools.partial(F.relu6, inplace=True),
    "hardtanh": lambda: functools.partial(F.hardtanh, inplace=True),
}
COMMON = """
    relu relu gelu gelu silu sigmoid tanh hardswish hardsigmoid hardtanh leaky_relu elu softplus mish
    gelu_tanh
""".split()
# FLOP per element by the usual formula, 1 for each operation, also for a root or an exponential.
FLOPS = {
    **dict.fromkeys(("gelu", "gelu_tanh", "mish"), 8),
    "tanh": 5,
    **dict.fromkeys(("silu", "hardswish"), 4),
    **dict.fromkeys(("sigmoid", "softplus", "hardsigmoid", "elu", "log_sigmoid"), 3),
}
RECOMPUTED = (
    "gelu",
    "gelu_tanh",
    "silu",
    "mish",
    "softplus",
    "log_sigmoid",
)  # derivatives that y does not give
OPERATORS = [f"aten.{name}{suffix}" for name in FUNCTIONS if name != "gelu_tanh" for suffix in ("", "_")]


def _backward(layer: Activation) -> tuple[Layer, ...]:
    """One pass: the gradient and x or y in, that of x out; exponentials are computed again."""
    function = layer.function if layer.function in RECOMPUTED else "mul"
    return (pass_of(layer.dtype, function, layer.elements),)


@layer_kind("activation", *OPERATORS)
@dataclass(frozen=True, kw_only=True)
class Activation(Pointwise):
    """y = function(x), element by element."""

    sweep_share = 1.5
    recurring_share = 0.2
    words = {"function": FUNCTIONS}
    group_names = EFFORTS
    # comparisons run at memory speed, exponentials do not
    views = Views(cpu=View(group=lambda layer: effort(layer.function)), of=Pointwise.views)
    training = Training(backward=_backward)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.gelu(x, approximate=...)`, `aten.relu_(x)` and their like."""
        name, x, y = operator.removeprefix("aten."), args[0], first(output)
        function = name.rstrip("_")
        if function == "gelu" and kwargs.get("approximate", "none") == "tanh":
            function = "gelu_tanh"
        run, inplace = contiguous_run(x, y), name.endswith("_")
        layer = cls(dtype=common_dtype(x, y), function=function, elements=y.numel(), inplace=inplace, run=run)
        return layer.typed_as(x, y)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Common functions, a few elements to a large map."""
        function = draw.choice(COMMON)
        elements, inplace = draw.size(16, 2**24), function in INPLACE and draw.chance(0.4)
        return cls(function=function, elements=elements, inplace=inplace)

    def build(self, device: torch.device) -> Call:
        x = strided(self.reading(), self.elements, self.run, device, dense=False)
        table = INPLACE if self.inplace and self.function in INPLACE else FUNCTIONS
        return Call(table[self.function](), (x,), warm=(x,))

    def flops(self) -> int:
        """FLOP by the function's formula, 1 for a comparison."""
        return self.elements * per_function(self.function, FLOPS, 1)
