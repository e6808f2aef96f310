"""A JSON file of parameters, `pytorch.` and `exp.`, dotted or nested, and the container command for them.

A list of values for one parameter is an axis of a grid. The command line overrides the file.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError, unknown
from neuralpower.files.json_files import read_json
from neuralpower.files.paths import check_regular
from neuralpower.networks.trust import check_model
from neuralpower.suites.bench.options import Options, arguments, boolean

IMAGE = "hpe/pytorch:cuda9-cudnn7"
OPTIONS = {
    **{f"exp.{name}": name for name in ("model", "num_batches", "num_warmup_batches", "dtype")},
    **{f"pytorch.{name}": name for name in ("cudnn_benchmark", "cudnn_fastest", "data_backend", "data_dir")},
    **{f"pytorch.{name}": name for name in ("data_shuffle", "num_loader_threads")},
    "exp.replica_batch": "batch_size",
    "exp.num_local_gpus": "num_gpus",
    "exp.device_type": "device",
    "exp.phase": "forward_only",
    "monitor.frequency": "monitor_frequency",
}
PHASES = ("training", "inference")
EMPTY = (
    "pytorch.env pytorch.launcher pytorch.bench_path pytorch.host_libpath pytorch.host_python_path "
    "exp.docker_image runtime.cuda_cache monitor.pid_folder"
)
SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("pytorch.args", "pytorch.docker_args", "exp.docker_args"), ()),
    **dict.fromkeys(EMPTY.split(), ""),
    **{"pytorch.docker_image": IMAGE, "exp.docker": False},
}
"""Further parameters of a file, with their defaults."""


@dataclass(frozen=True)
class Config:
    """Options by name, axes of a grid by name, and settings by dotted name."""

    options: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, list[Any]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))


def read_config(path: Path) -> Config:
    """The parameters of a file; raises InputError for an unknown or impossible one."""
    check_regular(path)
    try:
        content = read_json(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give another --config") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error}); write an object of parameters") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: contains a {type(content).__name__}; write an object of parameters")
    found = Config()
    for name, value in _flat(content.get("parameters", content)):
        _take(found, name, value)
    return found


def check_models(found: Config, path: Path, trust_code: bool = False) -> None:
    """Raise ModelError if the file names a model that would run code."""
    named = [found.options["model"]] if "model" in found.options else found.axes.get("model", [])
    for model in named:
        check_model(str(model), f"{path}: exp.model", trust_code)


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _take(found: Config, name: str, value: Any) -> None:
    if name in OPTIONS:
        values = value if isinstance(value, list) else [value]
        if name == "exp.phase":
            for phase in values:
                if phase not in PHASES:
                    raise unknown("phase", phase, PHASES)
            values = [phase == "inference" for phase in values]
        if isinstance(value, list):
            found.axes[OPTIONS[name]] = values
        else:
            found.options[OPTIONS[name]] = values[0]
        return
    if name not in SETTINGS:
        raise unknown("parameter", name, [*OPTIONS, *SETTINGS])
    if name == "pytorch.args":
        for text in _words(value):
            key, equals, given = text.lstrip("-").partition("=")
            if "${" not in text and "$(" not in text:  # a launcher's template: its parts are parameters here
                found.options[key] = given if equals else "true"
    found.settings[name] = boolean(value) if name == "exp.docker" else value


def container_command(options: Options, settings: Mapping[str, Any], home: Path) -> list[str]:
    """The container's command, with volumes for the given paths; `home` is the folder above the package."""
    volumes = {
        "neuralpower": home,
        "cuda_cache": settings["runtime.cuda_cache"],
        "data": options.data_dir and Path(options.data_dir).resolve(),
        "tmp": options.monitor_frequency > 0 and settings["monitor.pid_folder"],
    }
    command = ["docker", "run", "-i", "--security-opt", "seccomp=unconfined", "--pid=host", "--ipc=host"]
    command += ["--gpus=all"] * (options.kind == "gpu")
    command += [f"--volume={here}:/workspace/{there}" for there, here in volumes.items() if here]
    exports = shlex.split(str(settings["pytorch.env"]).replace(";", " "))  # export A=1; export B=2
    command.append("--env=PYTHONPATH=/workspace/neuralpower")
    command += [f"--env={word}" for word in exports if "=" in word]
    command += [*_words(settings["pytorch.docker_args"]), *_words(settings["exp.docker_args"])]
    command.append(str(settings["exp.docker_image"] or settings["pytorch.docker_image"]))
    inside = replace(options, data_dir="/workspace/data") if options.data_dir else options
    return [*command, "python", "-m", "neuralpower", "bench", *arguments(inside)]


def _words(value: Any) -> list[str]:
    return [*map(str, value)] if isinstance(value, list | tuple) else shlex.split(str(value))
