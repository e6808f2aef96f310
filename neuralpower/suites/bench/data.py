"""Data of a benchmark: Caffe's `Datum`, read without protobuf, images on the disk, and batches of them.

A message is a row of fields: a varint key, number << 3 | wire type, then a varint (type 0), 8 bytes (1), a
length and its bytes (2), or 4 bytes (5). Unknown fields are skipped.
Sources: caffe.proto; Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import math
import multiprocessing
import os
import random
import struct
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from neuralpower.errors import DeviceError, InputError, NeuralPowerError, first_line, one_line
from neuralpower.files.paths import check_regular, is_there
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.suites.bench.distributed import World
from neuralpower.suites.steps import Batch

if TYPE_CHECKING:
    from PIL.Image import Image

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LENGTHS = {FIXED32: 4, FIXED64: 8}
LONGEST = 10  # bytes of a varint
NUMBERS = {1: "channels", 2: "height", 3: "width", 5: "label", 7: "encoded"}  # by field number
DATA, FLOATS = 4, 6
OTHER = "not a Datum of Caffe; give a database that Caffe wrote"


@dataclass(frozen=True)
class Datum:
    """An image and its class: `data` is uint8 [channels, height, width], or a JPEG or PNG if `encoded`."""

    channels: int = 0
    height: int = 0
    width: int = 0
    data: bytes = b""
    label: int = 0
    float_data: tuple[float, ...] = ()
    encoded: bool = False


def parse_datum(message: bytes) -> Datum:
    """The datum of a message; raises InputError if it is cut off, or has wrong types or sizes."""
    fields: dict[str, Any] = {}
    floats: list[float] = []
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, position = _varint(message, position)
            if number in NUMBERS:
                fields[NUMBERS[number]] = bool(value) if number == 7 else value
            continue
        if kind != BYTES and kind not in LENGTHS:
            raise InputError(f"field {number} of wire type {kind}: {OTHER}")
        length, position = _varint(message, position) if kind == BYTES else (LENGTHS[kind], position)
        content = message[position : position + length]
        position += length
        if missing := length - len(content):
            raise InputError(f"a Datum ends {missing} bytes before field {number} does: it is cut off")
        if number == DATA and kind == BYTES:
            fields["data"] = content
        elif number == FLOATS and kind in (BYTES, FIXED32) and length % 4 == 0:
            floats += struct.unpack(f"<{length // 4}f", content)
        elif number in (DATA, FLOATS, *NUMBERS):
            raise InputError(f"field {number} has wire type {kind}: {OTHER}")
    datum = Datum(**fields, float_data=tuple(floats))
    size, given = datum.channels * datum.height * datum.width, len(datum.data) or len(datum.float_data)
    if not (datum.encoded and datum.data) and (not size or given != size):
        shape = f"{datum.channels}x{datum.height}x{datum.width}"
        rule = "an image has one value per channel and pixel; give a database that Caffe wrote"
        raise InputError(f"a Datum of {shape} with {given} values: {rule}")
    return datum


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """(number, position after it): seven bits a byte, the lowest first; the eighth bit means more follow."""
    value = 0
    for place, byte in enumerate(message[position : position + LONGEST]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    if len(message) < position + LONGEST:
        raise InputError("a Datum ends within a number: it is cut off")
    raise InputError(f"a number of more than 10 bytes: {OTHER}")


# ---- Labelled images on disk ----
# Each read returns a random part of an image. An unreadable image is counted, and the next one used instead.
# Source of the crop, 8 % to 100 % of the area with an aspect ratio of 3/4 to 4/3: Szegedy and others, Going
# deeper with convolutions, arXiv 1409.4842, section 6.


AREA, RATIO, ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of a crop
SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}
UNREADABLE = (OSError, ValueError, SyntaxError, InputError)  # pillow raises the third for a broken PNG
LOADERS = 1024  # processes that are distinguished


class Images(Dataset[tuple[Tensor, int]]):
    """A store's images, cropped and flipped at random for a network: uint8 [channels, size, size]."""

    def __init__(self, store: FolderStore | CaffeStore, channels: int, size: int, seed: int = 0) -> None:
        self.store, self.channels, self.size, self.seed = store, channels, size, seed
        # a count for each loader process: a shared one needs a semaphore, which outlives killed processes
        self._skipped: Any = multiprocessing.get_context("spawn").RawArray("q", LOADERS)
        self._generator: tuple[int, random.Random] | None = None

    def __len__(self) -> int:
        return len(self.store.items)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        """An image and its class; raises InputError if no image can be read."""
        why, loader = "", get_worker_info()
        loader_id = 0 if loader is None else loader.id
        if self._generator is None or self._generator[0] != os.getpid():  # random numbers of this process
            self._generator = (os.getpid(), random.Random(self.seed * 1000 + loader_id))
        for further in range(len(self)):
            try:
                image, label = self.store.read((number + further) % len(self))
                return augmented(image, self.channels, self.size, self._generator[1]), label
            except UNREADABLE as error:
                why = one_line(error)
                self._skipped[loader_id % LOADERS] += 1
        rule = f"none of its {len(self)} images can be read ({why}); give another --data-dir"
        raise InputError(f"{self.store.where}: {rule}")

    @property
    def skipped(self) -> int:
        """The number of skipped images that could not be read, in all loader processes."""
        return sum(self._skipped)


