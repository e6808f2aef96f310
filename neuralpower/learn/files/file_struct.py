"""What predictors' files are made of: the base class of their objects, ranges of numbers, packed numbers.

Packed are whole numbers as text: each takes the same few bits, the highest first; base 64 makes letters of
the bits. Such a text is a third as long as a JSON list, and is read faster. It is not compressed, so that its
count of numbers says how much memory it takes.
"""

from __future__ import annotations

import base64
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

# No trained number comes near these (the largest in the package's files is 2e15), and their products with
# what a layer can ask for (up to 2^53 along each axis) are finite.
LEAST_NUMBER, MOST_NUMBER = 1e-30, 1e30
MOST_LOG = 100.0  # of a factor: e^100 more or less than predicted is meaningless

Positive = Annotated[float, Meta(ge=LEAST_NUMBER, le=MOST_NUMBER)]
NotNegative = Annotated[float, Meta(ge=0, le=MOST_NUMBER)]
Log = Annotated[float, Meta(ge=-MOST_LOG, le=MOST_LOG)]  # of a factor
Deviation = Annotated[float, Meta(ge=0, le=MOST_LOG)]
Octaves = Annotated[float, Meta(ge=-1100.0, le=1100.0)]  # those of double precision
Exponent = Annotated[float, Meta(ge=0, le=MOST_LOG)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One object of the file: frozen, of strict types, without unknown fields."""


MOST_BITS = 32  # of a number


def width(highest: int) -> int:
    """Bits of the numbers from 0 to `highest`, 1 or more."""
    return max(int(highest).bit_length(), 1)


def packed(numbers: np.ndarray, bits: int) -> str:
    """The text of whole numbers [count], each from 0 to 2^bits - 1; the last byte is filled up with zeros."""
    rows = numbers.astype(">u4").view(np.uint8).reshape(len(numbers), 4)
    columns = np.unpackbits(rows, axis=1)[:, MOST_BITS - bits :]
    return base64.b64encode(np.packbits(columns).tobytes()).decode()


def unpacked(text: str, bits: int, count: int) -> np.ndarray:
    """The numbers [count] of such a text, int64.

    Raises ValueError: it is not base 64, or does not hold `count` numbers of `bits` bits.
    """
    try:
        data = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    except ValueError as error:
        raise ValueError(f"must be base 64 ({error})") from None
    if len(data) != -(-count * bits // 8):
        raise ValueError(f"holds {len(data)} bytes, but must hold {count} numbers of {bits} bits each")
    columns = np.zeros((count, MOST_BITS), dtype=np.uint8)
    columns[:, MOST_BITS - bits :] = np.unpackbits(data, count=count * bits).reshape(count, bits)
    return np.packbits(columns, axis=1).view(">u4").ravel().astype(np.int64)
