"""Handwritten digits: MNIST's files if given, otherwise scikit-learn's; nothing is downloaded.

Format of the files: http://yann.lecun.com/exdb/mnist (big-endian: two zero bytes, type, axes, sizes, values).
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from neuralpower.errors import InputError
from neuralpower.files.paths import check_regular

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
        """The number of images."""
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
