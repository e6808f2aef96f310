"""The lab's training: digits of MNIST if given, otherwise scikit-learn's (no download), and the steps.

Format of the files: http://yann.lecun.com/exdb/mnist (big-endian: two zero bytes, type, axes, sizes, values).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from neuralpower.errors import InputError, first_line
from neuralpower.files.atomic import aside
from neuralpower.files.paths import check_regular
from neuralpower.networks.zoo.plain import MnistCnn

SIDE = 28
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's training pixels, on a scale from 0 to 1
CLASSES = 10
UNSIGNED_BYTE = 0x08
SUBFOLDERS = ("", "raw", "MNIST/raw", "mnist")
DIGITS_TEST = 360  # of scikit-learn's 1,797 images


@dataclass(frozen=True)
class Split:
    """Images uint8 [count, 28, 28] and their labels int64 [count]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Digits:
    """A training set, a test set, and their origin."""

    name: str
    train: Split
    test: Split


def normalised(images: Tensor) -> Tensor:
    """Images uint8 [count, 28, 28] -> float32 [count, 1, 28, 28]; MNIST's with mean 0, deviation 1."""
    return ((images.float() / 255 - MEAN) / DEVIATION).unsqueeze(1)


def bundled_digits() -> Digits:
    """Scikit-learn's 1,797 digits (8 x 8 pixels of 0 to 16), enlarged to 28 x 28, with a fixed split."""
    from sklearn.datasets import load_digits

    found = load_digits()
    small = torch.from_numpy(found.images).float().unsqueeze(1) * (255 / 16)
    large = torch.nn.functional.interpolate(small, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    images = large.round().clamp(0, 255).to(torch.uint8).squeeze(1)
    labels = torch.from_numpy(found.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = (Split(images[some], labels[some]) for some in (order[:DIGITS_TEST], order[DIGITS_TEST:]))
    return Digits("scikit-learn's digits, 8x8 enlarged to 28x28 (not MNIST)", train, test)


def read_mnist(folder: Path) -> Digits:
    """The four idx files of MNIST, packed (.gz) or not; raises InputError."""
    return Digits(f"MNIST in {folder}", _split(folder, "train"), _split(folder, "t10k"))


def _split(folder: Path, part: str) -> Split:
    image_file, label_file = _find(folder, f"{part}-images", 3), _find(folder, f"{part}-labels", 1)
    images, labels = read_idx(image_file, axes=3), read_idx(label_file, axes=1)
    refused = ""
    if len(images) != len(labels):
        counts = f"{len(images)} images, but {len(labels)} labels in {label_file.name}"
        refused = f"{image_file}: {counts}; get both files again"
    elif images.shape[1:] != (SIDE, SIDE) or not len(images):
        refused = f"{image_file}: {images.shape}; MNIST has [count, {SIDE}, {SIDE}] with one image or more"
    elif labels.max() >= CLASSES:
        refused = f"{label_file}: label {labels.max()}; digits have labels from 0 to {CLASSES - 1}"
    if refused:
        raise InputError(refused)
    return Split(torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64)))


def _find(folder: Path, stem: str, axes: int) -> Path:
    """The idx file of that stem in a folder or below it, under any of its common names."""
    names = [f"{stem}{dash}idx{axes}-ubyte{end}" for dash in "-." for end in ("", ".gz")]
    try:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give one with {names[0]}, or leave --data-dir out")
        next(folder.iterdir(), None)  # is it readable?
        paths = (folder / below / name for below in SUBFOLDERS for name in names)
        if found := next(filter(Path.is_file, paths), None):
            return found
    except OSError as error:
        text = f"{folder}: cannot be read ({error.strerror}); leave --data-dir out for bundled digits"
        raise InputError(text) from None
    raise InputError(f"{folder}: has no {names[0]} (nor .gz); give MNIST's folder, or leave --data-dir out")


