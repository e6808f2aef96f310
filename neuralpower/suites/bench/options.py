"""Options of one benchmark: flags, defaults, limits; a JSON file of them, and the container's command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from neuralpower.dtypes import DTYPES as REGISTRY
from neuralpower.dtypes import NETWORK_DTYPES
from neuralpower.errors import InputError, unknown, whole_number
from neuralpower.files.json_files import read_json
from neuralpower.files.paths import check_regular
from neuralpower.networks.sources.base import check_model

MEMORY = {"": "pinned", "/pinned": "pinned", "/pageable": "pageable", "/device": "device", "/gpu": "device"}
DATA = {f"synthetic{place}": memory for place, memory in MEMORY.items()}
BACKENDS = ("caffe_lmdb", "image_folder")
DTYPES = {text: name for name in NETWORK_DTYPES for text in (name, *REGISTRY[name].aliases)}
TRUE, FALSE = ("true", "on", "t", "1"), ("false", "off", "f", "0")
TRUTH = "[true|false]"


def _option(default: Any, text: str, metavar: str | None = None, least: float | None = None) -> Any:
    """A field with its help text and its least value."""
    return field(default=default, metadata={"help": text, "metavar": metavar, "least": least})


@dataclass(frozen=True)
class Options:
    """Options of one benchmark; the help texts name the command line's defaults, which differ from these."""

    model: str = _option(MISSING, "Id of the zoo (see `neuralpower models`), or any MODEL. Required.")
    batch_size: int = _option(16, "Samples per device. Required.", "N", 1)
    forward_only: bool = _option(False, "Inference instead of training (false).", TRUTH)
    num_batches: int = _option(10, "Timed batches (100).", "N", 1)
    num_warmup_batches: int = _option(10, "Warm-up batches (1).", "N", 0)
    num_gpus: int = _option(1, "Devices, one process each (1).", "N", 1)
    device: str = _option("cpu", "cpu, cuda or cuda:0 (cpu).")
    dtype: str = _option("float", "float32, float16, bfloat16 or float64 (float32).")
    autocast: bool = _option(False, "Keep float32 weights and compute products in the dtype.", TRUTH)
    data_dir: str = _option("", "Folder of images; without it data are synthetic.", "PATH")
    data: str = _option("synthetic", "synthetic, or synthetic/pinned, /pageable, /device, /gpu.")
    data_backend: str = _option("caffe_lmdb", "caffe_lmdb or image_folder (caffe_lmdb).")
    data_shuffle: bool = _option(False, "Shuffle images in each epoch (false).", TRUTH)
    data_loader_only: bool = _option(False, "Only load data; run no network (false).", TRUTH)
    cudnn_benchmark: bool = _option(True, "Let cuDNN choose the fastest algorithms (true).", TRUTH)
    cudnn_fastest: bool = _option(False, "Recorded, without effect in PyTorch (false).", TRUTH)
    num_loader_threads: int = _option(4, "Loader processes; 0 loads between steps (4).", "N", 0)
    dist_backend: str = _option("nccl", "nccl or gloo (nccl; on CPUs gloo).")
    local_rank: int = _option(0, "Local rank of this process, if LOCAL_RANK is not set (0).", "N", 0)
    master_port: int = _option(0, "Port where several processes meet (a free one).", "PORT", 0)
    input_shape: tuple[int, ...] | None = _option(None, "Shape of one sample, such as 3x224x224.")
    seq_len: int | None = _option(None, "Tokens per sample.", "N")
    seed: int = _option(0, "Seed of weights, data and their order (0).", "N")
    monitor_frequency: float = _option(0.0, "Samples of the process's resources per second; 0: off.", "HZ", 0)

    @property
    def phase(self) -> str:
        if self.data_loader_only:
            return "data_ingestion"
        return "inference" if self.forward_only else "training"

    @property
    def numbers(self) -> str:
        return DTYPES[self.dtype]

    @property
    def kind(self) -> str:
        return "cpu" if self.device == "cpu" else "gpu"

    def checked(self) -> Options:
        """Check the options and return them; raises InputError for impossible values and combinations."""
        for name, value, known in (
            ("dtype", self.dtype, DTYPES),
            ("data", self.data, DATA),
            ("data backend", self.data_backend, BACKENDS),
            ("distributed backend", self.dist_backend, ("nccl", "gloo")),
        ):
            if value not in known:
                raise unknown(name, value, known)
        if self.device not in ("cpu", "gpu") and self.device.partition(":")[0] != "cuda":
            raise unknown("device", self.device, ("cpu", "gpu", "cuda", "cuda:0"))
        for name, option in FIELDS.items():
            value, least = getattr(self, name), option.metadata["least"]
            if least is not None and value < least:
                raise InputError(
                    f"{name} {value}: must be {least} or more; choose --{_spelled(name)} {max(least, 1)}"
                )
        gpus, port = self.num_gpus, self.master_port
        if port >= 2**16:
            raise InputError(f"master_port {port}: a port is below 65536; choose another, or 0 for any")
        if self.data_loader_only and not self.data_dir:
            text = "no data to load; give --data-dir FOLDER"
            raise InputError(f"data_loader_only without a data_dir: {text}")
        if gpus > 1 and ":" in self.device:
            text = "each has its own; choose --device gpu"
            raise InputError(f"device {self.device} for {gpus} processes: {text}")
        if gpus > 1 and self.forward_only:
            raise InputError(f"inference on {gpus} GPUs: it runs on one; leave out --num-gpus, or train")
        return self


