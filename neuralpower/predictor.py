"""Dataset -> Predictor: one regressor per kind, group, dtype and phase; a JSON file in and out, no pickle.

Predictor.estimate(layers) -> Estimates     seconds with 90 % bounds, and how each is known
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.resources
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower import __version__
from neuralpower.dataset import Dataset, Rejected, Rows, replace_file, screen
from neuralpower.errors import DatasetError, InputError, PredictorError, unknown
from neuralpower.layers import KINDS, Hardware, Layer, columns_of
from neuralpower.layers.base import FLOATING
from neuralpower.regress import FEWEST_ROWS, Problem, Regressor, Scores, Term, Trees, fit

SCHEMA = 1
LEARNERS = ("hybrid", "lasso")
MEASURED, IN_RANGE, EXTRAPOLATED, ROOFLINE = "measured", "in-range", "extrapolated", "roofline"
EXTRAPOLATION_OCTAVES = 1.0  # farther outside the sampled box is called extrapolated
INTEGER = "integer"  # numbers that are no floats are learnt together: what they cost is their bytes
DIGITS = 8  # significant ones of the numbers in the file

Key = tuple[str, str, str, str]  # kind, dtype, phase, group


@dataclass(frozen=True)
class Roofline:
    """The simplest predictors, fitted on the same rows: what a learnt one has to beat."""

    flops_per_s: float  # roofline: max(FLOP / flops_per_s, B / bytes_per_s)
    bytes_per_s: float
    flops_only_per_s: float  # FLOPs alone

    def seconds(self, flops: Any, size: Any) -> Any:
        """The roofline's time."""
        return np.maximum(flops / self.flops_per_s, size / self.bytes_per_s)


@dataclass(frozen=True)
class Estimates:
    """Of a sequence of layers, in their order: seconds, 90 % bounds, and per layer how it is known."""

    runtime_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    basis: tuple[str, ...]
    exponent: np.ndarray  # how each follows the machine's slow-downs

    def slowdown(self, machine: float) -> float:
        """How much longer all of them together take when the machine is that much slower than usual."""
        return (
            float(np.sum(self.runtime_s * machine**self.exponent) / np.sum(self.runtime_s)) if len(self.basis) else 1.0
        )


