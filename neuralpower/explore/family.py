"""A family of networks as a table of formulas: a few members are traced, the layers of all others follow.

Members differ in numbers: batch size, length, fields of the configuration. Each integer of each layer, parameter and
storage is solved as a form of these numbers (`neuralpower.explore.forms`) and checked against members that were held
out. Depth is apart: members are traced with two blocks; what a third adds, each further one adds again, which is checked
by the layers and the parameter count of a member in full.
A member that is unlike all that were traced, or whose numbers come out broken, is traced itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from neuralpower.errors import NeuralPowerError
from neuralpower.explore.forms import Form, Solver, constant
from neuralpower.layers import Layer
from neuralpower.layers.base import typed
from neuralpower.lifetimes import CACHE, MOVING, WEIGHTS, WORKSPACE, Storage, peak
from neuralpower.trace import Trace, pattern

Array = np.ndarray
Key = tuple[str, str, str, int]  # pattern of the path, operator, kind, how often that operator was called there before
Slot = tuple[str, str, bool]  # pattern of a parameter's or buffer's name, its dtype, whether it is learnt

SHALLOW, DEEPER = 2, 3  # blocks
EXTRA = 3  # examples more than fields that vary, one of them held out, so that a wrong form shows
MOST_EXAMPLES = 24  # of a class


@dataclass(frozen=True)
class Example:
    """One member, traced."""

    layers: tuple[tuple[Key, Layer], ...]
    unmodelled: tuple[tuple[Key, str, int], ...]  # (key, reason, bytes)
    parameters: tuple[tuple[Slot, int, int], ...]  # (slot, numbers, bytes), each tensor once, buffers among them
    storages: tuple[Storage, ...]  # but for weights

    @cached_property
    def structure(self) -> tuple[object, ...]:
        """What must be equal for numbers to be compared one by one."""
        return (
            tuple((key, tuple(v for v in _fields(layer).values() if not _is_number(v))) for key, layer in self.layers),
            tuple((key, reason) for key, reason, _ in self.unmodelled),
            tuple(slot for slot, _, _ in self.parameters),
            tuple((s.birth, s.death, s.part) for s in self.storages),
            tuple(v == 0 for _, layer in self.layers for v in _fields(layer).values() if _is_number(v)),
        )

    @cached_property
    def numbers(self) -> list[float]:
        """All of them, in the order of the structure."""
        values = [float(v) for _, layer in self.layers for v in _fields(layer).values() if _is_number(v)]
        values += [float(size) for _, _, size in self.unmodelled]
        values += [float(v) for _, count, size in self.parameters for v in (count, size)]
        return values + [float(s.bytes) for s in self.storages]


@dataclass(frozen=True)
class RowForms:
    """One distinct layer of the family: its fields as forms, and how often it is called at two and at three blocks."""

    example: Layer
    forms: Mapping[str, Form]
    count: int
    deeper: int

    def calls(self, depth: Array) -> Array:
        """How often at each depth."""
        return self.count + (depth - SHALLOW) * (self.deeper - self.count)


@dataclass(frozen=True)
class SizeForm:
    """Bytes, and how often."""

    form: Form
    count: float = 1
    deeper: float = 1
    name: str = ""
    reason: str = ""

    def total(self, fields: Array, depth: Array) -> Array:
        """Of all together."""
        return self.form(fields) * (self.count + (depth - SHALLOW) * (self.deeper - self.count))


def _added(sizes: Sequence[SizeForm], fields: Array, depth: Array) -> Array:
    """All together [rows]."""
    total = np.zeros(len(fields))
    for size in sizes:
        total += size.total(fields, depth)
    return total


@dataclass(frozen=True)
class Table:
    """Formulas of all members of one structure."""

    rows: tuple[RowForms, ...]
    unmodelled: tuple[SizeForm, ...]
    parameters: tuple[SizeForm, ...]  # numbers
    weights: tuple[SizeForm, ...]  # bytes
    storages: tuple[tuple[Storage, Form], ...]
    known_peak: bool  # whether a deeper member's peak is what the storages say
    forms: tuple[Form, ...]  # of all numbers of an example, in its order
    cache_per_block: tuple[SizeForm, ...]

    def parameter_count(self, fields: Array, depth: Array) -> Array:
        """Numbers learnt [rows]."""
        return _added([p for p in self.parameters if p.name == "learnt"], fields, depth)

    def weights_bytes(self, fields: Array, depth: Array) -> Array:
        """Of parameters and buffers [rows]."""
        return _added(self.weights, fields, depth)

    def peaks(self, fields: Array, depth: Array, accelerator: bool = False) -> tuple[Array, Array]:
        """(bytes at the peak, of them what comes and goes) [rows]: that of two blocks, and more caches.

        Work space is that of a CPU's kernels; an accelerator has none of it.
        """
        if not self.known_peak:
            return np.full(len(fields), np.nan), np.full(len(fields), np.nan)
        if not self.storages:
            return self.weights_bytes(fields, depth), np.zeros(len(fields))
        last = max(max(s.birth, s.death or 0) for s, _ in self.storages)
        live = np.zeros((2, last + 2, len(fields)))  # all, and of them what comes and goes
        for storage, form in self.storages:
            if accelerator and storage.part == WORKSPACE:
                continue
            size = form(fields)
            parts = live if storage.part in MOVING else live[:1]
            parts[:, storage.birth] += size
            if storage.death is not None:
                parts[:, storage.death + 1] -= size
        total, moving = np.cumsum(live, axis=1)
        when = np.argmax(total, axis=0)[None]
        highest, moving = (np.take_along_axis(some, when, axis=0)[0] for some in (total, moving))
        more = np.sum([c.form(fields) for c in self.cache_per_block], axis=0) * (depth - SHALLOW)
        more = np.where(depth < SHALLOW, np.nan, more)  # one block may have its peak elsewhere
        return self.weights_bytes(fields, depth) + highest + more, moving

    @property
    def has_workspace(self) -> bool:
        """Whether a CPU's kernels need work space, and so the library that they come from."""
        return any(storage.part == WORKSPACE for storage, _ in self.storages)


