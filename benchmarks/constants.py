"""How much each constant of the learner matters: halved and doubled, what the error on held-out rows does.

    python -m benchmarks.constants [DATASET] [--rows N] [--only NAME ...] [--learner hybrid]

Trains on every N-th row of each kind (20 by default: some seconds a constant), with each constant as it is, halved
and doubled, and prints the change of the mean absolute error of layers and of whole networks, both held out, in
points. What changes neither by 0.1 points is a candidate to go. Constants are the module-level numbers of
neuralpower/learn and neuralpower/platforms; a tuple is scaled as a whole.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from neuralpower.data.dataset import Dataset, read_dataset
from neuralpower.errors import NeuralPowerError
from neuralpower.learn.train import train

PACKAGES = ("neuralpower.learn", "neuralpower.platforms")
FIXED = {
    "SCHEMA",
    "OLDER",
    "DIGITS",
    "CHUNK",
    "MOST_SAID",
    "NINETY",
    "WARP",
    "MOST_LEAVES",
}  # no tuning: formats, counts
MATTERS = 0.1  # points


def modules() -> list[ModuleType]:
    """Those that hold constants, and all that may have imported one by its name."""
    found = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        found += [
            importlib.import_module(f"{name}.{one.name}") for one in pkgutil.iter_modules(package.__path__)
        ]
    return found


def is_numeric(value: Any) -> bool:
    """Whether it is a number that can be scaled, or a tuple of such."""
    if isinstance(value, tuple):
        return bool(value) and all(map(is_numeric, value))
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value) and value != 0
    )


def constants() -> dict[str, tuple[str, Any]]:
    """Where each is written, as "module.NAME" -> (NAME, value)."""
    found: dict[str, tuple[str, Any]] = {}
    for module in modules():
        source = module.__name__.removeprefix("neuralpower.")
        text = Path(module.__file__ or "").read_text(encoding="utf-8")
        for name, value in vars(module).items():
            written = any(line.startswith(name) and "=" in line for line in text.splitlines())
            if name.isupper() and name not in FIXED and written and is_numeric(value):
                found[f"{source}.{name}"] = (name, value)
    return found


def scaled(value: Any, factor: float) -> Any:
    """The value times the factor; whole numbers stay whole, and at least 1."""
    if isinstance(value, tuple):
        return tuple(scaled(one, factor) for one in value)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


@contextlib.contextmanager
def perturbed(name: str, value: Any, new: Any) -> Iterator[None]:
    """Every module that has the constant has another in its place."""
    places = [module for module in modules() if vars(module).get(name) is value]
    for module in places:
        setattr(module, name, new)
    try:
        yield
    finally:
        for module in places:
            setattr(module, name, value)


def thinned(dataset: Dataset, every: int) -> Dataset:
    """Every so-manieth row of each kind of layer; whole networks all."""
    tables = {
        kind: t if kind == "network" else t.iloc[::every].reset_index(drop=True)
        for kind, t in dataset.tables.items()
    }
    return replace(dataset, tables=tables)


def errors(dataset: Dataset, learner: str) -> tuple[float, float]:
    """Mean absolute errors of layers (by rows) and of whole networks, held out, in percent; NaN where none is known."""
    trained = train(dataset, learner, jobs=1)
    scores = [r.scores for r in trained.predictor.regressors.values() if np.isfinite(r.scores.mape)]
    layers = float(np.average([s.mape for s in scores], weights=[s.rows for s in scores]))
    return 100 * layers, 100 * trained.correction.after if trained.correction else float("nan")


def main() -> None:
    """Print one line per constant."""
    parser = argparse.ArgumentParser(description="How much each constant of the learner matters.")
    parser.add_argument("dataset", nargs="?", default="datasets/amd-epyc-2c-zen5")
    parser.add_argument("--rows", type=int, default=20, help="every so-manieth row is learnt from")
    parser.add_argument("--only", nargs="*", help="names of constants")
    parser.add_argument("--learner", default="lasso")
    asked = parser.parse_args()
    dataset = thinned(read_dataset(asked.dataset, samples=False), asked.rows)
    base = errors(dataset, asked.learner)
    print(f"{asked.dataset}, every {asked.rows}th row: layers {base[0]:.2f} %, networks {base[1]:.2f} %\n")
    print(
        "| constant | value | halved: layers, networks | doubled: layers, networks | matters |\n|---|---|---|---|---|"
    )
    for place, (name, value) in sorted(constants().items()):
        if asked.only and name not in asked.only:
            continue
        cells, changes = [], []
        for factor in (0.5, 2.0):
            try:
                with perturbed(name, value, scaled(value, factor)):
                    found = errors(dataset, asked.learner)
            except (NeuralPowerError, ValueError, IndexError, ZeroDivisionError, FloatingPointError) as error:
                cells.append(f"fails: {type(error).__name__}")
                changes.append(float("inf"))
                continue
            moved = [after - before for after, before in zip(found, base, strict=True)]
            cells.append(", ".join("-" if np.isnan(change) else f"{change:+.2f}" for change in moved))
            changes += [abs(change) for change in moved if np.isfinite(change)]
        print(f"| {place} | {value} | {' | '.join(cells)} | {'yes' if max(changes) >= MATTERS else 'no'} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