def read_idx(path: Path, axes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Unsigned bytes of an idx file with a number of axes.

    Raises:
        InputError: it cannot be read, has another format, or another number of bytes than its header states.
    """
    check_regular(path)
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read ({reason}); get the file again") from None
    head = 4 + 4 * axes
    if len(data) < head or data[:4] != bytes([0, 0, UNSIGNED_BYTE, axes]):
        wanted = f"an idx file of bytes with {axes} axes with '000008{axes:02}'"
        raise InputError(f"{path}: begins with {data[:4].hex()!r}; {wanted}")
    shape = tuple(int(size) for size in np.frombuffer(data, dtype=">u4", count=axes, offset=4))
    size = int(np.prod(shape, dtype=np.int64))
    if len(data) - head != size:
        held = f"{len(data) - head} bytes of values, its header states {size}"
        raise InputError(f"{path}: {held}; get the file again")
    return np.frombuffer(data, dtype=np.uint8, offset=head).reshape(shape)


# ---- Training: Adadelta on the negative log-likelihood, its curves, and a checkpoint after every epoch ----
# An epoch's order and dropout depend only on the seed and the epoch, so a training that is interrupted and
# resumed ends in the same weights.


LEARNT = ("model", "optimizer", "scheduler")  # parts of a training whose states a checkpoint holds


@dataclass(frozen=True)
class Settings:
    """Settings that determine the curves."""

    batch_size: int = 64
    test_batch_size: int = 1000
    epochs: int = 14
    lr: float = 1.0
    gamma: float = 0.7  # the learning rate's factor after each epoch
    seed: int = 1
    log_interval: int = 10  # batches

    def __post_init__(self) -> None:
        for name in ("batch_size", "test_batch_size", "epochs", "log_interval"):
            if getattr(self, name) < 1:
                raise InputError(f"{name.replace('_', '-')} {getattr(self, name)}: must be 1 or more")
        for name in ("lr", "gamma"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} {getattr(self, name)}: must be a positive number")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed {self.seed}: must be from 0 to {2**31 - 1}")


@dataclass(frozen=True)
class Point:
    """A point of the curves: means over all images since the last one."""

    part: str  # train, test
    epoch: int  # from 1
    step: int  # (epoch - 1) x batches of an epoch + index of the batch
    images: int
    loss: float  # negative log-likelihood per image
    accuracy: float  # share of the images


class Training:
    """Train a network on digits on a device; it resumes from the checkpoint and renews it."""

    def __init__(
        self, digits: Digits, settings: Settings, device: torch.device, checkpoint: Path | None = None
    ) -> None:
        self.digits, self.settings, self.device, self.checkpoint = digits, settings, device, checkpoint
        torch.manual_seed(settings.seed)
        self.model = MnistCnn().to(device)
        self.optimizer = torch.optim.Adadelta(self.model.parameters(), lr=settings.lr)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=settings.gamma)
        self.batches = -(-len(digits.train) // settings.batch_size)  # of an epoch
        self.done = 0  # epochs
        if checkpoint is not None and checkpoint.exists():
            self._restore(checkpoint)

    def run(self) -> Iterator[Point]:
        """Train the remaining epochs; yield a point per log interval, and one of the test images."""
        while self.done < self.settings.epochs:
            epoch = self.done + 1
            yield from self._epoch(epoch)
            self.scheduler.step()
            yield self.tested(epoch)
            self.done = epoch
            if self.checkpoint is not None:
                state = {"epochs": self.done, **{name: getattr(self, name).state_dict() for name in LEARNT}}
                written(self.checkpoint, partial(torch.save, state))

    def _epoch(self, epoch: int) -> Iterator[Point]:
        torch.manual_seed(self.settings.seed * 100_003 + epoch)  # dropout's
        self.model.train()
        seen, loss_sum, right = 0, 0.0, 0
        for index, (images, labels) in enumerate(
            self._batches(self.digits.train, self.settings.batch_size, epoch)
        ):
            self.optimizer.zero_grad()
            output = self.model(images)
            loss = F.nll_loss(output, labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            self.optimizer.step()
            seen += len(labels)
            loss_sum += float(loss.detach()) * len(labels)  # the loss is a mean over the batch already
            right += int((output.argmax(1) == labels).sum())
            if (index + 1) % self.settings.log_interval == 0 or index + 1 == self.batches:
                step = (epoch - 1) * self.batches + index
                yield Point("train", epoch, step, seen, loss_sum / seen, right / seen)
                seen, loss_sum, right = 0, 0.0, 0

    @torch.inference_mode()
    def tested(self, epoch: int) -> Point:
        """Loss and accuracy on the test images, without dropout."""
        self.model.eval()
        loss_sum, right, count = 0.0, 0, len(self.digits.test)
        for images, labels in self._batches(self.digits.test, self.settings.test_batch_size):
            output = self.model(images)
            loss_sum += float(F.nll_loss(output, labels, reduction="sum"))
            right += int((output.argmax(1) == labels).sum())
        return Point("test", epoch, epoch * self.batches - 1, count, loss_sum / count, right / count)

    def _batches(self, split: Split, size: int, epoch: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches on the device; shuffled if `epoch` is given."""
        order = torch.arange(len(split))
        if epoch is not None:
            generator = torch.Generator().manual_seed(self.settings.seed + 7919 * epoch)
            order = torch.randperm(len(split), generator=generator)
        for chosen in torch.split(order, size):
            yield normalised(split.images[chosen]).to(self.device), split.labels[chosen].to(self.device)

    def _restore(self, path: Path) -> None:
        state = read_state(path, self.device)
        try:
            for name in LEARNT:
                getattr(self, name).load_state_dict(state[name])
            self.done = int(state["epochs"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{path}: not a checkpoint of this network ({first_line(error)}); remove it"
            ) from None


def read_state(path: Path, device: torch.device) -> dict[str, Any]:
    """The content of a checkpoint; raises InputError for a damaged one. Nothing in the file is executed."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many errors for a damaged file
        raise InputError(f"{path}: not a checkpoint ({first_line(error)}); remove it to start anew") from None
    if not isinstance(state, dict):
        what = type(state).__name__
        raise InputError(f"{path}: holds a {what}, a checkpoint is a dictionary; remove it to start anew")
    return state


def written(path: Path, write: Callable[[Path], object]) -> None:
    """Write a temporary file, then rename it: an interruption keeps the old one. Raises InputError."""
    try:
        with aside(path) as new:
            write(new)
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter for a missing folder
        raise InputError(f"{path}: cannot be written ({first_line(error)}); choose another folder") from None
