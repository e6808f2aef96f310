"""One step of an optimizer over all parameters of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.errors import Unmodelled
from neuralpower.late import nn, torch
from neuralpower.layers import (
    Bytes,
    Call,
    Described,
    Draw,
    Hardware,
    KindLaw,
    Layer,
    Training,
    View,
    Views,
    layer_kind,
)
from neuralpower.layers.pointwise import per_function
from neuralpower.layers.training import no_layers
from neuralpower.layers.views import bytes_terms
from neuralpower.optimizers.registry import IMPLEMENTATIONS, possible

# Numbers of state per parameter with a dense gradient: momentum; squares; first and second moments. In tables
# and in layers, "sgd" is the one with momentum, which was measured; `momentum` is its name elsewhere.
STATES = {"sgd": 1, "rmsprop": 1, "adam": 2, "adamw": 2, "adagrad": 1}
SWEPT = ("sgd", "rmsprop", "adam", "adamw")  # that are measured
CLASSES = {  # of torch.optim
    "sgd": "SGD",
    "rmsprop": "RMSprop",
    "adam": "Adam",
    "adamw": "AdamW",
    "adagrad": "Adagrad",
    "sparseadam": "SparseAdam",
}
MEASURED = {"momentum": "sgd", **{name: name for name in CLASSES if name != "sgd"}}  # name -> `function`
SPARSE = ("sgd", "momentum", "adagrad", "sparseadam")  # that take sparse gradients


def _terms(layer: Optimizer, hardware: Hardware) -> Described:
    return {"state_elements": layer.elements * layer.states, **bytes_terms(layer, hardware)}


def _group(layer: Optimizer) -> Any:
    """Each optimizer is fitted apart, and so is each way of running it."""
    function, way = np.asarray(layer.function), np.asarray(layer.implementation)
    named = np.char.add(np.char.add(function.astype(str), "_"), way.astype(str))
    return np.where(way == "loop", function, named)


@layer_kind("optimizer", "optimizer.step")
@dataclass(frozen=True, kw_only=True)
class Optimizer(Layer):
    """`optimizer.step()` over `tensors` parameters with `elements` numbers in all."""

    phase: str = "optimizer"
    function: str
    tensors: int
    elements: int
    implementation: str = "loop"

    dimensions = ("tensors", "elements")
    sweep_share = 2.0
    words = {"function": STATES, "implementation": IMPLEMENTATIONS}
    group_names = tuple(f"{function}{way}" for function in STATES for way in ("", "_foreach", "_fused"))
    views = Views(cpu=View(group=_group, terms=_terms))
    law = KindLaw(launches=lambda layer: layer.tensors)  # the host walks a list of them
    training = Training(backward=no_layers)

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        optimizer = args[0]
        function = type(optimizer).__name__.lower()
        if function not in STATES:
            raise Unmodelled(f"optimizer {type(optimizer).__name__}: known are {', '.join(STATES)}")
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(p.grad.is_sparse for p in parameters):
            raise Unmodelled("a gradient is sparse, and a step over rows is not a step over the table")
        return cls(
            function=function,
            tensors=len(parameters),
            elements=sum(p.numel() for p in parameters),
            implementation=_implementation(optimizer, parameters),
        )

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """From one vector to the parameters of a whole network."""
        tensors = draw.octaves(1, 256)
        function = draw.choice(SWEPT)
        ways = [way for way in IMPLEMENTATIONS if possible(function, way)]
        way, each = draw.choice(ways), draw.octaves(16, max(3 * 10**7 // tensors, 17))
        return cls(function=function, implementation=way, tensors=tensors, elements=tensors * each)

    def build(self, device: torch.device) -> Call:
        """Parameters of equal size, the last one taking what does not divide."""
        each, rest = divmod(self.elements, self.tensors)
        sizes = [each] * (self.tensors - 1) + [each + rest]
        parameters = [nn.Parameter(self.tensor(size, device=device)) for size in sizes]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        momentum = {"momentum": 0.9} if self.function == "sgd" else {}
        runs = self.implementation if device.type != "meta" or self.implementation != "fused" else "loop"
        ways = {way: way == runs for way in ("foreach", "fused") if possible(self.function, way)}
        optimizer = getattr(torch.optim, CLASSES[self.function])(parameters, lr=1e-6, **momentum, **ways)
        optimizer.defaults["fused"] = self.implementation == "fused"  # torch refuses it for meta tensors
        return Call(optimizer.step, ())

    def flops(self) -> int:
        """Multiply-adds on the parameters and each state, and a root and a division where there are two."""
        return 2 * self.elements * (1 + self.states) + 2 * self.elements * (self.states > 1)

    @property
    def states(self) -> Any:
        return per_function(self.function, STATES, 1)

    def bytes(self) -> Bytes:
        """Parameters, gradients and states in; parameters and states out."""
        traffic = self.itemsize * self.elements * (1 + self.states)
        return Bytes(traffic, self.itemsize * self.elements, traffic)


def _implementation(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> str:
    """How `step` will run: by default torch takes lists of tensors on an accelerator."""
    if optimizer.defaults.get("fused"):
        return "fused"
    foreach = optimizer.defaults.get("foreach")
    if foreach is None:
        foreach = all(p.device.type not in ("cpu", "meta") for p in parameters)
    return "foreach" if foreach else "loop"
