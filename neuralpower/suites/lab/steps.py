"""The steps of the lab on a folder: train, profile, report. Each takes up what the folder already holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from neuralpower.errors import DeviceError, InputError
from neuralpower.networks.zoo.mnist import MnistCnn
from neuralpower.suites.lab import board
from neuralpower.suites.lab.environment import environment
from neuralpower.suites.lab.folder import Folder
from neuralpower.suites.lab.images import Digits
from neuralpower.suites.lab.inference import profile_inference
from neuralpower.suites.lab.training import Settings, Training, read_state, save_model, written

BATCHES = (1, 16, 64)
MODEL = "mnist_cnn.pt"
Tell = Callable[[str], None]


def devices(use_cuda: bool = True) -> tuple[torch.device, ...]:
    """Where the lab runs: the GPU first, if there is one and it is wanted, then the CPU."""
    gpu = [torch.device("cuda")] if use_cuda and torch.cuda.is_available() else []
    return (*gpu, torch.device("cpu"))


def train(
    folder: Folder,
    digits: Digits,
    settings: Settings,
    device: torch.device,
    *,
    tensorboard: bool,
    save: bool = False,
    tell: Tell = lambda text: None,
) -> None:
    """Learn the epochs that the folder does not hold yet; every point is in its files at once.

    Raises:
        InputError: the folder cannot be written, or holds another training.
        DeviceError: the loss is no longer a number.
    """
    folder.claim(settings, digits)
    training = Training(digits, settings, device, folder.checkpoint)
    if training.done:
        tell(f"{training.done} epochs are in {folder.checkpoint}; {max(settings.epochs - training.done, 0)} are left")
    folder.write_json("environment.json", environment())
    first_step = training.done * training.batches
    events = board.open_board(folder.path, first_step) if tensorboard else contextlib.nullcontext()
    with folder.recorder(training.done) as curves, events as opened:
        if opened is not None and not training.done:
            opened.begin(training.model, digits.train)
        for point in training.run():
            if point.loss != point.loss:
                raise DeviceError(f"step {point.step}: the loss is not a number any more; choose a smaller --lr")
            curves.add(point)
            if opened is not None:
                opened.add(point)
            if point.part == "test":
                tell(f"epoch {point.epoch}: test loss {point.loss:.4f}, accuracy {point.accuracy:.2%}")
    if save:
        save_model(training.model, folder.path / MODEL)


def profile(
    folder: Folder,
    digits: Digits,
    places: Sequence[torch.device],
    batches: Sequence[int] = BATCHES,
    *,
    images: int | None = None,
    by_shape: bool = False,
    tell: Tell = lambda text: None,
) -> None:
    """Operators of the trained network (of one with random weights, where none was trained) at each batch size.

    Raises:
        InputError, DeviceError: as `profile_inference`; a damaged checkpoint.
    """
    folder.make()
    folder.write_json("environment.json", environment())
    for place in places:
        model = MnistCnn()
        if folder.checkpoint.exists():
            model.load_state_dict(read_state(folder.checkpoint, torch.device("cpu"))["model"])
        else:
            tell(f"no {folder.checkpoint}: the network has random weights; operators take the same time")
        for batch_size in batches:
            tell(f"profiling batch {batch_size} on {place}")
            trace_file = folder.trace_file(str(place), batch_size)
            table = profile_inference(
                model, digits.test, batch_size, images=images, device=place, by_shape=by_shape, trace_file=trace_file
            )
            folder.keep_table(table)


def write_images(folder: Folder, digits: Digits) -> None:
    """The first 64 training images as one picture; raises InputError: no pillow, or not writable."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("pictures need pillow: pip install 'neuralpower[lab]'") from None
    picture = Image.fromarray(board.image_grid(digits.train).numpy())
    written(folder.images, lambda aside: picture.save(aside, format="png"))
