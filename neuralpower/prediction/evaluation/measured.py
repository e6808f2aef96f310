"""Networks measured elsewhere, read from a CSV file, and their predictions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.data.columns import number_column
from neuralpower.data.networks import read_networks
from neuralpower.data.screening import unusable
from neuralpower.devices.hardware import Hardware
from neuralpower.devices.host import read_cpu
from neuralpower.devices.names import folded
from neuralpower.devices.spec import known_spec, spec_of
from neuralpower.dtypes import DTYPES, floats_of, full_name
from neuralpower.errors import InputError, NeuralPowerError, one_line, unknown
from neuralpower.files.json_files import parse_json
from neuralpower.layers.base import FORWARD
from neuralpower.learn.files.predictor_lookup import default_predictor, load, on
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.unmeasured.any_device import for_device, roofline_by
from neuralpower.networks.phases import PREDICTED, Phase
from neuralpower.networks.sources import published_dtype
from neuralpower.networks.sources.base import check_model
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.request import Request, dtype_for

ROOFLINE = "roofline"  # the name of the predictor that a spec sheet alone makes
BEST = "neuralpower"  # and of the best that there is for the device
COUNTS = ("batch_size", "seq_len", "context", "prompt", "new_tokens")
TEXTS = ("model", "dtype", "phase", "input_shape", "device", "run", "weights", "input")


@dataclass(frozen=True)
class Measurement:
    """One network and the time that somebody measured."""

    request: Request
    measured_s: float
    device: str | None  # as the file names it
    line: int  # of the file, the header being line 1
    typed: bool = True  # whether the file names the dtype; else it is the model's own

    def asked(self, predictor: Predictor) -> Request:
        """The request to a predictor: an engine may serve a model in another dtype than its own."""
        if self.typed:
            return self.request
        run = self.request.run_on(predictor.platform)
        return replace(self.request, dtype=dtype_for(self.request.model, None, predictor, run)[0])

    @property
    def label(self) -> str:
        """Name, sizes and phase."""
        way = self.request.way
        return self.request.label + ("" if way == FORWARD else f" {way}")


@dataclass(frozen=True)
class Compared:
    """One measurement with each predictor's prediction, or the reason why there is none."""

    measurement: Measurement
    predictions: Mapping[str, Prediction]
    refused: Mapping[str, str] = field(default_factory=dict)

    def error(self, name: str) -> float:
        """Predicted over measured, minus 1."""
        return self.predictions[name].runtime_s.value / self.measurement.measured_s - 1

    def inside(self, name: str) -> bool:
        """Whether the measured time lies within the predicted 90 % bounds."""
        time = self.predictions[name].runtime_s
        return time.low <= self.measurement.measured_s <= time.high


@dataclass(frozen=True)
class Agreement:
    """How well one predictor agrees with the measurements: shares, not percent."""

    networks: int
    median: float
    mean: float
    worst: float
    inside: float


def read_measurements(
    file: Path, *, device: str | None = None, trust_code: bool = False
) -> tuple[list[Measurement], list[str], list[str]]:
    """(Measurements, why other rows are refused, what was assumed) of a CSV file.

    `device`: that of rows without one. `trust_code`: rows may name models that run code.

    Raises InputError: the file cannot be read, or lacks a column that is needed.
    """
    table, notes = read_networks(file)
    seconds = number_column(table["runtime_s"])
    found, refused = [], []
    blank = table.isna().all(axis=1).to_numpy()
    cells = table.astype(object).where(table.notna(), None)
    for i, cell in enumerate(cells.to_dict("records")):
        if blank[i]:
            continue
        row = {str(name): value for name, value in cell.items()}
        row["device"] = _named(row.get("device"), device)
        try:
            found.append(_measurement(row, float(seconds[i]), i + 2, trust_code))
        except NeuralPowerError as error:
            refused.append(f"{file} line {i + 2}: {one_line(error)}")
    return found, refused, notes


def _named(own: Any, given: str | None) -> str | None:
    """The device of a row: the given one where the row has none, or names it as the given sheet does."""
    if own in (None, "") or given is None:
        return given if own in (None, "") else str(own)
    try:
        sheet = spec_of(given)
    except InputError:
        return str(own)
    return given if folded(str(own)) in map(folded, (sheet.name, sheet.slug, *sheet.aliases)) else str(own)


def _measurement(row: Mapping[str, Any], seconds: float, line: int, trust_code: bool) -> Measurement:
    """One row; raises InputError, ModelError."""
    texts = {name: str(row[name]).strip() for name in TEXTS if row.get(name) not in (None, "")}
    counts = {name: _count(name, row[name]) for name in COUNTS if row.get(name) not in (None, "")}
    for reason, bad in unusable(np.array([seconds])).items():
        if bad.any():
            raise InputError(f"{reason}; write the time of one pass, above 0")
    if "model" not in texts:
        raise InputError("model is empty; write a name that `neuralpower predict` takes")
    check_model(texts["model"], "", trust_code)
    name = texts.get("phase", FORWARD)
    sizes: dict[str, Any] = {key: counts.get(key) for key in ("context", "prompt", "new_tokens")}
    phase = Phase(name, **sizes)
    phase.check(PREDICTED)
    length, shape = _sizes(texts, counts.get("seq_len"))
    dtype = full_name(texts["dtype"]) if "dtype" in texts else published_dtype(texts["model"]) or "float32"
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    request = Request(
        texts["model"],
        counts.get("batch_size", 1),
        length,
        shape,
        dtype,
        phase,
        run=texts.get("run"),
        weights=texts.get("weights"),
    )
    return Measurement(request, seconds, texts.get("device"), line, "dtype" in texts)


