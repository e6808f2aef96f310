"""The type in which an engine serves a model that nobody names a type for: its rule for checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuralpower.devices.hardware import Hardware
from neuralpower.errors import InputError, unknown
from neuralpower.layers.base import torch_dtype
from neuralpower.networks.sources import resolve
from neuralpower.networks.sources.catalogue import known_type
from neuralpower.prediction.memory.engines import ENGINES
from neuralpower.prediction.memory.engines.served_dtype import (
    FULL,
    VLLM,
    WIDE,
    served_dtype,
    served_note,
)
from neuralpower.trace.question import ENGINE


def served_type(
    model: Any, published: str, run: str, hardware: Hardware | None = None, engine: str | None = None
) -> tuple[str, tuple[str, ...]]:
    """(Type, notes): of a checkpoint in an engine, by default vllm; elsewhere, and of modules, the published.

    Only checkpoints of transformers have a rule. `hardware`: the device's; one without known peaks has
    bfloat16.
    """
    if run != ENGINE or published not in (FULL, WIDE) or not isinstance(model, (str, Path)):
        return published, ()
    sort = known_type(model)
    if sort is None:
        config = getattr(resolve(model).build(dtype=torch_dtype(published)), "config", None)
        sort = getattr(config, "model_type", None)
    if sort is None:
        return published, ()
    name = engine or VLLM
    peaks = {} if hardware is None else hardware.peak_flops_per_s
    wide = not peaks or WIDE in peaks
    served = served_dtype(name, published, str(sort), wide)
    return served, () if served == published else (served_note(name, served, published),)


def check_served_by(engine: str | None, run: str) -> None:
    """Raise InputError for an unknown engine, and for one where no engine runs."""
    if engine is None:
        return
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if run != ENGINE:
        raise InputError(
            f"engine {engine}: run {run} is without an engine; choose run {ENGINE}, or leave it out"
        )
