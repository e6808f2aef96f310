"""The quantisation of a question: the checkpoint's own or another, as the device can run it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from neuralpower.devices.hardware import Hardware
from neuralpower.errors import InputError
from neuralpower.late import nn
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.quantisation.asked import parsed
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.weights import EXPERTS, HEAD, LINEAR
from neuralpower.trace.passes.quantisation import quantised
from neuralpower.trace.question import Question
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
