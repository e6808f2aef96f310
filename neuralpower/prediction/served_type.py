"""The type in which an engine serves a model that nobody names a type for: its rule for checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuralpower.errors import InputError, unknown
from neuralpower.layers.base import torch_dtype
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.predictor_lookup import nearest_dtype
from neuralpower.networks.sources import resolve
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
    model: Any, published: str, run: str, predictor: Predictor, engine: str | None = None
) -> tuple[str, tuple[str, ...]]:
    """(Type, notes): of a checkpoint in an engine, by default vllm; elsewhere, and of modules, the published.

    Only checkpoints of transformers have a rule. A type that the predictor does not know is not chosen.
    """
    if run != ENGINE or published not in (FULL, WIDE) or not isinstance(model, (str, Path)):
        return published, ()
    config = getattr(resolve(model).build(dtype=torch_dtype(published)), "config", None)
    sort = getattr(config, "model_type", None)
    if sort is None:
        return published, ()
    name = engine or VLLM
    hardware = predictor.hardware
    wide = hardware is None or WIDE in hardware.peak_flops_per_s
    served = served_dtype(name, published, str(sort), wide)
    if served == published or nearest_dtype(predictor, served) != served:
        return published, ()
    return served, (served_note(name, served, published),)


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
