"""Points of a space of configurations -> latency, energy and memory of each, from few traces.

Points of one model that differ in numbers are a family: its table of formulas is found once
(`prediction.explore.family`), and all points' layers are predicted together. A point that the table
does not reach is traced itself; its `basis` says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from neuralpower.errors import NeuralPowerError, one_line
from neuralpower.files.stages import stage
from neuralpower.layers.base import FORWARD, torch_dtype
from neuralpower.learn.network_estimates import as_run
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.prediction.explore.family import (
    LENGTH,
    Example,
    Members,
    Table,
    added,
    alone,
    example_of,
    find_tables,
    is_width,
)
from neuralpower.prediction.explore.outcomes import Outcomes, Pool
from neuralpower.prediction.weights import Weighing
from neuralpower.quantisation.schemes import Scheme
from neuralpower.trace.lifetimes import WORKSPACE
from neuralpower.trace.passes import OF_CALLS, applied
from neuralpower.trace.question import EAGER, ENGINE, GRAPH, Question
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
    run: str = EAGER  # one of `trace.question.RUNS`

    @property
    def text(self) -> str | nn.Module:
        """The model with its changes, as `resolve` takes it."""
        if isinstance(self.model, nn.Module) or not self.changes:
            return self.model
        changes = "&".join(f"{name}={json.dumps(value)}" for name, value in self.changes.items())
        return f"{self.model}{'&' if '?' in self.model else '?'}{changes}"


@dataclass(frozen=True)
class Explored:
    """Results of all points, in their order; a point with an error has no numbers."""

    points: Sequence[Point]
    outcomes: Outcomes
    parameters: Array  # [points], NaN where not known
    memory_bytes: Array  # without what the heap keeps, which is replayed for one point at a time
    memory_high_bytes: Array
    basis: tuple[str, ...]  # how its layers are known: by formula, or traced
    errors: Mapping[int, str]
    traces: int
    notes: tuple[str, ...] = ()


Tables = dict[Any, tuple[list["Served"], dict[str, None]]]  # by family and scheme: (tables, notes)


def explore(
    points: Sequence[Point],
    predictor: Predictor,
    weights: Scheme | None = None,
    known: Tables | None = None,
) -> Explored:
    """Predict all points; a point that cannot be built or traced is in `errors`.

    `weights` says how they are quantised; None: as a checkpoint's are. `known` are tables of the same points,
    for other predictors, which serve this one where the weights are the same to both; new ones are added.

    Raises:
        PredictorError: a dtype that the predictor was not trained on.
    """
    for dtype in dict.fromkeys(point.dtype for point in points):
        predictor.check(dtype, FORWARD)
    totals = _Totals(points, predictor)
    traces = 0
    notes = dict[str, None]()
    recorded = Weighing(weights, predictor.hardware)
    known = {} if known is None else known
    for index, members in _families(points, recorded):
        stage("predicting points:", int(np.isfinite(totals.memory).sum()), len(points))
        key = (tuple(index), _as_weighed(points[index[0]], weights, predictor))
        if key not in known:
            used, took, told = tables_of(members)
            known[key] = used, {**told, **recorded.notes}
            traces += took
        used, told = known[key]
        notes |= told
        for table in used:
            totals.add(table, index[table.members])
    return Explored(
        points=points,
        outcomes=totals.outcomes(),
        parameters=totals.parameters,
        memory_bytes=totals.memory,
        memory_high_bytes=totals.high,
        basis=tuple(totals.basis.tolist()),
        errors=totals.errors,
        traces=traces,
        notes=tuple(notes),
    )


class _Totals:
    """Parameters, bytes and layers of points, [points], as their tables fill them."""

    def __init__(self, points: Sequence[Point], predictor: Predictor) -> None:
        count = len(points)
        self.points, self.predictor = points, predictor
        self.pools: dict[tuple[str, str], Pool] = {}  # by dtype and way to run
        self.parameters, self.memory, self.high = (np.full(count, np.nan) for _ in range(3))
        self.basis = np.full(count, FORMULA, dtype=object)
        self.errors = dict[int, str]()
        hows = dict.fromkeys((point.dtype, point.run) for point in points)
        self.fresh = {how: np.zeros((3, count)) for how in hows}

    def add(self, served: Served, where: Array) -> None:
        """Fill in the points that a table serves, the numbers `where`."""
        table, fields, depth = served.table, served.fields, served.depth
        if served.alone or table is None:  # traced, or tried to
            self.basis[where] = TRACED
        if table is None:
            self.errors |= dict.fromkeys(where.tolist(), served.error)
            return
        how = (self.points[where[0]].dtype, self.points[where[0]].run)
        graphed = how[1] in (GRAPH, ENGINE)
        fill(self.pools.setdefault(how, Pool(len(self.points), graphed=graphed)), table, fields, depth, where)
        self.fresh[how][:, where] = table.fresh_s(fields, depth, self.predictor)
        self.parameters[where] = added(table.parameters, fields, depth)
        platform = self.predictor.platform
        tensors, moving = table.peaks(fields, depth, platform)
        from_library = any(storage.part == WORKSPACE for storage, _ in table.storages)
        library = platform.framework.onednn_bytes if from_library else 0
        # what an accelerator's allocator keeps depends on the order of all calls: the bound has a share
        products = platform.product_bytes
        self.memory[where] = tensors + platform.framework.code_bytes(FORWARD) + library + products
        margin = platform.framework.margin_bytes(FORWARD, moving, tensors)
        self.high[where] = self.memory[where] + margin

    def outcomes(self) -> Outcomes:
        """Time, energy and bounds of each; NaN where a point has an error."""
        parts = {
            how: pool.work(as_run(self.predictor, how[1]), how[0])
            .outcomes(self.predictor)
            .with_time(*self.fresh[how])
            for how, pool in self.pools.items()
        }

        def chosen(name: str) -> Array:
            hows = [(point.dtype, point.run) for point in self.points]
            values = [
                np.nan if i in self.errors else getattr(parts[how], name)[i] for i, how in enumerate(hows)
            ]
            return np.array(values, dtype=float)

        return Outcomes(**{name: chosen(name) for name in Outcomes.__dataclass_fields__})


def _as_weighed(point: Point, weights: Scheme | None, predictor: Predictor) -> Any:
    """What the weights of a point depend on besides its network: nothing where they are not quantised."""
    try:
        plain = weights is None and resolve(point.text).weights is None
    except NeuralPowerError:
        plain = False  # which tracing it will tell
    hardware = predictor.hardware
    return None if plain or hardware is None else tuple(sorted(hardware.peak_flops_per_s))


def fill(pool: Pool, table: Table, fields: Array, depth: Array, where: Array) -> None:
    """Put the layers of a table's members into a pool, as the networks `where`."""
    for row in table.rows:
        numbers = {name: np.round(form(fields)) for name, form in row.forms.items()}
        pool.add(row.example, numbers, where, row.times(depth) + np.zeros(len(where)))
    pool.unmodelled_bytes[where] += added(table.unmodelled, fields, depth)
    for size in table.unmodelled:
        pool.unmodelled_calls[where] += size.times(depth)


