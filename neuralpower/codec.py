"""Predictor <-> JSON file, and where predictors are found by name. No pickle: a file from a stranger runs no code."""

from __future__ import annotations

import base64
import dataclasses
import importlib.resources
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower import __version__
from neuralpower.dataset import check_place, replace_file
from neuralpower.devices.host import Cpu
from neuralpower.devices.spec import known_spec, spec_of
from neuralpower.dispatch import Dispatch
from neuralpower.errors import DatasetError, InputError, PredictorError, unknown, writing
from neuralpower.layers import KINDS, Hardware, Layer
from neuralpower.paths import is_file
from neuralpower.predictor import Key, NetworkSpeed, Predictor, Roofline
from neuralpower.regress import Regressor, Scores, Spread, Term
from neuralpower.slopes import Alignment
from neuralpower.trees import Trees, right_children

SCHEMA = 4
DIGITS = 7  # significant ones of the numbers in the file


def to_json(predictor: Predictor) -> dict[str, Any]:
    """The whole predictor as plain values."""
    p = predictor
    return {
        "schema": SCHEMA,
        "neuralpower": __version__,
        "device": p.device,
        "learner": p.learner,
        "portable": p.portable,
        "sentinel_s": p.sentinel_s,
        "network_speed": None if p.speed is None else dataclasses.asdict(p.speed),
        "system": p.system,
        "resident": p.resident,
        "hardware": None if p.hardware is None else dataclasses.asdict(p.hardware),
        "dataset": dict(p.dataset),
        "dispatch": None if p.dispatch is None else p.dispatch.to_json(),
        "units": {"runtime": "s", "power": "W", "flops": "FLOP (1 multiply-add = 2)", "bytes": "B"},
        "rooflines": {dtype: dataclasses.asdict(roofline) for dtype, roofline in p.rooflines.items()},
        "regressors": [
            *(_regressor_to_json(key, "runtime_s", r) for key, r in p.regressors.items()),
            *(_regressor_to_json(key, "power_w", r) for key, r in (p.power or {}).items()),
        ],
    }


def from_json(data: Mapping[str, Any], name: str = "") -> Predictor:
    """The reverse of `to_json`; raises PredictorError for another schema or missing parts."""
    if data.get("schema") != SCHEMA:
        raise PredictorError(
            f"predictor {name!r} has schema {data.get('schema')!r}, this version reads {SCHEMA}; "
            "train it again with train-predictor"
        )
    try:
        targets: dict[str, dict[Key, Regressor]] = {"runtime_s": {}, "power_w": {}}
        for part in data["regressors"]:
            key, regressor = _regressor_from_json(part)
            targets[part["target"]][key] = regressor
        return Predictor(
            data["device"],
            None if data["hardware"] is None else Hardware(**data["hardware"]),
            targets["runtime_s"],
            {dtype: Roofline(**r) for dtype, r in data["rooflines"].items()},
            data["dataset"],
            data["learner"],
            name,
            data["sentinel_s"],
            targets["power_w"] or None,
            data["portable"],
            data["system"],
            Dispatch.from_json(data["dispatch"]) if data["dispatch"] else None,
            NetworkSpeed(**data["network_speed"]) if data["network_speed"] else None,
            data.get("resident", 0.0),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PredictorError(
            f"predictor {name!r} is incomplete ({type(error).__name__}: {error}); train it again with train-predictor"
        ) from None


def check_places(path: Path) -> None:
    """Raise InputError where no predictor's file and card can stand: to be asked before a long work. Makes their folder."""
    with writing(path, "--out"):
        path.parent.mkdir(parents=True, exist_ok=True)
    check_place(path, "predictor.json")
    card = path.with_suffix(".md")
    if card == path:
        raise InputError(f"{path}: is where the predictor's card goes; choose a file's name, such as {path.stem}.json")
    check_place(card, "predictor.json")


def save(predictor: Predictor, path: Path) -> None:
    """Write the JSON file; raises DatasetError where it cannot be written."""
    with writing(path, "place", DatasetError):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(_rounded(to_json(predictor)), separators=(",", ":"), allow_nan=False) + "\n")


