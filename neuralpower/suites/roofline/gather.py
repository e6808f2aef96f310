"""Gather the data of a report within a time budget; each number is stored before the next measurement.

    roof of this device
    for each batch size: networks from cheap to expensive; after the first batch size: training steps

The device's predictor and its errors so far estimate the cost of a run before it begins. A run that does not
fit into the memory or the remaining time is stored with that reason.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from neuralpower.data.journal import sole_writer
from neuralpower.devices.host import read_cpu
from neuralpower.devices.spec import known_spec
from neuralpower.errors import InputError, NeuralPowerError, one_line
from neuralpower.layers import KINDS
from neuralpower.layers.base import BACKWARD, FORWARD, torch_dtype
from neuralpower.learn.files.predictor_files import known_predictors
from neuralpower.learn.files.predictor_lookup import default_predictor, load
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import Phase
from neuralpower.networks.sources import resolve
from neuralpower.prediction.case import Recordings
from neuralpower.prediction.compose import compose
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.request import Request as StepRequest
from neuralpower.profiling.result import NetworkProfile
from neuralpower.report.number_format import short
from neuralpower.suites.roofline import records
from neuralpower.suites.roofline.records import (
    TRAINING_REPEATS,
    Data,
    Device,
    Kind,
    Network,
    Point,
    Runner,
    Sketch,
    Training,
    Work,
    kinds_of,
)
from neuralpower.suites.roofs import HERE, Roof, sheet_roof
from neuralpower.suites.steps import largest_within, tensor_room
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.records import Trace

Tried = TypeVar("Tried", Point, Training)

MODELS = (
    *("zoo:resnet18", "zoo:mobilenet_v2"),
    "transformers:bert?num_hidden_layers=4&hidden_size=256&num_attention_heads=4&intermediate_size=1024",
    *("zoo:alexnet", "zoo:squeezenet", "zoo:shufflenet_v2", "zoo:densenet121", "zoo:efficientnet_b0"),
    *("zoo:googlenet", "zoo:inception3", "zoo:lstm_language_model"),
    "transformers:gpt2?n_layer=4&n_embd=256&n_head=4",
)
TRAINING_SHARE = 0.35  # most of the remaining time that a training step can take
RESERVE_S = 45.0  # reserve for drawing: of the budget, at most a tenth
BUILD_S = 1.0  # of a network with weights
TRAINING_WORK = 3.0  # times a forward pass: one forward and about two backward
# Warm-up, accounting, clean ones, timed ones.
TRAINING_RUNS = 2 + TRAINING_REPEATS + (TRAINING_REPEATS + 1) // 2
GUESS = 0.3  # share of the measured roof that a network reaches, without a predictor
# Next to a measured CPU, the first that knows the dtype.
GPUS = ("nvidia-a100-pcie-40gb", "nvidia-h200-sxm-141gb")


@dataclass(frozen=True)
class Request:
    models: tuple[str, ...] = MODELS
    batch_sizes: tuple[int, ...] = (1, 64, 256)
    training_batch: int = 16
    dtype: str = "float32"
    device: str | None = "cpu"  # None: nothing is measured
    predictors: tuple[str, ...] | None = None  # None: a GPU's predictor next to the measured device
    budget_s: float = 600.0

    def check(self) -> None:
        sizes = {"--batch-size": min(self.batch_sizes), "--train-batch-size": self.training_batch}
        for option, size in sizes.items():
            if size < 1:
                raise InputError(f"{option} {size}: must be 1 or more; choose {option} 16")
        if self.device is None and self.predictors == ():
            way_out = "give one with --predictor, or leave out --predicted"
            raise InputError(f"nothing to measure and no predictor: {way_out}")


@dataclass
class Gathering:
    """One run; `data` has its results so far."""

    request: Request
    folder: Path
    show: Callable[[str], None] = lambda text: None
    runner: Runner | None = None
    clock: Callable[[], float] = time.monotonic
    data: Data = field(default_factory=Data)
    predictors: dict[str, Predictor] = field(default_factory=dict)  # by device
    own: Predictor | None = None  # of the measured device, for estimates of cost
    sketches: dict[str, Sketch] = field(default_factory=dict)
    traces: dict[str, Trace] = field(default_factory=dict)  # of the current batch size
    started: float = 0.0
    _steps: dict[str, Recordings] = field(default_factory=dict)  # of training, by model
    _predicted: dict[tuple[str, int], float] = field(default_factory=dict)  # s, by model and batch

    def run(self) -> Data:
        self.started = self.clock()
        self.request.check()
        for model in self.request.models:
            resolve(model)  # an unknown name is refused before measurements
        if self.runner is not None:
            self.runner.check(self.request.dtype)
        with sole_writer(self.folder):
            self._open()
            self._devices()
            self._networks()
            for number, batch in enumerate(sorted(set(self.request.batch_sizes))):
                self._works(batch)
                self._predict(batch)
                if self.runner is not None:
                    self._measure(self.runner, batch)
                if number == 0:
                    self._trainings()
            self.save()
        return self.data

    def save(self) -> None:
        records.write(self.data, self.folder)

    def left_s(self) -> float:
        """Seconds left of the budget, less a reserve for drawing."""
        reserve = min(RESERVE_S, self.request.budget_s / 10)
        return self.request.budget_s - reserve - (self.clock() - self.started)

    # ---- earlier results, devices, networks ----

    def _open(self) -> None:
        torch_version = str(torch.__version__)
        settings = {
            "dtype": self.request.dtype,
            "device": None if self.runner is None else self.runner.name,
            "training_batch": self.request.training_batch,
            "torch": torch_version,
        }
        earlier = records.read(self.folder)
        if earlier is not None:
            for key, value in settings.items():
                if earlier.settings.get(key) != value:
                    theirs, ours = earlier.settings.get(key) or "none", value or "none"
                    text = f"has a report with {key} {theirs}, this one has {ours}"
                    raise InputError(f"{self.folder}: {text}; choose another folder with --out")
            self.data = earlier
            self.show(f"{self.folder}: resumes with {len(earlier.points)} points of an earlier run")
        self.data.settings, self.data.notes = settings, []
        self.data.environment = {"threads": torch.get_num_threads(), "torch": torch_version}
        self.save()

    def _devices(self) -> None:
        names, dtype = self.request.predictors, self.request.dtype
        if names is None:
            names = tuple(n for n in GPUS if n in known_predictors() and dtype in load(n).dtypes)[:1]
            if not names:
                self.data.notes.append(f"No shipped predictor of a GPU knows {dtype}: one device only.")
        predictors = {name: load(name) for name in names}
        for predictor in predictors.values():  # an unsuitable one is refused before measurements
            predictor.check(dtype, "forward")
        self.data.devices.clear()
        if self.runner is not None:
            self._measured_device(self.runner)
        for name, predictor in predictors.items():
            self._predicted_device(name, predictor)

    def _measured_device(self, runner: Runner) -> None:
        dtype = self.request.dtype
        self.data.put(Device(runner.name, records.MEASURED, runner.free_bytes()))
        sheet = known_spec(runner.name)
        if sheet is None:
            text = f"There is no data sheet of {runner.name} here: its peaks are the measured ones."
            self.data.notes.append(text)
        elif roof := sheet_roof(sheet, dtype, runner.name):
            self.data.put(roof)
        if runner.place.type == "cpu":
            own = default_predictor(read_cpu())
            self.own = own if dtype in own.dtypes else None
        if self.data.find(Roof, runner.name, HERE) is None:
            self.show(f"measuring the roof of {runner.name}")
            runner.prepare()
            self.data.put(runner.roof(dtype))
            self.save()

    def _predicted_device(self, name: str, predictor: Predictor) -> None:
        dtype, sheet = self.request.dtype, known_spec(predictor.device)
        device = predictor.device if sheet is None else sheet.name
        if self.data.find(Device, device):
            device = f"{device}, predicted"
        self.predictors[device] = predictor
        if sheet is None:
            fitted = predictor.own.roofline(dtype)
            how = f"fitted to the layers that the predictor {name} was trained on"
            self.data.put(Roof(device, "fitted", fitted.flops_per_s, fitted.bytes_per_s, how))
        elif roof := sheet_roof(sheet, dtype, device):
            self.data.put(roof)
        room = None if sheet is None else sheet.get("memory_bytes")
        self.data.put(Device(device, records.PREDICTED, room, name))

    def _networks(self) -> None:
        seen: dict[tuple[Any, ...], str] = {}
        for model in dict.fromkeys(self.request.models):
            sketch = Sketch(model, torch_dtype(self.request.dtype))
            label = _label(model)
            while any(label == self.data.get(Network, other).label for other in self.sketches):
                label += "'"
            network = sketch.network(label)
            same = seen.setdefault((network.parameters, sketch.trace(1).layers), model)
            if same != model:
                self.data.notes.append(f"{model} is the same network as {same} and is skipped.")
                self.show(f"Warning: {self.data.notes[-1]}")
                continue
            self.sketches[model] = sketch
            self.data.put(network)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.sketches)

    # ---- one batch size ----

    def _works(self, batch: int) -> None:
        self.traces = {}
        for model, sketch in self.sketches.items():
            self.show(f"tracing {model}, batch {batch}")
            self.traces[model] = sketch.trace(batch)
            if self.data.find(Work, model, batch) is None:
                self.data.put(sketch.work(batch, self.traces[model]))
        self.save()

    def _predict(self, batch: int) -> None:
        kinds = {layer.kind for traced in self.traces.values() for layer in traced.layers}
        for name, predictor in self.predictors.items():
            unknown = tuple(sorted(kinds - {*predictor.kinds}))
            self.data.put(replace(self.data.get(Device, name), unknown_kinds=unknown))
            for model in self.traces:
                point = Point(model, name, batch, records.PREDICTED, records.OK)
                if reason := self._too_large(point):
                    self.data.put(replace(point, status=records.MEMORY, reason=reason))
                else:
                    p = self._composed(predictor, model, batch)
                    s = p.runtime_s
                    bounds = (s.low, s.high)
                    self.data.put(replace(point, runtime_s=s.value, bounds_s=bounds, coverage=p.coverage))
        self.save()

    def _measure(self, runner: Runner, batch: int) -> None:
        costs = {model: self._estimate_s(model, batch) for model in self.models}
        for model in sorted(costs, key=costs.__getitem__):
            found = self.data.find(Point, model, runner.name, batch)
            if found is None or found.status != records.OK:
                self.data.put(self._timed(runner, model, batch))
                self.save()

    def _timed(self, runner: Runner, model: str, batch: int) -> Point:
        point = Point(model, runner.name, batch, records.MEASURED, records.OK)
        if reason := self._too_large(point):
            return replace(point, status=records.MEMORY, reason=reason)
        cost = runner.cost(self._estimate_s(model, batch) * self._slowness()) + BUILD_S
        if cost > self.left_s():
            reason = f"would take about {cost:.0f} s of the {max(self.left_s(), 0):.0f} s left"
            self.show(f"skipping {model}, batch {batch}: {reason}")
            return replace(point, status=records.BUDGET, reason=reason)
        self.show(f"measuring {model}, batch {batch}: about {cost:.0f} s of the {self.left_s():.0f} s left")

        def timed() -> Point:
            samples = runner.forward(model, batch, self.request.dtype)
            return replace(point, runtime_s=runner.statistic(samples), samples_s=samples)

        return _tried(point, timed)

    def _estimate_s(self, model: str, batch: int) -> float:
        """Expected time of a forward pass on the measured device."""
        key = (model, batch)
        if key not in self._predicted:
            if self.own is not None:
                self._predicted[key] = self._composed(self.own, model, batch).runtime_s.value
            else:
                work = self.data.get(Work, model, batch)
                roof = next(roof for roof in self.data.roofs if roof.origin == HERE)
                least = max(work.flops / roof.flops_per_s, work.bytes_moved / roof.bytes_per_s)
                self._predicted[key] = least / GUESS
        return self._predicted[key]

    def _composed(self, predictor: Predictor, model: str, batch: int) -> Prediction:
        dtype = self.request.dtype
        return compose(self.traces[model], predictor, model=model, batch_size=batch, dtype=dtype)

    def _slowness(self) -> float:
        """Measured over estimated times so far: the median."""
        ratios = [
            p.runtime_s / self._predicted[p.model, p.batch_size]
            for p in self.data.points
            if p.basis == records.MEASURED and p.runtime_s and (p.model, p.batch_size) in self._predicted
        ]
        return float(np.median(ratios)) if ratios else 1.0

    def _too_large(self, point: Point) -> str:
        """Why a batch does not fit, with the largest that does; "" if it fits or memory is unknown."""
        needed, batch = self.data.get(Work, point.model, point.batch_size).peak_bytes, point.batch_size
        free = self.data.get(Device, point.device).memory_bytes
        if self.runner is not None and point.basis == records.MEASURED:
            free = self.runner.free_bytes()
        if needed is None or needed <= (room := tensor_room(free)):
            return ""
        weights = self.data.get(Network, point.model).parameter_bytes
        largest = largest_within(room, needed, batch, weights)
        fits = f"the largest batch that fits is about {largest}"
        fits = fits if largest > 0 else "not even a batch of 1 fits"
        return f"needs {needed / 1e9:.1f} GB of {room / 1e9:.1f} GB; {fits}"

    # ---- training ----

    def _trainings(self) -> None:
        share_s = TRAINING_SHARE * max(self.left_s(), 0.0)
        first = min(self.request.batch_sizes)
        begun = self.clock()
        for model in sorted(self.models, key=lambda model: self.data.get(Work, model, first).flops):
            for device in self.data.devices:
                found = self.data.find(Training, model, device.name)
                if found is not None and found.status == records.OK:
                    continue
                step = Training(model, device.name, self.request.training_batch, device.basis, records.OK)
                if device.basis == records.MEASURED and self.runner is not None:
                    self.data.put(self._stepped(self.runner, step, share_s - (self.clock() - begun)))
                else:
                    self.data.put(self._step_predicted(step))
                self.save()

    def _step_predicted(self, step: Training) -> Training:
        """A step with counted work and predicted times; without them where they cannot be predicted."""
        request = StepRequest(step.model, step.batch_size, dtype=self.request.dtype, phase=Phase(TRAINING))
        self.show(f"predicting a training step of {step.model}, batch {step.batch_size}")
        if step.model not in self._steps:
            self._steps[step.model] = Recordings(request)
        try:
            prediction = self._steps[step.model].predict(self.predictors[step.device])
        except NeuralPowerError as error:
            return self._counted(step, one_line(error)[:200])
        counted = self._counted(step, "")
        return timed_by(prediction, counted)

    def _counted(self, step: Training, why: str) -> Training:
        """A step with counted work, without times."""
        profiled = self.sketches[step.model].training(step.batch_size)
        return _with_kinds(replace(step, reason=f"counted, not timed: {why}"), profiled)

    def _stepped(self, runner: Runner, step: Training, left_s: float) -> Training:
        small = min(self.request.batch_sizes)
        scale = TRAINING_RUNS * TRAINING_WORK * step.batch_size / small * self._slowness()
        cost = scale * self._estimate_s(step.model, small)
        if cost + BUILD_S > left_s:
            late = f"would take about {cost:.0f} s of the {max(left_s, 0):.0f} s left for training"
            return replace(self._counted(step, late), status=records.BUDGET)
        self.show(f"training step of {step.model}, batch {step.batch_size}: about {cost:.0f} s")
        dtype = self.request.dtype
        return _tried(step, lambda: _with_kinds(step, runner.training(step.model, step.batch_size, dtype)))


def timed_by(prediction: Prediction, step: Training) -> Training:
    """A counted step with the times of its prediction."""
    assert prediction.training is not None
    times: defaultdict[tuple[str, str], float] = defaultdict(float)
    for row in prediction.rows:
        if row.step in (FORWARD, BACKWARD):
            times[row.step, row.kind if row.kind in KINDS else "other"] += row.runtime_s
    kinds = {(k.phase, k.kind): replace(k, runtime_s=0.0) for k in step.kinds}
    for key, runtime_s in times.items():
        kinds[key] = replace(kinds.get(key, Kind(*key, None, 0, 0)), runtime_s=runtime_s)
    derived = ", backward from forward products" if prediction.training.derived else ""
    passes: dict[str, Any] = {
        f"{phase}_s": prediction.training.steps[phase].value for phase in (FORWARD, BACKWARD)
    }
    return replace(step, kinds=tuple(kinds.values()), reason=f"predicted{derived}", **passes)


def _label(model: str) -> str:
    """A model's name in charts: without its source, its folders and its overrides."""
    name = short(model).removeprefix("zoo:").removeprefix("torchvision:").replace("?..", "*")
    if ".py:" in name:
        name = name.rpartition(":")[2]
    return name.rstrip("/").rpartition("/")[2] or model


def _tried(record: Tried, run: Callable[[], Tried]) -> Tried:
    """The record of a run, or a record with the reason of its failure."""
    try:
        return run()
    except MemoryError as error:
        return replace(record, status=records.MEMORY, reason=str(error)[:200])
    except NeuralPowerError as error:
        return replace(record, status=records.FAILED, reason=one_line(error)[:200])


def _with_kinds(step: Training, profile: NetworkProfile) -> Training:
    """A step with the counts of its profile, and its times if it ran."""
    total, kinds = profile.total, kinds_of(profile)
    figures: dict[str, Any] = {}
    for phase in ("forward", "backward"):
        figures[f"{phase}_flops"] = sum(k.flops for k in kinds if k.phase == phase)
        figures[f"{phase}_s"] = total.phases_s.get(phase)
    samples = len(total.spread.samples_s) if total.spread else 0
    return replace(step, **figures, samples=samples, kinds=kinds)
