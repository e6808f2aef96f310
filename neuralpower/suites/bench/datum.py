"""Caffe's `Datum`, read without protobuf.

A message is a row of fields: a varint key, number << 3 | wire type, then a varint (type 0), 8 bytes (1), a
length and its bytes (2), or 4 bytes (5). Unknown fields are skipped.
Sources: caffe.proto; Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from neuralpower.errors import InputError

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
    found: dict[str, Any] = {}
    floats: list[float] = []
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, position = _varint(message, position)
            if number in NUMBERS:
                found[NUMBERS[number]] = bool(value) if number == 7 else value
            continue
        if kind != BYTES and kind not in LENGTHS:
            raise InputError(f"field {number} of wire type {kind}: {OTHER}")
        length, position = _varint(message, position) if kind == BYTES else (LENGTHS[kind], position)
        content = message[position : position + length]
        position += length
        if missing := length - len(content):
            raise InputError(f"a Datum ends {missing} bytes before field {number} does: it is cut off")
        if number == DATA and kind == BYTES:
            found["data"] = content
        elif number == FLOATS and kind in (BYTES, FIXED32) and length % 4 == 0:
            floats += struct.unpack(f"<{length // 4}f", content)
        elif number in (DATA, FLOATS, *NUMBERS):
            raise InputError(f"field {number} has wire type {kind}: {OTHER}")
    datum = Datum(**found, float_data=tuple(floats))
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
