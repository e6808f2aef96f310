"""Writes what Caffe writes: `Datum` messages in an LMDB."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import lmdb

from neuralpower.suites.bench.data import Datum

VARINT, BYTES, FIXED32 = 0, 2, 5


def message(datum: Datum, *, packed: bool = False) -> bytes:
    """The datum as protobuf writes it; float_data one by one, as Caffe does, or packed."""
    parts = [
        _key(n, VARINT) + number(v) for n, v in ((1, datum.channels), (2, datum.height), (3, datum.width))
    ]
    if datum.data:
        parts.append(_key(4, BYTES) + number(len(datum.data)) + datum.data)
    parts.append(_key(5, VARINT) + number(datum.label))
    floats = [struct.pack("<f", value) for value in datum.float_data]
    if packed:
        parts.append(_key(6, BYTES) + number(4 * len(floats)) + b"".join(floats))
    else:
        parts += [_key(6, FIXED32) + one for one in floats]
    if datum.encoded:
        parts.append(_key(7, VARINT) + number(1))
    return b"".join(parts)


def write(folder: Path, messages: Iterable[bytes]) -> Path:
    """An LMDB with keys as Caffe's convert_imageset makes them."""
    folder.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(folder), map_size=2**24) as environment, environment.begin(write=True) as transaction:
        for place, content in enumerate(messages):
            transaction.put(b"%08d_image%d.jpg" % (place, place), content)
    return folder


def number(value: int) -> bytes:
    """A varint."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _key(field: int, kind: int) -> bytes:
    return number(field << 3 | kind)
