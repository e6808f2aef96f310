"""A family of networks as a table of formulas: a few members are traced, the layers of all others follow.

Members differ in numbers: batch size, length, fields of the configuration. Each integer of each layer,
parameter and storage is solved as a form of these numbers (`prediction.explore.forms`) and checked
on members that are held out. A table serves the members that lie between traced ones that it gives back:
networks change where a number passes another (a window, a number of positions) or is not a multiple of one (a
block), and a form is unknown beyond that. Depth is separate: members are traced with two blocks, and each
further block adds what the third adds; layers and parameter count of members as deep as the deepest check
that. A member unlike all traced ones, or whose numbers come out broken, is traced itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from neuralpower.dtypes import TENSORFLOAT32
from neuralpower.errors import NeuralPowerError, one_line
from neuralpower.layers import Layer
from neuralpower.layers.base import FORWARD, in_tf32
from neuralpower.layers.columns import is_number, words_of
from neuralpower.layers.rows import to_row
from neuralpower.learn.predictor import Predictor
from neuralpower.platforms import CPU, Platform
from neuralpower.prediction.explore.forms import Form, Solver, constant
from neuralpower.prediction.memory.fresh_memory import fresh_row, is_priced
from neuralpower.prediction.memory.peak import peak
from neuralpower.prediction.rows import Row
from neuralpower.trace.lifetimes import CACHE, MOVING, WEIGHTS, WORKSPACE, Storage, on_library
from neuralpower.trace.paths import pattern
from neuralpower.trace.records import Trace

Array = np.ndarray
# pattern of the path, operator, kind, how often that operator was called there before
Key = tuple[str, str, str, int]
Slot = tuple[str, str, bool]  # pattern of a tensor's name, its dtype, whether it is a parameter (or a buffer)

LENGTH = "seq_len"  # the number that different kinds of blocks may use differently
SHALLOW, DEEPER = 2, 3  # blocks
EXTRA = 3  # examples more than fields that vary, one of them held out, so that a wrong form shows
MOST_EXAMPLES = 24  # of a class
ROUNDING = 1e-9  # of logarithms


@dataclass(frozen=True)
class Example:
    """One member, traced."""

    layers: tuple[tuple[Key, Layer], ...]
    unmodelled: tuple[tuple[Key, str, int], ...]  # (key, reason, bytes)
    parameters: tuple[tuple[Slot, int, int], ...]  # (slot, numbers, bytes), each tensor once, also buffers
    storages: tuple[Storage, ...]  # but for weights

    @cached_property
    def fields(self) -> list[dict[str, Any]]:
        """The fields of each layer, by name."""
        return [to_row(layer) for _, layer in self.layers]

    @cached_property
    def _sizes(self) -> list[int]:
        return [value for row in self.fields for value in row.values() if is_number(value)]

    @cached_property
    def structure(self) -> tuple[object, ...]:
        """The parts that must be equal in two examples, so that their numbers correspond."""
        return (
            tuple((key, words_of(row)) for (key, _), row in zip(self.layers, self.fields, strict=True)),
            tuple((key, reason) for key, reason, _ in self.unmodelled),
            tuple(slot for slot, _, _ in self.parameters),
            tuple((s.birth, s.death, s.part) for s in self.storages),
        )

    @cached_property
    def zeros(self) -> tuple[bool, ...]:
        """Which numbers are zero: they stand for another case, unless a bound says when."""
        return tuple(number == 0 for number in self.numbers)

    @cached_property
    def numbers(self) -> list[float]:
        """All numbers, in the order of the structure."""
        calls = [size for _, _, size in self.unmodelled]
        tensors = [number for _, count, size in self.parameters for number in (count, size)]
        return [*map(float, (*self._sizes, *calls, *tensors, *(s.bytes for s in self.storages)))]


@dataclass(frozen=True)
class Repeated:
    """A number of calls: `count` at two blocks, `deeper` at three."""

    count: float
    deeper: float

    def times(self, depth: Array) -> Array:
        """The number of calls at each depth."""
        return self.count + (depth - SHALLOW) * (self.deeper - self.count)


@dataclass(frozen=True)
class RowForms(Repeated):
    """One distinct layer of the family, its fields as forms."""

    example: Layer
    forms: Mapping[str, Form]


@dataclass(frozen=True)
class SizeForm(Repeated):
    """Numbers or bytes."""

    form: Form


def added(sizes: Sequence[SizeForm], fields: Array, depth: Array) -> Array:
    """Sum of the sizes [rows]."""
    return sum((size.form(fields) * size.times(depth) for size in sizes), np.zeros(len(fields)))


@dataclass(frozen=True)
class Table:
    """Formulas of all members of one structure."""

    rows: tuple[RowForms, ...]
    unmodelled: tuple[SizeForm, ...]
    parameters: tuple[SizeForm, ...]  # how many numbers they hold
    weights: tuple[SizeForm, ...]  # bytes of parameters and buffers
    storages: tuple[tuple[Storage, Form], ...]
    known_peak: bool  # whether a deeper member's peak is what the storages say
    forms: tuple[Form, ...]  # of all numbers of an example, in its order
    cache_per_block: tuple[Form, ...]  # bytes

    def peaks(self, fields: Array, depth: Array, platform: Platform = CPU) -> tuple[Array, Array]:
        """(bytes at the peak, of them what comes and goes) [rows]: that of two blocks, and more caches.

        Work space is that of a CPU's kernels; other platforms have none of it.
        """
        weights = added(self.weights, fields, depth)
        if not self.known_peak:
            return weights * np.nan, weights * np.nan
        if not self.storages:
            return weights, np.zeros(len(fields))
        last = max(max(s.birth, s.death or 0) for s, _ in self.storages)
        live = np.zeros((2, last + 2, len(fields)))  # all, and of them what comes and goes
        for storage, form in self.storages:
            if storage.part == WORKSPACE and storage.library != platform.library:
                continue
            size = form(fields)
            parts = live if storage.part in MOVING else live[:1]
            parts[:, storage.birth] += size
            if storage.death is not None:
                parts[:, storage.death + 1] -= size
        total, moving = np.cumsum(live, axis=1)
        when = np.argmax(total, axis=0)[None]
        highest, moving = (np.take_along_axis(some, when, axis=0)[0] for some in (total, moving))
        more = np.sum([form(fields) for form in self.cache_per_block], axis=0) * (depth - SHALLOW)
        more = np.where(depth < SHALLOW, np.nan, more)  # one block may have its peak elsewhere
        return weights + highest + more, moving

    def fresh_s(self, fields: Array, depth: Array, predictor: Predictor) -> Array:
        """[3, rows] seconds that fresh memory takes, low, high: for each block as much as the first two's.

        Each row of other sizes is replayed.
        """
        if not is_priced(predictor):
            return np.zeros((3, len(fields)))
        held = [
            (Storage(0, None, 1, WEIGHTS), one.form) for one in self.weights for _ in range(round(one.count))
        ]
        tensors = [*held, *self.storages]
        sizes = np.stack(
            [form(fields) + np.zeros(len(fields)) for _, form in tensors] or [0.0 * fields[:, 0]]
        )
        found, known = np.zeros((3, len(fields))), dict[tuple[float, ...], Row | None]()
        for i, size in enumerate(map(tuple, sizes.T.tolist())):
            if size not in known:
                resized = [s.of_size(round(n)) for (s, _), n in zip(tensors, size, strict=False)]
                known[size] = fresh_row(resized, FORWARD, predictor)
            if (row := known[size]) is not None:
                found[:, i] = row.runtime_s, row.low_s, row.high_s
        return found * np.maximum(np.asarray(depth) / SHALLOW, 1.0)

    @cached_property
    def shown(self) -> frozenset[int]:
        """Places of the fields that any form has."""
        exponents = {exponent for form in self.forms for exponent in form.exponents}
        return frozenset(i for exponent in exponents for i, power in enumerate(exponent) if power)


@dataclass
class Members:
    """Members of a family, and how to trace one: `trace_of(numbers, depth)`; depth None: the member's own."""

    names: tuple[str, ...]
    values: Array  # [members, names]
    depth: Array | None  # [members] blocks, where the family's depth can be changed
    full: Array | None  # the same, also where nothing is to be extrapolated from fewer
    trace_of: Callable[[Mapping[str, float], float | None], Example]
    widths: frozenset[int] = frozenset()  # of the configuration that do not vary
    traces: int = 0
    seen: dict[tuple[object, ...], Example] = field(default_factory=dict)  # by values and blocks

    def part(self, index: Array) -> Members:
        """A part of the members; their traces are kept."""
        depth, full = (None if of is None else of[index] for of in (self.depth, self.full))
        return replace(self, values=self.values[index], depth=depth, full=full)

    def blocks(self, index: int) -> float | None:
        """Blocks of a member in full; None where they cannot be set."""
        own = None if self.full is None else float(self.full[index])
        whole = own is not None and own.is_integer()  # the configuration refuses a fraction
        return int(own) if own is not None and whole else own

    def example(self, index: int, blocks: float | None) -> Example:
        """Trace one, in full where `blocks` is None; raises NeuralPowerError."""
        blocks = self.blocks(index) if blocks is None else blocks
        key = (*self.values[index].tolist(), blocks)
        if key not in self.seen:
            self.traces += 1
            named = dict(zip(self.names, self.values[index].tolist(), strict=True))
            self.seen[key] = self.trace_of(named, blocks)
        return self.seen[key]