@dataclass(frozen=True)
class Served:
    """Members of a family with the table that serves them, or the error that stands in its way."""

    members: Array
    table: Table | None
    fields: Array
    depth: Array
    alone: bool = False
    error: str = ""


def tables_of(members: Members) -> tuple[list[Served], int, dict[str, None]]:
    """(members with their tables, traces, notes) of a family.

    Members that no table serves with depth apart get tables in full. Members that remain, or whose table
    fails, are traced one by one.
    """
    left = np.arange(len(members.values))
    served: list[Served] = []
    notes: dict[str, None] = {}
    for kept in dict.fromkeys((members.depth is not None, False)):
        part = (members if kept else replace(members, depth=None)).part(left)
        found = find_tables(part)
        notes |= dict.fromkeys(found.notes)
        members = replace(members, traces=part.traces)
        depth = part.depth if part.depth is not None else np.full(len(left), 2.0)
        for number, table in enumerate(found.tables):
            index = np.flatnonzero(found.table_of == number)
            good = index[whole(table, part.values[index]) & (depth[index] % 1 == 0)] if len(index) else index
            if len(good):
                traced = not kept and not np.ptp(part.values[good], axis=0).any()
                served.append(Served(left[good], table, part.values[good], depth[good], alone=traced))
        left = np.setdiff1d(left, np.concatenate([np.zeros(0, int), *(some.members for some in served)]))
    for i in left.tolist():
        fields, full = members.values[[i]], np.array([2.0])
        one = Served(np.array([i]), None, fields, full, alone=True)
        try:
            served.append(replace(one, table=alone(members, i)))
        except NeuralPowerError as error:
            served.append(replace(one, error=one_line(error)))
    return served, members.traces, notes