def _spelled(name: str) -> str:
    return name.replace("_", "-")


FIELDS = {option.name: option for option in fields(Options)}
COMMAND_LINE = {"num_batches": 100, "num_warmup_batches": 1}
"""The command line's defaults where they differ from the library's."""


def boolean(text: str | bool) -> bool:
    """True for true, on, t or 1, False for false, off, f or 0; raises InputError."""
    word = str(text).strip().lower()
    if word not in (*TRUE, *FALSE):
        raise InputError(f"{str(text)!r} is not a boolean: write {', '.join(TRUE)} or {', '.join(FALSE)}")
    return word in TRUE


def value_of(name: str, text: Any) -> Any:
    """The value of option `name` from its text; raises InputError."""
    if name not in FIELDS:
        raise unknown("option", name, FIELDS)
    kind = str(FIELDS[name].type)
    try:
        if kind == "bool":
            return boolean(text)
        if name == "input_shape":
            return tuple(whole_number(size) for size in str(text).lower().split("x"))
        if kind.startswith("int"):
            return whole_number(str(text))
        return float(text) if kind == "float" else str(text)
    except ValueError:
        what = "a whole number" if "int" in kind else "a number"
        raise InputError(f"{name} {str(text)!r}: must be {what}") from None


def options_of(values: Mapping[str, Any]) -> Options:
    """Options of the command line from texts or values by name; raises InputError."""
    found = {name: value_of(name, value) for name, value in values.items() if value is not None}
    for required in ("model", "batch_size"):
        if required not in found:
            raise InputError(f"no {required}: it is required; add --{_spelled(required)}")
    return Options(**{**COMMAND_LINE, **found}).checked()


def arguments(options: Options) -> list[str]:
    """The command line of these options, without defaults."""
    given = []
    for name, option in FIELDS.items():
        value = getattr(options, name)
        if name in ("model", "batch_size") or value != COMMAND_LINE.get(name, option.default):
            given.append(f"--{name}={str(value).lower() if isinstance(value, bool) else plain(value)}")
    return given


def plain(value: Any) -> Any:
    """The text of a value in a command line and a journal: 3x224x224 for a shape."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else value


# ---- A JSON file of parameters, `pytorch.` and `exp.`, dotted or nested; the container command ----
# A list of values for one parameter is an axis of a grid. The command line overrides the file.


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


def _take(config: Config, name: str, value: Any) -> None:
    if name in OPTIONS:
        values = value if isinstance(value, list) else [value]
        if name == "exp.phase":
            for phase in values:
                if phase not in PHASES:
                    raise unknown("phase", phase, PHASES)
            values = [phase == "inference" for phase in values]
        if isinstance(value, list):
            config.axes[OPTIONS[name]] = values
        else:
            config.options[OPTIONS[name]] = values[0]
        return
    if name not in SETTINGS:
        raise unknown("parameter", name, [*OPTIONS, *SETTINGS])
    if name == "pytorch.args":
        for text in _words(value):
            key, equals, given = text.lstrip("-").partition("=")
            if "${" not in text and "$(" not in text:  # a launcher's template: its parts are parameters here
                config.options[key] = given if equals else "true"
    config.settings[name] = boolean(value) if name == "exp.docker" else value


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
