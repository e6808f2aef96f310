"""Run the lab, or one step of it: each step resumes from the folder, and writes its results there."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from neuralpower.data.journal import sole_writer
from neuralpower.devices.host import read_cpu
from neuralpower.devices.machine import installed
from neuralpower.errors import DeviceError, InputError
from neuralpower.networks.zoo.plain import MnistCnn
from neuralpower.suites.lab import board
from neuralpower.suites.lab.operators import profile_inference
from neuralpower.suites.lab.report import Folder, write_report
from neuralpower.suites.lab.training import (
    Digits,
    Settings,
    Training,
    bundled_digits,
    read_mnist,
    read_state,
    written,
)
from neuralpower.version import __version__

STEPS = ("all", "train", "profile", "report")
MODEL = "mnist_cnn.pt"
PACKAGES = ("torch", "numpy", "scikit-learn", "tensorboard", "matplotlib")
Tell = Callable[[str], object]


@dataclass(frozen=True)
class Request:
    """Options of a run, and its folder."""

    out: Path
    step: str = "all"
    settings: Settings = Settings()
    data_dir: Path | None = None
    batches: tuple[int, ...] = (1, 16, 64)
    images: int | None = None  # of a profile; None: all test images
    by_shape: bool = False
    use_cuda: bool = True
    save: bool = False
    tensorboard: bool = True
    port: int | None = None  # port of a TensorBoard to start

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1 or len(set(self.batches)) < len(self.batches):
            raise InputError(f"profile-batches {self.batches}: one or more different sizes of 1 or more")
        if self.images is not None and self.images < 1:
            raise InputError(f"profile-images {self.images}: must be 1 or more")

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The devices of the lab: the GPU first, if there is one and it is wanted, then the CPU."""
        gpu = [torch.device("cuda")] if self.use_cuda and torch.cuda.is_available() else []
        return (*gpu, torch.device("cpu"))


def run(request: Request, tell: Tell = lambda text: None) -> tuple[Path, ...]:
    """Run the steps; return the report's paths. Ctrl-C writes a report of the results so far, and ends.

    Raises:
        InputError: data, folder or port cannot be used.
        DeviceError: training or profile failed.
    """
    folder = Folder(request.out)
    events = request.tensorboard and board.installed()
    if request.port is not None:
        board.check_port(request.port)
        if not events:
            text = "event files are off, or tensorboard is missing; pip install tensorboard"
            raise InputError(f"tensorboard-port: {text}")
    elif request.tensorboard and not events:
        tell("Note: no event files, since tensorboard is missing; pip install tensorboard")
    if request.step == "report":
        return write_report(folder)
    digits = bundled_digits() if request.data_dir is None else read_mnist(request.data_dir)
    counts = f"{len(digits.train):,} images to train on and {len(digits.test):,} to test on"
    tell(f"data: {digits.name}, {counts}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(sole_writer(folder.path))
        process = None
        if request.port is not None:
            process = stack.enter_context(board.server(folder.path, request.port))
            tell(f"TensorBoard: http://localhost:{request.port}")
        try:
            write_images(folder, digits)
            if request.step in ("all", "train"):
                train(request, digits, tell)
            if request.step in ("all", "profile"):
                profile(request, digits, tell)
        except KeyboardInterrupt:
            with contextlib.suppress(InputError):  # no results yet
                report, *_ = write_report(folder)
                tell(f"interrupted: {report} shows the results so far; run the same command again to resume")
            raise
        paths = write_report(folder)
        if process is not None:
            tell("done; Ctrl-C ends TensorBoard")
            board.serve(process)
    return paths


def train(request: Request, digits: Digits, tell: Tell = lambda text: None) -> None:
    """Train the epochs that the folder does not have yet; every point is written at once.

    Raises:
        InputError: the folder cannot be written, or has another training.
        DeviceError: the loss is no longer a number.
    """
    folder, settings = Folder(request.out), request.settings
    folder.claim(settings, digits)
    training = Training(digits, settings, request.devices[0], folder.checkpoint)
    done = training.done
    if done:
        tell(f"{done} epochs are in {folder.checkpoint}; {max(settings.epochs - done, 0)} are left")
    folder.write_json("environment.json", environment())
    with contextlib.ExitStack() as stack:
        takers = [stack.enter_context(folder.recorder(done))]
        if request.tensorboard and board.installed():
            opened = board.Board(folder.path, done * training.batches)
            stack.callback(opened.close)
            takers.append(opened.add)
            if not done:
                opened.begin(training.model, digits.train)
        for point in training.run():
            if point.loss != point.loss:
                text = "the loss is no longer a number; choose a smaller --lr"
                raise DeviceError(f"step {point.step}: {text}")
            for take in takers:
                take(point)
            if point.part == "test":
                tell(f"epoch {point.epoch}: test loss {point.loss:.4f}, accuracy {point.accuracy:.2%}")
    if request.save:
        written(folder.path / MODEL, partial(torch.save, training.model.state_dict()))


def profile(request: Request, digits: Digits, tell: Tell = lambda text: None) -> None:
    """Operators of the trained network, or of one with random weights, at each batch size.

    Raises:
        InputError, DeviceError: as `profile_inference`; a damaged checkpoint.
    """
    folder = Folder(request.out)
    folder.make()
    folder.write_json("environment.json", environment())
    for device in request.devices:
        model = MnistCnn()
        if folder.checkpoint.exists():
            model.load_state_dict(read_state(folder.checkpoint, torch.device("cpu"))["model"])
        else:
            tell(f"no {folder.checkpoint}: the network has random weights; operators take the same time")
        for batch_size in request.batches:
            tell(f"profiling batch {batch_size} on {device}")
            table = profile_inference(
                model,
                digits.test,
                batch_size,
                images=request.images,
                device=device,
                by_shape=request.by_shape,
                trace_file=folder.file_of("trace", str(device), batch_size),
            )
            folder.keep_table(table)


def write_images(folder: Folder, digits: Digits) -> None:
    """The first 64 training images as one picture; raises InputError: no pillow, or not writable."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("pictures need pillow: pip install pillow") from None
    picture = Image.fromarray(board.image_grid(digits.train).numpy())
    written(folder.images, partial(picture.save, format="png"))


def environment() -> dict[str, Any]:
    """Hardware and software; None for missing parts."""
    cpu = read_cpu()
    return {
        "cpu": cpu.name,
        "cores": cpu.cores,
        "vcpus": cpu.threads,
        "memory_bytes": cpu.memory_bytes,
        "virtual": cpu.virtual,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "system": platform.platform(),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "neuralpower": __version__,
        "packages": dict.fromkeys(PACKAGES) | installed(PACKAGES),
    }
