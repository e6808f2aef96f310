"""Whole networks as rows of a dataset, read into the layers they are made of."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.screening import Rejected, unusable
from neuralpower.dtypes import full_name
from neuralpower.errors import DatasetError, ModelError, NeuralPowerError, one_line, unknown
from neuralpower.files.json_files import parse_json
from neuralpower.layers import KINDS, Hardware, Layer
from neuralpower.layers.base import FORWARD, TRAINING
from neuralpower.layers.rows import LARGEST, from_row
from neuralpower.layers.views import most_flops
from neuralpower.learn.networks.pace import Pace
from neuralpower.networks.names.trust import check_model
from neuralpower.platforms import Platform, platform_of

if TYPE_CHECKING:
    import pandas as pd

    from neuralpower.networks.passes import Pass
    from neuralpower.trace.recipe import Recipe
    from neuralpower.trace.records import Trace

AMP = "amp"  # weights in float32 under autocast to float16
USUAL = {"dtype": "float32", "layout": "nchw", "run": "eager"}  # of columns that a table lacks
LAYOUTS = {"nchw": False, "nhwc": True, "channels_first": False, "channels_last": True}  # channels last?
MOST_SAID = 200  # letters of the reason why a row is skipped


@dataclass(frozen=True)
class Total:
    """One measured network: its layers, how often it calls each, and the time of all together."""

    model: str
    layers: tuple[Layer, ...]
    counts: tuple[float, ...]  # of each layer's calls; shares of backward passes are among them
    runtime_s: float
    pace: Pace | None  # None: not known
    line: int
    dispatch_s: float = float("nan")  # of the host, to issue the whole of it; NaN where not known
    dataset: str = ""  # whose table the line is of, where there are several

    @property
    def calls(self) -> np.ndarray:
        """How often it calls each layer, [layers]."""
        return np.array(self.counts, dtype=float)


def read_totals(
    table: pd.DataFrame, hardware: Hardware | None = None, *, trust_code: bool = False
) -> tuple[list[Total], list[Rejected]]:
    """The rows of a `network` table; layers come from its column `layers`, else from tracing the model.

    `hardware` sets limits that no network can exceed. `trust_code` allows tracing of models that run their
    own code.

    Raises:
        DatasetError: a column is missing, or a model would have to be traced that runs code.
    """
    missing = [name for name in ("model", "batch", "runtime_s") if name not in table]
    if missing:
        needed = "a network table needs model, batch, input and runtime_s"
        raise DatasetError(f"network: column {', '.join(missing)} missing; {needed}")
    totals, rejected = [], []
    blank = table.isna().all(axis=1).to_numpy()
    cells = table.astype(object).where(table.notna(), None)  # whatever a column has for what is not there
    for i, cell in enumerate(cells.to_dict("records")):
        if blank[i]:
            continue
        row = {str(name): value for name, value in cell.items()}
        if row.get("layers") is None:
            try:
                check_model(str(row["model"]), f"network line {i + 2}", trust_code)
            except ModelError as error:
                raise DatasetError(str(error)) from None
        try:
            total = _total(row, i + 2, hardware)
            if hardware is not None and total.runtime_s < _least_s(total, hardware):
                raise ValueError("faster than the device's peak")
            totals.append(total)
        except (NeuralPowerError, ValueError, TypeError, KeyError) as error:
            reason = textwrap.shorten(one_line(error), MOST_SAID, placeholder=" ...")
            rejected.append(Rejected("network", i + 2, reason))
    return totals, rejected


def _total(row: Mapping[str, Any], line: int, hardware: Hardware | None) -> Total:
    if str(row.get("status") or "ok").strip().lower() != "ok":
        raise ValueError(f"status {row['status']}")
    runtime = _number(row, "runtime_s")
    for reason, found in unusable(np.array([runtime])).items():
        if found.any():
            raise ValueError(reason)
    parts = (
        list(_traced(row, platform_of(hardware or Hardware())).items())
        if row.get("layers") is None
        else _listed(row["layers"])
    )
    if not parts:
        raise ValueError("it has no layers")
    layers, counts = zip(*parts, strict=True)
    names = ("sentinel_s", "sentinel_again_s", "dispatch_s")
    first_s, again_s, dispatch_s = (_number(row, name) for name in names)
    pace = Pace(first_s, again_s if again_s > 0 else None) if first_s > 0 else None
    return Total(str(row["model"]), layers, counts, runtime, pace, line, dispatch_s or np.nan)


def _number(row: Mapping[str, Any], name: str) -> float:
    """A cell's number; NaN where it is empty, not there, or without end."""
    value = row.get(name)
    try:
        number = np.nan if value is None or value == "" else float(value)
    except (ValueError, TypeError):
        raise ValueError(f"{name} is {value!r}, but must be a number") from None
    return number if np.isfinite(number) else np.nan


def _object(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    try:
        value = parse_json(row[name])
    except (ValueError, TypeError):  # the second where it holds no text, as cells of Parquet may
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {row[name]!r}, but must be the text of a JSON object")
    return value


def _listed(text: Any) -> list[tuple[Layer, float]]:
    """Layers with how often each is called, from a cell of column `layers`."""
    try:
        rows = parse_json(text, endless=True)
        parts = [(from_row(KINDS[kind], fields), float(count)) for kind, fields, count in rows]
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"layers cannot be read ({type(error).__name__}: {error})") from None
    for layer, count in parts:
        if not 0 < count <= LARGEST:  # NaN is none either
            rule = f"must do so more than 0 and up to {LARGEST} times"
            raise ValueError(f"layers call {layer.kind} {count:g} times, but {rule}")
    return parts


