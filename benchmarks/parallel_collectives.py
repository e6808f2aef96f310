"""Exchanges between GPUs that a fit has not seen, from AIConfigurator's tables and PipeWeave's.

sizes      whole sizes held out, of all types and numbers of ranks: bases, reach and bounds are chosen once,
           without the first of seven folds; weights and trees are fitted anew for each fold
beyond     8 GPUs from 2 and 4; messages above 16 MiB from smaller ones
systems    a whole GPU, by the predictor of the others and its links; its siblings stay among the others
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.aiconfigurator import predicted, refit
from benchmarks.gpu_held_out import Errors, joined
from benchmarks.gpu_tables import SYSTEMS, Part, parts
from benchmarks.train.added_kinds import pooled
from benchmarks.train.relatives import columns_of_table
from neuralpower.data.dataset import Dataset
from neuralpower.data.screening import screen
from neuralpower.devices.spec import known_hardware
from neuralpower.layers import Hardware
from neuralpower.layers.collective import Collective
from neuralpower.layers.columns import take
from neuralpower.learn.fitting.fit import fit
from neuralpower.learn.fitting.problem import FEWEST_ROWS, Problem, describe
from neuralpower.learn.train import train

FAMILY, FOLDS = "collectives", 7
WAYS = ("sizes", "beyond", "systems")
HEADER = (
    "| system | exchange | held out | rows | median, % | 90th percentile, % | mean, % | inside |\n"
    + "|---" * 8
    + "|"
)


def parallel_collectives(given: argparse.Namespace) -> None:
    """Each system's functions and libraries."""
    print("\nExchanges between GPUs, held out.\n\n" + HEADER, flush=True)
    everything: dict[str, list[Errors]] = {}
    for system in given.system:
        hardware = known_hardware(SYSTEMS[system].slug)
        assert hardware is not None
        for part in parts(given.path, system, [FAMILY]):
            for name, problem, layer in groups(part, hardware):
                for way, found in _held_out(part, problem, layer, given.ways):
                    print(f"| {system} | {name} | {way} | {found} |", flush=True)
                    everything.setdefault(way, []).append(found)
    if "systems" in given.ways:
        datasets = pooled(given.path, [FAMILY])
        for dataset in datasets:
            if dataset.device in {SYSTEMS[name].slug for name in given.system}:
                for name, found in _from_others(dataset.device, datasets):
                    print(f"| {dataset.device} | {name} | the whole GPU | {found} |", flush=True)
                    everything.setdefault("the whole GPU", []).append(found)
    for way, some in everything.items():
        print(f"| all | all | {way} | {joined(some)} |", flush=True)


def groups(part: Part, hardware: Hardware) -> Iterator[tuple[str, Problem, Collective]]:
    """(Function and library, its rows, the same as columns)."""
    rows = screen(part.kind, part.table, hardware=hardware)
    labels = np.asarray(rows.layer.views.cpu.group(rows.layer))
    for name in np.unique(labels):
        some = rows.at(np.flatnonzero(labels == name))
        assert isinstance(some.layer, Collective)
        yield str(name), describe(some.layer, hardware, target=some.runtime_s), some.layer


def sizes(problem: Problem, layer: Collective) -> Errors:
    """Every row, by a fit without any of its size."""
    size = np.asarray(layer.elements * layer.itemsize)
    different, at = np.unique(size, return_inverse=True)
    fold = (np.random.default_rng(0).permutation(len(different)) % FOLDS)[at]
    settings = fit(problem.at(np.flatnonzero(fold != 0)))
    found = []
    for one in range(FOLDS):
        asked = problem.at(np.flatnonzero(fold == one))
        known = problem.at(np.flatnonzero(fold != one))
        found.append(Errors(asked.target, *predicted(refit(known, settings), asked)))
    return joined(found)


def _held_out(
    part: Part, problem: Problem, layer: Collective, ways: Sequence[str]
) -> Iterator[tuple[str, Errors]]:
    if "sizes" in ways:
        yield "sizes", sizes(problem, layer)
    for name, (known, asked) in part.beyond.items() if "beyond" in ways else ():
        few, far = (problem.at(np.flatnonzero(which(layer))) for which in (known, asked))
        if len(few) >= FEWEST_ROWS and len(far):
            yield name, Errors(far.target, *predicted(fit(few).regressor, far))


def _from_others(device: str, datasets: Sequence[Dataset]) -> Iterator[tuple[str, Errors]]:
    """A GPU's exchanges by the predictor of the others."""
    hardware = known_hardware(device)
    assert hardware is not None
    held_out = train([one for one in datasets if one.device != device]).predictor.on(hardware, device)
    for one in datasets:
        if one.device != device:
            continue
        ((kind, table),) = one.tables.items()
        columns = columns_of_table(kind, table)
        labels = columns.views.cpu.group(columns)
        for name in np.unique(labels):
            index = np.flatnonzero(labels == name)
            found = held_out.estimate_columns(take(columns, index))
            seconds = table.runtime_s.to_numpy()[index]
            yield str(name), Errors(seconds, found.runtime_s, found.low_s, found.high_s)
