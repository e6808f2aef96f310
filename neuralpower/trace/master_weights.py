"""Float32 masters of trained 16-bit weights, as Megatron-LM, DeepSpeed and apex keep them.

The optimizer steps the masters. A weight's 16-bit gradient is added to a float32 one and then freed, as
Megatron-LM's and DeepSpeed's hooks do. The states follow from the optimizer's step on the masters, so that
states of 8 bits stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from neuralpower.errors import InputError
from neuralpower.trace.recipe import HALVES

WIDE = torch.float32


def check_masters(masters: bool, dtype: str, *, autocast: object = None, lora: object = None) -> None:
    """Raise InputError for masters of weights that have none: of float32, under autocast or frozen."""
    if not masters:
        return
    way_out = "leave master weights out"
    if dtype not in HALVES:
        raise InputError(
            f"master weights of {dtype} weights: 16-bit weights alone have them; choose dtype bfloat16, or "
            f"{way_out}"
        )
    if autocast is not None:
        raise InputError(
            "master weights and autocast: under autocast, weights are float32 already; choose dtype float32, "
            f"or {way_out}"
        )
    if lora is not None:
        raise InputError(
            f"master weights and lora {lora}: adapters of 16-bit weights are float32 already; {way_out}"
        )


class Masters:
    """What the optimizer steps: float32 masters of narrower weights, and the other weights themselves.

    Args:
        trained: the weights, of fake tensors.
        fake: their mode.
        wanted: whether there are masters; without, the optimizer steps the weights themselves.
    """

    def __init__(self, trained: Sequence[nn.Parameter], fake: FakeTensorMode, wanted: bool) -> None:
        self.stepped = [_master(one, fake) if wanted and _narrow(one) else one for one in trained]
        self._of = {id(one): own for one, own in zip(trained, self.stepped, strict=True)}

    def of(self, weight: Tensor) -> Tensor:
        """What is stepped for a weight; the tensor itself where nothing is."""
        return self._of.get(id(weight), weight)

    @property
    def made(self) -> Iterable[Tensor]:
        """The masters alone."""
        return (own for own in self.stepped if id(own) not in self._of)

    def move_gradient(self, weight: Tensor) -> Tensor | None:
        """Add a weight's new gradient to that of its master, and free it; the gradient that is kept."""
        master = self.of(weight)
        if master is not weight and weight.grad is not None:
            if master.grad is None:
                master.grad = weight.grad.to(WIDE)
            else:
                master.grad += weight.grad
            weight.grad = None
        return master.grad


def _narrow(weight: Tensor) -> bool:
    return weight.is_floating_point() and weight.element_size() < WIDE.itemsize


def _master(weight: Tensor, fake: FakeTensorMode) -> nn.Parameter:
    """A float32 parameter of the same shape."""
    with fake:
        return nn.Parameter(torch.empty(weight.shape, dtype=WIDE, device=weight.device))
