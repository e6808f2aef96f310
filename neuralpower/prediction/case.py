"""One case to predict: a network, its inputs and a phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from neuralpower.devices.cluster import USUAL_PER_NODE, Cluster
from neuralpower.devices.layout import ONE, Layout
from neuralpower.devices.spec import known_spec
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.inputs import InputRequest
from neuralpower.networks.phases import Phase
from neuralpower.networks.requests import Asked, asked_of
from neuralpower.networks.sharding import ENGINE, INFERENCE, TRAINING, Sharding
from neuralpower.networks.source import Source
from neuralpower.prediction.compose import check, composed, question_of
from neuralpower.prediction.generation import predict_generation, with_step
from neuralpower.prediction.memory.peak import Memory, forward_memory, training_memory
from neuralpower.prediction.parallel import lanes, one_micro_batch, predict_layout
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.timeline import Seen, Stage
from neuralpower.prediction.tree import module_shapes
from neuralpower.prediction.weights import scheme_asked, with_weights
from neuralpower.trace.follow import Followed, Grown, follow
from neuralpower.trace.question import ENGINE as RUN_ENGINE
from neuralpower.trace.question import Question, checked_run, usual_run
from neuralpower.trace.recipe import RECIPE, Recipe
from neuralpower.trace.records import Trace
from neuralpower.trace.routing import ROUTING, Routing


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
    run: str | None = None  # one of `trace.question.RUNS`; None: the usual one of the device
    weights: str | None = None  # a name that `--weights` takes; None: the checkpoint's own
    layout: Layout = ONE
    cluster: Cluster | None = None  # None: nodes of as many devices as is usual
    require_plan: bool = False  # whether a network without a plan for tensor ranks is refused

    def request(self, phase: str = FORWARD) -> InputRequest:
        """The sizes that its inputs are made from; a training step has labels besides."""
        dtype, labels = torch_dtype(self.dtype), phase == TRAINING
        return InputRequest(self.batch_size, self.seq_len, self.input_shape, dtype, labels)

    @property
    def label(self) -> str:
        """Name, batch size and length."""
        length = f" s{self.seq_len}" if self.seq_len else ""
        phase = "" if self.phase == Phase() else f" {self.phase.label}"
        layout = "" if self.layout.alone else f" {self.layout.short}"
        return f"{self.model} b{self.batch_size}{length}{phase}{layout}"


def run_of(predictor: Predictor, run: str | None, phase: Phase, way: str = FORWARD) -> str:
    """How a phase runs on the predictor's device; `way` is forward, backward or training.

    Raises InputError for an unknown way to run, and for one that does not fit the phase.
    """
    name = phase.name if way == FORWARD else way
    return usual_run(predictor.platform, name) if run is None else checked_run(run, name)


def sharding_of(
    layout: Layout, cluster: Cluster | None, run: str, phase: str = FORWARD, **settings: Any
) -> Sharding:
    """How a network is sharded for a way to run; `phase` is forward, backward or training.

    `settings` are further fields of `Sharding`. Raises InputError where the cluster is too small.
    """
    if cluster is not None:
        cluster.check(layout)
    per_node = min(layout.ranks, USUAL_PER_NODE) if cluster is None else cluster.per_node
    use = ENGINE if run == RUN_ENGINE else INFERENCE if phase == FORWARD else TRAINING
    return Sharding(layout, per_node, use, **settings)


def predict_case(
    case: Case,
    predictor: Predictor,
    source: Source | None = None,
    phase: str = FORWARD,
    recipe: Recipe = RECIPE,
    autocast: torch.dtype | None = None,
    seen: Seen | None = None,
) -> tuple[Prediction, Trace]:
    """Trace a network on the meta device and predict it; backward passes and steps are of training mode.

    `seen` receives each pass or step of the prediction, in order. Raises as `predict`.
    """
    run = run_of(predictor, case.run, case.phase, phase)
    how: dict[str, Any] = {"autocast": autocast, "routing": case.routing, "run": run}
    how |= {"weights": scheme_asked(case.weights), "layout": case.layout, "cluster": case.cluster}
    question = question_of(predictor, phase=phase, dtype=case.dtype, recipe=recipe, **how)
    sharding = sharding_of(case.layout, case.cluster, run, phase, require_plan=case.require_plan)
    asked = asked_of(source or case.model, case.request(phase), case.phase, sharding=sharding)
    return predict(asked, predictor, question, model=case.model, seen=seen)


def predict(
    asked: Asked, predictor: Predictor, question: Question, *, model: str, seen: Seen | None = None
) -> tuple[Prediction, Trace]:
    """The prediction of one pass on the meta device or a generation, and its trace, else its prefill's.

    `seen` receives each pass or step of the prediction, in order.

    Raises:
        PredictorError: the predictor was not trained on the dtype or phase.
        InputError, ModelError: as `follow`.
    """
    check(predictor, question)
    question = with_weights(question, asked.weights, predictor, getattr(asked, "module", None))
    found = follow(asked, question if question.layout.alone else one_micro_batch(question))
    if isinstance(found, Grown):
        prediction = predict_generation(found, predictor, question, model=model, seen=seen)
        modules = module_shapes(found.asked.prefill.module, found.work)
        return _with_room(replace(prediction, modules=modules), predictor), found.prefill
    return _predict_pass(found, predictor, question, model=model, seen=seen), found.trace


def _predict_pass(
    found: Followed, predictor: Predictor, question: Question, *, model: str, seen: Seen | None
) -> Prediction:
    """One pass or step with its memory; a pass that needs values has no memory, but a note instead."""
    one = found.asked
    if question.layout.alone:
        prediction = _on_one_device(found, predictor, question, model=model)
    else:
        prediction = predict_layout(found, predictor, question, model=model)
    prediction = replace(prediction, modules=module_shapes(one.module, found.work))
    if seen is not None:
        name = one.name if question.phase == FORWARD else question.phase
        drawn = () if question.layout.alone else lanes(found, predictor, question)
        seen(Stage(name, found.work, prediction, found.lifetimes, drawn))
    prediction = _with_room(prediction, predictor)
    return prediction if one.name == FORWARD else with_step(prediction, one)


def _on_one_device(found: Followed, predictor: Predictor, question: Question, *, model: str) -> Prediction:
    """The same without what is said of devices and rates."""
    memory: Memory | None = None
    batch_size = found.asked.batch_size
    prediction = composed(found.work, predictor, question, model=model, batch_size=batch_size)
    if question.phase == FORWARD:
        memory = forward_memory(found.work, platform=predictor.platform, run=question.run)
    elif found.lifetimes is not None:
        memory = training_memory(found.lifetimes, platform=predictor.platform)
    return replace(prediction, memory=memory, assumptions=(*prediction.assumptions, *found.notes))


def device_memory(predictor: Predictor) -> float | None:
    """Bytes of the predictor's device by its spec sheet; None where there is none."""
    spec = predictor.sheet or known_spec(predictor.device)
    return None if spec is None else spec.get("memory_bytes")


