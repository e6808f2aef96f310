"""Labelled images on disk: a folder of files per class, or Caffe's LMDB, opened in each loader process.

Each read returns a random part of an image. An unreadable image is counted, and the next one used instead.
Source of the crop, 8 % to 100 % of the area with an aspect ratio of 3/4 to 4/3: Szegedy and others, Going
deeper with convolutions, arXiv 1409.4842, section 6.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import multiprocessing
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from neuralpower.errors import InputError, one_line
from neuralpower.files.paths import check_regular, is_there
from neuralpower.suites.bench.datum import Datum, parse_datum

if TYPE_CHECKING:
    from PIL.Image import Image

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
        """The number of images."""
        return len(self.store.items)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        """An image and its class; raises InputError if no image can be read."""
        why, loader = "", get_worker_info()
        own = 0 if loader is None else loader.id
        if self._generator is None or self._generator[0] != os.getpid():  # random numbers of this process
            self._generator = (os.getpid(), random.Random(self.seed * 1000 + own))
        for further in range(len(self)):
            try:
                image, label = self.store.read((number + further) % len(self))
                return augmented(image, self.channels, self.size, self._generator[1]), label
            except UNREADABLE as error:
                why = one_line(error)
                self._skipped[own % LOADERS] += 1
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
        raise InputError(f"{need}, which is not installed; pip install 'neuralpower[bench]'") from None


def _pillow() -> Any:
    return _extra("PIL.Image", "images need pillow")