def example_of(traced: Trace, module: nn.Module, dtype: str) -> Example:
    """A trace as an example; the module's parameters and buffers by name."""
    seen: Counter[tuple[str, str]] = Counter()

    def key(path: str, operator: str, kind: str) -> Key:
        seen[path, operator] += 1
        return pattern(path), operator, kind, seen[path, operator]

    layers = tuple(
        (key(c.path, c.operator, c.layer.kind), in_tf32(c.layer) if dtype == TENSORFLOAT32 else c.layer)
        for c in traced.calls
    )
    unmodelled = tuple((key(u.path, u.operator, ""), u.reason, u.work_bytes) for u in traced.unmodelled)
    named = traced.storages if traced.quantised is not None else ()
    held = {storage.name: storage.bytes for storage in named}
    parameters = tuple(
        ((pattern(name), str(t.dtype), is_parameter), t.numel(), held.get(name, t.numel() * t.element_size()))
        for tensors, is_parameter in ((module.named_parameters(), True), (module.named_buffers(), False))
        for name, t in tensors
        if t.numel()
    )
    # work space of cuDNN follows no formula
    own = [s for s in on_library(traced.storages, CPU.library) if s.part != WEIGHTS and s.bytes]
    return Example(layers, unmodelled, parameters, tuple(own))


