"""The quantisation of a question: the checkpoint's own or another, as the device can run it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from neuralpower.devices.hardware import Hardware
from neuralpower.errors import InputError
from neuralpower.layers.base import FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.quantisation.asked import parsed
from neuralpower.quantisation.schemes import Scheme
from neuralpower.trace.passes.quantisation import quantised
from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace


def scheme_asked(text: str | None) -> Scheme | None:
    """The scheme of that name, None for None; raises InputError."""
    return None if text is None else parsed(text)


def chosen(asked: Scheme | None, own: Scheme | None, phase: str = FORWARD) -> Scheme | None:
    """The requested scheme, or the checkpoint's own.

    Raises:
        InputError: there are both, or the phase trains.
    """
    if asked is not None and own is not None:
        raise InputError(
            f"--weights {asked.name}: the checkpoint's weights are quantized already ({own.name}); leave "
            "--weights out, or write MODEL?quantization_config=null"
        )
    scheme = asked or own
    if scheme is not None and phase != FORWARD:
        plain = (
            "--weights" if own is None else "the checkpoint's quantization (MODEL?quantization_config=null)"
        )
        raise InputError(
            f"weights {scheme.name}: training of quantised weights is not supported; choose phase forward, "
            f"prefill or decode, or leave {plain} out"
        )
    return scheme


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


def with_weights(question: Question, own: Scheme | None, predictor: Predictor) -> Question:
    """The question with the scheme that holds for it, as the device runs it; raises as `chosen`."""
    scheme = chosen(question.weights, own, question.phase)
    return replace(question, weights=as_run(scheme, predictor.hardware))
