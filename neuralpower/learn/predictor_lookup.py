"""Predictors found by name."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from neuralpower.devices.host import Cpu
from neuralpower.devices.names import matching
from neuralpower.devices.spec import find_spec, known_spec, spec_of
from neuralpower.errors import InputError, PredictorError, one_line, unknown
from neuralpower.files.json_files import read_json
from neuralpower.files.paths import is_file
from neuralpower.files.predictor_folders import predictor_folders
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.predictor_format import from_json
from neuralpower.platforms import hardware_of


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
    """The predictor of that name, or in that file; NAME@DEVICE is one of several devices for that device.

    A name may be written in any usual way, and may be a device's ("h100"), as `any_device.for_device` has it.

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
        if str(name) in known:
            path = known[str(name)]
        elif not os.path.lexists(path):
            return _spelled(text, known)
    try:
        data = read_json(path)
    except (ValueError, OSError) as error:
        raise PredictorError(
            f"{path}: is no predictor file, or cut off ({one_line(error)}); train it again with "
            "train-predictor"
        ) from None
    return from_json(data, path.stem, str(path))


def _spelled(name: str, known: Mapping[str, Path]) -> Predictor:
    """The predictor whose name, or whose device's, is meant; raises PredictorError."""
    found = matching(name, {one: () for one in known})
    if len(found) == 1:
        return load(found[0])
    try:
        spec = find_spec(name)
    except InputError as error:
        if found:
            text = f"predictor {name!r} may be {', '.join(found)}; name one of them"
            raise PredictorError(text) from None
        if " may be " in str(error):
            raise
        raise unknown("predictor", name, known, PredictorError) from None
    from neuralpower.learn.any_device import for_device  # which looks predictors up

    return for_device(spec)


def on(predictor: Predictor, device: str | Path) -> tuple[Predictor, str]:
    """(A predictor of several devices, for one of them or one with a spec sheet; the device's short name).

    Raises:
        PredictorError: it cannot serve the device.
        InputError: the device is not known, or its spec sheet is wrong.
    """
    known, device = predictor.dataset.get("devices") or {}, str(device)
    if device in known:
        return predictor.on(hardware_of(known[device]), device), device
    spec = spec_of(device)
    there = dataclasses.replace(predictor.on(spec.hardware(), spec.name), carried=spec.slug not in known)
    sheets = [known_spec(name) for name in predictor.device.split(", ")]
    vendors = {None if sheet is None else sheet.vendor for sheet in sheets}
    if spec.vendor not in vendors and not {spec.vendor, *vendors} & {None}:
        there = dataclasses.replace(there, dataset={**there.dataset, "unknown_vendor": spec.vendor})
    return there, spec.slug


def default_predictor(cpu: Cpu) -> Predictor:
    """That of the CPU most like this one among those of its name, else of any CPU; it says where they differ.

    Unreadable files of other names, as those of other versions, are passed over.

    Raises:
        InputError: there is none of a CPU.
        PredictorError: one of its name cannot be read.
    """
    known = known_predictors()
    named = [load(name) for name in known if name == cpu.slug or name.startswith(f"{cpu.slug}-")]
    found = _of_cpus(named) or _of_cpus(readable(known)[0].values())
    if found:
        best = min(found, key=lambda predictor: len(predictor.unlike(cpu)))
        here = {"unlike": best.unlike(cpu), "here": f"{cpu.name}, {cpu.cores} cores"}
        return dataclasses.replace(best, dataset={**best.dataset, **here})
    raise InputError(
        "there is no predictor yet: run collect-data and train-predictor, or name a file with --predictor"
    )


def _of_cpus(predictors: Iterable[Predictor]) -> list[Predictor]:
    return [p for p in predictors if p.hardware is not None and p.platform.family == "cpu"]
