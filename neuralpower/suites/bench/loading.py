"""Where the batches of a benchmark come from: one random batch again and again, or images that loader processes read."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from neuralpower.errors import DeviceError, InputError, NeuralPowerError, first_line
from neuralpower.networks.inputs import Inputs
from neuralpower.suites.bench.distributed import World
from neuralpower.suites.bench.images import Images
from neuralpower.suites.steps import Batch


class Synthetic:
    """One batch, drawn again and again.

    "device" keeps it where the network is, "pinned" and "pageable" copy it from such host memory for each step. On a CPU,
    these are the same. Shuffled, its rows come in another order each time.
    """

    def __init__(
        self, inputs: Inputs, device: torch.device, memory: str, *, shuffle: bool = False, seed: int = 0
    ) -> None:
        self.device, self.shuffle = device, shuffle
        self.memory = "device" if device.type == "cpu" else memory
        self.generator = torch.Generator().manual_seed(seed)
        place = device if self.memory == "device" else torch.device("cpu")
        self.inputs = inputs.mapped(lambda tensor: tensor.to(place))
        if self.memory == "pinned":
            self.inputs = self.inputs.mapped(lambda tensor: tensor.pin_memory())

    def __call__(self) -> Batch:
        """The batch, on the device."""
        inputs = self.inputs.mapped(self._shuffled) if self.shuffle else self.inputs
        return Batch(inputs.mapped(lambda tensor: tensor.to(self.device, non_blocking=self.memory == "pinned")))

    def _shuffled(self, tensor: Tensor) -> Tensor:
        if not tensor.dim():
            return tensor
        return tensor[torch.randperm(len(tensor), generator=self.generator).to(tensor.device)]

    def close(self) -> None:
        """Let go of the batch."""
        self.inputs = Inputs()


class Endless(Sampler[int]):
    """Numbers of images without an end: epoch after epoch, every `world`-th for this process, so that none ends inside a run."""

    def __init__(self, length: int, *, shuffle: bool = False, seed: int = 0, rank: int = 0, world: int = 1) -> None:
        self.length, self.shuffle, self.seed, self.rank, self.world = length, shuffle, seed, rank, world

    def __iter__(self) -> Iterator[int]:
        """The numbers."""
        return itertools.islice(self._all(), self.rank, None, self.world)

    def _all(self) -> Iterator[int]:
        for epoch in itertools.count():
            if self.shuffle:  # the same order in every process
                generator = torch.Generator().manual_seed(self.seed + epoch)
                yield from torch.randperm(self.length, generator=generator).tolist()
            else:
                yield from range(self.length)


class Lane(Protocol):
    """A side stream of a device, on which batches are copied while it computes."""

    def apart(self) -> AbstractContextManager[Any]:
        """What is launched within it runs beside the computation."""

    def join(self, tensors: Sequence[Tensor]) -> None:
        """The computation waits for what was launched apart so far, and works on these tensors."""


class CudaLane:
    """A side stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def apart(self) -> AbstractContextManager[Any]:
        """The side stream is the current one within."""
        return torch.cuda.stream(self.stream)

    def join(self, tensors: Sequence[Tensor]) -> None:
        """The current stream waits; the allocator knows that it uses the tensors."""
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        for tensor in tensors:
            tensor.record_stream(current)


class Loaded:
    """Batches of images from loader processes (0: this one), on the device in `dtype`; pinned and copied ahead to a GPU.

    Args:
        images: of one size.
        batch_size: of this process.
        device: where the network is.
        dtype: of the images there.
        classes: of the network; None leaves labels unchecked.
        workers: loader processes.
        shuffle: whether each epoch has an order of its own.
        world: of which this process sees its share of the images.
        lane: on which batches are copied ahead; on a GPU a side stream by default, on a CPU none.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        classes: int | None = None,
        workers: int = 0,
        shuffle: bool = False,
        world: World = World(),  # noqa: B008  # frozen
        lane: Lane | None = None,
    ) -> None:
        self.images, self.device, self.dtype, self.classes = images, device, dtype, classes
        sampler = Endless(len(images), shuffle=shuffle, seed=images.seed, rank=world.rank, world=world.size)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)  # more than cores, as asked
            loader: DataLoader[Any] = DataLoader(
                images,
                batch_size,
                sampler=sampler,
                num_workers=workers,
                pin_memory=device.type == "cuda",
                drop_last=True,
            )
            self._batches: Iterator[Any] | None = iter(loader)
        self._lane = CudaLane(device) if lane is None and device.type == "cuda" else lane
        self._ahead: Batch | None = None

    @property
    def skipped(self) -> int:
        """Images that could not be read so far, by all loader processes, those read ahead included."""
        return self.images.skipped

    def __call__(self) -> Batch:
        """The next batch.

        Raises:
            InputError: no image can be read, or one is of a class that the network does not have.
            DeviceError: a loader process died.
        """
        if self._lane is None:
            return self._moved(*self._next())
        batch = self._ahead or self._copied(self._lane)
        self._lane.join([t for t in (*batch.inputs.args, batch.target) if t is not None])
        self._ahead = self._copied(self._lane)
        return batch

    def _copied(self, lane: Lane) -> Batch:
        """The next batch, on its way to the device beside what that computes."""
        images, labels = self._next()
        with lane.apart():
            return self._moved(images, labels)

    def _moved(self, images: Tensor, labels: Tensor) -> Batch:
        moved = images.to(self.device, non_blocking=True).to(self.dtype)
        return Batch(Inputs((moved,)), labels.to(self.device, non_blocking=True))

    def _next(self) -> tuple[Tensor, Tensor]:
        assert self._batches is not None  # nothing is drawn after `close`
        try:
            images, labels = next(self._batches)
        except NeuralPowerError as error:  # from a loader process it comes with that one's traceback
            last = str(error).strip().splitlines()[-1]
            raise InputError(last.removeprefix(f"{InputError.__module__}.InputError: ")) from None
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise DeviceError(f"{first_line(error)}; choose a smaller batch or --num_loader_threads 0") from None
        highest = int(labels.max())
        if self.classes is not None and highest >= self.classes:
            raise InputError(
                f"{self.images.store.where}: an image of class {highest}, the network knows 0 to {self.classes - 1}; "
                "choose other images or another network"
            )
        return images, labels

    def close(self) -> None:
        """End the loader processes."""
        self._batches = self._ahead = None
