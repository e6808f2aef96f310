"""Precision of a network: weights of one dtype, autocast, or float32 master copies of half weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.dtypes import AUTOCAST_DTYPES, NETWORK_DTYPES
from neuralpower.errors import InputError, first_line, unknown
from neuralpower.layers.base import torch_dtype

MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Precision:
    """`dtype` of weights and inputs; under autocast they are float32, and products have `dtype`."""

    dtype: torch.dtype = torch.float32
    autocast: bool = False
    masters: bool = False
    """Whether an optimizer steps float32 copies of the weights."""

    @property
    def stored(self) -> torch.dtype:
        """The dtype of weights and inputs."""
        return torch.float32 if self.autocast else self.dtype

    def cast(self, model: nn.Module) -> nn.Module:
        """The model with floating weights and buffers in dtype `stored`; a wrapper adds autocast."""
        model = model.to(self.stored)
        return Autocasting(model, self.dtype) if self.autocast else model

    def optimizer(self, model: nn.Module, make: MakeOptimizer) -> torch.optim.Optimizer:
        """`make` of the weights with a gradient, or of their masters; raises InputError without any."""
        trained = [p for p in model.parameters() if p.requires_grad]
        if not trained:
            text = "it cannot be trained; choose inference"
            raise InputError(f"a network without a weight that requires a gradient: {text}")
        return with_masters(trained, make) if self.masters else make(trained)


def precision(
    dtype: str, device: torch.device, *, autocast: bool = False, masters: bool = False
) -> Precision:
    """The precision of that name on that device.

    Raises:
        InputError: an unknown dtype, one that the device lacks, or autocast to a dtype of another width.
    """
    if dtype not in NETWORK_DTYPES:
        raise unknown("dtype", dtype, NETWORK_DTYPES)
    if autocast and dtype not in AUTOCAST_DTYPES:
        raise InputError(f"autocast to {dtype}: it needs half precision; choose dtype float16 or bfloat16")
    found = torch_dtype(dtype)
    reason = lacking(found, device)
    if reason is not None:
        raise InputError(f"dtype {dtype}: {device} lacks it ({reason}); choose float32")
    return Precision(found, autocast, masters and not autocast and dtype in AUTOCAST_DTYPES)


def lacking(dtype: torch.dtype, device: torch.device) -> str | None:
    """The reason why the device cannot compute products of that dtype; None if it can."""
    on_gpu = device.type == "cuda" and dtype == torch.bfloat16
    if on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "needs compute capability 8.0; below it products are emulated"
    try:
        one = torch.ones(1, 1, 2, 2, dtype=dtype, device=device)
        torch.nn.functional.conv2d(one, one)
        one[0, 0] @ one[0, 0]
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return first_line(error)[:120]
    return None


class Autocasting(nn.Module):
    """A network whose forward runs under autocast on the device of its weights."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output; a tensor becomes float32, so that the loss does, too."""
        device = next((p.device.type for p in self.model.parameters()), "cpu")
        with torch.autocast(device, self.dtype):
            output = self.model(*args, **kwargs)
        return output.float() if isinstance(output, Tensor) and output.is_floating_point() else output


def with_masters(weights: Iterable[Tensor], make: MakeOptimizer) -> torch.optim.Optimizer:
    """An optimizer of float32 copies of half weights; a step reads gradients and writes the copies back.

    Updates too small for a half weight add up in its copy. The loss scale is 1. Source: Micikevicius and
    others, Mixed Precision Training, arXiv 1710.03740, section 3.1.
    """
    halves = list(weights)
    masters = [w.detach().clone().float().requires_grad_() for w in halves]
    optimizer = make(masters)

    def gradients(*_: Any) -> None:
        for half, master in zip(halves, masters, strict=True):
            master.grad = None if half.grad is None else half.grad.float()

    def written(*_: Any) -> None:
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)
                half.grad = None

    optimizer.register_step_pre_hook(gradients)
    optimizer.register_step_post_hook(written)
    return optimizer