@dataclass(frozen=True)
class Learnt:
    """What was found of a set of members: tables, and which member each serves; -1 where none does."""

    fields: tuple[str, ...]
    tables: tuple[Table, ...]
    table_of: Array  # [members]
    traces: int
    notes: tuple[str, ...] = ()


@dataclass
class Members:
    """Members of a family, and how to trace one: `trace_of(numbers, depth)`; depth None is the member's own."""

    names: tuple[str, ...]
    values: Array  # [members, names]
    depth: Array | None  # [members] blocks, where the family's depth can be changed
    full: Array | None  # the same, also where nothing is to be extrapolated from fewer
    trace_of: Callable[[Mapping[str, float], int | None], Example]
    traces: int = 0
    seen: dict[tuple[object, ...], Example] = field(default_factory=dict)  # by values and blocks

    def without_depth(self) -> Members:
        """Each traced in full."""
        return replace(self, depth=None)

    def blocks(self, index: int) -> int | None:
        """Of a member in full; None where they cannot be set."""
        return None if self.full is None else int(self.full[index])

    def example(self, index: int, blocks: int | None) -> Example:
        """Trace one, in full where `blocks` is None; raises NeuralPowerError."""
        blocks = self.blocks(index) if blocks is None else blocks
        key = (*self.values[index].tolist(), blocks)
        if key not in self.seen:
            self.traces += 1
            self.seen[key] = self.trace_of(self.named(index), blocks)
        return self.seen[key]

    def named(self, index: int) -> dict[str, float]:
        """A member's numbers by name, its depth not among them."""
        return dict(zip(self.names, self.values[index].tolist(), strict=True))


def example_of(traced: Trace, module: nn.Module, dtype: str = "float32") -> Example:
    """A trace as an example; the module's parameters and buffers by name."""
    seen: Counter[tuple[str, str]] = Counter()

    def key(path: str, operator: str, kind: str) -> Key:
        seen[path, operator] += 1
        return pattern(path), operator, kind, seen[path, operator]

    layers = tuple((key(c.path, c.operator, c.layer.kind), typed_as(c.layer, dtype)) for c in traced.calls)
    unmodelled = tuple((key(u.path, u.operator, ""), u.reason, u.bytes) for u in traced.unmodelled)
    tensors = [(n, t, True) for n, t in module.named_parameters()] + [(n, t, False) for n, t in module.named_buffers()]
    parameters = tuple(
        ((pattern(name), str(t.dtype), learnt), t.numel(), t.numel() * t.element_size())
        for name, t, learnt in tensors
        if t.numel()
    )
    return Example(layers, unmodelled, parameters, tuple(s for s in traced.storages if s.part != WEIGHTS))


def typed_as(layer: Layer, dtype: str) -> Layer:
    """As a prediction in TF32 has it."""
    return typed(layer, dtype) if dtype == "tensorfloat32" and layer.dtype == "float32" else layer