def _sizes(texts: Mapping[str, str], length: int | None) -> tuple[int | None, tuple[int, ...] | None]:
    """(Length, shape of one sample), from their own columns or from `input`, a dataset's column."""
    shape = texts.get("input_shape")
    if "input" in texts:
        try:
            given = dict(parse_json(texts["input"]))
            length = given.get("seq_len", length)
            shape = "x".join(map(str, given["input_shape"])) if given.get("input_shape") else shape
        except (ValueError, TypeError):
            rule = 'must be JSON such as {"seq_len": 128}'
            raise InputError(f"input is {texts['input']!r:.60}, but {rule}") from None
    if shape is None:
        return length, None
    sizes = [part for part in shape.replace(",", "x").strip("[]() ").split("x") if part.strip()]
    return length, tuple(_count("input_shape", size) for size in sizes)


def _count(name: str, value: Any) -> int:
    """A whole number from 1; raises InputError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not (1 <= number < 2**53 and number == int(number)):
        raise InputError(f"{name} is {str(value)!r:.40}, but must be a whole number, 1 or more")
    return int(number)


def baseline(hardware: Hardware, device: str) -> Predictor:
    """The roofline of a device as a predictor: nothing in it was measured."""
    peaks = hardware.peak_flops_per_s
    return replace(roofline_by(hardware, device), name=ROOFLINE, answers=floats_of(peaks))


class Asking:
    """Predictors by name, each for the device of a measurement, loaded once.

    ROOFLINE is that of the device's spec sheet, BEST the one that `predict --device` uses.
    `predictors` gives, by label, the predictor for a measurement; asking it raises InputError. `notes` says
    where a predictor is of another device than the rows.
    """

    def __init__(self, names: Sequence[str]) -> None:
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"predictor {twice} is given twice; remove one")
        self.notes: dict[str, None] = {}
        self._names = names
        labels = {name: Path(name).stem if name.endswith(".json") else name for name in names}
        self.predictors = {label: functools.partial(self._asked, name) for name, label in labels.items()}
        self._loaded: dict[tuple[str, str | None], Predictor] = {}

    def _asked(self, name: str, one: Measurement) -> Predictor:
        key = (name, one.device)
        if key not in self._loaded:
            self._loaded[key] = self._load(*key)
        return self._loaded[key]

    def _load(self, name: str, device: str | None) -> Predictor:
        if name == ROOFLINE:
            if device is None:
                text = "add a column device to the file, or --device, such as --device l40s"
                raise InputError(f"predictor {ROOFLINE} needs the device that was measured; {text}")
            return self._roofline(device)
        if name == BEST:
            return default_predictor(read_cpu()) if device is None else for_device(spec_of(device))
        predictor = load(name)
        if device is None:
            return predictor
        if predictor.hardware is None or self._belongs(predictor, device):
            return on(predictor, device)[0]
        mine = known_spec(predictor.device)
        if device != predictor.device and (mine is None or mine.slug != _slug(device)):
            self.notes[f"predictor {name} is for {predictor.device}, but rows are from {device}"] = None
        return predictor

    def _roofline(self, device: str) -> Predictor:
        """The roofline of the device's sheet, else by the peaks that one of the predictors knows of it."""
        try:
            spec = spec_of(device)
        except InputError as error:
            for name in self._names:
                own = None if name in (ROOFLINE, BEST) else load(name)
                if own is None or own.hardware is None or folded(own.device) != folded(device):
                    continue
                if own.hardware.peak_flops_per_s and own.hardware.memory_bytes_per_s > 1:
                    return baseline(own.hardware, own.device)
                raise InputError(
                    f"predictor {ROOFLINE}: peaks of {device} are not known; give its sheet (--device FILE), "
                    f"or state peak_flops_per_s and memory_bytes_per_s in dataset.json and train {name} again"
                ) from None
            raise error
        return baseline(spec.hardware(), spec.slug)

    @staticmethod
    def _belongs(predictor: Predictor, device: str) -> bool:
        try:
            return predictor.is_of(spec_of(device))
        except InputError:
            return False


def _slug(device: str) -> str:
    """The name of a device's spec sheet; the device's own where it has none."""
    try:
        return spec_of(device).slug
    except InputError:
        return device


def compare_measured(
    measurements: Iterable[Measurement],
    predictors: Mapping[str, Callable[[Measurement], Predictor]],
) -> Iterator[Compared]:
    """Each measurement with its predictions; `predictors` give, by name, the one for a measurement.

    A measurement that a predictor cannot predict keeps the reason.
    """
    for measurement in measurements:
        found: dict[str, Prediction] = {}
        refused: dict[str, str] = {}
        for name, predictor_for in predictors.items():
            try:
                predictor = predictor_for(measurement)
                found[name] = predict_request(measurement.asked(predictor), predictor)[0]
            except InputError as error:
                refused[name] = one_line(error)
        yield Compared(measurement, found, refused)


def agreement(compared: Sequence[Compared], name: str) -> Agreement | None:
    """How well a predictor agrees with the measurements that it answers; None where it answers none."""
    known = [one for one in compared if name in one.predictions]
    if not known:
        return None
    errors = np.array([one.error(name) for one in known])
    return Agreement(
        len(known),
        float(np.median(np.abs(errors))),
        float(np.mean(np.abs(errors))),
        float(errors[np.argmax(np.abs(errors))]),
        float(np.mean([one.inside(name) for one in known])),
    )