@dataclass(frozen=True)
class Predictor:
    """What was learnt of one device."""

    device: str
    hardware: Hardware
    regressors: Mapping[Key, Regressor]
    rooflines: Mapping[str, Roofline]  # by dtype
    dataset: Mapping[str, Any]  # name, software, rows: where it was learnt
    learner: str = "hybrid"
    name: str = ""
    sentinel_s: float | None = None  # the sentinel's time that all runtimes refer to

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Floating types that it has learnt."""
        return tuple(dict.fromkeys(key[1] for key in self.regressors if key[1] != INTEGER))

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """Phases that it has learnt."""
        return tuple(dict.fromkeys(key[2] for key in self.regressors))

    def check(self, dtype: str, phase: str) -> None:
        """Raise PredictorError unless it knows the dtype and the phase."""
        for what, asked, has in (("dtype", dtype, self.dtypes), ("phase", phase, self.phases)):
            if asked not in has:
                raise PredictorError(
                    f"predictor {self.name or self.device!r} has not learnt {what} {asked!r}: it has "
                    f"{', '.join(has)}; choose one of them, or collect-data --{what} {asked}"
                )

    def estimate(self, layers: Sequence[Layer]) -> Estimates:
        """Each layer's time; equal layers are computed once."""
        distinct = list(dict.fromkeys(layers))
        runtime, low, high, exponent = (np.empty(len(distinct)) for _ in range(4))
        basis = np.empty(len(distinct), dtype=object)
        members: dict[tuple[str, str, str], list[int]] = {}
        for i, layer in enumerate(distinct):
            members.setdefault((layer.kind, layer.dtype, layer.phase), []).append(i)
        for (kind, dtype, phase), index in members.items():
            columns = columns_of(KINDS[kind], [distinct[i] for i in index])
            groups = np.broadcast_to(np.asarray(columns.group()), (len(index),))
            for group in np.unique(groups):
                some = np.asarray(index)[groups == group]
                part = columns_of(KINDS[kind], [distinct[i] for i in some])
                key = (kind, dtype, phase, str(group))
                runtime[some], low[some], high[some], basis[some], exponent[some] = self._group(part, key)
        at = {layer: i for i, layer in enumerate(distinct)}
        order = np.array([at[layer] for layer in layers], dtype=int)
        return Estimates(runtime[order], low[order], high[order], tuple(basis[order]), exponent[order])

    def _group(self, columns: Layer, key: Key) -> tuple[Any, Any, Any, Any, float]:
        found, exact = self._regressor(key)
        if found is None:
            seconds = self._roofline(columns, key[1])
            return seconds, seconds / 3, seconds * 3, ROOFLINE, 0.0
        problem = describe(columns, self.hardware)
        t, outside = found.predict(problem.dimensions, problem.special, problem.features, problem.axes)
        wider = 1 + outside / 2  # an interval from inside the box says less the farther outside
        basis = np.where(outside > EXTRAPOLATION_OCTAVES, EXTRAPOLATED, IN_RANGE) if exact else EXTRAPOLATED
        low, high = min(found.scores.low, 1.0), max(found.scores.high, 1.0)
        return t, t * low**wider, t * high**wider, basis, found.exponent

    def _regressor(self, key: Key) -> tuple[Regressor | None, bool]:
        """The regressor of a key, else the nearest: numbers that are no floats as floats, a group as its largest sibling."""
        kind, dtype, phase, group = key
        if dtype not in FLOATING:
            known = any(k[:3] == (kind, INTEGER, phase) for k in self.regressors)
            dtype = INTEGER if known else "float32" if "float32" in self.dtypes else self.dtypes[0]
        exact = self.regressors.get((kind, dtype, phase, group))
        if exact is not None:
            return exact, True
        siblings = [r for k, r in self.regressors.items() if k[:3] == (kind, dtype, phase)]
        siblings = siblings or [r for k, r in self.regressors.items() if (k[0], k[2], k[3]) == (kind, phase, group)]
        return max(siblings, key=lambda r: r.scores.rows, default=None), False

    def _roofline(self, columns: Layer, dtype: str) -> Any:
        moved = columns.bytes()
        return self.roofline(dtype).seconds(columns.flops(), moved.input + moved.weights + moved.output) + 1e-6

    def roofline(self, dtype: str) -> Roofline:
        """That of the dtype, else of the first."""
        return self.rooflines.get(dtype) or next(iter(self.rooflines.values()))

    def formula(self, key: Key) -> str:
        """The base of one regressor in plain text; dimensions are the kind's fields."""
        r = self.regressors[key]
        parts = [
            f"{weight:.4g}" + ("" if str(term) == "1" else f" {term}")
            for term, weight in zip(r.terms, r.weights, strict=True)
        ]
        kind, dtype, phase, group = key
        return f"{kind}[{group}, {dtype}, {phase}] seconds = " + " + ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """The whole predictor as plain values."""
        return {
            "schema": SCHEMA,
            "neuralpower": __version__,
            "device": self.device,
            "learner": self.learner,
            "sentinel_s": self.sentinel_s,
            "hardware": dataclasses.asdict(self.hardware),
            "dataset": dict(self.dataset),
            "units": {"runtime": "s", "flops": "FLOP (1 multiply-add = 2)", "bytes": "B"},
            "rooflines": {dtype: dataclasses.asdict(roofline) for dtype, roofline in self.rooflines.items()},
            "regressors": [_regressor_to_json(key, r) for key, r in self.regressors.items()],
        }

    def save(self, path: Path) -> None:
        """Write the JSON file; raises DatasetError where it cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatasetError(f"{path}: cannot be written ({error.strerror}); choose another place") from None
        replace_file(path, json.dumps(_rounded(self.to_json()), separators=(",", ":"), allow_nan=False) + "\n")

    @classmethod
    def from_json(cls, data: Mapping[str, Any], name: str = "") -> Predictor:
        """The reverse of `to_json`; raises PredictorError for another schema or missing parts."""
        if data.get("schema") != SCHEMA:
            raise PredictorError(
                f"predictor {name!r} has schema {data.get('schema')!r}, this version reads {SCHEMA}; "
                "train it again with train-predictor"
            )
        try:
            regressors = dict(_regressor_from_json(r) for r in data["regressors"])
            rooflines = {dtype: Roofline(**r) for dtype, r in data["rooflines"].items()}
            return cls(
                data["device"],
                Hardware(**data["hardware"]),
                regressors,
                rooflines,
                data["dataset"],
                data.get("learner", "hybrid"),
                name,
                data.get("sentinel_s"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PredictorError(
                f"predictor {name!r} is incomplete ({type(error).__name__}: {error}); "
                "train it again with train-predictor"
            ) from None


def describe(columns: Layer, hardware: Hardware, rows: Rows | None = None) -> Problem:
    """What the learner sees of layers of one kind: dimensions, special terms, features, axes of the box; times of `rows`."""
    count = len(np.atleast_1d(columns.dtype))

    def full(value: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (count,))

    dimensions = {name: full(getattr(columns, name)) for name in columns.dimensions}
    special = {name: full(value) for name, value in columns.terms(hardware).items()}
    moved = columns.bytes()
    flops, size = full(columns.flops()), full(moved.input + moved.weights + moved.output)
    axes = {name: np.log2(np.maximum(value, 1)) for name, value in dimensions.items()}
    features = {**axes, "flops": np.log2(flops + 1), "bytes": np.log2(size + 1), **columns.features()}
    return Problem(
        dimensions,
        special,
        np.column_stack([full(v) for v in features.values()]),
        tuple(features),
        axes,
        full(0.0 if rows is None else rows.runtime_s),
        full(1.0 if rows is None else rows.slowdown),
        np.arange(count) if rows is None else rows.config,
        flops + size,
    )


@dataclass(frozen=True)
class Trained:
    """A predictor and what happened to the rows."""

    predictor: Predictor
    rejected: tuple[Rejected, ...]
    skipped: Mapping[Key, int]  # groups with too few rows, and how many


def train(
    dataset: Dataset,
    learner: str = "hybrid",
    jobs: int = -1,
    seed: int = 0,
    show: Callable[[Key, Regressor], None] = lambda key, regressor: None,
) -> Trained:
    """Fit every group of every kind; fits run in parallel, results do not depend on how.

    Raises:
        DatasetError: missing columns, or no group with FEWEST_ROWS usable rows.
        InputError: an unknown learner.
    """
    import joblib

    if learner not in LEARNERS:
        raise unknown("learner", learner, LEARNERS)
    hardware, sentinel_s = _hardware(dataset.meta), dataset.sentinel_s
    problems: dict[Key, Problem] = {}
    rejected: list[Rejected] = []
    skipped: dict[Key, int] = {}
    everything: list[Rows] = []
    for kind in dataset.tables:
        if kind == "network":
            continue  # whole-network totals are not learnt from
        rows = screen(kind, dataset.tables[kind], sentinel_s)
        rejected += rows.rejected
        everything.append(rows)
        if not len(rows):
            continue
        groups = np.broadcast_to(np.asarray(rows.layer.group()), (len(rows),))
        dtypes = np.where(np.isin(rows.layer.dtype, FLOATING), rows.layer.dtype, INTEGER)
        keys = np.stack([dtypes, np.asarray(rows.layer.phase), groups], axis=1).astype(str)
        for dtype, phase, group in np.unique(keys, axis=0):
            index = np.flatnonzero((keys == (dtype, phase, group)).all(axis=1))
            key = (kind, str(dtype), str(phase), str(group))
            if len(np.unique(rows.config[index])) < FEWEST_ROWS:
                skipped[key] = len(index)
                continue
            part = _rows_at(rows, index)
            problems[key] = describe(part.layer, hardware, part)
    if not problems:
        found = sum(len(rows) for rows in everything)
        raise DatasetError(
            f"{dataset.path}: {found} usable rows, {len(rejected)} left out, no kind has {FEWEST_ROWS}; "
            "collect more, or mend the rows"
        )
    order = sorted(problems, key=lambda key: -len(problems[key]))
    fits = joblib.Parallel(n_jobs=jobs, return_as="generator")(
        joblib.delayed(fit)(problems[key], learner, seed) for key in order
    )
    regressors: dict[Key, Regressor] = {}
    for key, regressor in zip(order, fits, strict=True):
        regressors[key] = regressor
        show(key, regressor)
    about = {
        "name": dataset.name,
        "rows": int(sum(len(rows) for rows in everything)),
        "rejected": len(rejected),
        "hardware": dataset.meta.get("hardware", {}),
        "sessions": dataset.meta.get("sessions", []),
        "trained": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    ordered = {key: regressors[key] for key in sorted(regressors)}
    predictor = Predictor(
        dataset.device, hardware, ordered, _rooflines(everything), about, learner, dataset.name, sentinel_s
    )
    return Trained(predictor, tuple(rejected), skipped)


def _rows_at(rows: Rows, index: np.ndarray) -> Rows:
    columns = object.__new__(type(rows.layer))
    for name in rows.layer.field_names():
        object.__setattr__(columns, name, getattr(rows.layer, name)[index])
    return dataclasses.replace(
        rows,
        layer=columns,
        runtime_s=rows.runtime_s[index],
        slowdown=rows.slowdown[index],
        config=rows.config[index],
        rejected=(),
    )


def _hardware(meta: Mapping[str, Any]) -> Hardware:
    given = meta.get("hardware") or {}
    default = Hardware()
    return Hardware(
        cores=int(given.get("cores") or default.cores),
        l2_bytes=int(given.get("l2_bytes") or default.l2_bytes),
        llc_bytes=int(given.get("llc_bytes") or default.llc_bytes),
    )


def _rooflines(everything: Sequence[Rows]) -> dict[str, Roofline]:
    """Per dtype the peaks that fit the rows best, each row weighed by its time, over a grid of 2 % steps."""
    parts: dict[str, list[np.ndarray]] = {}
    for rows in everything:
        moved = rows.layer.bytes()
        size = np.broadcast_to(np.asarray(moved.input + moved.weights + moved.output, dtype=float), (len(rows),))
        flops = np.broadcast_to(np.asarray(rows.layer.flops(), dtype=float), (len(rows),))
        for dtype in np.unique(rows.layer.dtype) if len(rows) else ():
            some = np.asarray(rows.layer.dtype) == dtype
            parts.setdefault(str(dtype), []).append(np.stack([flops[some], size[some], rows.runtime_s[some]]))
    rooflines = {}
    for dtype, chunks in parts.items():
        flops, size, t = np.concatenate(chunks, axis=1)
        fastest = float(np.max(flops / t)) or 1.0, float(np.max(size / t))
        grid = 1.05 ** -np.arange(0, 100)
        costs = [
            (float(np.sum(np.abs(np.maximum(flops / (fastest[0] * a), size / (fastest[1] * b)) - t))), a, b)
            for a in grid[::2]
            for b in grid[::2]
        ]
        _, a, b = min(costs)
        alone = min(grid, key=lambda c: float(np.sum(np.abs(flops / (fastest[0] * c) - t))))
        rooflines[dtype] = Roofline(fastest[0] * a, fastest[1] * b, fastest[0] * float(alone))
    return rooflines


def _regressor_to_json(key: Key, r: Regressor) -> dict[str, Any]:
    trees = None
    if r.trees is not None:
        trees = {
            "features": r.trees.features,
            "initial": r.trees.initial,
            "roots": r.trees.roots.tolist(),
            "feature": r.trees.feature.tolist(),
            "right": r.trees.right.tolist(),
            "number": r.trees.number.tolist(),
        }
    terms = [
        {"powers": dict(term.powers), "weight": weight}
        if not term.special
        else {"special": term.special, "weight": weight}
        for term, weight in zip(r.terms, r.weights.tolist(), strict=True)
    ]
    return {
        **dict(zip(("kind", "dtype", "phase", "group"), key, strict=True)),
        "target": "runtime_s",
        "degree": r.degree,
        "alpha": r.alpha,
        "speed_exponent": r.exponent,
        "terms": terms,
        "box_log2": {name: list(bounds) for name, bounds in r.box.items()},
        "scores": {
            name: value if math.isfinite(value) else None for name, value in dataclasses.asdict(r.scores).items()
        },
        "residual": trees,
    }


def _regressor_from_json(data: Mapping[str, Any]) -> tuple[Key, Regressor]:
    key = (data["kind"], data["dtype"], data["phase"], data["group"])
    if data["kind"] not in KINDS:
        raise unknown("layer kind of the predictor", data["kind"], KINDS, PredictorError)
    terms = tuple(
        Term(special=t["special"]) if "special" in t else Term(tuple(t["powers"].items())) for t in data["terms"]
    )
    trees, kept = None, data["residual"]
    if kept is not None:
        trees = Trees(
            tuple(kept["features"]),
            kept["initial"],
            np.array(kept["roots"]),
            np.array(kept["feature"]),
            np.array(kept["right"]),
            np.array(kept["number"], dtype=np.float64),
        )
    known: dict[str, Any] = {name: float("nan") if value is None else value for name, value in data["scores"].items()}
    scores = Scores(**known)
    box = {name: (bounds[0], bounds[1]) for name, bounds in data["box_log2"].items()}
    weights = np.array([t["weight"] for t in data["terms"]], dtype=np.float64)
    return key, Regressor(
        terms, weights, data["degree"], data["alpha"], box, trees, scores, data.get("speed_exponent", 0.0)
    )


def _rounded(value: Any) -> Any:
    """Floats to DIGITS significant digits, so that the file stays small."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def predictor_folders() -> list[Path]:
    """Where predictors are looked for by name: ./models, the package's own, the source tree's."""
    package = Path(str(importlib.resources.files("neuralpower")))
    return [Path("models"), package / "models", package.parent / "models"]


def known_predictors() -> dict[str, Path]:
    """Files by name; a nearer folder hides a farther one."""
    found: dict[str, Path] = {}
    for folder in predictor_folders():
        for file in sorted(folder.glob("*.json")):
            found.setdefault(file.stem, file)
    return found


def load(name: str | Path) -> Predictor:
    """The predictor of that name, or in that file; raises PredictorError (unknown, cut off, no JSON, another schema)."""
    path = Path(name)
    if not path.is_file():
        known = known_predictors()
        if str(name) not in known:
            raise unknown("predictor", str(name), known, PredictorError)
        path = known[str(name)]
    try:
        data = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise PredictorError(
            f"{path}: is no predictor file, or cut off ({error}); train it again with train-predictor"
        ) from None
    if not isinstance(data, dict):
        raise PredictorError(f"{path}: holds a {type(data).__name__}, a predictor file holds an object; train it again")
    return Predictor.from_json(data, path.stem)


def default_predictor(slug: str) -> Predictor:
    """This machine's own predictor where there is one, else the first that is shipped."""
    known = known_predictors()
    if not known:
        raise InputError(
            "there is no predictor yet: run collect-data and train-predictor, or name a file with --predictor"
        )
    return load(slug if slug in known else next(iter(known)))
