"""Find a predictor by a name, by a device, or for this machine, in any usual spelling."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from neuralpower.devices.host import Cpu, read_cpu
from neuralpower.devices.names import matching
from neuralpower.devices.spec import find_spec, known_spec, spec_of
from neuralpower.errors import InputError, PredictorError, unknown
from neuralpower.files.paths import is_file
from neuralpower.layers.base import FORWARD
from neuralpower.learn.files.predictor_files import (
    file_of,
    known_predictors,
    may_be_of_a_cpu,
    read_predictor,
    readable,
)
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.unmeasured.any_device import for_device, with_the_rest
from neuralpower.measure import target
from neuralpower.platforms import hardware_of

NEAREST = ("float16", "float32")  # for a model of 16 bits whose own type is not known


def chosen(name: str | Path | None, device: str | Path | None = None, dtype: str | None = None) -> Predictor:
    """The predictor of a name or file, on a device if one is named; without both, this machine's.

    A device may be one of this machine's: "cpu", "cuda" or "cuda:0". Without a
    predictor's name, the best for the device is used (`any_device.for_device`). `dtype`: the one to predict.

    Raises:
        PredictorError: as `load`; the device lacks the dtype.
        InputError: the device is not known, or both `name` and `device` name one.
    """
    device = target(device)
    if device is None:
        return default_predictor(read_cpu()) if name is None else load(name)
    if name is None:
        return for_device(spec_of(str(device)), dtype)
    if "@" in str(name) and not is_file(name):
        raise InputError(f"predictor {name} and device {device} both name a device; remove one")
    return on(load(name), device)[0]


def all_known(name: str | Path | None = None) -> Predictor:
    """The best predictor for the device of that name, else the predictor of that name; or this machine's.

    `load` reads the file alone where a predictor has a device's name. Raises as `chosen`.
    """
    if isinstance(name, str) and "@" not in name and not is_file(name):
        try:
            spec = find_spec(name)
        except InputError as unclear:
            try:
                return load(name)
            except InputError as error:
                raise (unclear if " may be " in str(unclear) else error) from None
        if name == spec.slug or name not in known_predictors():
            return for_device(spec)
    return chosen(name)


def nearest_dtype(predictor: Predictor, wanted: str) -> str:
    """The dtype, or the nearest that the predictor knows; where it knows none of these, the dtype."""
    for one in (wanted, *NEAREST):
        try:
            predictor.check(one, FORWARD)
        except PredictorError:
            continue
        return one
    return wanted


def load(name: str | Path) -> Predictor:
    """The predictor of that name, or in that file; NAME@DEVICE is one of several devices for that device.

    A name may be written in any usual way, and may be a device's ("h100"), see `any_device.for_device`.

    Raises:
        PredictorError: unknown, cut off, not JSON, of another schema, or it cannot serve the device.
        InputError: the device is not known, or its spec sheet is wrong.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise unknown("predictor", name, known_predictors(), PredictorError)
    text = str(name)
    if not is_file(name):
        parts = [(text[:at], text[at + 1 :]) for at, mark in enumerate(text) if mark == "@"]
        if parts:  # names of many CPUs contain an @, too
            known = known_predictors()
            base, device = next((p for p in parts if p[0] in known or is_file(p[0])), parts[-1])
            there, slug = on(load(base), device)
            return dataclasses.replace(there, name=f"{Path(base).stem}@{slug}")
    file = file_of(name)
    return _spelled(text) if file is None else with_the_rest(read_predictor(file))


def _spelled(name: str) -> Predictor:
    """The predictor by an inexact name, its own or its device's; raises PredictorError."""
    known = known_predictors()
    found = matching(name, {one: () for one in known})
    if len(found) == 1:
        return with_the_rest(read_predictor(known[found[0]]))
    try:
        spec = find_spec(name)
    except InputError as error:
        if found:
            text = f"predictor {name!r} may be {', '.join(found)}; choose one of them"
            raise PredictorError(text) from None
        if " may be " in str(error):
            raise
        raise unknown("predictor", name, known, PredictorError) from None
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
    if predictor.is_of(spec):
        return dataclasses.replace(predictor, sheet=spec), spec.slug
    there = dataclasses.replace(predictor.on(spec.hardware(), spec.name), carried=spec.slug not in known)
    sheets = [known_spec(name) for name in predictor.device.split(", ")]
    vendors = {None if sheet is None else sheet.vendor for sheet in sheets}
    if spec.vendor not in vendors and not {spec.vendor, *vendors} & {None}:
        there = dataclasses.replace(there, dataset={**there.dataset, "unknown_vendor": spec.vendor})
    return there, spec.slug


def default_predictor(cpu: Cpu) -> Predictor:
    """The predictor of the CPU most like this one, by name first; it notes where they differ.

    Unreadable files of other names, as those of other versions, are passed over.

    Raises:
        InputError: there is none of a CPU.
        PredictorError: one of its name cannot be read.
    """
    known = known_predictors()
    slugs = (name for name in known if name == cpu.slug or name.startswith(f"{cpu.slug}-"))
    named = [read_predictor(known[name]) for name in slugs]
    found = _of_cpus(named) or _of_cpus(
        readable(name for name, file in known.items() if may_be_of_a_cpu(file))[0].values()
    )
    if found:
        best = min(found, key=lambda predictor: len(predictor.unlike(cpu)))
        here = {"unlike": best.unlike(cpu), "here": f"{cpu.name}, {cpu.cores} cores"}
        return dataclasses.replace(best, dataset={**best.dataset, **here})
    raise InputError(
        "there is no predictor yet: run collect-data and train-predictor, or choose a file with --predictor"
    )


def _of_cpus(predictors: Iterable[Predictor]) -> list[Predictor]:
    return [p for p in predictors if p.hardware is not None and p.platform.family == "cpu"]
