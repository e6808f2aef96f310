"""How much each constant of the learner matters: halved and doubled, and each special case removed.

    python -m benchmarks.constants [DATASET] [--rows N] [--only NAME ...] [--learner hybrid]

Trains on every N-th row of each kind, 40 by default. Prints how the mean absolute error of layers and of
whole networks, both held out, changes in points. What changes neither by 0.1 points, on two devices, is a
candidate to go. Constants are the module-level numbers of neuralpower/learn and neuralpower/platforms; a
tuple is scaled as a whole.

Layers are fitted once for constants that act on whole networks alone, and rows that contradict others are
found once: both take most of the time. A constant of the layers takes about 80 s, another 20 s.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from neuralpower.data.dataset import Dataset, read_dataset
from neuralpower.errors import NeuralPowerError
from neuralpower.learn import train as train_module
from neuralpower.learn.fitting import fit as fit_module
from neuralpower.learn.fitting.held_out import find_contradicting
from neuralpower.learn.fitting.problem import Problem
from neuralpower.learn.networks import whole_networks
from neuralpower.learn.train import Trained

PACKAGES = ("neuralpower.learn", "neuralpower.platforms")
FIXED = set("SCHEMA DIGITS CHUNK MOST_SAID NINETY WARP MOST_LEAVES".split())  # no tuning: formats, counts
# training does not use their constants
UNUSED = ("learn.calibrate", "learn.predictor_parts", "learn.predictor_json")
NETWORKS = (
    "learn.whole_networks",
    "learn.totals_alone",
    "learn.network_estimates",
    "learn.predictor",
    "learn.estimates",
)
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
    """Whether it is a number that can be scaled, or a tuple of such numbers."""
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
    """Every N-th row of each kind of layer, and all whole networks."""
    tables = {
        kind: t if kind == "network" else t.iloc[::every].reset_index(drop=True)
        for kind, t in dataset.tables.items()
    }
    return replace(dataset, tables=tables)


class Trainer:
    """Trains on one dataset again and again."""

    def __init__(self, dataset: Dataset, learner: str) -> None:
        self.dataset, self.learner = dataset, learner
        self._fit, self._find = train_module._fitted, find_contradicting
        self._fitted: Any = None
        self._contradicting: dict[tuple[float, ...], Any] = {}

    def errors(self, networks_alone: bool = False) -> tuple[float, float]:
        """Errors of layers and networks; `networks_alone`: layers stay as the first call fitted them."""
        with (
            mock.patch.object(train_module, "_fitted", self._once if networks_alone else self._fit),
            mock.patch.object(fit_module, "find_contradicting", self._remembered),
        ):
            return errors(train_module.train(self.dataset, self.learner, jobs=1))

    def _once(self, *args: Any) -> Any:
        if self._fitted is None:
            self._fitted = self._fit(*args)
        return self._fitted

    def _remembered(self, problem: Problem) -> Any:
        key = (len(problem), float(problem.target.sum()), float(problem.size.sum()))
        if key not in self._contradicting:
            self._contradicting[key] = self._find(problem)
        return self._contradicting[key]


def errors(trained: Trained) -> tuple[float, float]:
    """Mean absolute errors of layers (by rows) and networks, held out, in percent; NaN: none is known."""
    scores = [r.scores for r in trained.predictor.regressors.values() if np.isfinite(r.scores.mape)]
    layers = float(np.average([s.mape for s in scores], weights=[s.rows for s in scores]))
    return 100 * layers, 100 * trained.correction.after if trained.correction else float("nan")


def special_cases() -> dict[str, Any]:
    """What is tried without, by name, as patches; all act on whole networks."""
    own = whole_networks._speed

    def speed(**changes: Any) -> Any:
        def changed(*args: Any) -> Any:
            found = own(*args)
            return found and msgspec.structs.replace(found, **changes)

        return mock.patch.object(whole_networks, "_speed", changed)

    return {
        "weights that stay in the cache": mock.patch.object(whole_networks, "MOST_RESIDENT", 0.0),
        "factors of short calls": mock.patch.object(whole_networks, "SHORT_FACTORS", (1.0, 1.0)),
        "the machine's speed": mock.patch.object(whole_networks, "_speed", lambda *args: None),
        "the sentinel's second call": speed(again_s=None),
        "the slowest moment met": speed(slowest=None),
    }


def main() -> None:
    """Print one line per constant."""
    parser = argparse.ArgumentParser(description="How much each constant of the learner matters.")
    parser.add_argument("dataset", nargs="?", default="datasets/amd-epyc-2c-zen5")
    parser.add_argument("--rows", type=int, default=40, help="train on every N-th row")
    parser.add_argument("--only", nargs="*", help="names of constants")
    parser.add_argument("--learner", default="lasso")
    asked = parser.parse_args()
    trainer = Trainer(thinned(read_dataset(asked.dataset, samples=False), asked.rows), asked.learner)
    base = trainer.errors(networks_alone=True)
    print(f"{asked.dataset}, every {asked.rows}th row: layers {base[0]:.2f} %, networks {base[1]:.2f} %\n")
    if not asked.only:
        print("| removed | layers, networks |\n|---|---|")
        for name, patch in special_cases().items():
            with patch:
                print(f"| {name} | {cell(moved(trainer.errors(networks_alone=True), base))} |", flush=True)
        print()
    print("| constant | value | halved: layers, networks | doubled: layers, networks | matters |")
    print("|---|---|---|---|---|")
    for place, (name, value) in sorted(
        constants().items(), key=lambda one: (not one[0].startswith(NETWORKS), one)
    ):
        if (not asked.only or name in asked.only) and not place.startswith(UNUSED):
            print(line(trainer, place, name, value, base), flush=True)


def line(trainer: Trainer, place: str, name: str, value: Any, base: tuple[float, float]) -> str:
    """The table's line of one constant."""
    cells, changes = [], [0.0]
    for factor in (0.5, 2.0):
        try:
            with perturbed(name, value, scaled(value, factor)):
                change = moved(trainer.errors(place.startswith(NETWORKS)), base)
        except (NeuralPowerError, ValueError, IndexError, ZeroDivisionError, FloatingPointError) as error:
            cells.append(f"fails: {type(error).__name__}")
            changes.append(float("inf"))
            continue
        cells.append(cell(change))
        changes += [abs(one) for one in change if np.isfinite(one)]
    return f"| {place} | {value} | {' | '.join(cells)} | {'yes' if max(changes) >= MATTERS else 'no'} |"


def moved(found: tuple[float, float], base: tuple[float, float]) -> list[float]:
    """What errors are above those of the base."""
    return [after - before for after, before in zip(found, base, strict=True)]


def cell(change: list[float]) -> str:
    """Points, "-" where none are known."""
    return ", ".join("-" if np.isnan(one) else f"{one:+.2f}" for one in change)


if __name__ == "__main__":
    main()
