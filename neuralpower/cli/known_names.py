"""Names of models, predictors and devices: completed by the shell, checked before torch is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer

from neuralpower.ask.words import BASELINES
from neuralpower.devices.cluster import cluster_of, is_cluster, layout_of
from neuralpower.devices.names import is_size
from neuralpower.errors import InputError, PredictorError, unknown
from neuralpower.files.paths import is_file

REPORT = "roofline"  # the name of the only report, accepted before its networks
LAYOUT = re.compile(r"(tp|pp|ep|dp)\d")  # how a layout in few letters begins
HERE = ("cpu", "cuda", "cuda:0")  # torch's names for devices of this machine


def _checked(check: Callable[[str], object]) -> Callable[[typer.Context, Any], Any]:
    """A callback that checks a name, or several; while the shell completes, everything passes."""

    def checked(context: typer.Context, value: Any) -> Any:
        if value is not None and not context.resilient_parsing:
            for name in value if isinstance(value, (list, tuple)) else [str(value)]:
                check(name)
        return value

    return checked


def _alone(check: Callable[[str], None]) -> Callable[[typer.Context, Any], Any]:
    """The same for one name; wrong ones among several are reported when the others are measured."""
    checked = _checked(check)
    return lambda context, value: checked(context, value) if value and len(value) == 1 else value


# ---- models ----


def check_model(name: str) -> None:
    """Raise ModelError for a text that cannot be a model."""
    from neuralpower.networks.sources import check_known

    check_known(name)


def check_side(text: str) -> None:
    """The same for a side of a comparison: MODEL, MODEL@PREDICTOR, @PREDICTOR, @8xh100-sxm:tp4pp2."""
    model, at, place = text.partition("@")
    if model.strip():
        check_model(model)
    if not at or not place.strip():
        return
    name, layout = split_layout(place)
    if layout:
        layout_of(layout)
    if is_cluster(name):
        cluster_of(name)
    elif name:
        check_predictor(name)


def split_layout(place: str) -> tuple[str, str]:
    """(device or predictor, layout) of `h100:tp4pp2`; what has no layout behind a colon is a name."""
    name, colon, layout = place.rpartition(":")
    return (name, layout) if colon and LAYOUT.match(layout) else (place, "")


def check_model_or_list(text: str) -> None:
    """The same for MODEL or @LIST, which is read later."""
    if text.strip() and not text.startswith("@") and text != REPORT:
        check_model(text)


def completed_models(incomplete: str) -> list[str]:
    """Models that begin with the text: of the catalogue, the zoo and transformers."""
    from neuralpower.networks.names.catalogue import catalogue
    from neuralpower.networks.names.slips import transformers_names, zoo_names

    found = [*catalogue(), *(f"zoo:{name}" for name in zoo_names())]
    if incomplete.startswith("transformers:"):
        found += [f"transformers:{name}" for name in sorted(transformers_names()[0])]
    return _completions([*found, "transformers:"], incomplete)


# ---- predictors ----


def predictor_names() -> list[str]:
    """Names of predictors, nearer folders first."""
    from neuralpower.files.paths import predictor_folders

    return [
        *dict.fromkeys(file.stem for folder in predictor_folders() for file in sorted(folder.glob("*.json")))
    ]


def check_predictor(text: str) -> None:
    """Raise PredictorError for a name of no predictor, file or device."""
    from neuralpower.devices.names import matching
    from neuralpower.devices.spec import find_spec

    known = predictor_names()
    for name in text.split(","):
        name = name.strip()
        if not name or "@" in name or name in known or is_file(name) or os.path.lexists(name):
            continue
        if matching(name, {one: () for one in known}):
            continue
        try:
            find_spec(name)
        except InputError as error:
            if " may be " in str(error):
                raise
            raise unknown("predictor", name, known, PredictorError) from None


def check_source(text: str) -> None:
    """The same for what a calibration starts from: also a device with a spec sheet, or its file."""
    from neuralpower.devices.spec import spec_of

    try:
        check_predictor(text)
    except PredictorError as error:
        try:
            spec_of(text)
        except InputError:
            way = "write its spec sheet with `neuralpower dataset init FOLDER --device-spec FILE`"
            raise PredictorError(f"{error}; for a device of your own, {way}, and give that file") from None


def check_predictors_or_baselines(text: str) -> None:
    """The same for several with commas; BASELINES are allowed."""
    for name in text.split(","):
        if name.strip() not in BASELINES:
            check_predictor(name)


def completed_predictors(incomplete: str) -> list[str]:
    """Predictors that begin with the text; after @, devices."""
    before, at, device = incomplete.rpartition("@")
    if at:
        return [f"{before}@{name}" for name in completed_devices(device)]
    return _several(incomplete, predictor_names())


# ---- devices ----


def check_device(text: str) -> None:
    """Raise InputError for a device that is not known, not here, and not a file."""
    from neuralpower.devices.host import cuda_number
    from neuralpower.devices.spec import spec_of

    for name in text.split(","):
        if is_cluster(name.strip()):
            count, _, device = name.strip().partition("x")
            way = f"write --device {device} --tensor-parallel {count}"
            raise InputError(f"device {name.strip()!r}: is more than one; {way}")
        if name.strip().partition(":")[0] in ("cpu", "cuda"):
            cuda_number(name.strip())
        elif name.strip():
            spec_of(name.strip())


def check_fitted(text: str) -> None:
    """The same for what a model is to fit into: also a size, 24GB, or several devices, 8xh100-sxm."""
    if is_cluster(text):
        cluster_of(text)
    elif not is_size(text):
        check_device(text)


def check_place(name: str) -> None:
    """Raise InputError for a device that is not one of this machine's: cpu, cuda or cuda:N."""
    from neuralpower.devices.host import cuda_number
    from neuralpower.devices.spec import find_spec

    try:
        cuda_number(name)
    except InputError:
        try:
            found = find_spec(name).name
        except InputError:
            found = ""
        if not found:
            raise
        way = f"write cpu or cuda:0, or `neuralpower predict --device {name}`"
        raise InputError(f"device {name!r} is {found}; this command measures here: {way}") from None


def completed_devices(incomplete: str) -> list[str]:
    """Devices with a spec sheet, and this machine's devices, that begin with the text."""
    from neuralpower.devices.spec import known_specs

    return _several(incomplete, [*known_specs(), *HERE])


def completed_places(incomplete: str) -> list[str]:
    """Devices of this machine that begin with the text."""
    return _completions(HERE, incomplete)


def _several(incomplete: str, names: Iterable[str]) -> list[str]:
    """Completions of the last of several names with commas."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _completions(names, last)]


def _completions(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


checked_model, checked_side = _checked(check_model), _checked(check_side)
checked_models, checked_only_model = _checked(check_model_or_list), _alone(check_model_or_list)
checked_predictors_or_baselines = _checked(check_predictors_or_baselines)
checked_predictors_or_none = _checked(lambda text: None if text == "none" else check_predictor(text))
checked_predictor, checked_device, checked_place = map(_checked, (check_predictor, check_device, check_place))
checked_fitted, checked_source = _checked(check_fitted), _checked(check_source)
NAMED: Mapping[str, Any] = {
    "device": (checked_device, completed_devices),
    "fitted": (checked_fitted, completed_devices),
    "predictor": (checked_predictor, completed_predictors),
    "baseline": (checked_predictors_or_baselines, completed_predictors),
    "cluster": (_checked(cluster_of), None),
}
"""What a text names -> (check, completion)."""
