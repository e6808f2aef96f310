"""Passes at any batch size and length, from a few that are followed.

Every whole number of a pass, of its layers and of the memory that it holds, is solved as a form of the sizes
(`serving.surface`). A layer's number has to give one followed pass more than its form has terms; bytes of
memory that follow no form, as work spaces of kernels, are fitted by the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from neuralpower.layers import Layer
from neuralpower.layers.columns import is_number, words_of
from neuralpower.layers.rows import to_row
from neuralpower.prediction.kept.sums import Form, Solver
from neuralpower.serving.surface import sizes_of
from neuralpower.trace.followed import Followed
from neuralpower.trace.lifetimes import Storage
from neuralpower.trace.paths import pattern
from neuralpower.trace.records import Trace

Array = np.ndarray
Size = tuple[int, int]  # batch, tokens of each sample: of a context in a decode step
Follow = Callable[[int, int], Followed]
BATCHES = (2, 3, 5)  # that are followed for one length
BOTH = ((2, 96), (3, 64), (5, 160), (7, 48), (4, 256))  # for any length


@dataclass(frozen=True)
class Law:
    """A pass as a function of its sizes."""

    example: Followed
    decodes: bool
    lengths: tuple[float, float]  # tokens from which, and up to which it holds
    layers: tuple[tuple[Layer, dict[str, Form]], ...]  # distinct ones; none where one follows no form
    layer_of: tuple[int, ...]  # of each task
    calls: tuple[Form, ...]  # bytes of each call that is not modelled
    storages: tuple[tuple[Form, ...], ...]  # bytes of each, then of the blocks that it is made of

    @property
    def priced(self) -> bool:
        """Whether it has the layers of a pass, or its memory alone."""
        return bool(self.layers)

    def holds(self, length: int) -> bool:
        """Whether it is of passes of that length."""
        return self.lengths[0] <= length <= self.lengths[1]

    def at(self, batch: int, length: int) -> Followed:
        """The pass at other sizes; without `priced`, its tasks are those of the example."""
        sizes = _sizes(batch, length, self.decodes)[None]
        made = [replace(layer, **_numbers(forms, sizes)) for layer, forms in self.layers]
        work = self.example.work
        tasks = [
            replace(task, layer=made[place]) for task, place in zip(work.tasks, self.layer_of, strict=False)
        ]
        missing = [
            replace(call, work_bytes=int(form(sizes)[0]))
            for call, form in zip(work.unmodelled, self.calls, strict=True)
        ]
        tokens: dict[str, Any] = {"context": length} if self.decodes else {"tokens": length}
        about = replace(work.about, batch=batch, **tokens)
        found: dict[str, Any] = {"unmodelled": tuple(missing), "about": about}
        found |= {"tasks": tuple(tasks)} if self.priced else {}
        lives = self.example.lifetimes
        if lives is None:
            found["storages"] = self._storages(work.storages, sizes)
        else:
            lives = lives._replace(storages=self._storages(lives.storages, sizes))
        return replace(self.example, work=replace(work, **found), lifetimes=lives)

    def _storages(self, storages: Sequence[Storage], sizes: Array) -> tuple[Storage, ...]:
        places, numbers = self._grown
        found = list(storages)
        left = iter(np.maximum(np.rint(numbers @ sizes[0]), 0).astype(int).tolist() if places else ())
        for i in places:
            size, blocks = next(left), tuple(next(left) for _ in storages[i].blocks)
            found[i] = storages[i]._replace(bytes=size, blocks=blocks)
        return tuple(found)

    @cached_property
    def _grown(self) -> tuple[list[int], Array]:
        """(places of storages that are not always as large, coefficients of their bytes and blocks)."""
        places = [
            i for i, forms in enumerate(self.storages) if any(any(form.coefficients[1:]) for form in forms)
        ]
        return places, np.array([form.coefficients for i in places for form in self.storages[i]])


def law_of(
    follow: Follow, *, decodes: bool, length: int | None, lengths: tuple[float, float] = (0, math.inf)
) -> Law | None:
    """The law of passes; None where their calls differ.

    `length`: tokens of each sample for which it has to hold; None: for all `lengths`.
    """
    sizes: list[Size] = [(batch, length) for batch in BATCHES] if length is not None else []
    sizes = sizes or [(batch, tokens + int(lengths[0])) for batch, tokens in BOTH]
    passes = [follow(*size) for size in sizes]
    if len({_structure(one) for one in passes}) > 1:
        return None
    columns = np.array([_sizes(*size, decodes) for size in sizes])
    solver = Solver(columns)
    layers, layer_of = _layers(passes, solver)
    calls = [
        solver.form(tuple(call.work_bytes for call in some))
        for some in zip(*(one.work.unmodelled for one in passes), strict=True)
    ]
    if None in calls:
        return None
    return Law(
        example=passes[0],
        decodes=decodes,
        lengths=lengths,
        layers=tuple(layers),
        layer_of=tuple(layer_of),
        calls=tuple(form for form in calls if form is not None),
        storages=tuple(
            tuple(
                solver.form(values) or _fitted(columns, values, length is None)
                for values in zip(*((one.bytes, *one.blocks) for one in some), strict=True)
            )
            for some in zip(*map(_lives, passes), strict=True)
        ),
    )


def _layers(
    passes: Sequence[Followed], solver: Solver
) -> tuple[list[tuple[Layer, dict[str, Form]]], list[int]]:
    """(distinct layers with the forms of their numbers, place of each task's); empty where one has none."""
    places: dict[Any, int] = {}
    layers: list[tuple[Layer, dict[str, Form]]] = []
    layer_of = []
    for tasks in zip(*(one.work.tasks for one in passes), strict=True):
        key = tuple(task.layer for task in tasks)
        if key not in places:
            rows = [to_row(layer) for layer in key]
            names = [name for name, value in rows[0].items() if is_number(value)]
            forms = {name: solver.form(tuple(row[name] for row in rows)) for name in names}
            if None in forms.values():
                return [], []
            places[key] = len(layers)
            layers.append((key[0], {name: form for name, form in forms.items() if form is not None}))
        layer_of.append(places[key])
    return layers, layer_of


def _numbers(forms: Mapping[str, Form], sizes: Array) -> dict[str, Any]:
    return {name: int(form(sizes)[0]) for name, form in forms.items()}


def _sizes(batch: int, length: int, decodes: bool) -> Array:
    """The values of `surface.SIZES`."""
    return sizes_of(batch, batch, 1, length) if decodes else sizes_of(batch * length, batch, length, 0)


def _lives(one: Followed) -> Sequence[Storage]:
    return one.work.storages if one.lifetimes is None else one.lifetimes.storages


def _structure(one: Followed) -> tuple[object, ...]:
    """What passes whose numbers correspond have in common."""
    work: Trace = one.work
    tasks = tuple(
        (pattern(t.path), t.layer.kind, words_of(to_row(t.layer)), t.step, t.share) for t in work.tasks
    )
    lives = tuple((s.birth, s.death, s.part, s.library, len(s.blocks)) for s in _lives(one))
    return tasks, tuple((call.operator, call.reason) for call in work.unmodelled), lives


def _fitted(columns: Array, values: Sequence[int], any_length: bool) -> Form:
    """The nearest form: of the tokens of all samples, or of the batch size."""
    used = [0, 1] if any_length else [0, 2]
    solution, *_ = np.linalg.lstsq(columns[:, used], np.array(values, dtype=float), rcond=None)
    coefficients = np.zeros(columns.shape[1])
    coefficients[used] = solution
    return Form(tuple(coefficients.tolist()))
