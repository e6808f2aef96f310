"""How a network is profiled: the keywords of `neuralpower.profile`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch

from neuralpower.errors import InputError, is_count, unknown
from neuralpower.profiling.conventions import ALL_OPS, Rules, check_convention
from neuralpower.profiling.steps import PHASES
from neuralpower.trace.recipe import Loss


class Keywords(TypedDict, total=False):
    """The keywords that a caller may give."""

    device: str | torch.device | None
    phase: str
    loss: Loss | None
    optimizer: torch.optim.Optimizer | None
    warmup: int
    repeat: int
    time_limit_s: float | None
    runtime: bool
    memory: bool
    power: str
    flop_unit: str
    convention: str
    custom: Rules | None
    seed: int
    name: str | None


@dataclass(frozen=True)
class Settings:
    """The same with its defaults."""

    device: str | torch.device | None = None
    phase: str = "forward"
    loss: Loss | None = None
    optimizer: torch.optim.Optimizer | None = None
    warmup: int = 5
    repeat: int = 20
    time_limit_s: float | None = None
    runtime: bool = True
    memory: bool = True
    power: str = "auto"
    flop_unit: str = "flop"
    convention: str = ALL_OPS
    custom: Rules | None = None
    seed: int = 0
    name: str | None = None

    @property
    def training(self) -> bool:
        """Whether a whole training step runs."""
        return self.phase == "training"

    def check(self) -> None:
        """Raise InputError for an unknown or impossible value."""
        check_convention(self.convention, self.flop_unit, self.phase)
        if self.phase not in PHASES:
            raise unknown("phase", self.phase, PHASES)
        if not ((self.warmup == 0 or is_count(self.warmup)) and is_count(self.repeat)):
            text = "warmup must be 0 or more, repeat 1 or more, both whole numbers"
            raise InputError(f"warmup {self.warmup!r}, repeat {self.repeat!r}: {text}")
