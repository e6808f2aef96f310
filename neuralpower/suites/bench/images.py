"""Labelled images on the disk: folders of files, one per class, and Caffe's LMDB; opened anew in every loader process.

An image that cannot be read is counted, and the next one taken instead.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from neuralpower.errors import InputError, one_line
from neuralpower.files.paths import check_regular, is_there
from neuralpower.suites.bench.augment import augmented
from neuralpower.suites.bench.datum import Datum, parse_datum

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}
UNREADABLE = (OSError, ValueError, SyntaxError, InputError)  # pillow answers a broken PNG with the third
LOADERS = 1024  # processes that are told apart
EXTRA = "pip install 'neuralpower[bench]'"


class Store(Protocol):
    """Images by number."""

    where: Path

    def __len__(self) -> int:
        """How many there are."""

    def read(self, number: int) -> tuple[Image, int]:
        """An image and its class; raises OSError, ValueError or InputError where it cannot be read."""


class Images(Dataset[tuple[Tensor, int]]):
    """A store's images as a network of inputs [channels, size, size] sees them: cropped and flipped at random, uint8."""

    def __init__(self, store: Store, channels: int, size: int, seed: int = 0) -> None:
        self.store, self.channels, self.size, self.seed = store, channels, size, seed
        # a count for each loader process: a common one needs a semaphore, which outlives processes that are killed
        self._skipped: Any = multiprocessing.get_context("spawn").RawArray("q", LOADERS)
        self._generator: tuple[int, random.Random] | None = None

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.store)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        """An image and its class; raises InputError where none of all can be read."""
        why = ""
        for further in range(len(self.store)):
            try:
                image, label = self.store.read((number + further) % len(self.store))
                return augmented(image, self.channels, self.size, self._own_generator()), label
            except UNREADABLE as error:
                why = one_line(error)
                loader = get_worker_info()
                self._skipped[0 if loader is None else loader.id % LOADERS] += 1
        raise InputError(
            f"{self.store.where}: none of its {len(self.store)} images can be read ({why}); give another --data_dir"
        )

    @property
    def skipped(self) -> int:
        """Images that could not be read and were passed over, in all loader processes."""
        return sum(self._skipped)

    def _own_generator(self) -> random.Random:
        """The random numbers of this process."""
        worker = torch.utils.data.get_worker_info()
        if self._generator is None or self._generator[0] != os.getpid():
            self._generator = (os.getpid(), random.Random(self.seed * 1000 + (worker.id if worker else 0)))
        return self._generator[1]


def open_store(backend: str, where: Path) -> Store:
    """The images under a path; raises InputError."""
    check_regular(where)
    if not is_there(where):
        raise InputError(f"{where}: there is no such file or folder; give another --data_dir")
    try:
        importlib.import_module("PIL.Image")
    except ImportError:
        raise InputError(f"images need pillow, which is not installed; {EXTRA}") from None
    return FolderStore(where) if backend == "image_folder" else CaffeStore(where)


class FolderStore:
    """`where/class/*.jpg`: the classes are the folders in alphabetical order."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.classes = sorted(p.name for p in where.iterdir() if p.is_dir()) if where.is_dir() else []
        if not self.classes:
            raise InputError(f"{where}: no folder of images per class in it (class/image.jpg); give another --data_dir")
        self.files = [
            (str(file), label)
            for label, name in enumerate(self.classes)
            for file in sorted((where / name).rglob("*"))
            if file.suffix.lower() in SUFFIXES
        ]
        if not self.files:
            raise InputError(f"{where}: {len(self.classes)} classes without an image file; give another --data_dir")

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.files)

    def read(self, number: int) -> tuple[Image, int]:
        """An image and the number of its folder."""
        from PIL import Image as Pillow

        name, label = self.files[number]
        with Pillow.open(name) as image:
            image.load()
            return image, label


class CaffeStore:
    """An LMDB of `Datum` messages, opened for reading only, without lock and read-ahead."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self._lmdb = _lmdb()
        self._opened: tuple[int, Any] | None = None
        file = where / "data.mdb" if where.is_dir() else where
        if not file.is_file():
            raise InputError(f"{where}: holds no data.mdb, so it is no LMDB; give another --data_dir or --data_backend")
        with self._told(), self._environment().begin() as transaction:
            self._check_length(file)
            self.keys: list[bytes] = list(transaction.cursor().iternext(values=False))
            first = transaction.get(self.keys[0]) if self.keys else None
        self.close()
        if first is None:
            raise InputError(f"{where}: an empty database; give another --data_dir")
        try:
            parse_datum(first)
        except InputError as error:
            raise InputError(f"{where}: no LMDB that Caffe wrote: {error}") from None

    def _check_length(self, file: Path) -> None:
        """Raise InputError where pages are missing: a read beyond the end would kill the process."""
        environment = self._environment()
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if file.stat().st_size < needed:
            raise InputError(
                f"{file}: is cut off, {file.stat().st_size:,} of {needed:,} bytes; copy the database again"
            )

    def _environment(self) -> Any:
        """The database as this process has opened it: a forked one must not use its parent's."""
        if self._opened is None or self._opened[0] != os.getpid():
            self.close()
            opened = self._lmdb.open(
                str(self.where), subdir=self.where.is_dir(), readonly=True, lock=False, readahead=False, meminit=False
            )
            self._opened = (os.getpid(), opened)
        return self._opened[1]

    def close(self) -> None:
        """Let go of the database; the next read opens it again."""
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """LMDB's errors as InputError."""
        try:
            yield
        except self._lmdb.Error as error:
            raise InputError(f"{self.where}: no LMDB ({error}); give another --data_dir") from None

    def __len__(self) -> int:
        """How many images there are."""
        return len(self.keys)

    def __getstate__(self) -> dict[str, Any]:
        """Without what only this process can use."""
        return {**self.__dict__, "_opened": None, "_lmdb": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Opened again when something is read."""
        self.__dict__.update(state, _lmdb=_lmdb())

    def read(self, number: int) -> tuple[Image, int]:
        """An image and its label."""
        with self._told(), self._environment().begin() as transaction:
            message = transaction.get(self.keys[number])
        datum = parse_datum(message or b"")
        return picture(datum), datum.label


def picture(datum: Datum) -> Image:
    """The image of a datum; raises OSError where an encoded one cannot be decoded."""
    from PIL import Image as Pillow

    if datum.encoded:
        with Pillow.open(io.BytesIO(datum.data)) as image:
            image.load()
            return image
    if datum.data:
        values = np.frombuffer(datum.data, np.uint8)
    else:
        values = np.clip(np.round(np.array(datum.float_data)), 0, 255).astype(np.uint8)
    pixels = values.reshape(datum.channels, datum.height, datum.width).transpose(1, 2, 0)
    if datum.channels not in (1, 3):
        raise InputError(f"an image of {datum.channels} channels: 1 or 3 are read")
    return Pillow.fromarray(pixels[..., 0] if datum.channels == 1 else np.ascontiguousarray(pixels))


def _lmdb() -> Any:
    try:
        return importlib.import_module("lmdb")
    except ImportError:
        raise InputError(f"Caffe's databases need lmdb, which is not installed; {EXTRA}") from None
