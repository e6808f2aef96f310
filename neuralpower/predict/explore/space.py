"""Points of a space of configurations -> latency, energy and memory of each, from few traces.

Points of one model that differ in numbers are a family: its table of formulas is learnt once (`neuralpower.predict.explore.family`)
and all points' layers are predicted in one go. A point that the table does not reach is traced itself, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from neuralpower.errors import NeuralPowerError, one_line
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.predict.explore.family import (
    LENGTH,
    Example,
    Members,
    Table,
    added,
    alone,
    example_of,
    is_width,
    learn,
)
from neuralpower.predict.explore.outcomes import Outcomes, Pool
from neuralpower.trace.tracer import trace

Array = np.ndarray
DEPTH = "num_hidden_layers"
BATCH = "batch_size"
FORMULA, TRACED = "formula", "traced"


@dataclass(frozen=True)
class Point:
    """One network with its inputs; `changes` are fields of the model's configuration."""

    model: str | nn.Module
    batch_size: int = 1
    seq_len: int | None = None
    dtype: str = "float32"
    changes: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...] | None = None  # of one sample

    @property
    def text(self) -> str | nn.Module:
        """The model with its changes, as `resolve` takes it."""
        if isinstance(self.model, nn.Module) or not self.changes:
            return self.model
        mark = "&" if "?" in self.model else "?"
        return (
            self.model
            + mark
            + "&".join(f"{name}={json.dumps(value)}" for name, value in self.changes.items())
        )


@dataclass(frozen=True)
class Explored:
    """What is known of points, in their order; a point with an error has no numbers."""

    points: tuple[Point, ...]
    outcomes: Outcomes
    parameters: Array  # [points], NaN where not known
    memory_bytes: Array  # without what the heap keeps, which is replayed for one point at a time
    memory_high_bytes: Array
    basis: tuple[str, ...]  # how its layers are known: by formula, or traced
    errors: Mapping[int, str]
    traces: int
    notes: tuple[str, ...] = ()


def explore(points: Sequence[Point], predictor: Predictor) -> Explored:
    """Predict all points; a point that cannot be built or traced is in `errors`.

    Raises:
        PredictorError: a dtype that the predictor has not learnt.
    """
    for dtype in dict.fromkeys(point.dtype for point in points):
        predictor.check(dtype, FORWARD)
    pools: dict[str, Pool] = {}
    count = len(points)
    parameters, memory, high = (np.full(count, np.nan) for _ in range(3))
    basis, errors, traces, notes = [FORMULA] * count, dict[int, str](), 0, dict[str, None]()
    framework = predictor.platform.framework
    for family in _families(points):
        used, took, told = tables_of(family)
        notes |= dict.fromkeys(told)
        traces += took
        pool = pools.setdefault(points[family.index[0]].dtype, Pool(count))
        for served in used:
            where = np.array([family.index[i] for i in served.members])
            if served.error:
                errors |= dict.fromkeys(where.tolist(), served.error)
                continue
            assert served.table is not None
            fill(pool, served.table, served.fields, served.depth, where)
            parameters[where] = served.table.parameter_count(served.fields, served.depth)
            tensors, moving = served.table.peaks(served.fields, served.depth, predictor.platform)
            library = framework.onednn_bytes if served.table.has_workspace else 0
            memory[where] = tensors + framework.code_bytes(FORWARD) + library
            high[where] = memory[where] + framework.margin_bytes(FORWARD, moving, tensors)
            for i in where if served.alone else ():
                basis[i] = TRACED
    parts = [pool.work(predictor, dtype).outcomes(predictor) for dtype, pool in pools.items()]
    dtypes = list(pools)
    which = np.array([dtypes.index(p.dtype) for p in points], dtype=int)
    chosen = Outcomes(
        *(
            np.array([getattr(parts[w], name)[i] for i, w in enumerate(which)], dtype=float)
            for name in Outcomes.__dataclass_fields__
        )
    )
    for i in errors:
        basis[i] = TRACED  # or tried to
        for name in Outcomes.__dataclass_fields__:
            getattr(chosen, name)[i] = np.nan
    return Explored(
        tuple(points), chosen, parameters, memory, high, tuple(basis), errors, traces, tuple(notes)
    )


def fill(pool: Pool, table: Table, fields: Array, depth: Array, where: Array) -> None:
    """Put the layers of a table's members into a pool, as the networks `where`."""
    for row in table.rows:
        numbers = {name: np.round(form(fields)) for name, form in row.forms.items()}
        pool.add(row.example, numbers, where, row.calls(depth) + np.zeros(len(where)))
    pool.unmodelled_bytes[where] += added(table.unmodelled, fields, depth)
    for size in table.unmodelled:
        pool.unmodelled_calls[where] += size.count(depth)


@dataclass(frozen=True)
class Family:
    """Points that differ in numbers alone: their places among all, and what is needed to learn them."""

    index: tuple[int, ...]
    members: Members


@dataclass(frozen=True)
class Subject:
    """What all members of a family have in common."""

    model: str | nn.Module
    dtype: str
    words: Mapping[str, Any]  # changes that are no numbers
    depth_name: str | None  # field that sets the number of blocks
    input_shape: tuple[int, ...] | None  # of one sample

    def traced(self, numbers: Mapping[str, float], blocks: float | None) -> Example:
        """The member with these numbers, and so many blocks where the family has a field for them."""
        changes = dict(self.words) | {
            name: int(value) if float(value).is_integer() else value
            for name, value in numbers.items()
            if name not in (BATCH, LENGTH)
        }
        if blocks is not None and self.depth_name:
            changes[self.depth_name] = blocks
        source = resolve(Point(self.model, changes=changes).text)
        module = source.build("meta", torch_dtype(self.dtype))
        length = int(numbers[LENGTH]) if LENGTH in numbers else None
        request = InputRequest(int(numbers[BATCH]), length, self.input_shape, torch_dtype(self.dtype))
        inputs = source.inputs(module, request, "meta")
        return example_of(trace(module, inputs.args, inputs.kwargs), module, self.dtype)


