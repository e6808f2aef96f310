"""TensorBoard: the network's graph, images and curves in event files, and the server that shows them."""

from __future__ import annotations

import socket
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import DeviceError, InputError, writing
from neuralpower.processes.tether import environment, tethered
from neuralpower.suites.lab.training import SIDE, Point, Split, normalised

EXPERIMENT = Path("logs/mnist_experiment_1")
GRID = 8  # images a side
TAGS = {"train": ("Loss/train", "Accuracy/train"), "test": ("Loss/test", "Accuracy/test")}


def image_grid(split: Split) -> Tensor:
    """The first GRID x GRID images in one, uint8 [GRID * 28, GRID * 28]; black where there are fewer."""
    images = torch.zeros(GRID * GRID, SIDE, SIDE, dtype=torch.uint8)
    some = split.images[: GRID * GRID]
    images[: len(some)] = some
    return images.reshape(GRID, GRID, SIDE, SIDE).transpose(1, 2).reshape(GRID * SIDE, GRID * SIDE)


class Board:
    """Event files of an experiment under a lab's folder; close them at the end, also after an error.

    Earlier points from `first_step` on are no longer shown, since these steps run again.
    """

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with writing(folder / EXPERIMENT, "--out"):
            self.writer: Any = SummaryWriter(str(folder / EXPERIMENT), purge_step=first_step)

    def begin(self, model: nn.Module, split: Split) -> None:
        """The data-flow graph of the network in eval mode, and the image grid."""
        self.writer.add_image("images", image_grid(split).unsqueeze(0), 0)
        training, device = model.training, next(model.parameters()).device
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.jit.trace", category=DeprecationWarning)
            self.writer.add_graph(model.eval(), normalised(split.images[:1]).to(device))
        model.train(training)

    def add(self, point: Point) -> None:
        loss, accuracy = TAGS[point.part]
        self.writer.add_scalar(loss, point.loss, point.step)
        self.writer.add_scalar(accuracy, point.accuracy, point.step)

    def close(self) -> None:
        self.writer.close()


def installed() -> bool:
    try:
        import torch.utils.tensorboard  # noqa: F401  # only to see whether it is there
    except ImportError:
        return False
    return True


def check_port(port: int) -> None:
    """Raise InputError for an impossible port, or one in use."""
    if not 1 <= port <= 65535:
        raise InputError(f"tensorboard-port {port}: must be from 1 to 65535; 6006 is usual")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just released is free
        try:
            probe.bind(("localhost", port))
        except OSError as error:
            text = f"tensorboard-port {port}: cannot be used ({error.strerror}); choose another one"
            raise InputError(text) from None


@contextmanager
def server(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """TensorBoard as a child of this process, ended with it; its address is http://localhost:PORT."""
    check_port(port)
    (folder / EXPERIMENT).mkdir(parents=True, exist_ok=True)
    logs = str(folder / EXPERIMENT.parent)
    command = [*tethered("tensorboard.main"), "--logdir", logs, "--port", str(port)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=environment())
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve(process: subprocess.Popen[bytes]) -> None:
    """Wait until Ctrl-C, or until the server ends by itself: a DeviceError then."""
    try:
        code = process.wait()
    except KeyboardInterrupt:
        return
    raise DeviceError(f"tensorboard ended by itself with code {code}; run `tensorboard` yourself to see why")