@dataclass
class Found:
    """A table, with the members that confirm it."""

    structure: tuple[object, ...]
    table: Table
    traced: list[int] = field(default_factory=list)  # members that it gives back
    in_full: list[int] = field(default_factory=list)  # of them those whose further blocks were looked at

    def gives(self, example: Example, values: Array) -> bool:
        """Whether the table gives an example back."""
        if self.structure != example.structure:
            return False
        said = np.array([form(values[None])[0] for form in self.table.forms])
        return np.allclose(said, example.numbers, rtol=1e-9, atol=0)

    def takes(self, index: int, members: Members, notes: list[str]) -> bool:
        """Add a member that the table gives back; False where its further blocks are unlike the table's."""
        if members.depth is not None and not self._looked_at(members, [index])[0]:
            table = _holding(self.table, index, members, notes)
            if table is None:
                return False
            self.table = table
            self.in_full.append(index)
        self.traced.append(index)
        return True

    def reaches(self, members: Members, index: Sequence[int] | Array) -> Array:
        """Which members lie between those that the table gives back [index]."""
        near = _between(members.values, self.traced, index)
        return near if members.depth is None else near & self._looked_at(members, index)

    def starts(self, alike: Sequence[int], members: Members, notes: list[str]) -> bool:
        """Add the members that it was solved from, the shortest first; False where that one does not hold."""
        at = members.names.index(LENGTH) if LENGTH in members.names else 0
        shortest, *others = sorted(alike, key=lambda i: float(members.values[i, at]))
        if not self.takes(shortest, members, notes):
            return False
        for i in reversed(others):
            self.takes(i, members, notes)
        return True

    def serves(self, members: Members, index: Array, apart: Sequence[int]) -> Array:
        """Which members follow it [index]: those traced alone, where one of `apart` lies between them."""
        if self.reaches(members, apart).any():
            return _among(members.values[index], members.values[self.traced])
        return self.reaches(members, index)

    def _looked_at(self, members: Members, index: Sequence[int] | Array) -> Array:
        """Which members' further blocks are known: a field or a length may matter there alone."""
        some, known = members.values[index], members.values[self.in_full]
        silent = [i for i in range(len(members.names)) if i not in self.table.shown]
        near = (some[:, None, silent] == known[None, :, silent]).all(axis=2).any(axis=1)
        if self.in_full and LENGTH in members.names:
            length, lengths = some[:, members.names.index(LENGTH)], known[:, members.names.index(LENGTH)]
            near &= (length >= lengths.min()) & (length <= lengths.max())
        return np.asarray(near)