def _regressor_to_json(key: Key, target: str, r: Regressor) -> dict[str, Any]:
    trees = None
    if r.trees is not None:
        arrays = {name: getattr(r.trees, name).tolist() for name in ("roots", "feature", "number")}
        trees = {"features": r.trees.features, **arrays}  # in preorder, which says where right children are
    terms = [
        {"powers": dict(term.powers), "weight": weight}
        if not term.special
        else {"special": term.special, "weight": weight}
        for term, weight in zip(r.terms, r.weights.tolist(), strict=True)
    ]
    measured = np.zeros(0, np.uint32) if r.measured is None else r.measured
    return {
        **dict(zip(("kind", "dtype", "phase", "group"), key, strict=True)),
        "target": target,
        "degree": r.degree,
        "alpha": r.alpha,
        "factor": r.factor,
        "short": r.short,
        "short_s": r.short_s,
        "speed_exponent": r.exponent,
        "alignment": dataclasses.asdict(r.alignment) if r.alignment else None,
        "launch_s": r.launch_s,
        "least": r.least,
        "terms": terms,
        "box_log2": {name: list(bounds) for name, bounds in r.box.items()},
        "spread": {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in dataclasses.asdict(r.spread).items()
        },
        "scores": {
            name: value if math.isfinite(value) else None for name, value in dataclasses.asdict(r.scores).items()
        },
        "reach": r.reach if math.isfinite(r.reach) else None,
        "residual": trees,
        "measured": base64.b64encode(measured.astype("<u4").tobytes()).decode(),
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
        roots, feature = np.array(kept["roots"]), np.array(kept["feature"])
        number = np.array(kept["number"], dtype=np.float64)
        trees = Trees(tuple(kept["features"]), roots, feature, right_children(feature), number)
    known: dict[str, Any] = {name: float("nan") if value is None else value for name, value in data["scores"].items()}
    spread: dict[str, Any] = {
        name: np.array(value, dtype=np.float64) if isinstance(value, list) else value
        for name, value in data["spread"].items()
    }
    return key, Regressor(
        terms=terms,
        weights=np.array([t["weight"] for t in data["terms"]], dtype=np.float64),
        degree=data["degree"],
        alpha=data["alpha"],
        box={name: (bounds[0], bounds[1]) for name, bounds in data["box_log2"].items()},
        trees=trees,
        reach=float("inf") if data["reach"] is None else data["reach"],
        spread=Spread(**spread),
        scores=Scores(**known),
        exponent=data["speed_exponent"],
        alignment=Alignment(**data["alignment"]) if data["alignment"] else None,
        launch_s=data["launch_s"],
        factor=data["factor"],
        short=data["short"],
        short_s=data.get("short_s", Layer.short_s),
        least=data["least"],
        measured=np.frombuffer(base64.b64decode(data["measured"]), dtype="<u4"),
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


def readable(names: Iterable[str]) -> tuple[dict[str, Predictor], list[PredictorError]]:
    """The predictors of these names, and why the others cannot be read."""
    found, refused = {}, []
    for name in names:
        try:
            found[name] = load(name)
        except PredictorError as error:
            refused.append(error)
    return found, refused


def load(name: str | Path) -> Predictor:
    """The predictor of that name, or in that file; with @DEVICE behind it, one of several devices for that device.

    Raises:
        PredictorError: unknown, cut off, no JSON, of another schema, or it cannot serve the device.
        InputError: the device is not known, or its spec sheet is wrong.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise unknown("predictor", name, known_predictors(), PredictorError)
    path = Path(name)
    if not is_file(path):
        text, known = str(name), known_predictors()
        parts = [(text[:at], text[at + 1 :]) for at, mark in enumerate(text) if mark == "@"]
        if parts:  # the names of many CPUs have one of their own
            learnt, device = next((p for p in parts if p[0] in known or is_file(p[0])), parts[-1])
            there, slug = on(load(learnt), device)
            return dataclasses.replace(there, name=f"{Path(learnt).stem}@{slug}")
        if str(name) not in known:
            raise unknown("predictor", str(name), known, PredictorError)
        path = known[str(name)]
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise PredictorError(
            f"{path}: is no predictor file, or cut off ({error}); train it again with train-predictor"
        ) from None
    if not isinstance(data, dict):
        raise PredictorError(f"{path}: holds a {type(data).__name__}, a predictor file holds an object; train it again")
    return from_json(data, path.stem)


def on(predictor: Predictor, device: str | Path) -> tuple[Predictor, str]:
    """(A predictor of several devices for one that it was learnt on, or one with a spec sheet; the device's short name).

    Raises:
        PredictorError: it cannot serve the device.
        InputError: the device is not known, or its spec sheet is wrong.
    """
    known, device = predictor.dataset.get("devices") or {}, str(device)
    if device in known:
        return predictor.on(Hardware(**known[device]), device), device
    spec = spec_of(device)
    there = predictor.on(spec.hardware(), spec.name)
    sheets = [known_spec(name) for name in predictor.device.split(", ")]
    vendors = {None if sheet is None else sheet.vendor for sheet in sheets}
    if spec.vendor not in vendors and not {spec.vendor, *vendors} & {None}:
        there = dataclasses.replace(there, dataset={**there.dataset, "unknown_vendor": spec.vendor})
    return there, spec.slug


def default_predictor(cpu: Cpu) -> Predictor:
    """That of the CPU most like this one among those of its name, else the first of a CPU; it says where they differ.

    Files of other names that cannot be read, as those of other versions, are passed over.

    Raises:
        InputError: there is none of a CPU.
        PredictorError: one of its name cannot be read.
    """
    known = known_predictors()
    named = [load(name) for name in known if name == cpu.slug or name.startswith(f"{cpu.slug}-")]
    found = _of_cpus(named) or _of_cpus(readable(known)[0].values())
    if found:
        best = min(found, key=lambda predictor: len(predictor.unlike(cpu)))
        return dataclasses.replace(best, dataset={**best.dataset, "unlike": best.unlike(cpu)})
    raise InputError("there is no predictor yet: run collect-data and train-predictor, or name a file with --predictor")


def _of_cpus(predictors: Iterable[Predictor]) -> list[Predictor]:
    return [p for p in predictors if p.hardware is not None and not p.hardware.accelerator]
