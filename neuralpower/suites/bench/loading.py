"""Sources of batches: one random batch for every step, or images that loader processes read."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from neuralpower.errors import DeviceError, InputError, NeuralPowerError, first_line
from neuralpower.networks.inputs import Inputs
from neuralpower.suites.bench.distributed import World
from neuralpower.suites.bench.images import Images
from neuralpower.suites.steps import Batch


@dataclass
class Synthetic:
    """One batch for every step: on the device, or copied from pinned or pageable host memory each time."""

    inputs: Inputs
    device: torch.device
    memory: str
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Move the batch to its place."""
        if self.device.type == "cpu":
            self.memory = "device"
        self.generator = torch.Generator().manual_seed(self.seed)
        place = self.device if self.memory == "device" else torch.device("cpu")
        self.inputs = self.inputs.mapped(lambda tensor: tensor.to(place))
        if self.memory == "pinned":
            self.inputs = self.inputs.mapped(lambda tensor: tensor.pin_memory())

    def __call__(self) -> Batch:
        """The batch, on the device."""
        inputs = self.inputs.mapped(self._shuffled) if self.shuffle else self.inputs
        pinned = self.memory == "pinned"
        return Batch(inputs.mapped(lambda tensor: tensor.to(self.device, non_blocking=pinned)))

    def _shuffled(self, tensor: Tensor) -> Tensor:
        if not tensor.dim():
            return tensor
        return tensor[torch.randperm(len(tensor), generator=self.generator).to(tensor.device)]

    def close(self) -> None:
        """Free the batch."""
        self.inputs = Inputs()


@dataclass(frozen=True)
class Endless:
    """Endless numbers of images, epoch after epoch; every `world`-th from `rank`."""

    length: int
    shuffle: bool = False
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __iter__(self) -> Iterator[int]:
        """The numbers."""
        numbers = itertools.chain.from_iterable(map(self._epoch, itertools.count()))
        return itertools.islice(numbers, self.rank, None, self.world)

    def _epoch(self, epoch: int) -> Iterable[int]:
        if not self.shuffle:
            return range(self.length)
        generator = torch.Generator().manual_seed(self.seed + epoch)  # the same order in every process
        order: list[int] = torch.randperm(self.length, generator=generator).tolist()
        return order


class Lane:
    """A side stream of a CUDA device, on which batches are copied while it computes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no type for it

    def apart(self) -> AbstractContextManager[Any]:
        """Make the side stream the current one: work launched within runs parallel to the computation."""
        return torch.cuda.stream(self.stream)

    def join(self, tensors: Sequence[Tensor]) -> None:
        """Make the computation wait for the side stream, and tell the allocator that it uses the tensors."""
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        for tensor in tensors:
            tensor.record_stream(current)


@dataclass
class Loaded:
    """Batches of images, on the device in `dtype`; for a GPU they are pinned and copied ahead."""

    images: Images
    batch_size: int  # of this process
    device: torch.device
    dtype: torch.dtype
    classes: int | None = None  # the network's classes; None leaves labels unchecked
    workers: int = 0  # loader processes; 0: this one
    shuffle: bool = False  # a new order for each epoch
    world: World = World()  # this process reads its share of the images
    lane: Lane | None = None  # for copying ahead; None: a side stream on a GPU

    def __post_init__(self) -> None:
        """Start the loader processes."""
        images, on_gpu = self.images, self.device.type == "cuda"
        sampler = Endless(len(images), self.shuffle, images.seed, self.world.rank, self.world.size)
        how: dict[str, Any] = {"num_workers": self.workers, "pin_memory": on_gpu, "drop_last": True}
        with warnings.catch_warnings():  # more loader processes than cores, as requested
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            loader: DataLoader[Any] = DataLoader(images, self.batch_size, sampler=sampler, **how)
            self._batches: Iterator[Any] | None = iter(loader)
        if self.lane is None and on_gpu:
            self.lane = Lane(self.device)
        self._ahead: Batch | None = None

    def __call__(self) -> Batch:
        """The next batch; raises InputError for bad images or classes, DeviceError for a dead loader."""
        if self.lane is None:
            return self._copied()
        batch = self._ahead or self._copied()
        self.lane.join([t for t in (*batch.inputs.args, batch.target) if t is not None])
        self._ahead = self._copied()
        return batch

    def _copied(self) -> Batch:
        """The next batch, on its way to the device during the computation."""
        images, labels = self._next()
        with contextlib.nullcontext() if self.lane is None else self.lane.apart():
            moved = images.to(self.device, non_blocking=True).to(self.dtype)
            return Batch(Inputs((moved,)), labels.to(self.device, non_blocking=True))

    def _next(self) -> tuple[Tensor, Tensor]:
        assert self._batches is not None  # no batch is drawn after `close`
        try:
            images, labels = next(self._batches)
        except NeuralPowerError as error:  # a loader process adds its traceback
            last = str(error).strip().splitlines()[-1]
            raise InputError(last.removeprefix(f"{InputError.__module__}.InputError: ")) from None
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            ways = "choose a smaller batch or --num-loader-threads 0"
            raise DeviceError(f"{first_line(error)}; {ways}") from None
        highest = int(labels.max())
        if self.classes is not None and highest >= self.classes:
            known = (
                f"the network's classes are 0 to {self.classes - 1}; choose other images or another network"
            )
            raise InputError(f"{self.images.store.where}: an image of class {highest}, {known}")
        return images, labels

    def close(self) -> None:
        """End the loader processes."""
        self._batches = self._ahead = None