@dataclass(frozen=True)
class Served:
    """Members of a family with the table that serves them, or the error that stands in its way."""

    members: Array
    table: Table | None
    fields: Array
    depth: Array
    alone: bool = False
    error: str = ""


def tables_of(family: Family) -> tuple[list[Served], int, tuple[str, ...]]:
    """(members with their tables, traces, notes) of a family.

    Members that no table serves with depth apart are learnt in full, and what is left then, or comes out broken, is traced.
    """
    members, left = family.members, np.arange(len(family.members.values))
    served: list[Served] = []
    notes: tuple[str, ...] = ()
    for kept in dict.fromkeys((members.depth is not None, False)):
        part = (members if kept else members.without_depth()).part(left)
        learnt = learn(part)
        notes += learnt.notes
        members = replace(members, traces=part.traces)
        depth = part.depth if part.depth is not None else np.full(len(left), 2.0)
        for number, table in enumerate(learnt.tables):
            index = np.flatnonzero(learnt.table_of == number)
            good = index[whole(table, part.values[index]) & (depth[index] % 1 == 0)] if len(index) else index
            if len(good):
                traced = not kept and not np.ptp(part.values[good], axis=0).any()
                served.append(Served(left[good], table, part.values[good], depth[good], alone=traced))
        left = np.setdiff1d(left, np.concatenate([np.zeros(0, int), *(some.members for some in served)]))
    for i in left.tolist():
        fields, full = members.values[[i]], np.array([2.0])
        try:
            served.append(Served(np.array([i]), alone(members, i), fields, full, alone=True))
        except NeuralPowerError as error:
            served.append(Served(np.array([i]), None, fields, full, error=one_line(error)))
    return served, members.traces, notes


def whole(table: Table, fields: Array) -> Array:
    """Which members' numbers all come out whole and above 0 (or 0 for all) [members]."""
    good = np.ones(len(fields), dtype=bool)
    for row in table.rows:
        for form in row.forms.values():
            if any(any(e) for e in form.exponents):
                value = form(fields)
                good &= (np.abs(value - np.round(value)) < 1e-6 * np.maximum(value, 1)) & (value > 0.5)
    return good


def _families(points: Sequence[Point]) -> list[Family]:
    """Points by model, dtype, shape of a sample and whatever of their changes is no number."""
    groups: dict[Any, list[int]] = {}
    for i, point in enumerate(points):
        words = {name: value for name, value in point.changes.items() if not _is_number(value)}
        model = point.model if isinstance(point.model, str) else id(point.model)
        key = (
            model,
            point.dtype,
            json.dumps(words, sort_keys=True),
            tuple(sorted(set(point.changes) - set(words))),
        )
        groups.setdefault((*key, point.seq_len is None, point.input_shape), []).append(i)
    return [_family(points, index) for index in groups.values()]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _family(points: Sequence[Point], index: Sequence[int]) -> Family:
    first = points[index[0]]
    words = {name: value for name, value in first.changes.items() if not _is_number(value)}
    depth_name, own_depth, aliases, widths = _config_of(first)
    numbers = [name for name in first.changes if name not in words and name not in aliases]
    names = (BATCH, *([LENGTH] if first.seq_len is not None else []), *numbers)
    values = np.array(
        [
            [p.batch_size, *([p.seq_len] if p.seq_len is not None else []), *(p.changes[n] for n in numbers)]
            for p in (points[i] for i in index)
        ],
        dtype=float,
    )
    depth = full = None
    changed = next((name for name in first.changes if name in aliases), None)
    if depth_name and own_depth and changed not in words:
        full = np.array([float(points[i].changes.get(changed or "", own_depth)) for i in index])
        depth = full if full.max() > 3 else None  # else nothing is gained
    subject = Subject(first.model, first.dtype, words, depth_name, first.input_shape)
    return Family(tuple(index), Members(names, values, depth, full, subject.traced, widths))


def _config_of(point: Point) -> tuple[str | None, int | None, set[str], frozenset[int]]:
    """(field that sets the number of blocks, its value, all of its names; unchanged widths) of a transformers model by name."""
    nothing: tuple[None, None, set[str], frozenset[int]] = None, None, set(), frozenset()
    if not isinstance(point.model, str) or not (
        point.model.startswith("transformers:") or ":" not in point.model.partition("?")[0]
    ):
        return nothing
    try:
        try:
            module = resolve(point.text).build("meta", torch_dtype(point.dtype))
        except NeuralPowerError:
            module = resolve(point.model).build("meta", torch_dtype(point.dtype))
    except NeuralPowerError:
        return nothing  # which tracing it will tell
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "attribute_map"):
        return nothing
    fields = config.to_dict()
    given = {alias for name in point.changes for alias in (name, config.attribute_map.get(name, name))}
    widths = frozenset(v for n, v in fields.items() if is_width(n) and n not in given and isinstance(v, int))
    depth = getattr(config, DEPTH, None)
    if not isinstance(depth, int) or DEPTH not in {*fields, *config.attribute_map}:
        return None, None, set(), widths  # Funnel's is the sum of its blocks' sizes, which no override sets
    return DEPTH, depth, {DEPTH, config.attribute_map.get(DEPTH, DEPTH)}, widths