def whole(table: Table, fields: Array) -> Array:
    """Which members' numbers all come out known, whole and above 0 (or 0 for all or by a bound) [members]."""
    good = np.ones(len(fields), dtype=bool)
    for form in table.forms:
        if any(any(e) for e in form.exponents):
            value = form(fields)
            good &= np.abs(value - np.round(value)) < 1e-6 * np.maximum(value, 1)
            good &= value > (0.5 if np.isinf(form.zero_from) else -0.5)
    return good


def _families(points: Sequence[Point], recorded: Weighing) -> Iterator[tuple[Array, Members]]:
    """(places among all, members) of points that differ in numbers alone."""
    groups: dict[Any, list[int]] = {}
    for i, point in enumerate(points):
        words = _words(point)
        model = point.model if isinstance(point.model, str) else id(point.model)
        numbers = tuple(sorted(set(point.changes) - set(words)))
        key = (model, point.dtype, point.run, json.dumps(words, sort_keys=True), numbers)
        groups.setdefault((*key, point.seq_len is None, point.input_shape), []).append(i)
    for index in groups.values():
        yield np.array(index), _members([points[i] for i in index], recorded)


def _words(point: Point) -> dict[str, Any]:
    """The changes that are no numbers."""
    numbers = (int, float)
    changes = point.changes.items()
    return {n: v for n, v in changes if isinstance(v, bool) or not (isinstance(v, numbers) and v > 0)}


def _members(points: Sequence[Point], recorded: Weighing) -> Members:
    """Points that differ in numbers alone as members of a family."""
    first, words = points[0], _words(points[0])
    depth_name, own_depth, aliases, widths = _config_of(first)
    numbers = [name for name in first.changes if name not in words and name not in aliases]
    sizes = [BATCH] if first.seq_len is None else [BATCH, LENGTH]
    values = [[*(getattr(p, name) for name in sizes), *(p.changes[name] for name in numbers)] for p in points]
    depth = full = None
    changed = next((name for name in first.changes if name in aliases), None)
    if depth_name and own_depth and changed not in words:
        full = np.array([float(point.changes.get(changed or "", own_depth)) for point in points])
        depth = full if full.max() > 3 else None  # else nothing is gained

    def traced(named: Mapping[str, float], blocks: float | None) -> Example:
        """Trace the member with these numbers, and this number of blocks where the family can set it."""
        changes = {name: int(v) if float(v).is_integer() else v for name, v in named.items()}
        batch, length = int(changes.pop(BATCH)), changes.pop(LENGTH, None)
        if blocks is not None and depth_name:
            changes[depth_name] = blocks
        source, dtype = (
            resolve(Point(first.model, changes={**words, **changes}).text),
            torch_dtype(first.dtype),
        )
        module = source.build("meta", dtype)
        request = InputRequest(batch, None if length is None else int(length), first.input_shape, dtype)
        inputs = source.inputs(module, request, "meta")
        question = Question(dtype=first.dtype, run=first.run)
        weighed = recorded(trace(module, inputs.args, inputs.kwargs), source.weights)
        found = applied(weighed, question, OF_CALLS)
        return example_of(found, module, first.dtype)

    return Members((*sizes, *numbers), np.array(values, dtype=float), depth, full, traced, widths)


def _config_of(point: Point) -> tuple[str | None, int | None, set[str], frozenset[int]]:
    """(field of the number of blocks, its value, its names, unchanged widths) of a transformers model."""
    nothing: tuple[None, None, set[str], frozenset[int]] = None, None, set(), frozenset()
    name = point.model.partition("?")[0] if isinstance(point.model, str) else ":"
    if ":" in name and not name.startswith("transformers:"):
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