@dataclass(frozen=True)
class FoundTables:
    """The tables of a set of members."""

    tables: tuple[Table, ...]
    table_of: Array  # [members] place of the table that serves each; -1 where none does
    notes: tuple[str, ...]


def find_tables(members: Members) -> FoundTables:
    """The tables of members; one that raises has none."""
    notes: list[str] = []
    found: list[Found] = []
    served = np.full(len(members.values), -1)
    for group in _classes(members):
        _search_class(members, group, found, served, notes)
    return FoundTables(tuple(one.table for one in found), served, tuple(notes))


def _search_class(
    members: Members, group: Array, searched: list[Found], served: Array, notes: list[str]
) -> None:
    """Trace members of a class until each lies between some that an old or new table gives back."""
    values, needed = members.values, _needed(members.values[group])
    traced: list[int] = []
    apart: dict[int, Example] = {}  # those of them that no table gives back
    while len(traced) < MOST_EXAMPLES:
        pending = group[served[group] < 0]
        pending = pending[~_among(values[pending], values[list(apart)])]
        if not len(pending):
            return
        i = _farthest(values[group], values[pending], values[traced], pending)
        traced.append(i)
        try:
            apart[i] = members.example(i, SHALLOW if members.depth is not None else None)
        except NeuralPowerError as error:
            notes.append(one_line(error))
            return  # and the members of this class are traced one by one
        taking = (f.gives(apart[i], values[i]) and f.takes(i, members, notes) for f in searched)
        place = next((n for n, takes in enumerate(taking) if takes), None)
        if place is None:
            if len(apart) + len(np.unique(values[pending], axis=0)) - 1 < needed:
                return  # tracing them all is as quick
            alike = [j for j in apart if apart[j].structure == apart[i].structure]
            table = _solved(alike, apart, members, notes) if len(alike) >= needed else None
            if table is None:
                alike = [j for j in alike if apart[j].zeros == apart[i].zeros]
                table = _solved(alike, apart, members, notes) if len(alike) >= needed else None
            if table is None:
                continue
            new = Found(apart[i].structure, table)
            if not new.starts(alike, members, notes):
                return  # its blocks are of several kinds
            place = len(searched)
            searched.append(new)
        apart = {j: example for j, example in apart.items() if j not in searched[place].traced}
        pending = group[served[group] < 0]
        served[pending[searched[place].serves(members, pending, list(apart))]] = place


