"""`neuralpower doctor`: what this machine has, what is missing, and whether a prediction works."""

from __future__ import annotations

import importlib.util
import platform
import time
from collections.abc import Iterator
from typing import NamedTuple

from typer import Exit, Typer
from typing_extensions import Unpack

from neuralpower.ask.output import Output
from neuralpower.cli.commands import examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.errors import NeuralPowerError
from neuralpower.files.cache import MOST_BYTES, SORTS, cache_folder
from neuralpower.files.stages import stage
from neuralpower.files.terminal import styled, visible
from neuralpower.version import __version__, version_of

app = Typer()

OPTIONAL = {  # module -> (package, what it is for)
    "timm": ("timm torchvision", "models of timm and torchvision"),
    "matplotlib": ("matplotlib", "pictures as PNG, plots in Python"),
    "pynvml": ("nvidia-ml-py", "power of NVIDIA GPUs"),
    "ray": ("ray", "collections over several machines"),
    "lmdb": ("lmdb pillow", "bench with images"),
    "tensorboard": ("tensorboard", "event files of lab"),
    "onnx": ("onnx onnxscript", "ONNX files as models"),
    "starlette": ("starlette uvicorn python-multipart", "the page of neuralpower web"),
}
NETWORK, DEVICE = "zoo:deep_mnist", "nvidia-t4"
FLOP = 23_937_500  # of NETWORK with a batch of 1


class Finding(NamedTuple):
    """One line of the report."""

    what: str
    ok: bool | None  # None: nothing to do, but something cannot be used
    text: str


@app.command(epilog=examples("neuralpower doctor", "neuralpower doctor --json"))
@with_options
def doctor(**options: Unpack[Output]) -> None:
    """Check this installation; exit code 1 where a prediction fails."""
    form = form_of(options["form"], options["out"], options["as_json"])
    check_out(options["out"], form)
    found = [*_machine(), *_optional(), _cache(), *_itself()]
    marks = {True: ("ok", "good"), None: ("-", ""), False: ("FAILS", "bad")}
    rows = [["what", "ok", "about"], *([one.what, marks[one.ok][0], one.text] for one in found)]
    answer = Answer(
        title="this installation",
        table=lambda: "\n".join(
            f"{one.what:<11}  {styled(f'{marks[one.ok][0]:<5}', marks[one.ok][1])}  {visible(one.text)}"
            for one in found
        ),
        json=lambda: {"schema": 1, "findings": [one._asdict() for one in found]},
        rows=lambda: rows,
    )
    give(answer, form, options["out"])
    if any(one.ok is False for one in found):
        raise Exit(1)


def _machine() -> Iterator[Finding]:
    from neuralpower.devices.host import read_cpu
    from neuralpower.measure.meters import MeterUnavailable
    from neuralpower.measure.meters.nvml import list_gpus
    from neuralpower.report.number_format import binary

    libraries = ", ".join(f"{name} {version_of(name) or 'missing'}" for name in ("torch", "transformers"))
    yield Finding("neuralpower", True, f"{__version__}, {libraries}, Python {platform.python_version()}")
    cpu = read_cpu()
    yield Finding("cpu", True, f"{cpu.name}, {cpu.cores} cores, {binary(cpu.memory_bytes)}")
    try:
        gpus = list_gpus()
    except MeterUnavailable:
        gpus = []
    for gpu in gpus:
        yield Finding("gpu", True, f"{gpu.name}, {binary(gpu.memory_bytes)}, driver {gpu.driver}")
    if not gpus:
        yield Finding("gpu", None, "none found (no NVIDIA driver); predictions need none")


def _optional() -> Iterator[Finding]:
    for module, (package, use) in OPTIONAL.items():
        if importlib.util.find_spec(module) is None:
            yield Finding("missing", None, f"{use}: pip install {package}")
        else:
            yield Finding("extra", True, f"{use} ({module})")


def _cache() -> Finding:
    try:
        folder = cache_folder()
    except NeuralPowerError as error:
        return Finding("cache", False, str(error))
    if folder is None:
        return Finding("cache", None, "switched off: every answer is computed again")
    kept = [file.stat().st_size for file in folder.rglob("*.json")] if folder.is_dir() else []
    size = f"{sum(kept) / 2**20:.1f} of {len(SORTS) * MOST_BYTES / 2**20:.0f} MiB"
    return Finding("cache", True, f"{folder}: {len(kept)} {', '.join(SORTS[:-1])} and {SORTS[-1]}, {size}")


def _itself() -> Iterator[Finding]:
    """Read all predictors, and predict a network whose FLOP are known."""
    stage("reading predictors")
    from neuralpower.learn.files.predictor_files import known_predictors, readable

    found, refused = readable(known_predictors())
    yield Finding("predictors", bool(found), f"{len(found)} can be read")
    yield from (Finding("predictors", False, str(text)) for text in refused)
    stage("importing torch and transformers")
    start = time.perf_counter()
    try:
        from neuralpower.api.functions import predict

        answer = predict(NETWORK, device=DEVICE)
    except (NeuralPowerError, ImportError, OSError) as error:
        yield Finding("prediction", False, f"{NETWORK} on {DEVICE}: {error}")
        return
    right = answer.flops == FLOP and answer.runtime_s.value > 0
    took = f"{time.perf_counter() - start:.1f} s"
    yield Finding("prediction", right, f"{NETWORK} on {DEVICE}: {answer.flops:,} FLOP, in {took}")
