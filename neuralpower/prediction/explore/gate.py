"""A gate: predictions against a baseline that stands in a file, and the layers that make the difference.

A baseline holds the options, the answers, and every layer. Where a newer neuralpower or predictor prices
the old layers differently, both sides are priced anew with it, and the growth is that of the layers alone:

    growth = (new layers, priced now) / (old layers, priced now) - 1

So an unchanged network never fails. Where a library that defines the network has another version and the
layers differ, they are named and excused, unless versions are strict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from neuralpower.ask.keywords import METRICS, Limit
from neuralpower.errors import DatasetError, InputError
from neuralpower.files.json_files import Declared, json_text, read_json
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.rows import from_row, to_row
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.rows import ranges
from neuralpower.prediction.shown import Shown
from neuralpower.trace.paths import pattern

SCHEMA = 1
SAME = 1e-9  # relative difference of two sums of one set of numbers
ADDED, REMOVED, CHANGED = "added", "removed", "changed"


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Equal calls of a baseline: their modules, the layer's fields, and what they took."""

    paths: tuple[str, ...]
    kind: str
    step: str
    count: float  # in all modules together
    fields: dict[str, Any]  # empty where no kind describes the call
    runtime_s: float
    flops: float
    energy_j: float | None

    @property
    def layer(self) -> Layer | None:
        """The layer; None of what no kind describes. Raises DatasetError."""
        if not self.fields:
            return None
        if self.kind not in KINDS:
            raise DatasetError(f"kind {self.kind!r:.40} is not known")
        return from_row(KINDS[self.kind], self.fields)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model of a baseline."""

    model: str
    asked: dict[str, Any]  # the options that differ from their defaults
    device: str
    predictor: str
    dtype: str
    phase: str
    answers: dict[str, float | None]  # metric -> value in SI units
    priced_s: float  # sum of the layers' times as the predictor said them
    layers: tuple[Call, ...]


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a gate compares with."""

    schema: int
    versions: dict[str, str]  # neuralpower, and the libraries that define networks
    models: tuple[Entry, ...]

    def entry(self, model: str) -> Entry | None:
        return next((entry for entry in self.models if entry.model == model), None)


def read_baseline(path: Path) -> Baseline:
    """A baseline's file; raises DatasetError."""
    write = f"neuralpower gate MODEL --baseline {path} --update"
    again = f"remove it, and write it again: {write}"
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise DatasetError(f"{path}: there is no such baseline; write it: {write}") from None
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: is not a baseline ({error}); {again}") from None
    schema = content.get("schema") if isinstance(content, Mapping) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise DatasetError(
            f"{path}: schema {schema} is of a newer neuralpower, which this one reads up to {SCHEMA}; "
            f"install the newer one, or {again}"
        )
    try:
        baseline = msgspec.convert(content, Baseline)
        for entry in baseline.models:
            for call in entry.layers:
                _ = call.layer
        if schema != SCHEMA:
            raise DatasetError(f"schema {schema} instead of {SCHEMA}")
    except (msgspec.ValidationError, DatasetError) as error:
        raise DatasetError(f"{path}: is not a baseline of this version ({error}); {again}") from None
    if not baseline.models:
        raise DatasetError(f"{path}: holds no model; {again}")
    return baseline


def baseline_text(entries: Sequence[Entry], versions: Mapping[str, str]) -> str:
    """The file's text, a line per layer so that a change shows in a diff."""
    built = msgspec.to_builtins(Baseline(SCHEMA, dict(versions), tuple(entries)))
    layers = [entry.pop("layers") for entry in built["models"]]
    models = []
    for entry, calls in zip(built["models"], layers, strict=True):
        head = json_text(entry, compact=True)[:-1]
        lines = ",\n".join(json_text(call, compact=True) for call in calls)
        models.append(f'{head},"layers":[\n{lines}\n]}}')
    head = json_text({"schema": SCHEMA, "versions": built["versions"]}, compact=True)[:-1]
    return f'{head},"models":[\n' + ",\n".join(models) + "\n]}\n"


def values_of(prediction: Prediction) -> dict[str, float | None]:
    """Metric -> value in SI units; None where it is not known."""
    return {
        "latency": prediction.runtime_s.value,
        "memory": None if prediction.memory is None else float(prediction.memory.bounds["value"]),
        "energy": None if prediction.energy_j is None else prediction.energy_j.value,
        "flops": float(prediction.flops),
    }