def _classes(members: Members) -> list[Array]:
    """Members that may differ in numbers alone: alike in sizes of 1, in equal numbers of heads, in depth.

    And in equal widths of two parts: between these, some networks leave a projection out.
    """
    heads = [i for i, name in enumerate(members.names) if "head" in name]
    sizes = [i for i, name in enumerate(members.names) if is_width(name)]
    labels: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(members.values.tolist()):
        ones = tuple(value == 1 for value in row)
        equal = tuple(row[j] == row[k] for j in heads for k in heads if j < k)
        equal += tuple((j, row[j]) for j in sizes if row[j] in members.widths)
        labels.setdefault((ones, equal, members.blocks(i) if members.depth is None else None), []).append(i)
    return sorted((np.array(index) for index in labels.values()), key=len, reverse=True)


def is_width(name: str) -> bool:
    """Whether a field of a configuration is the width of a part."""
    return name.endswith(("_size", "_dim", "d_model"))


def _farthest(group: Array, pending: Array, traced: Array, index: Array) -> int:
    """Which of `index`, whose values are `pending`, to trace next: that farthest from all before."""
    span = np.ptp(np.log2(group), axis=0)
    rows, known = (np.log2(some) / np.where(span > 0, span, 1) for some in (pending, traced))
    if not len(known):
        return int(index[np.argmin(rows.sum(axis=1))])  # a small one first: it takes the least to build
    distance = np.min([np.abs(rows - one).sum(axis=1) for one in known], axis=0)
    return int(index[np.argmax(distance)])


def _among(rows: Array, some: Array) -> Array:
    """Which rows are equal to one of some [rows]."""
    return np.asarray((rows[:, None] == some[None]).all(axis=2).any(axis=1))


def _between(values: Array, traced: Sequence[int], index: Sequence[int] | Array) -> Array:
    """Which members lie between traced ones [index]: in each number, each ratio of two, and in their steps.

    Between two lengths on one side of a window there is no window; between multiples of a block lie
    multiples.
    """
    logs = np.log2(values)
    ratios = [logs[:, i] - logs[:, j] for i, j in itertools.combinations(range(logs.shape[1]), 2)]
    places = np.column_stack([logs, *ratios])
    low, high = places[traced].min(axis=0) - ROUNDING, places[traced].max(axis=0) + ROUNDING
    near = np.all((places[index] >= low) & (places[index] <= high), axis=1)
    for known, some in zip(values[traced].T, values[index].T, strict=True):
        if np.all(known % 1 == 0):
            step = np.gcd.reduce((known - known[0]).astype(np.int64))
            near &= (some - known[0]) % step == 0 if step else some == known[0]
    return np.asarray(near)


def _needed(values: Array) -> int:
    """Examples for forms of what varies."""
    varied = int((np.ptp(values, axis=0) > 0).sum())
    return varied + EXTRA if varied else 1


def _solved(
    mine: Sequence[int], examples: Mapping[int, Example], members: Members, notes: list[str]
) -> Table | None:
    """The table that all examples of a structure follow, the last one held out; None if there is none."""
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
    return _table(examples[mine[0]], known, members, mine[0], notes)


def alone(members: Members, index: int) -> Table:
    """The table of one member, which is traced in full; raises NeuralPowerError."""
    example = members.example(index, None)
    forms = [constant(value, len(members.names)) for value in example.numbers]
    table = _table(example, forms, replace(members, depth=None), index, [])
    assert table is not None  # nothing is compared where there is no depth
    return table