def learn(members: Members) -> Learnt:
    """Tables for as many members as possible; members that raise when they are traced have none.

    Class by class, the largest first: where a table that is there already gives a first example back, it serves the class;
    else examples are added until a form is found for every number, and gives back the example that was left out.
    """
    notes: list[str] = []
    examples: dict[int, Example] = {}
    tables: list[tuple[object, Table]] = []
    served = np.full(len(members.values), -1)
    for group in _classes(members):
        order, needed = _spread(members.values, group), _needed(members.values[group])
        for number, i in enumerate(order):
            try:
                examples[i] = members.example(i, SHALLOW if members.depth is not None else None)
            except NeuralPowerError as error:
                notes.append(" ".join(str(error).split()))
                break  # and the members of this class are traced one by one
            place = _place(tables, examples[i], members.values[i])
            if place is not None and not number:
                served[group] = place
                break
            if len(order) < needed:
                break  # tracing them all is as quick
            mine = [j for j in order[: number + 1] if examples[j].structure == examples[i].structure]
            table = _solved(mine, examples, members, notes, first=not tables) if len(mine) >= needed else None
            if table is not None:
                served[group] = len(tables)
                tables.append((examples[i].structure, table))
                break
    return Learnt(
        members.names, tuple(table for _, table in tables), served, members.traces, tuple(dict.fromkeys(notes))
    )


def _place(tables: Sequence[tuple[object, Table]], example: Example, values: Array) -> int | None:
    """The table that gives an example back."""
    for place, (structure, table) in enumerate(tables):
        if structure == example.structure:
            said = np.array([form(values[None])[0] for form in table.forms])
            if np.allclose(said, example.numbers, rtol=1e-9, atol=0):
                return place
    return None


def _classes(members: Members) -> list[Array]:
    """Members that may differ in numbers alone: as many sizes of one, and as many heads of one sort as of another."""
    heads = [i for i, name in enumerate(members.names) if "head" in name]
    labels: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(members.values.tolist()):
        ones = tuple(value == 1 for value in row)
        equal = tuple(row[j] == row[k] for j in heads for k in heads if j < k)
        labels.setdefault((ones, equal), []).append(i)
    return sorted((np.array(index) for index in labels.values()), key=len, reverse=True)


def _spread(values: Array, group: Array) -> list[int]:
    """Members of a class to trace, in this order: each as far as possible from those before; as many as forms may take."""
    logs = np.log2(np.maximum(values[group], 1))
    span = np.ptp(logs, axis=0)
    logs = logs / np.where(span > 0, span, 1)
    order = [int(np.argmin(logs.sum(axis=1)))]  # a small one first: it takes the least to build
    distance = np.abs(logs - logs[order[0]]).sum(axis=1)
    while distance.max() > 0 and len(order) < MOST_EXAMPLES:
        order.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.abs(logs - logs[order[-1]]).sum(axis=1))
    return group[order].tolist()  # type: ignore[no-any-return]  # of numpy


def _needed(values: Array) -> int:
    """Examples for forms of what varies."""
    varied = int((np.ptp(values, axis=0) > 0).sum())
    return varied + EXTRA if varied else 1


def _solved(
    mine: Sequence[int], examples: Mapping[int, Example], members: Members, notes: list[str], first: bool
) -> Table | None:
    """The table that all examples of a structure follow, the last one held out; None where there is none yet."""
    fitted, values = list(mine[:-1]) or list(mine), members.values
    solver = Solver(values[fitted])
    numbers = np.array([examples[i].numbers for i in fitted]).T
    forms = [solver.solve(tuple(column)) for column in numbers]
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return None
    said = np.array([form(values[[mine[-1]]])[0] for form in known])
    if not np.allclose(said, examples[mine[-1]].numbers, rtol=1e-9, atol=0):
        return None
    deepest = max(mine, key=lambda i: members.blocks(i) or 0)
    return _table(examples[deepest], known, members, deepest, notes, first)


def alone(members: Members, index: int) -> Table:
    """The table of one member, which is traced in full; raises NeuralPowerError."""
    example = members.example(index, None)
    forms = [constant(value, len(members.names)) for value in example.numbers]
    table = _table(example, forms, members.without_depth(), index, [])
    assert table is not None  # nothing is compared where there is no depth
    return table