def _least_s(total: Total, hardware: Hardware) -> float:
    """Seconds that its products take at the device's peak; 0 where that is not known."""
    calls = zip(total.layers, total.counts, strict=True)
    products = [(layer, count) for layer, count in calls if layer.multiplies]
    return sum((n * la.flops() / (la.savings * most_flops(la, hardware)) for la, n in products), 0.0)


def _traced(row: Mapping[str, Any], platform: Platform) -> dict[Layer, float]:
    """How often a forward pass calls each layer, as `predict` follows it."""
    settings = {} if row.get("input") is None else _object(row, "input")
    phase = row.get("phase")
    if (isinstance(phase, str) and phase != FORWARD) or "context" in settings:
        raise ValueError("a training step needs its layers in column `layers`")
    if not set(settings) <= {"seq_len", "input_shape"}:
        raise ValueError(f"input holds {', '.join(sorted(settings))}; known are seq_len and input_shape")
    batch = _number(row, "batch")
    if not (batch >= 1 and batch % 1 == 0):
        raise ValueError(f"batch is {row['batch']!r}, but must be a whole number from 1")
    length, shape = settings.get("seq_len"), settings.get("input_shape")
    sizes = [1 if length is None else length, *(shape if isinstance(shape, list) else [1])]
    whole = all(isinstance(size, int) and size >= 1 for size in sizes)
    if not (whole and isinstance(shape, (list, type(None)))):
        rule = "sizes must be whole numbers from 1, input_shape a list of them"
        raise ValueError(f"input is {row['input']!r}, but {rule}")
    dtype, layout, run = (_word(row, name, usual) for name, usual in USUAL.items())
    sides = tuple(shape) if shape else None
    work = traced(str(row["model"]), int(batch), length, sides, platform, Way(dtype, layout, run))
    return calls_of(work)


def calls_of(work: Trace) -> dict[Layer, float]:
    found: Counter[Layer] = Counter()
    for task in work.tasks:
        found[task.layer] += task.share  # type: ignore[assignment]  # a Counter adds shares as well
    return dict(found)


@dataclass(frozen=True)
class Way:
    """How a network ran, in the words of tables."""

    dtype: str = USUAL["dtype"]  # a name of a type, or AMP
    layout: str = USUAL["layout"]
    run: str = USUAL["run"]
    recipe: Recipe | None = None  # of a step of training; None: a forward pass


def traced(
    model: str, batch: int, length: int | None, shape: tuple[int, ...] | None, platform: Platform, way: Way
) -> Trace:
    """The tasks of a pass or a step, as `predict` follows it.

    Args:
        model: what `resolve` takes.
        batch: samples.
        length: tokens of each; None: the model's own.
        shape: of a sample; None: the model's own.
        platform: of the device.
        way: how it ran.

    Raises:
        InputError: an unknown layout or run.
        ModelError: the model cannot be traced.
    """
    import torch

    from neuralpower.layers.base import torch_dtype
    from neuralpower.networks.inputs.input_request import InputRequest
    from neuralpower.networks.inputs.requests import asked_of
    from neuralpower.networks.passes import Pass
    from neuralpower.networks.phases import Phase
    from neuralpower.trace.follow import work_of
    from neuralpower.trace.question import COMPILE, ENGINE, RUNS, Question

    if way.layout not in LAYOUTS:
        raise unknown("layout", way.layout, LAYOUTS)
    if way.run not in RUNS or way.run == ENGINE:
        raise unknown("run", way.run, [one for one in RUNS if one != ENGINE])
    # most kernels that Inductor makes take float32 weights' casts in, so that the network runs in 16 bits
    autocast = torch.float16 if way.dtype == AMP and way.run != COMPILE else None
    name = "float32" if autocast is not None else "float16" if way.dtype == AMP else full_name(way.dtype)
    dtype = torch_dtype(name)
    request = InputRequest(batch, length, shape, dtype, labels=way.recipe is not None)
    asked = asked_of(model, request, Phase())
    assert isinstance(asked, Pass)
    if LAYOUTS[way.layout]:
        asked = _channels_last(asked)
    question = Question(dtype=name, run=way.run, platform=platform, autocast=autocast)
    if way.recipe is not None:
        question = replace(question, phase=TRAINING, recipe=way.recipe, knows=lambda *_: False)
    return work_of(asked, question)


def _channels_last(asked: Pass) -> Pass:
    """The same pass with images and the weights of their convolutions in channels last."""
    import torch

    def last(tensor: Any) -> Any:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    for weight in asked.module.parameters():
        weight.data = last(weight.data)
    return replace(asked, inputs=asked.inputs.mapped(last))


def _word(row: Mapping[str, Any], name: str, usual: str) -> str:
    """A cell's word; the usual one where it is empty."""
    value = row.get(name)
    return value.strip() if isinstance(value, str) and value.strip() else usual