def _table(
    example: Example, forms: Sequence[Form], members: Members, index: int, notes: list[str]
) -> Table | None:
    """The forms in their places, with counts at two and three blocks."""
    deeper = example
    if members.depth is not None:
        try:
            deeper = members.example(index, DEEPER)
        except NeuralPowerError as error:
            notes.append(one_line(error))
            return None
    left = iter(forms)
    more = Counter(key for key, _ in deeper.layers)
    if {key for key, _ in example.layers} != more.keys():
        notes.append("a deeper member has other layers")
        return None
    rows: dict[tuple[object, ...], RowForms] = {}
    for (key, layer), fields in zip(example.layers, example.fields, strict=True):
        own = {name: next(left) for name, value in fields.items() if is_number(value)}
        same = (layer.kind, words_of(fields), tuple(own.values()))
        row = rows.get(same, RowForms(0, 0, layer, own))
        rows[same] = replace(row, count=row.count + 1, deeper=row.deeper + more.pop(key, 0))
    missing = Counter(key for key, _, _ in example.unmodelled)
    more_missing = Counter(key for key, _, _ in deeper.unmodelled)
    unmodelled = tuple(
        SizeForm(1, more_missing[key] / missing[key], next(left)) for key, _, _ in example.unmodelled
    )
    slots = Counter(slot for slot, _, _ in example.parameters)
    more_slots = Counter(slot for slot, _, _ in deeper.parameters)
    numbers, sizes = [], []
    for slot, _, _ in example.parameters:
        number, size = (SizeForm(1, more_slots[slot] / slots[slot], next(left)) for _ in range(2))
        sizes.append(size)
        if slot[2]:
            numbers.append(number)
    storages = tuple(zip(example.storages, left, strict=True))
    caches = [form.scaled(1 / SHALLOW) for s, form in storages if s.part == CACHE]
    return Table(
        rows=tuple(rows.values()),
        unmodelled=unmodelled,
        parameters=tuple(numbers),
        weights=tuple(sizes),
        storages=storages,
        known_peak=True,
        forms=tuple(forms),
        cache_per_block=tuple(caches) if members.depth is not None else (),
    )


def _holding(table: Table, index: int, members: Members, notes: list[str]) -> Table | None:
    """The table where it holds for a member with three, the fewest and the most blocks; else None."""
    assert members.full is not None  # nothing is compared where there is no depth
    fewest = max(1, min(SHALLOW, int(members.full.min())))
    for blocks in dict.fromkeys((DEEPER, int(members.full.max()), fewest)):
        try:
            seen = members.example(index, blocks)
        except NeuralPowerError as error:
            notes.append(one_line(error))
            return None
        fields, depth = members.values[[index]], np.array([float(blocks)])
        if _told(table, fields, depth) != _seen(seen):
            said = "members are traced in full"
            notes.append(f"{blocks} blocks differ from two blocks plus what a third adds: {said}")
            return None
        needed = peak(seen.storages)[0] + sum(size for _, _, size in seen.parameters)
        expected = table.peaks(fields, depth)[0][0]
        if abs(needed - expected) > 1e-9 * needed:
            said = f"{expected:.0f} B were expected; no peak is given"
            notes.append(f"memory of {blocks} blocks is {needed} B, {said}")
            table = replace(table, known_peak=False)
    return table


Content = tuple[Counter[Layer], int, int, int]  # layers, numbers of parameters, unmodelled calls, their bytes


def _told(table: Table, fields: Array, depth: Array) -> Content:
    """The layers and sizes of one member by a table, `fields` [1, names]."""
    layers = Counter[Layer]()
    for row in table.rows:
        numbers: dict[str, Any] = {name: round(float(form(fields)[0])) for name, form in row.forms.items()}
        layers[replace(row.example, **numbers)] += int(row.times(depth)[0])
    calls = sum(float(size.times(depth)[0]) for size in table.unmodelled)
    sizes = (added(some, fields, depth)[0] for some in (table.parameters, table.unmodelled))
    parameters, size = map(round, sizes)
    return layers, parameters, round(calls), size


def _seen(example: Example) -> Content:
    """The layers and sizes of a traced member."""
    parameters = sum(count for (_, _, is_parameter), count, _ in example.parameters if is_parameter)
    sizes = [size for _, _, size in example.unmodelled]
    return Counter(layer for _, layer in example.layers), parameters, len(sizes), sum(sizes)
