"""What is kept on the disk: the forms of a model's steps, which all devices share, and tables of a device."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
import numpy as np

from neuralpower.dtypes import DTYPES, HALF_BITS
from neuralpower.files.cache import TABLES, TRACES, cache_folder, keep, key_of, recall
from neuralpower.layers import KINDS, Layer
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.names.sameness import is_current, loaded, network_of, question_of
from neuralpower.platforms import CPU
from neuralpower.prediction.kept.sums import Form
from neuralpower.prediction.memory.engines import Served
from neuralpower.serving.step_times import Tables
from neuralpower.serving.surface import Family, SharedLayer, StepSurface
from neuralpower.trace.parts.by_request import RequestLayer

PLAIN = (
    "model",
    "dtype",
    "traces",
    "weights_bytes",
    "captured",
)  # fields of a surface that are kept as they are


@dataclass(frozen=True)
class Forms:
    """A model's steps on a layout as forms of their sizes, and its network; both alike on many devices."""

    surface: StepSurface
    network: Served


def kept(model: str, predictor: Predictor, asked: Mapping[str, Any], make: Callable[[], Forms]) -> Forms:
    """The forms of a deployment: those that are kept, else made and kept.

    Args:
        model: a name.
        predictor: of the device, whose family and whose short types the steps depend on.
        asked: everything else that they depend on, in plain values.
        make: makes them.
    """
    folder = cache_folder()
    named = [value for value in asked.values() if isinstance(value, str)]
    question = None if folder is None else network_of(model, named)
    if folder is None or question is None:
        return make()
    peaks = () if predictor.hardware is None else predictor.hardware.peak_flops_per_s
    short = sorted(name for name in peaks if DTYPES[name].bits < HALF_BITS)
    key = key_of({**question, **asked, "forms": [predictor.platform.family == CPU.family, short]})
    found = recall(folder, key, TRACES)
    if found is not None and is_current(found):
        try:
            return Forms(_surface(found["surface"], predictor), msgspec.convert(found["network"], Served))
        except (KeyError, TypeError, ValueError):  # written by another version
            pass
    forms = make()
    answer = {"surface": _written(forms.surface), "network": vars(forms.network), "loaded": loaded()}
    keep(folder, key, msgspec.to_builtins(answer), TRACES)
    return forms


@dataclass
class KeptTables:
    """What steps take and draw, as it is priced; kept on the disk under what it depends on.

    Each file has the tables of a model for requests up to a length.
    """

    question: Mapping[str, Any] | None = None  # None: nothing is kept
    _by_room: dict[str, Tables] = field(default_factory=dict)
    _read: dict[str, int] = field(default_factory=dict)  # tables that each file has

    @classmethod
    def of(cls, model: str, predictor: Predictor, asked: Mapping[str, Any]) -> KeptTables:
        """The tables of a deployment on a device with the predictor that its name chooses.

        `asked`: everything else that they depend on, in plain values.
        """
        question = None if cache_folder() is None else question_of(model, asked)
        if question is None:
            return cls()
        device = [repr(each) for each in (predictor.hardware, predictor.setting, predictor.sheet)]
        return cls({**question, "device": [predictor.name, predictor.device, *device]})

    def at(self, room: str) -> Tables:
        """The tables for a model and a length, which grow as more is priced."""
        if room not in self._by_room:
            folder, found = cache_folder(), None
            if folder is not None and self.question is not None:
                found = recall(folder, key_of({**self.question, "room": room}), TABLES)
            try:
                tables = {} if found is None else _tables(found)
            except (AttributeError, TypeError, ValueError):
                tables = {}
            self._by_room[room], self._read[room] = tables, len(tables)
        return self._by_room[room]

    def keep(self) -> None:
        """Write what was priced since it was read."""
        folder = cache_folder()
        if folder is None or self.question is None:
            return
        for room, tables in self._by_room.items():
            if len(tables) > self._read[room]:
                keep(folder, key_of({**self.question, "room": room}), _tables_written(tables), TABLES)
                self._read[room] = len(tables)


def _tables_written(tables: Tables) -> dict[str, Any]:
    return {
        name: {column: b64encode(values.tobytes()).decode() for column, values in columns.items()}
        for name, columns in tables.items()
    }


def _tables(row: Mapping[str, Any]) -> Tables:
    """Tables of plain values; raises AttributeError, TypeError and ValueError."""
    return {
        name: {column: np.frombuffer(b64decode(text), np.float32) for column, text in columns.items()}
        for name, columns in row.items()
    }


def _written(surface: StepSurface) -> dict[str, Any]:
    """A surface in plain values, without its predictor, its layout and its module."""
    families = {name: _family_written(getattr(surface, name)) for name in ("prompts", "decodes")}
    return {**{name: getattr(surface, name) for name in PLAIN}, **families}


def _family_written(family: Family) -> dict[str, Any]:
    return {
        "shared": [
            [_layer_written(one.example), {n: form.coefficients for n, form in one.forms.items()}, one.count]
            for one in family.shared
        ],
        "requests": [[_layer_written(one.example), one.window, one.count] for one in family.requests],
        "unmodelled": [form.coefficients for form in family.unmodelled],
        "decodes": family.decodes,
    }


def _layer_written(layer: Layer) -> list[Any]:
    return [layer.kind, {each.name: getattr(layer, each.name) for each in fields(layer)}]


def _surface(row: Mapping[str, Any], predictor: Predictor) -> StepSurface:
    """A surface of plain values; raises KeyError, TypeError and ValueError."""
    return StepSurface(
        predictor=predictor,
        prompts=_family(row["prompts"]),
        decodes=_family(row["decodes"]),
        **{name: row[name] for name in PLAIN},
    )


def _family(row: Mapping[str, Any]) -> Family:
    return Family(
        shared=tuple(
            SharedLayer(_layer(layer), {n: Form(tuple(c)) for n, c in forms.items()}, count)
            for layer, forms, count in row["shared"]
        ),
        requests=tuple(
            RequestLayer(_layer(layer), window, count) for layer, window, count in row["requests"]
        ),
        unmodelled=tuple(Form(tuple(coefficients)) for coefficients in row["unmodelled"]),
        decodes=row["decodes"],
    )


def _layer(row: Any) -> Layer:
    kind, numbers = row
    return KINDS[kind](**numbers)