def entry_of(model: str, asked: Mapping[str, Any], prediction: Prediction, predictor: Predictor) -> Entry:
    """What a baseline keeps of a prediction."""
    calls = tuple(
        Call(
            row.paths or (row.path,),
            row.kind,
            row.step,
            float(row.count),
            {} if row.layer is None else to_row(row.layer),
            row.runtime_s,
            float(row.flops),
            row.energy_j,
        )
        for row in prediction.rows
    )
    return Entry(
        model,
        dict(asked),
        prediction.device,
        prediction.predictor,
        prediction.dtype,
        prediction.phase,
        values_of(prediction),
        sum(priced(calls, predictor)),
        calls,
    )


def priced(calls: Sequence[Call], predictor: Predictor) -> list[float]:
    """Seconds of each set of calls as the predictor says them now; of what no kind describes, as kept."""
    layers = [call.layer for call in calls]
    known = [layer for layer in layers if layer is not None]
    each = iter(predictor.estimate(known).runtime_s.tolist() if known else ())
    return [
        call.runtime_s if layer is None else call.count * next(each)
        for call, layer in zip(calls, layers, strict=True)
    ]


@dataclass(frozen=True)
class Change(Declared):
    """Calls that only one side has, or that both have with other sizes."""

    in_json = "change module kind step before now growth_s"

    change: str  # added, removed or changed
    module: str
    kind: str
    step: str
    before: str  # its sizes, or those that differ
    now: str
    growth_s: float  # its part in the growth of the latency, both priced now


@dataclass(frozen=True)
class Measure(Declared):
    """One metric of a model: the baseline's value, today's, and what is allowed."""

    in_json = "metric before now growth limit holds"

    metric: str
    unit: str
    before: float | None
    now: float | None
    growth: float | None  # share; None where it is not known
    limit: str = ""  # "": none
    holds: bool = True


@dataclass(frozen=True)
class Checked(Declared):
    """One model at the gate."""

    in_json = "model device dtype phase passes repriced excused notes measures changes"

    model: str
    device: str
    dtype: str
    phase: str
    measures: tuple[Measure, ...]
    changes: tuple[Change, ...]
    repriced: bool = False
    excused: str = ""  # why limits that do not hold fail nothing
    notes: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        return bool(self.excused) or all(measure.holds for measure in self.measures)


