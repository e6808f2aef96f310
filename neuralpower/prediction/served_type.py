"""The type in which an engine serves a model that nobody names a type for: its rule for checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuralpower.devices.hardware import Hardware
from neuralpower.dtypes import HALF_BITS
from neuralpower.errors import InputError, unknown
from neuralpower.layers.base import torch_dtype
from neuralpower.networks.sources import resolve
from neuralpower.networks.sources.catalogue import known_type
from neuralpower.prediction.memory.engines import ENGINES
from neuralpower.trace.question import ENGINE

VLLM, LLAMA_CPP = "vllm", "llama.cpp"
FULL, WIDE, HALF = "float32", f"bfloat{HALF_BITS}", f"float{HALF_BITS}"
# ---- The rule: the type in which an engine serves a checkpoint by default ("dtype auto") ----
#    vllm       float32 becomes the first type of the device that the model allows: bfloat16 from compute
#               capability 8.0 on, else float16 (vllm/config/model.py, `_resolve_auto_dtype`; supported_dtypes
#               of vllm/platforms/cuda.py)
#    sglang     float32 becomes float16, of Gemma bfloat16 (sglang/srt/configs/model_config.py,
#               `_get_and_verify_dtype`)
#    llama.cpp  float32 becomes bfloat16 when it is converted (convert_hf_to_gguf.py, --outtype auto)
#
# A device without bfloat16 serves such checkpoints in float16.


NEVER_HALF = ("gemma2", "gemma3", "gemma3_text", "glm4")  # numbers of these leave the range of float16
GEMMA = "gemma"


def served_note(engine: str, served: str, published: str) -> str:
    """What an answer says of a type that the engine has chosen."""
    return f"{engine} serves it in {served} (dtype auto), not in {published}; --dtype {published} keeps that"


def served_dtype(engine: str, published: str, model_type: str, has_bfloat16: bool) -> str:
    """The type in which the engine serves weights of the `published` type on a device."""
    if engine == LLAMA_CPP:
        return WIDE if published == FULL else published
    if published == WIDE and has_bfloat16 or published not in (FULL, WIDE):
        return published
    if not has_bfloat16:
        return FULL if engine == VLLM and model_type in NEVER_HALF else HALF
    return WIDE if engine == VLLM or model_type.startswith(GEMMA) else HALF


# ---- The type of a model ----


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
