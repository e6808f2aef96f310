"""The precisions that parameterised networks run in."""

from __future__ import annotations

import torch

from neuralpower.dtypes import NETWORK_DTYPES
from neuralpower.errors import InputError
from neuralpower.layers.base import torch_dtype


def check_dtype(dtype: str) -> torch.dtype:
    """The dtype of a product; raises InputError."""
    if dtype not in NETWORK_DTYPES:
        raise InputError(f"dtype {dtype!r}: products are of float16, bfloat16, float32 or float64")
    return torch_dtype(dtype)
