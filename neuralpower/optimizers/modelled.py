"""Optimizers that torch lacks: the memory that their steps take and keep, without their arithmetic.

Sources: bitsandbytes 0.45 (`optim/optimizer.py`: `init_state`, `get_state_buffer`), Chen et al., "Symbolic
Discovery of Optimization Algorithms" (2023, Lion), Dettmers et al., "8-bit Optimizers via Block-wise
Quantization" (2021) and "QLoRA" (2023, paged states).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from neuralpower.optimizers import BLOCK

SHORTEST = 4096  # numbers of a tensor whose states have 8 bits; shorter ones stay float32
SHORTEST_PAGED = 100_000  # numbers of a tensor whose states are paged


class Stepped(torch.optim.Optimizer):
    """An optimizer whose step makes the states of each parameter, and temporaries where it has any.

    Args:
        params: the parameters.
        lr: the learning rate, without effect here.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make the states of each parameter with a gradient; run its update."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    own = self.state[parameter]
                    if not own:
                        own |= self.states_of(parameter)
                    self.update(parameter, own)

    def states_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """The states that a parameter has from its first step on."""
        raise NotImplementedError

    def update(self, parameter: Tensor, own: dict[str, Tensor]) -> None:
        """Change a parameter in place; a fused kernel makes no temporaries."""


class Lion(Stepped):
    """One momentum; the update is the sign of a mean of momentum and gradient."""

    def states_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """The momentum, in the parameter's type."""
        return {"exp_avg": torch.zeros_like(parameter)}

    def update(self, parameter: Tensor, own: dict[str, Tensor]) -> None:
        """Two temporaries of the parameter's size."""
        change = own["exp_avg"].mul(0.9).add_(parameter.grad.mul(0.1)).sign_()  # type: ignore[union-attr]
        parameter.add_(change)


class Blockwise(Stepped):
    """An optimizer of bitsandbytes: `count` states, of 8 bits with a float32 scale per block, or of float32.

    Paged states lie in memory that CUDA shares with the host and moves there when the device is full. What a
    device must hold is then one parameter's states during its update.
    """

    count, eight_bits, paged = 2, True, False

    def states_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """Nothing where they are paged, else the states."""
        if self.paged and parameter.numel() >= SHORTEST_PAGED:
            return {}
        return self._made(parameter)

    def update(self, parameter: Tensor, own: dict[str, Tensor]) -> None:
        """Bring paged states to the device for one kernel."""
        if not own:
            self._made(parameter)

    def _made(self, parameter: Tensor) -> dict[str, Tensor]:
        numbers, device = parameter.numel(), parameter.device
        states = {}
        for number in range(1, self.count + 1):
            if self.eight_bits and numbers >= SHORTEST:
                states[f"state{number}"] = torch.zeros(numbers, dtype=torch.uint8, device=device)
                states[f"absmax{number}"] = torch.zeros(math.ceil(numbers / BLOCK), device=device)
            else:
                states[f"state{number}"] = torch.zeros(numbers, device=device)
        return states


class Adam8bit(Blockwise):
    """Both moments in 8 bits."""


class PagedAdam8bit(Blockwise):
    """Both moments in 8 bits, paged."""

    paged = True


class PagedAdam(Blockwise):
    """Both moments in float32, paged."""

    eight_bits, paged = False, True


class Lion8bit(Blockwise):
    """One momentum in 8 bits."""

    count = 1


class PagedLion8bit(Blockwise):
    """One momentum in 8 bits, paged."""

    count, paged = 1, True


class AnyStates(Stepped):
    """An optimizer of which the number of states is all that is known.

    Args:
        params: the parameters.
        states: numbers per parameter; a fraction where states are factored or packed.
        dtype: of the states; None: that of the parameter.
        lr: without effect.
    """

    def __init__(
        self, params: Iterable[Any], states: float, dtype: torch.dtype | None = None, lr: float = 1e-3
    ) -> None:
        super().__init__(params, lr)
        self.numbers, self.dtype = states, dtype

    def states_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """A tensor for each whole state, and one for a fraction."""
        whole = math.floor(self.numbers)
        shares = [1.0] * whole + ([self.numbers - whole] if self.numbers > whole else [])
        kind = self.dtype or parameter.dtype
        return {
            f"state{place}": torch.zeros(math.ceil(share * parameter.numel()), dtype=kind)
            for place, share in enumerate(shares)
        }
