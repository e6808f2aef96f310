"""Training: Adadelta on the negative log-likelihood, its curves, and a checkpoint after every epoch.

An epoch's order and dropout depend only on the seed and the epoch, so a training that is interrupted and
resumed ends in the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neuralpower.errors import InputError, first_line
from neuralpower.files.atomic import aside
from neuralpower.networks.zoo.mnist import MnistCnn
from neuralpower.suites.lab.images import Digits, Split, normalised

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
        """Raise InputError for impossible settings."""
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
