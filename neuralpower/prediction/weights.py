"""The quantisation of a question: the checkpoint's own or another, as the device can run it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from neuralpower.devices.hardware import Hardware
from neuralpower.dtypes import HALF_BITS
from neuralpower.errors import InputError, unknown
from neuralpower.late import nn
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.sources import resolve
from neuralpower.networks.sources.catalogue import known_type
from neuralpower.prediction.memory.engines import ENGINES
from neuralpower.quantisation.asked import parsed
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.weights import EXPERTS, HEAD, LINEAR
from neuralpower.trace.passes.quantisation import quantised
from neuralpower.trace.question import ENGINE, Question
from neuralpower.trace.records import Trace


def scheme_asked(text: str | None) -> Scheme | None:
    """The scheme of that name, None for None; raises InputError."""
    return None if text is None else parsed(text)


def chosen(
    asked: Scheme | None, own: Scheme | None, phase: str = FORWARD, module: nn.Module | None = None
) -> Scheme | None:
    """The requested scheme, or the checkpoint's own.

    Raises:
        InputError: there are both, or the phase trains the weights of the module (None: it does).
    """
    if asked is not None and own is not None:
        raise InputError(
            f"--weights {asked.name}: the checkpoint's weights are quantized already ({own.name}); leave "
            "--weights out, or write MODEL?quantization_config=null"
        )
    scheme = asked or own
    if scheme is not None and phase != FORWARD and not _frozen(module):
        plain = (
            "--weights" if own is None else "the checkpoint's quantization (MODEL?quantization_config=null)"
        )
        raise InputError(
            f"weights {scheme.name}: training of quantised weights is not supported; train adapters with "
            f"--lora 16, choose phase forward, prefill or decode, or leave {plain} out"
        )
    return scheme


def _frozen(module: nn.Module | None) -> bool:
    """Whether no weight that a scheme can cover is trained."""
    if module is None:
        return False
    from neuralpower.trace.weights import weights_of

    covered = {one.name for one in weights_of(module) if one.sort in (LINEAR, HEAD, EXPERTS)}
    return not any(one.requires_grad for name, one in module.named_parameters() if name in covered)


def as_run(scheme: Scheme | None, hardware: Hardware | None) -> Scheme | None:
    """The scheme as a device runs it."""
    return scheme and scheme.on({} if hardware is None else hardware.peak_flops_per_s)


@dataclass
class Weighing:
    """Quantises the weights of traced networks, by the requested scheme or the checkpoint's own."""

    asked: Scheme | None
    hardware: Hardware | None
    notes: dict[str, None] = field(default_factory=dict)  # as text: what was quantised, and how

    def __call__(self, traced: Trace, own: Scheme | None) -> Trace:
        """The trace as the device runs it, given the checkpoint's scheme; raises InputError as `chosen`."""
        scheme = as_run(chosen(self.asked, own), self.hardware)
        if scheme is None:
            return traced
        traced = quantised(traced, scheme)
        if traced.quantised is not None:
            self.notes[f"weights {traced.quantised.words}"] = None
        return traced


def with_weights(
    question: Question, own: Scheme | None, predictor: Predictor, module: nn.Module | None = None
) -> Question:
    """The question with the scheme that holds for it, as the device runs it; raises as `chosen`."""
    scheme = chosen(question.weights, own, question.phase, module)
    return replace(question, weights=as_run(scheme, predictor.hardware))


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
        config = getattr(resolve(model).build(), "config", None)  # which is the same in any dtype
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
