"""The precision of another library's training loop: the casts of its products, and the type of its weights.

Lightning: `Trainer(precision="bf16-mixed")` (its documentation, "N-Bit Precision"). Accelerate:
`Accelerator(mixed_precision="bf16")`, or what `accelerate launch` passes in an environment variable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from neuralpower.errors import unknown

LAUNCHED = "ACCELERATE_MIXED_PRECISION"  # which `accelerate launch` sets
# name -> settings of `training_lifetimes`; "16" and "bf16" are older names of mixed precision
PRECISIONS: Mapping[str, Mapping[str, torch.dtype]] = {
    **dict.fromkeys(("no", "32", "32-true"), {}),
    **dict.fromkeys(("16", "fp16", "16-mixed"), {"autocast": torch.float16}),
    **dict.fromkeys(("bf16", "bf16-mixed"), {"autocast": torch.bfloat16}),
    "16-true": {"dtype": torch.float16},
    "bf16-true": {"dtype": torch.bfloat16},
    **dict.fromkeys(("64", "64-true"), {"dtype": torch.float64}),
}


def settings_of(precision: str | int | None) -> dict[str, torch.dtype]:
    """The settings of a step in that precision; None changes nothing. Raises InputError for others."""
    if precision is None:
        return {}
    if str(precision) not in PRECISIONS:
        raise unknown("precision", str(precision), PRECISIONS)
    return dict(PRECISIONS[str(precision)])


def with_precision(settings: Mapping[str, Any], found: str | int | None) -> dict[str, Any]:
    """The user's settings, with a library's precision where they name none."""
    named = found is None or "precision" in settings or "autocast" in settings
    return dict(settings) if named else {"precision": found, **settings}


def of_accelerate() -> str | None:
    """The mixed precision of Accelerate, where a loop uses it."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    if state is not None and getattr(state, "_shared_state", None):
        return str(state().mixed_precision)
    return os.environ.get(LAUNCHED)
