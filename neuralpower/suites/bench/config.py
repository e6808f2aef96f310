"""A JSON file of parameters, `pytorch.` and `exp.`, as dotted names or nested; and the container command they describe.

A list of values for one parameter is an axis of a grid. What the command line says goes before the file.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    "pytorch.cudnn_benchmark": "cudnn_benchmark",
    "pytorch.cudnn_fastest": "cudnn_fastest",
    "pytorch.data_backend": "data_backend",
    "pytorch.data_dir": "data_dir",
    "pytorch.data_shuffle": "data_shuffle",
    "pytorch.num_loader_threads": "num_loader_threads",
    "exp.model": "model",
    "exp.replica_batch": "batch_size",
    "exp.num_batches": "num_batches",
    "exp.num_warmup_batches": "num_warmup_batches",
    "exp.num_local_gpus": "num_gpus",
    "exp.device_type": "device",
    "exp.dtype": "dtype",
    "monitor.frequency": "monitor_frequency",
}
SETTINGS: dict[str, Any] = {
    "pytorch.args": [],
    "pytorch.bench_path": "",
    "pytorch.docker_args": [],
    "pytorch.docker_image": IMAGE,
    "pytorch.env": "",
    "pytorch.host_libpath": "",
    "pytorch.host_python_path": "",
    "pytorch.launcher": "",
    "exp.docker": False,
    "exp.docker_args": [],
    "exp.docker_image": "",
    "runtime.cuda_cache": "",
    "monitor.pid_folder": "",
}
"""What else may stand in a file, and its default; `exp.phase` is training or inference."""


@dataclass(frozen=True)
class Config:
    """Options by name, axes of a grid by name, and settings by dotted name."""

    options: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, list[Any]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))


def read_config(path: Path) -> Config:
    """The parameters of a file; raises InputError for one that is not known or cannot be."""
    check_regular(path)
    try:
        content = read_json(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give another --config") from None
    except ValueError as error:
        raise InputError(f"{path}: is no JSON ({error}); write an object of parameters") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}; write an object of parameters")
    found = Config()
    for name, value in _flat(content.get("parameters", content)):
        _take(found, name, value)
    return found


def check_models(found: Config, path: Path, trust_code: bool = False) -> None:
    """Raise ModelError where the file names a model that would run code."""
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
    if name == "exp.phase":
        values = [_forward_only(v) for v in (value if isinstance(value, list) else [value])]
        _put(found, "forward_only", values if isinstance(value, list) else values[0])
    elif name == "pytorch.args":
        for text in value if isinstance(value, list) else shlex.split(str(value)):
            key, equals, given = str(text).lstrip("-").partition("=")
            if "${" not in text and "$(" not in text:  # a template of another launcher: its parts are parameters here
                _put(found, key, given if equals else "true")
        found.settings[name] = value
    elif name in OPTIONS:
        _put(found, OPTIONS[name], value)
    elif name in SETTINGS:
        found.settings[name] = boolean(value) if name == "exp.docker" else value
    else:
        raise unknown("parameter", name, [*OPTIONS, *SETTINGS, "exp.phase"])


def _put(found: Config, name: str, value: Any) -> None:
    if isinstance(value, list):
        found.axes[name] = value
    else:
        found.options[name] = value


def _forward_only(phase: Any) -> bool:
    if phase not in ("training", "inference"):
        raise unknown("phase", phase, ("training", "inference"))
    return bool(phase == "inference")


def container_command(options: Options, settings: Mapping[str, Any], home: Path) -> list[str]:
    """The command that runs the benchmark in a container; `home` is the folder that holds the package.

    Code, CUDA cache, data and monitor folder are volumes, the latter three where they are set.
    """
    volume: Callable[[object, str], str] = lambda here, there: f"--volume={here}:/workspace/{there}"  # noqa: E731
    command = ["docker", "run", "-i", "--security-opt", "seccomp=unconfined", "--pid=host", "--ipc=host"]
    if options.kind == "gpu":
        command.append("--gpus=all")
    command.append(volume(home, "neuralpower"))
    if settings["runtime.cuda_cache"]:
        command.append(volume(settings["runtime.cuda_cache"], "cuda_cache"))
    if options.data_dir:
        command.append(volume(Path(options.data_dir).resolve(), "data"))
    if options.monitor_frequency > 0 and settings["monitor.pid_folder"]:
        command.append(volume(settings["monitor.pid_folder"], "tmp"))
    command += ["--env=PYTHONPATH=/workspace/neuralpower", *_exports(str(settings["pytorch.env"]))]
    command += [*_words(settings["pytorch.docker_args"]), *_words(settings["exp.docker_args"])]
    command.append(str(settings["exp.docker_image"] or settings["pytorch.docker_image"]))
    inside = replace(options, data_dir="/workspace/data") if options.data_dir else options
    return [*command, "python", "-m", "neuralpower", "bench", *arguments(inside)]


def _exports(text: str) -> Iterator[str]:
    """--env=A=1 of "export A=1; export B=2"."""
    for word in shlex.split(text.replace(";", " ")):
        if "=" in word:
            yield f"--env={word}"


def _words(value: Sequence[str] | str) -> list[str]:
    return shlex.split(value) if isinstance(value, str) else [str(word) for word in value]
