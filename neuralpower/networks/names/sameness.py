"""What an answer about a model depends on, so that a kept one is given again only where nothing has changed.

That are the options, the model and its files, predictors, spec sheets, this machine's CPU, the package's own
files, versions and places of what computes, and which files of these libraries it came from. Models whose
source runs code, or reads a network, are never kept.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuralpower.files.cache import SWITCH, content_of, stamps_of
from neuralpower.files.paths import predictor_folders
from neuralpower.version import __version__, version_of

COMPUTING = ("torch", "transformers", "numpy", "msgspec", "torchvision", "timm")  # whose versions matter
DEFINING = ("transformers", "torchvision", "timm", "msgspec")  # whose files define what is computed
FETCHED = ("hf",)  # prefixes of models that are not all here
PREFIX = "NEURALPOWER_"
Stamp = tuple[str, int, int]
BESIDE = ("config.json", "hf_quant_config.json")  # of a folder


def question_of(model: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """All inputs of an answer; None if they are unknown: the model is code, or is fetched."""
    from neuralpower.devices.host import read_cpu

    found = network_of(model, [value for value in options.values() if isinstance(value, str)])
    if found is None:
        return None
    folders = {folder.resolve(): folder for folder in predictor_folders()}.values()
    try:
        predictors = {str(file): content_of(file) for folder in folders for file in folder.glob("*.json")}
    except OSError:
        return None
    return {
        **found,
        "options": {name: str(one) if isinstance(one, Path) else one for name, one in options.items()},
        "predictors": predictors,
        "cpu": read_cpu().to_json(),
    }


def network_of(model: str, named: Sequence[str] = ()) -> dict[str, Any] | None:
    """All that a trace of a model depends on, besides sizes and phase; None as for `question_of`.

    `named`: texts that may name further files.
    """
    from neuralpower.networks.sources.base import Given, recognised

    given = Given(model)
    source = recognised(given)
    if source is None or source.runs_code or source.prefix in FETCHED:
        return None
    try:
        files = {str(path): content_of(path) for path in _files(given, named)}
    except (OSError, RuntimeError, ValueError):  # what is named cannot be a file, or be read
        return None
    return {
        "version": __version__,
        "versions": {name: (version_of(name), _place(name)) for name in COMPUTING},
        "package": stamps_of(Path(__file__).parents[2], (".py", ".json", ".txt")),
        "model": model,
        "files": files,
        "environment": {name: value for name, value in os.environ.items() if _counts(name)},
    }


def _place(name: str) -> Stamp | None:
    """The file that a library begins with, which is not imported; None where there is none."""
    with contextlib.suppress(ImportError, ValueError):
        found = sys.modules[name].__spec__ if name in sys.modules else importlib.util.find_spec(name)
        return _stamp(found.origin) if found is not None and found.origin else None
    return None


def _files(given: Any, named: Sequence[str]) -> Iterator[Path]:
    """Files that the model or a text names."""
    texts = [given.location, *(part for text in named for part in (text, *text.split("@")))]
    for text in filter(None, texts):
        path = Path(text).expanduser()
        inside = [path / name for name in BESIDE] if path.is_dir() else [path, path.with_name(BESIDE[1])]
        yield from (file for file in inside if file.is_file())


def _counts(name: str) -> bool:
    return name.startswith(PREFIX) and name != SWITCH


def loaded() -> list[Stamp]:
    """The files of DEFINING libraries that this process has imported, as they are now."""
    found = []
    for name, module in sys.modules.copy().items():
        if name.partition(".")[0] in DEFINING and (file := getattr(module, "__file__", None)):
            found.append(_stamp(file))
    return sorted(found)


def _stamp(file: str) -> Stamp:
    """(path, size, time of change in ns); zeros for a file that is not there."""
    try:
        status = Path(file).stat()
    except OSError:
        return file, 0, 0
    return file, status.st_size, status.st_mtime_ns


def is_current(answer: Mapping[str, Any]) -> bool:
    """Whether the files that an answer came from are as they were."""
    loaded = answer.get("loaded")
    return isinstance(loaded, list) and all(
        isinstance(one, list) and len(one) == 3 and isinstance(one[0], str) and [*_stamp(one[0])] == one
        for one in loaded
    )