def augmented(image: Image, channels: int, size: int, generator: random.Random) -> Tensor:
    """A random part of the image as uint8 [channels, size, size], grey or RGB, flipped half of the time."""
    pillow = _pillow()
    box = crop_box(image.width, image.height, generator)
    part = image.convert("L" if channels == 1 else "RGB")
    part = part.resize((size, size), pillow.Resampling.BILINEAR, box=box)
    if generator.random() < 0.5:
        part = part.transpose(pillow.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(part, dtype=np.uint8).reshape(size, size, channels))
    return pixels.permute(2, 0, 1).contiguous()


def crop_box(width: int, height: int, generator: random.Random) -> tuple[float, float, float, float]:
    """(left, upper, right, lower) of a random part; the largest central one if ten draws do not fit."""
    for _ in range(ATTEMPTS):
        area = width * height * generator.uniform(*AREA)
        ratio = math.exp(generator.uniform(*map(math.log, RATIO)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, upper = generator.randint(0, width - across), generator.randint(0, height - down)
            return left, upper, left + across, upper + down
    across, down = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, upper = (width - across) // 2, (height - down) // 2
    return left, upper, left + across, upper + down


def open_store(backend: str, where: Path) -> FolderStore | CaffeStore:
    """The images under a path; raises InputError."""
    check_regular(where)
    if not is_there(where):
        raise InputError(f"{where}: no such file or folder; give another --data-dir")
    _pillow()
    return FolderStore(where) if backend == "image_folder" else CaffeStore(where)


class FolderStore:
    """`where/class/*.jpg`: the classes are the folders in alphabetical order."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.classes = sorted(p.name for p in where.iterdir() if p.is_dir()) if where.is_dir() else []
        if not self.classes:
            rule = "has no folder of images per class (class/image.jpg); give another --data-dir"
            raise InputError(f"{where}: {rule}")
        self.items = [
            (str(file), label)
            for label, name in enumerate(self.classes)
            for file in sorted((where / name).rglob("*"))
            if file.suffix.lower() in SUFFIXES
        ]
        if not self.items:
            count = len(self.classes)
            raise InputError(f"{where}: {count} classes without an image file; give another --data-dir")

    def read(self, number: int) -> tuple[Image, int]:
        """An image and the number of its folder; raises one of UNREADABLE."""
        file, label = self.items[number]
        return _decoded(file), label


class CaffeStore:
    """An LMDB of `Datum` messages, opened for reading only, without lock and read-ahead."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self._opened: tuple[int, Any] | None = None
        _extra("lmdb", "Caffe's databases need lmdb")
        file = where / "data.mdb" if where.is_dir() else where
        if not file.is_file():
            rule = "has no data.mdb, so it is not an LMDB; give another --data-dir or --data-backend"
            raise InputError(f"{where}: {rule}")
        with self._transaction() as (opened, transaction):
            needed, size = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"], file.stat().st_size
            if size < needed:  # a read beyond the end would kill the process
                raise InputError(f"{file}: is cut off, {size:,} of {needed:,} bytes; copy the database again")
            self.items: list[bytes] = list(transaction.cursor().iternext(values=False))
            first = transaction.get(self.items[0]) if self.items else None
        self.close()
        if first is None:
            raise InputError(f"{where}: an empty database; give another --data-dir")
        try:
            parse_datum(first)
        except InputError as error:
            raise InputError(f"{where}: not an LMDB of Caffe: {error}") from None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[tuple[Any, Any]]:
        """The database and a transaction; each process opens its own. Raises InputError."""
        lmdb = importlib.import_module("lmdb")
        try:
            if self._opened is None or self._opened[0] != os.getpid():
                self.close()
                how = {"readonly": True, "lock": False, "readahead": False, "meminit": False}
                self._opened = (os.getpid(), lmdb.open(str(self.where), subdir=self.where.is_dir(), **how))
            with self._opened[1].begin() as transaction:
                yield self._opened[1], transaction
        except lmdb.Error as error:
            raise InputError(f"{self.where}: not an LMDB ({error}); give another --data-dir") from None

    def close(self) -> None:
        """Close the database; the next read opens it again."""
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        """The state without the open database, which only this process can use."""
        return {**self.__dict__, "_opened": None}

    def read(self, number: int) -> tuple[Image, int]:
        """An image and its label; raises InputError, or as `FolderStore.read`."""
        with self._transaction() as (_, transaction):
            message = transaction.get(self.items[number])
        datum = parse_datum(message or b"")
        return picture(datum), datum.label


def picture(datum: Datum) -> Image:
    """The image of a datum; raises OSError if an encoded one cannot be decoded."""
    if datum.encoded:
        return _decoded(io.BytesIO(datum.data))
    values = np.frombuffer(datum.data, np.uint8)
    if not datum.data:
        values = np.clip(np.round(np.array(datum.float_data)), 0, 255).astype(np.uint8)
    pixels = values.reshape(datum.channels, datum.height, datum.width).transpose(1, 2, 0)
    if datum.channels not in (1, 3):
        raise InputError(f"an image of {datum.channels} channels: must be 1 or 3")
    pixels = pixels[..., 0] if datum.channels == 1 else np.ascontiguousarray(pixels)
    found: Image = _pillow().fromarray(pixels)
    return found


def _decoded(file: str | io.BytesIO) -> Image:
    image: Image
    with _pillow().open(file) as image:
        image.load()
        return image


def _extra(module: str, need: str) -> Any:
    """A package of the extra `bench`; raises InputError if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"{need}, which is not installed; pip install lmdb pillow") from None


def _pillow() -> Any:
    return _extra("PIL.Image", "images need pillow")


# ---- Sources of batches: one random batch for every step, or images that loader processes read ----


@dataclass
class Synthetic:
    """One batch for every step: on the device, or copied from pinned or pageable host memory each time."""

    inputs: Inputs
    device: torch.device
    memory: str
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.device.type == "cpu":
            self.memory = "device"
        self.generator = torch.Generator().manual_seed(self.seed)
        place = self.device if self.memory == "device" else torch.device("cpu")
        self.inputs = self.inputs.mapped(lambda tensor: tensor.to(place))
        if self.memory == "pinned":
            self.inputs = self.inputs.mapped(lambda tensor: tensor.pin_memory())

    def __call__(self) -> Batch:
        inputs = self.inputs.mapped(self._shuffled) if self.shuffle else self.inputs
        pinned = self.memory == "pinned"
        return Batch(inputs.mapped(lambda tensor: tensor.to(self.device, non_blocking=pinned)))

    def _shuffled(self, tensor: Tensor) -> Tensor:
        if not tensor.dim():
            return tensor
        return tensor[torch.randperm(len(tensor), generator=self.generator).to(tensor.device)]

    def close(self) -> None:
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
        self._batches = self._ahead = None