def _with_room(prediction: Prediction, predictor: Predictor) -> Prediction:
    """The prediction, with a note on assumed memory and a warning where the device has too little."""
    memory = prediction.memory
    if memory is None:
        return prediction
    said = (predictor.platform.memory_note(memory.phase),) if memory.assumed else ()
    warned = (*prediction.warned, *_too_little(memory, predictor))
    return replace(prediction, assumptions=(*prediction.assumptions, *said), warned=warned)


def _too_little(memory: Memory, predictor: Predictor) -> Iterator[str]:
    """A warning where the device may have too little memory, with the margin that `fit` keeps free."""
    room = device_memory(predictor)
    if room is None:
        return
    margin = predictor.platform.margin(memory.phase)
    needed = memory.high_bytes + predictor.platform.framework.process_bytes
    if memory.low_bytes > room:
        said, takes = "out of memory", f"at least {_gib(memory.low_bytes)}"
    elif needed > room * (1 - margin):
        said, takes = "may run out of memory", f"up to {_gib(needed)}"
        if margin:
            takes += f", with {margin:.0%} to keep free"
    else:
        return
    yield f"{said}: needs {takes}; the device has {_gib(room)}. Fix: neuralpower fit finds what fits"


def _gib(size: float) -> str:
    """Binary, as drivers and data sheets count memory."""
    return f"{size / 2**30:.3g} GiB" if size < 999.5 * 2**30 else f"{size / 2**30:.0f} GiB"
