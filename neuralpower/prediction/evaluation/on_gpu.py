"""Measure networks on an accelerator and compare with predictions.

A network that runs eagerly is compared with the time of eager calls, which holds the host's launches. One
that runs as a graph is compared with the device's time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neuralpower.devices.spec import known_spec
from neuralpower.errors import DeviceError, InputError, ModelError
from neuralpower.layers.base import Call
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.measure.calls import TrainingStep
from neuralpower.measure.rig import POISONED, Rig
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.evaluation.evaluate import Drawn, Evaluation, beside_baselines, built
from neuralpower.prediction.request import Request
from neuralpower.trace.question import EAGER


@dataclass(frozen=True)
class DeviceTime:
    """A rig's measurement of one network (s)."""

    runtime_s: float
    samples_s: tuple[float, ...] = field(default=())
    faults_per_call: float | None = None


def predictor_of(rig: Rig) -> Predictor:
    """The predictor for the rig's device, by its name; raises InputError where it has no spec sheet."""
    name = str(rig.hardware().get("name"))
    spec = known_spec(name)
    if spec is None:
        raise InputError(f"{name}: has no spec sheet; choose a predictor with --predictor")
    return for_device(spec)


def evaluate_on(
    rig: Rig,
    requests: Sequence[Request],
    predictor: Predictor,
    *,
    energy: bool = False,
    show: Callable[[str], None] = lambda text: None,
    refused: Callable[[Request, InputError], None] | None = None,
) -> list[Evaluation]:
    """Predict and measure each network in turn, `energy` too; `refused` gets each that fails.

    Raises:
        InputError: without `refused`, the errors that it would get.
        DeviceError: the device no longer works.
    """
    evaluations = []
    for request in requests:
        show(f"measuring {request.label}")
        eager = replace(request, run=request.run or EAGER)
        try:
            prediction, _ = predict_request(eager, predictor)
            call = _call(eager, rig)
            timing = _measured(rig, call, eager)
            drawn = Drawn.of_row(rig.power(call)) if energy else None
        except InputError as error:
            if refused is None:
                raise
            refused(request, error)
            continue
        evaluations.append(
            beside_baselines(request, prediction, timing, predictor, slowdown=1.0, drawn=drawn)
        )
    return evaluations


def _call(request: Request, rig: Rig) -> Call:
    """The network, or the step that trains it, on the rig's device; raises InputError."""
    call = built(request, str(rig.device))
    return Call(TrainingStep(call, request.recipe), (), warm=call.warm) if request.trains else call


def _measured(rig: Rig, call: Call, request: Request) -> DeviceTime:
    """Its time; raises ModelError where it cannot run there, DeviceError where the device no longer works."""
    row: Mapping[str, Any] = rig.time([call])[0]
    status = row.get("status", "ok")
    if status == POISONED or (status != "ok" and rig.is_lost()):
        raise DeviceError(f"{request.label}: {row.get('error_msg')}; the device no longer works; start again")
    if "runtime_s" not in row:
        why = "it needs more memory than is free" if status == "oom" else f"{row.get('error_msg')}"
        raise ModelError(f"{request.label}: cannot run on {rig.device} ({why:.300}); choose smaller sizes")
    if request.run == EAGER and row.get("runtime_eager_s") is not None:
        return DeviceTime(float(row["runtime_eager_s"]))
    return DeviceTime(float(row["runtime_s"]), tuple(row.get("samples_s") or ()))
