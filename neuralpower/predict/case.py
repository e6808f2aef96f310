"""One question to a predictor: a network, its inputs and a phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from neuralpower.devices.spec import known_spec
from neuralpower.errors import ModelError, StepError
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import GENERATE, Decoder, Pass, Phase, passes
from neuralpower.networks.source import Source
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.networks.users_code import users_code
from neuralpower.predict.compose import compose
from neuralpower.predict.generation import predict_generation, with_step
from neuralpower.predict.memory.peak import Memory, forward_memory, training_memory
from neuralpower.predict.prediction import Prediction
from neuralpower.predict.timeline import Seen, Stage
from neuralpower.trace.records import Trace
from neuralpower.trace.routing import ROUTING, Routing
from neuralpower.trace.tracer import trace
from neuralpower.trace.training import RECIPE, TRAINING, Recipe, default_loss
from neuralpower.trace.training_step import settings_of, training_lifetimes


@dataclass(frozen=True)
class Case:
    """One network with its inputs."""

    model: str
    batch_size: int = 1
    seq_len: int | None = None
    input_shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    phase: Phase = field(default_factory=Phase)
    routing: Routing = ROUTING

    def request(self) -> InputRequest:
        """What its inputs are made from."""
        return InputRequest(self.batch_size, self.seq_len, self.input_shape, torch_dtype(self.dtype))

    @property
    def label(self) -> str:
        """Name, batch size and length."""
        length = f" s{self.seq_len}" if self.seq_len else ""
        return f"{self.model} b{self.batch_size}{length}" + ("" if self.phase == Phase() else f" {self.phase.label}")


def predict_case(
    case: Case,
    predictor: Predictor,
    source: Source | None = None,
    phase: str = FORWARD,
    recipe: Recipe = RECIPE,
    autocast: torch.dtype | None = None,
    seen: Seen | None = None,
) -> tuple[Prediction, Trace]:
    """Trace a network on the meta device and predict it; backward passes and training steps are those of training mode.

    `seen` is told of every pass or step that the prediction is made of, in order.
    """
    source = source or resolve(case.model)
    module = source.build("meta", torch_dtype(case.dtype))
    about: dict[str, Any] = {
        "model": case.model,
        "batch_size": case.phase.batch or case.batch_size,
        "dtype": case.dtype,
        "phase": phase,
    }
    if case.phase.name == GENERATE:
        case.phase.check()
        with users_code(f"{case.model} cannot be read"):
            decoder = Decoder(module, case.phase.applied(case.request()), GENERATE)
        traced = partial(_traced, autocast=autocast, routing=case.routing)
        prediction, found = predict_generation(decoder, case.phase, predictor, traced, about, seen)
        return _with_room(prediction, predictor), found
    with users_code(f"the inputs of {case.model} cannot be made"):
        (one,) = passes(source, case.request(), case.phase, module)
    prediction, found = predict_pass(
        one, predictor, recipe=recipe, autocast=autocast, routing=case.routing, seen=seen, **about
    )
    return (prediction if one.name == FORWARD else with_step(prediction, one)), found


def device_memory(predictor: Predictor) -> float | None:
    """Bytes of the predictor's device by its spec sheet; None where there is none."""
    spec = known_spec(predictor.device)
    return None if spec is None else spec.get("memory_bytes")


def _with_room(prediction: Prediction, predictor: Predictor) -> Prediction:
    """The prediction, with words where its memory is assumed, and where it needs more than the device has."""
    memory = prediction.memory
    if memory is None:
        return prediction
    said = (predictor.platform.memory_note,) if memory.assumed else ()
    return replace(prediction, assumptions=(*prediction.assumptions, *said, *_too_little(memory, predictor)))


def _too_little(memory: Memory, predictor: Predictor) -> Iterator[str]:
    """In words, that the device may have too little memory, with the margin that `fit` keeps free."""
    room = device_memory(predictor)
    if room is None:
        return
    margin = predictor.platform.margin(memory.phase)
    needed = memory.high_bytes + predictor.platform.framework.process_bytes
    if memory.low_bytes > room:
        takes = f"does not fit into the device's {room / 1e9:.3g} GB: it takes {memory.low_bytes / 1e9:.3g} GB at least"
    elif needed <= room * (1 - margin):
        return
    elif memory.assumed:
        takes = f"may not fit into the device's {room / 1e9:.3g} GB: it takes {needed / 1e9:.3g} GB and what is not modelled"
    else:
        takes = f"may not fit into the device's {room / 1e9:.3g} GB: it takes {needed / 1e9:.3g} GB at most"
    yield f"it {takes}; fit says what would"


def predict_pass(
    one: Pass,
    predictor: Predictor,
    *,
    model: str,
    batch_size: int,
    dtype: str,
    phase: str = FORWARD,
    recipe: Recipe = RECIPE,
    autocast: torch.dtype | None = None,
    routing: Routing = ROUTING,
    seen: Seen | None = None,
) -> tuple[Prediction, Trace]:
    """Predict one call of a module on the meta device, with its memory, forward, backward or as a step of training.

    A step that asks for values has no memory, and a note that says so.
    """
    try:
        found = _traced(one, phase, autocast, routing)
    except ModelError as error:
        raise (ModelError(f"{error}; {one.inputs.note}") if one.inputs.note else error) from error.__cause__
    about = {"model": model, "dtype": dtype, "phase": phase}
    prediction = compose(found, predictor, batch_size=batch_size, recipe=recipe, **about)
    if one.inputs.note:
        prediction = replace(prediction, assumptions=(*prediction.assumptions, one.inputs.note))
    if found.idle and one.name == FORWARD:  # other passes of a generation leave the encoder out, as they should
        prediction = replace(prediction, assumptions=(*prediction.assumptions, found.idle))
    platform = predictor.platform
    if phase == FORWARD:
        if seen is not None:
            seen(Stage(one.name, found, prediction))
        return _with_room(replace(prediction, memory=forward_memory(found, platform=platform)), predictor), found
    settings = settings_of(recipe) if phase == TRAINING else {"optimizer": None}
    inputs = one.inputs
    lifetimes = None
    try:
        lifetimes = training_lifetimes(one.module, inputs.args, inputs.kwargs, platform=platform, **settings)
        prediction = replace(prediction, memory=training_memory(lifetimes, platform=platform))
    except StepError as error:
        prediction = replace(prediction, assumptions=(*prediction.assumptions, f"its memory is not known: {error}"))
    if seen is not None:
        seen(Stage(phase, found, prediction, lifetimes))
    return _with_room(prediction, predictor), found


def _traced(one: Pass, phase: str = FORWARD, autocast: torch.dtype | None = None, routing: Routing = ROUTING) -> Trace:
    return trace(
        one.module,
        one.inputs.args,
        one.inputs.kwargs,
        training=phase != FORWARD,
        loss=default_loss if phase == TRAINING else None,
        autocast=autocast,
        routing=routing,
    )
