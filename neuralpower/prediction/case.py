"""A request to predict: its passes are followed, priced, and their memory is compared with the device's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neuralpower.devices.names import gib
from neuralpower.devices.spec import known_spec
from neuralpower.errors import NeuralPowerError
from neuralpower.layers import KINDS
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import GENERATE, STEP
from neuralpower.platforms import CPU
from neuralpower.prediction.beside import with_beside
from neuralpower.prediction.compose import check, composed
from neuralpower.prediction.costs.images import with_images, with_transfers
from neuralpower.prediction.generation import predict_generation, with_step
from neuralpower.prediction.memory.peak import Memory, forward_memory, training_memory
from neuralpower.prediction.parallel import lanes, one_micro_batch, predict_layout
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.request import Request
from neuralpower.prediction.timeline import Seen, Stage
from neuralpower.prediction.tree import module_shapes
from neuralpower.prediction.weights import with_weights
from neuralpower.trace.followed import Followed, Grown, Outline, Recorded, worked
from neuralpower.trace.question import Question
from neuralpower.trace.records import Trace

if TYPE_CHECKING:
    from neuralpower.networks.inputs.requests import Asked
    from neuralpower.networks.source import Source


def predict_request(
    request: Request, predictor: Predictor, source: Source | None = None, seen: Seen | None = None
) -> tuple[Prediction, Trace]:
    """Trace a network on the meta device and predict it; backward passes and steps are of training mode.

    `seen` receives each pass or step of the prediction, in order. Raises as `predict`.
    """
    source, run = source or request.source(), request.run_on(predictor.platform)
    request.check_masters()
    question = request.question(predictor.platform, knows=predictor.knows, run=run)
    asked = request.asked(source, run)
    return predict(asked, predictor, question, model=request.called, margin=request.margin, seen=seen)


class Recordings:
    """Predictions of one request for several devices: what runs alike on them is followed once."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.traces = 0
        self._known: dict[object, Any] = {}  # or the error, which then holds for the next device, too

    def predict(self, predictor: Predictor) -> Prediction:
        """That for a device; raises as `predict_request`."""
        request, platform = self.request, predictor.platform
        request.check_masters()
        question = request.question(platform, knows=predictor.knows)
        check(predictor, question)
        asked = self._once(question.run, lambda: request.asked(request.source(), question.run))
        question = served(asked, predictor, question)
        backward = (
            () if request.way == FORWARD else (kind for kind in KINDS if question.knows(kind, BACKWARD))
        )
        key = (platform.name, question.run, str(question.weights), *backward)
        found = self._once(key, lambda: self._followed(asked, question))
        return answered(found, predictor, question, model=request.called, margin=request.margin)[0]

    def _followed(self, asked: Asked, question: Question) -> Followed | Grown:
        """What is followed, from what was recorded for other devices where that serves this one."""
        part = devices_part(self.request, question)
        if part is not None:
            return worked(self._once(str(part), lambda: self._recorded(asked, question)), question)
        self.traces += 1
        found = followed(asked, question)
        # the steps of a generation are made one by one: each device looks at all of them
        return replace(found, steps=tuple(found.steps)) if isinstance(found, Grown) else found

    def _recorded(self, asked: Any, question: Question) -> Recorded:
        from neuralpower.trace.follow import record

        self.traces += 1
        return record(asked, question)

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        """What is known by a key, or is made now; raises what making it has raised."""
        if key not in self._known:
            try:
                self._known[key] = make()
            except NeuralPowerError as error:
                self._known[key] = error
        if isinstance(known := self._known[key], NeuralPowerError):
            raise known
        return known


def devices_part(request: Request, question: Question) -> list[Any] | None:
    """What of a device a recorded pass depends on: its family, in a step its platform and how it runs.

    None where a pass is not recorded alone: several traces, several devices, a step of quantised weights.
    """
    phase = request.phase
    several = phase.name in (GENERATE, STEP) or phase.lengths is not None or not request.layout.alone
    if several or request.plan is not None or request.engine is not None:
        return None
    family = [question.platform.family == CPU.family]
    if question.phase == FORWARD:
        return family
    if question.weights is not None:
        return None
    return [*family, question.platform.name, question.run, repr(question.recipe)]


def predict(
    asked: Asked,
    predictor: Predictor,
    question: Question,
    *,
    model: str,
    margin: float | None = None,
    seen: Seen | None = None,
) -> tuple[Prediction, Trace]:
    """The prediction of one pass on the meta device or a generation, and its trace, else its prefill's.

    `seen` receives each pass or step of the prediction, in order; `margin` as in a request.

    Raises:
        PredictorError: the predictor was not trained on the dtype or phase.
        InputError, ModelError: as `follow`.
    """
    question = served(asked, predictor, question)
    return answered(followed(asked, question), predictor, question, model=model, margin=margin, seen=seen)


def served(asked: Asked, predictor: Predictor, question: Question) -> Question:
    """The question with weights as the device runs them; raises PredictorError and InputError."""
    check(predictor, question)
    return with_weights(question, asked.weights, predictor, getattr(asked, "module", None))


