"""A request as tests write it: options of the table, and fields that a device adds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from neuralpower.ask.options import Fitting, options_of
from neuralpower.prediction.request import Request, request_of

ADDED = {field.name for field in fields(Request)} - {*options_of(Fitting)} | {"engine"}


def requested(
    model: Any,
    batch_size: int = 1,
    seq_len: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    dtype: str = "float32",
    **how: Any,
) -> Request:
    """The request that the options make; `platform`, `engine` and the like are fields."""
    added = {name: how.pop(name) for name in [*how] if name in ADDED}
    sizes = {"batch_size": batch_size, "seq_len": seq_len, "input_shape": input_shape}
    return request_of(model, {**sizes, **how}, dtype=dtype, **added)