@dataclass(frozen=True, repr=False)
class Gate(Declared, Shown):
    """The report of a gate; `print` gives the command's table."""

    in_json = "schema passes versions written models"
    schema = SCHEMA

    models: tuple[Checked, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    written: tuple[str, ...] = ()  # names of the models whose answers are the baseline now

    @property
    def passes(self) -> bool:
        return all(model.passes for model in self.models)


def checked(
    before: Entry,
    now: Entry,
    predictor: Predictor,
    limits: Sequence[Limit],
    versions: tuple[Mapping[str, str], Mapping[str, str]],
    *,
    strict: bool = False,
) -> Checked:
    """Compare a model with its baseline; `versions`: of the baseline and of today.

    Raises InputError where the two answer different questions.
    """
    _check_alike(before, now)
    now = msgspec.structs.replace(now, answers=_settled(before.answers, now.answers))
    old_s, new_s = priced(before.layers, predictor), priced(now.layers, predictor)
    changes = _changes(before.layers, old_s, now.layers, new_s)
    newer = versions[0].get("neuralpower") != versions[1].get("neuralpower")
    repriced = newer or not math.isclose(sum(old_s), before.priced_s, rel_tol=SAME)
    moved = [
        f"{name} {versions[0].get(name) or 'none'} -> {versions[1].get(name) or 'none'}"
        for name in sorted({*versions[0], *versions[1]} - {"neuralpower"})
        if versions[0].get(name) != versions[1].get(name)
    ]
    growths = _growths(before, now, (sum(old_s), sum(new_s)), repriced=repriced, unchanged=not changes)
    measures = tuple(_measures(before, now, growths, limits))
    notes = []
    if repriced:
        notes.append(
            "re-priced: both sides with this version's predictor, so the growth is the layers' alone"
        )
        if changes and any(limit.metric.name == "memory" for limit in limits):
            notes.append("memory is not judged over versions of neuralpower; --update takes today's")
    excused = ""
    if moved and changes and not strict:
        excused = f"{', '.join(moved)} changed the layers; --strict-versions fails, --update accepts"
    elif repriced and not changes:
        excused = "the layers are those of the baseline"
    return Checked(
        now.model, now.device, now.dtype, now.phase, measures, changes, repriced, excused, tuple(notes)
    )


def _settled(before: Mapping[str, float | None], now: Mapping[str, float | None]) -> dict[str, float | None]:
    """Today's values, as the baseline has them where rounding alone differs: each Python sums in its way."""
    both = {name: (before.get(name), value) for name, value in now.items()}
    return {
        name: old if old is not None and new is not None and math.isclose(old, new, rel_tol=SAME) else new
        for name, (old, new) in both.items()
    }


def _check_alike(before: Entry, now: Entry) -> None:
    """Raise InputError where device, dtype or phase differ."""
    for name in ("device", "dtype", "phase"):
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            raise InputError(
                f"{now.model}: the baseline is of {name} {old}, this is {new}; ask for the same, or accept "
                "it with --update"
            )


def _growths(
    before: Entry, now: Entry, sums_s: tuple[float, float], *, repriced: bool, unchanged: bool
) -> dict[str, float | None]:
    """Growth of each metric as a share; None where it is not known."""
    growths: dict[str, float | None] = {}
    for name, new in now.answers.items():
        old = before.answers.get(name)
        if old is None or new is None:
            growths[name] = None
        elif not repriced:
            growths[name] = new / old - 1 if old else float(new > 0)
        elif unchanged:
            growths[name] = 0.0
        elif name == "latency":
            growths[name] = sums_s[1] / sums_s[0] - 1 if sums_s[0] else None
        else:
            growths[name] = new / old - 1 if old and name == "flops" else None
    return growths


def _measures(
    before: Entry, now: Entry, growths: Mapping[str, float | None], limits: Sequence[Limit]
) -> Iterator[Measure]:
    allowed = {limit.metric.name: limit for limit in limits}
    for name, metric in METRICS.items():
        limit, value = allowed.get(name), now.answers.get(name)
        if limit is not None and value is None:
            raise InputError(
                f"--max-{name} {limit.text}: the {name} of {now.model} is not known on {now.device}; leave "
                "it out"
            )
        holds = limit is None or value is None or limit.holds(value, growths[name])
        old = before.answers.get(name)
        yield Measure(
            name, metric.unit, old, value, growths[name], "" if limit is None else limit.text, holds
        )


def _changes(
    before: Sequence[Call], old_s: Sequence[float], now: Sequence[Call], new_s: Sequence[float]
) -> tuple[Change, ...]:
    """What differs, call by call of each module, equal ones of repeated blocks together; largest first."""
    old, new = _by_place(before, old_s), _by_place(now, new_s)
    grouped: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for place in dict.fromkeys([*old, *new]):
        path, kind, step = place
        was, are = old.get(place, {}), new.get(place, {})
        gone, come = _without(was, are), _without(are, was)
        if not gone and not come:
            continue
        change = CHANGED if gone and come else ADDED if come else REMOVED
        growth = sum(come.values()) - sum(gone.values())
        key = (change, pattern(path), kind, step, *_in_words([*gone], [*come]))
        grouped.setdefault(key, []).append((path, growth))
    changes = [
        Change(change, ranges([path for path, _ in places]), kind, step, was, are, sum(s for _, s in places))
        for (change, _, kind, step, was, are), places in grouped.items()
    ]
    return tuple(sorted(changes, key=lambda change: -abs(change.growth_s)))


Sizes = tuple[tuple[str, Any], ...]  # a layer's fields, and its calls
Taken = dict[Sizes, float]  # their seconds


def _by_place(calls: Sequence[Call], seconds: Sequence[float]) -> dict[tuple[str, str, str], Taken]:
    """Place -> sizes -> seconds there."""
    places: dict[tuple[str, str, str], Taken] = {}
    for call, taken in zip(calls, seconds, strict=True):
        paths, times, layer = Counter(call.paths), len(call.paths), call.layer
        fields = {} if layer is None else to_row(layer)  # with those that a newer version has added
        for path, here in paths.items():
            sizes = (*sorted(fields.items()), ("calls", call.count * here / times))
            there = places.setdefault((path, call.kind, call.step), {})
            there[sizes] = there.get(sizes, 0.0) + taken * here / times
    return places


def _without(some: Taken, others: Taken) -> Taken:
    """The sizes that the others have not."""
    return {sizes: taken for sizes, taken in some.items() if sizes not in others}


def _in_words(gone: Sequence[Sizes], come: Sequence[Sizes]) -> tuple[str, str]:
    """What differs, as text; of calls without a counterpart their sizes."""
    if len(gone) == len(come) == 1:
        was, are = dict(gone[0]), dict(come[0])
        names = [name for name in {**was, **are} if was.get(name) != are.get(name)]
        return tuple(_said({name: side.get(name) for name in names}) for side in (was, are))  # type: ignore[return-value]
    return "; ".join(_said(dict(sizes)) for sizes in gone), "; ".join(_said(dict(sizes)) for sizes in come)


def _said(sizes: Mapping[str, Any]) -> str:
    """Sizes as text, without those that are 0."""
    named = {name: f"{value:g}" if isinstance(value, float) else value for name, value in sizes.items()}
    return " ".join(
        f"{name}={value}" for name, value in named.items() if value not in (0, False, "", None, "0")
    )