def followed(asked: Asked, question: Question) -> Followed | Grown:
    """What is followed for a question, on one device or several; raises as `follow`."""
    from neuralpower.trace.follow import follow

    return follow(asked, question if question.layout.alone else one_micro_batch(question))


def answered(
    found: Followed | Grown,
    predictor: Predictor,
    question: Question,
    *,
    model: str,
    margin: float | None = None,
    seen: Seen | None = None,
) -> tuple[Prediction, Trace]:
    """The prediction of what was followed, with its memory next to the device's; `seen` as in `predict`."""
    if isinstance(found, Grown):
        prediction = predict_generation(found, predictor, question, model=model, seen=seen)
        modules = module_shapes(Outline.of(found.asked.prefill.module), found.work)
        prediction, trace = replace(prediction, modules=modules), found.prefill
    else:
        prediction, trace = _predict_pass(found, predictor, question, model=model, seen=seen), found.trace
    return _with_room(prediction, predictor, margin), trace


def priced(
    recorded: Recorded,
    predictor: Predictor,
    question: Question,
    *,
    model: str,
    margin: float | None = None,
    seen: Seen | None = None,
) -> Prediction:
    """The prediction of a pass that was recorded before, on one device; raises as `predict`."""
    question = served(recorded.asked, predictor, question)
    return answered(worked(recorded, question), predictor, question, model=model, margin=margin, seen=seen)[0]


def _predict_pass(
    found: Followed, predictor: Predictor, question: Question, *, model: str, seen: Seen | None
) -> Prediction:
    """One pass or step with its memory; a pass that needs values has no memory, but a note instead."""
    one = found.asked
    if question.layout.alone:
        prediction = _on_one_device(found, predictor, question, model=model)
    else:
        prediction = predict_layout(found, predictor, question, model=model)
    if found.work.picture is not None and question.phase == FORWARD:
        prediction = with_transfers(prediction, found.work, predictor.hardware)
        prediction = with_images(prediction, found.work.picture)
    if one.step is not None:
        prediction = with_beside(prediction, found.work, predictor, one.step)
    outline = found.outline or Outline.of(one.module)
    prediction = replace(prediction, modules=module_shapes(outline, found.work))
    if seen is not None:
        name = one.name if question.phase == FORWARD else question.phase
        drawn = () if question.layout.alone else lanes(found, predictor, question)
        seen(Stage(name, found.work, prediction, found.lifetimes, drawn))
    return prediction if one.name == FORWARD else with_step(prediction, one)


def _on_one_device(found: Followed, predictor: Predictor, question: Question, *, model: str) -> Prediction:
    """The same without what is said of devices and rates."""
    memory: Memory | None = None
    batch_size = found.asked.batch_size
    how: dict[str, Any] = {"model": model, "batch_size": batch_size, "lifetimes": found.lifetimes}
    prediction = composed(found.work, predictor, question, **how)
    if question.phase == FORWARD:
        memory = forward_memory(found.work, platform=predictor.platform, run=question.run)
    elif found.lifetimes is not None:
        memory = training_memory(found.lifetimes, platform=predictor.platform)
    return replace(prediction, memory=memory, assumptions=(*prediction.assumptions, *found.notes))


def device_memory(predictor: Predictor) -> float | None:
    """Bytes of the predictor's device by its spec sheet; None where there is none."""
    spec = predictor.sheet or known_spec(predictor.device)
    return None if spec is None else spec.get("memory_bytes")


def _with_room(prediction: Prediction, predictor: Predictor, margin: float | None) -> Prediction:
    """The prediction, with a note on assumed memory and a warning where the device has too little."""
    memory = prediction.memory
    if memory is None:
        return prediction
    said = (predictor.platform.memory_note(memory.phase),) if memory.assumed else ()
    warned = (*prediction.warned, *_too_little(memory, predictor, margin))
    room = device_memory(predictor)
    assumptions = (*prediction.assumptions, *said)
    return replace(prediction, assumptions=assumptions, warned=warned, device_memory_bytes=room)


def _too_little(memory: Memory, predictor: Predictor, margin: float | None) -> Iterator[str]:
    """A warning where the device may have too little memory, with the margin that `fit` keeps free."""
    room, platform = device_memory(predictor), predictor.platform
    if room is None:
        return
    margin = platform.margin(memory.phase) if margin is None else margin
    if memory.low_bytes > room:
        said, takes = "out of memory", f"at least {gib(memory.low_bytes)}"
    elif memory.high_bytes > platform.left_bytes(room, memory.phase, margin):
        needed = memory.high_bytes + platform.framework.process_bytes
        said, takes = "may run out of memory", f"up to {gib(needed)}"
        if margin:
            takes += f", with {margin:.0%} to keep free"
    else:
        return
    yield f"{said}: needs {takes} of {gib(room)}; `neuralpower fit` finds what fits"