def _table(
    example: Example, forms: Sequence[Form], members: Members, index: int, notes: list[str], first: bool = True
) -> Table | None:
    """The forms in their places, with counts at two and three blocks."""
    deeper = example
    if members.depth is not None:
        try:
            deeper = members.example(index, DEEPER)
        except NeuralPowerError as error:
            notes.append(str(error))
            return None
    left = list(forms)
    rows: dict[tuple[object, ...], list[int]] = {}
    made: dict[tuple[object, ...], tuple[Layer, dict[str, Form]]] = {}
    counted, more = Counter(key for key, _ in example.layers), Counter(key for key, _ in deeper.layers)
    if counted.keys() != more.keys():
        notes.append("a deeper member has other layers")
        return None
    repeated: Counter[Key] = Counter()
    for key, layer in example.layers:
        own = {name: left.pop(0) for name, value in _fields(layer).items() if _is_number(value)}
        same = (layer.kind, tuple(v for v in _fields(layer).values() if not _is_number(v)), tuple(own.values()))
        calls = rows.setdefault(same, [0, 0])
        calls[0] += 1
        if not repeated[key]:
            calls[1] += more[key]
        repeated[key] += 1
        made.setdefault(same, (layer, own))
    unmodelled_counts = Counter(key for key, _, _ in deeper.unmodelled)
    own_counts = Counter(key for key, _, _ in example.unmodelled)
    unmodelled = [
        SizeForm(left.pop(0), 1, unmodelled_counts[key] / own_counts[key], key[1], reason)
        for key, reason, _ in example.unmodelled
    ]
    slots = Counter(slot for slot, _, _ in example.parameters)
    more_slots = Counter(slot for slot, _, _ in deeper.parameters)
    numbers, sizes = [], []
    for slot, _, _ in example.parameters:
        factor = more_slots[slot] / slots[slot]
        numbers.append(SizeForm(left.pop(0), 1, factor, "learnt" if slot[2] else "kept"))
        sizes.append(SizeForm(left.pop(0), 1, factor, slot[0]))
    storages = tuple(zip(example.storages, left, strict=True))
    caches = tuple(SizeForm(form.scaled(1 / SHALLOW)) for s, form in storages if s.part == CACHE)
    table = Table(
        tuple(RowForms(*made[same], *calls) for same, calls in rows.items()),
        tuple(unmodelled),
        tuple(numbers),
        tuple(sizes),
        storages,
        True,
        tuple(forms),
        caches if members.depth is not None else (),
    )
    if members.depth is None:
        return table
    if not _holds(table, deeper, members, index, notes, first):
        return None
    seen = peak(deeper.storages)[0] + sum(size for _, _, size in deeper.parameters)
    told = table.peaks(members.values[[index]], np.array([float(DEEPER)]))[0][0]
    if abs(seen - told) > 1e-9 * seen:
        notes.append(f"memory of {DEEPER} blocks is {seen} B, {told:.0f} B were expected: none is given")
        return replace(table, known_peak=False)
    return table


def _holds(table: Table, deeper: Example, members: Members, index: int, notes: list[str], first: bool) -> bool:
    """Whether a member with three blocks and, for a family's first table, one in full, is what the table says."""
    fields = members.values[[index]]
    full = members.blocks(index)
    for blocks in dict.fromkeys((DEEPER, full if first and full is not None else DEEPER)):
        try:
            seen = deeper if blocks == DEEPER else members.example(index, blocks)
        except NeuralPowerError as error:
            notes.append(str(error))
            return False
        depth, said = np.array([float(blocks)]), Counter[Layer]()
        for row in table.rows:
            said[member_layer(row, fields)] += int(row.calls(depth)[0])
        if +said != Counter(layer for _, layer in seen.layers):
            notes.append(f"{blocks} blocks have other layers than two blocks and what is added: all are traced in full")
            return False
        counted = sum(count for (_, _, learnt), count, _ in seen.parameters if learnt)
        told = table.parameter_count(fields, depth)[0]
        if abs(counted - told) > 0.5:
            notes.append(f"{blocks} blocks have {counted} parameters, {told:.0f} were expected: all are traced in full")
            return False
    return True


def member_layer(row: RowForms, fields: Array) -> Layer:
    """The layer of one member, `fields` [1, names]."""
    changed = {}
    for name, form in row.forms.items():
        value = int(round(float(form(fields)[0])))
        changed[name] = bool(value) if isinstance(getattr(row.example, name), bool) else value
    return type(row.example)(**{**_fields(row.example), **changed})


def _fields(layer: Layer) -> dict[str, Any]:
    return {name: getattr(layer, name) for name in layer.field_names()}


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
