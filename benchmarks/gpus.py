"""Errors of GPUs' predictors on held-out rows: AIConfigurator's tables of ten systems.

python -m benchmarks.gpus PATH [--only FAMILY ...] [--system NAME ...] [--section NAME ...] [--folds 10]

PATH holds aiconfigurator2/ (see benchmarks/gpu_tables). Sections: `twins` says how noisy rows are; `shapes`
holds whole shapes out in folds; `beyond` predicts the largest from smaller ones; `systems` predicts a system
from its spec sheet and the other systems' rows, with its sibling among them and without. Fits see drawn rows
alone; errors are of all rows of what was held out. `boards` predicts a system by the shipped predictor of
another board of its chip. `power` holds out watts of whole shapes. `runs` and
`tracelens` predict whole runs that others measured (benchmarks/gpu_runs.py). Prints Markdown tables of
absolute percentage errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import gpu_held_out, gpu_runs
from benchmarks.gpu_held_out import Errors
from benchmarks.gpu_tables import SYSTEMS, Part, families, parts
from benchmarks.train import gpu_power
from neuralpower.devices.spec import known_hardware
from neuralpower.layers import Hardware

FAMILY_OF = {"linear": "products", "attention": "attention", "experts": "experts"}
COLUMNS = "| system | kind | rows of | held out | rows | median | 90th percentile | mean | in 90 % bounds |"


def print_table(title: str, lines: Iterator[tuple[str, str, str, str, Errors]]) -> None:
    """A line as soon as it is known."""
    print(f"\n{title}\n\n{COLUMNS}\n|{'---|' * 9}")
    for *names, found in lines:
        print(f"| {' | '.join(names)} | {found} |", flush=True)


def shapes(given: argparse.Namespace) -> None:
    """Whole shapes held out, each system."""

    def lines() -> Iterator[tuple[str, str, str, str, Errors]]:
        for system, some, hardware in measured(given):
            for part in some:
                found = gpu_held_out.shapes(part, hardware, given.folds)
                yield system, f"{part.kind} {part.name}", part.engine, "whole shapes", found

    print_table(f"Whole shapes held out, {given.folds} of 10 folds.", lines())


def twins(given: argparse.Namespace) -> None:
    """What no fit can predict, each system."""
    print(
        "\nNoise: products of m and of m + 1 rows, 2 to 16, one take as the other would: distance in percent."
    )
    print(f"\n| system | kind | rows of | pairs | median | 90th percentile |\n|{'---|' * 6}")
    for system, some, _ in measured(given):
        for part in some:
            apart = gpu_held_out.twins(part)
            if len(apart):
                figures = f"{len(apart):,} | {np.median(apart):.2f} | {np.percentile(apart, 90):.1f}"
                print(f"| {system} | {part.kind} {part.name} | {part.engine} | {figures} |", flush=True)


def beyond(given: argparse.Namespace) -> None:
    """The largest from smaller ones, each system."""

    def lines() -> Iterator[tuple[str, str, str, str, Errors]]:
        for system, some, hardware in measured(given):
            for part in some:
                for name, found in gpu_held_out.beyond(part, hardware):
                    yield system, f"{part.kind} {part.name}", part.engine, name, found

    print_table("Beyond what was sampled.", lines())


def systems(given: argparse.Namespace) -> None:
    """A whole system from its spec sheet, by a predictor of the others."""

    def lines() -> Iterator[tuple[str, str, str, str, Errors]]:
        everything = {system: some for system, some, _ in measured(given, every=True)}
        for system in given.system:
            if system in everything:
                for name, part, found in gpu_held_out.systems(system, everything):
                    yield system, f"{part.kind} {part.name}", part.engine, name, found

    print_table("A whole system held out: from the others' rows and its spec sheet.", lines())


def boards(given: argparse.Namespace) -> None:
    """A system by the shipped predictor of another board of its chip."""

    def lines() -> Iterator[tuple[str, str, str, str, Errors]]:
        for system, some, _ in measured(given):
            for part in some:
                for sibling, found in gpu_held_out.boards(system, part):
                    yield system, f"{part.kind} {part.name}", part.engine, f"from {sibling}", found

    print_table("A board held out: by the predictor of another board of its chip.", lines())


def power(given: argparse.Namespace) -> None:
    """Watts of whole shapes held out, each system that has them."""

    def lines() -> Iterator[tuple[str, str, str, str, Errors]]:
        for system in given.system:
            hardware = known_hardware(SYSTEMS[system].slug)
            for part in gpu_power.parts(given.path, system) if hardware else ():
                if hardware and (not given.only or FAMILY_OF[part.kind] in given.only):
                    for name, found in gpu_power.shapes(part, hardware, given.folds):
                        yield system, f"{part.kind} {part.name}", part.engine, name, found

    print_table(f"Power of whole shapes held out, 0.1 ms and more, {given.folds} of 10 folds.", lines())


SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "twins": twins,
    "shapes": shapes,
    "beyond": beyond,
    "systems": systems,
    "boards": boards,
    "power": power,
    "runs": gpu_runs.runs,
    "tracelens": gpu_runs.tracelens,
}


def measured(given: argparse.Namespace, *, every: bool = False) -> Iterator[tuple[str, list[Part], Hardware]]:
    """(system, its parts, its hardware) of each requested system that has a spec sheet."""
    for system in SYSTEMS if every else given.system:
        hardware = known_hardware(SYSTEMS[system].slug)
        if hardware is None:
            print(f"{system}: no spec sheet {SYSTEMS[system].slug}; skipped")
            continue
        yield system, list(parts(given.path, system, given.only)), hardware


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?", help="the folder that holds aiconfigurator2/")
    parser.add_argument("--only", nargs="+", choices=families(), default=[], help="families of kinds")
    parser.add_argument("--system", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="which GPUs")
    parser.add_argument("--section", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument(
        "--without-own-tables",
        type=Path,
        metavar="FOLDER",
        help="`runs` as if no board of a GPU's chip had been measured; what is trained without them is kept",
    )
    parser.add_argument("--folds", type=int, default=10, help="of 10, fewer take less time")
    given = parser.parse_args()
    if given.path is None:
        print("benchmarks.gpus needs a folder that holds aiconfigurator2/: skipped")
        return
    for section in given.section:
        SECTIONS[section](given)


if __name__ == "__main__":
    main()
