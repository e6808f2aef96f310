"""Errors on held-out rows of the GPU tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.aiconfigurator import predicted, refit
from benchmarks.gpu_tables import SYSTEMS, Part, dataset
from neuralpower.data.screening import screen
from neuralpower.devices.spec import find_spec, known_hardware
from neuralpower.layers import Hardware, Layer
from neuralpower.learn.estimates import BASES, BYTES
from neuralpower.learn.fitting.fit import fit
from neuralpower.learn.fitting.held_out import FOLDS
from neuralpower.learn.fitting.problem import FEWEST_ROWS, Problem, describe
from neuralpower.learn.train import train
from neuralpower.learn.unmeasured.any_device import for_board
from neuralpower.platforms import platform_of

Array = np.ndarray
OF_BOARD, KNOWN = (
    3000,
    0.9,
)  # rows of a part that are predicted from a sibling; their least share that it knows
OF_OTHERS = 1400  # rows of a part that a system is predicted from: known systems are scarce, not rows


@dataclass(frozen=True)
class Errors:
    """Predictions of held-out rows, each [rows]."""

    measured: Array
    predicted: Array
    low: Array
    high: Array

    def __str__(self) -> str:
        """Rows, median, 90th percentile and mean absolute percentage error, share in the bounds."""
        if not len(self.measured):
            return "0 | | | | "
        error = 100 * np.abs(self.predicted / self.measured - 1)
        inside = 100 * np.mean((self.low <= self.measured) & (self.measured <= self.high))
        return (
            f"{len(error):,} | {np.median(error):.2f} | {np.percentile(error, 90):.1f} | "
            f"{np.mean(error):.2f} | {inside:.0f} %"
        )


def joined(some: Sequence[Errors]) -> Errors:
    """All rows of several."""
    names = [field.name for field in dataclasses.fields(Errors)]
    empty = np.empty(0)
    return Errors(*(np.concatenate([empty, *(getattr(one, name) for one in some)]) for name in names))


@dataclass(frozen=True)
class Group:
    """The rows of a part that train one regressor."""

    problem: Problem
    fold: Array  # of the row's shape, [rows]
    drawn: Array  # whether a row is used for training, [rows], bool
    layer: Layer


def groups(part: Part, hardware: Hardware) -> Iterator[Group]:
    """Each regressor's rows, as `train` makes them."""
    rows = screen(part.kind, part.table, hardware=hardware)
    at = rows.line - 2  # a table's first row is line 2 of its file
    fold = np.random.default_rng(0).permutation(len(shapes_of := part.shapes()))[shapes_of[at]] % FOLDS
    drawn = part.drawn()[at]
    layer: Any = rows.layer
    group = np.broadcast_to(np.asarray(platform_of(hardware).alone.group(layer)), (len(rows),)).astype(str)
    for name in np.unique(group):
        index = np.flatnonzero(group == name)
        if drawn[index].sum() >= FEWEST_ROWS:
            some = rows.at(index)
            problem = describe(some.layer, hardware, target=some.runtime_s)
            yield Group(problem, fold[index], drawn[index], some.layer)


def shapes(part: Part, hardware: Hardware, folds: int) -> Errors:
    """Every row of the first `folds` tenths of the shapes, by a fit of drawn rows of the others.

    Bases, reach and bounds are chosen once, without the first fold; weights and trees are fitted anew.
    """
    found = []
    for group in groups(part, hardware):
        problem, fold, drawn = group.problem, group.fold, group.drawn
        settings = fit(problem.at(np.flatnonzero(drawn & (fold != 0))))
        for one in range(folds):
            asked = problem.at(np.flatnonzero(fold == one))
            if len(asked):
                known = problem.at(np.flatnonzero(drawn & (fold != one)))
                found.append(Errors(asked.target, *predicted(refit(known, settings), asked)))
    return joined(found)


def twins(part: Part) -> Array:
    """How far apart neighbours are that take the same kernel, in percent: noise, which no fit predicts.

    They are products of 2 to 16 rows and the same of one row more, which fill the same part of a tile: the
    absolute differences of log(t), over the root of 2. Empty for other kinds.
    """
    if "rows" not in part.table:
        return np.empty(0)
    table = part.table[(part.table.rows >= 2) & (part.table.rows <= 16)]
    times = table.pivot_table(index=list(part.shape), columns="rows", values="runtime_s")
    next_to = np.diff(times.columns.to_numpy()) == 1
    apart = np.abs(np.diff(np.log(times.to_numpy()), axis=1))[:, next_to].ravel() / np.sqrt(2)
    return np.asarray(100 * apart[np.isfinite(apart)])


def beyond(part: Part, hardware: Hardware) -> Iterator[tuple[str, Errors]]:
    """The largest from smaller ones, along each axis that the part names."""
    for name, (known, asked) in part.beyond.items():
        found = []
        for group in groups(part, hardware):
            few = group.problem.at(np.flatnonzero(group.drawn & known(group.layer)))
            far = group.problem.at(np.flatnonzero(asked(group.layer)))
            if len(few) >= FEWEST_ROWS and len(far):
                found.append(Errors(far.target, *predicted(fit(few).regressor, far)))
        yield name, joined(found)


def systems(system: str, everything: Mapping[str, Sequence[Part]]) -> Iterator[tuple[str, Part, Errors]]:
    """The system's rows by a predictor of the others', with its siblings among them and without."""
    slug, siblings = SYSTEMS[system].slug, SYSTEMS[system].siblings
    hardware = known_hardware(slug)
    assert hardware is not None
    ways = {"from others": ()} if not siblings else {"sibling among the others": (), "no sibling": siblings}
    for name, without in ways.items():
        others = {
            other: [part.thinned(OF_OTHERS) for part in some]
            for other, some in everything.items()
            if other not in (system, *without) and some
        }
        trained = train([dataset(some, other) for other, some in others.items()]).predictor.on(hardware, slug)
        for part in everything[system]:
            rows = screen(part.kind, part.table, hardware=hardware)
            found = trained.estimate_columns(rows.layer)
            yield name, part, Errors(rows.runtime_s, found.runtime_s, found.low_s, found.high_s)


def boards(system: str, part: Part) -> Iterator[tuple[str, Errors]]:
    """Drawn rows of the system by the shipped predictors of its siblings, boards of the same chip."""
    spec = find_spec(SYSTEMS[system].slug)
    table = part.thinned(OF_BOARD).table[part.thinned(OF_BOARD).drawn()].reset_index(drop=True)
    rows = screen(part.kind, table, hardware=spec.hardware())
    for sibling in SYSTEMS[system].siblings:
        predictor = for_board(spec, find_spec(SYSTEMS[sibling].slug))
        found = predictor.estimate_columns(rows.layer)
        if np.mean(found.basis_code < BASES.index(BYTES)) > KNOWN:
            yield sibling, Errors(rows.runtime_s, found.runtime_s, found.low_s, found.high_s)
