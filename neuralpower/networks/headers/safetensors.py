"""Headers of safetensors: 8 bytes with a length, then that much JSON (huggingface/safetensors, README)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from neuralpower.errors import one_line
from neuralpower.files.json_files import parse_json, read_json
from neuralpower.files.paths import is_file, why_irregular
from neuralpower.networks.headers.tensors import MOST_TENSORS, Header, HeaderError, elements, header

LENGTH = 8  # bytes of the header's length, little endian
MOST_BYTES = 100_000_000  # of a header, as the format's own library has it
BITS = {
    **{"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4},
    **{"I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8},
    **{"F6_E2M3": 6, "F6_E3M2": 6, "C64": 64},
}
WORDS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
Sized = dict[str, tuple[str, int, tuple[int, ...]]]


def read_safetensors(path: Path) -> Header:
    """The header of one file; raises HeaderError."""
    sizes, about = _sized(path)
    return header(str(path), sizes, metadata=about)


def read_index(path: Path) -> Header:
    """The header of all files that an index names, which stand in its folder; raises HeaderError."""
    try:
        files = sorted(set(read_json(path)["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _refuse(path, f"is not an index of safetensors ({one_line(error)})")
    sizes: Sized = {}
    for name in files:
        if not isinstance(name, str) or Path(name).name != name:
            _refuse(path, f"names a file outside its folder, {str(name)!r:.60}")
        if not is_file(path.with_name(name)):
            _refuse(path, f"names {name!r:.60}, which its folder does not hold")
        own, _ = _sized(path.with_name(name))
        if doubled := sizes.keys() & own.keys():
            _refuse(path, f"has {min(doubled)!r:.60} in two files")
        sizes |= own
    return header(str(path), sizes)


def _sized(path: Path) -> tuple[Sized, Mapping[str, Any]]:
    """(name -> type, bytes and sizes; metadata) of one file; raises HeaderError."""
    told, data_bytes = _json(path)
    about = told.pop("__metadata__", {})
    if len(told) > MOST_TENSORS:
        _refuse(path, f"names {len(told):,} tensors, more than {MOST_TENSORS:,}")
    sizes: Sized = {}
    spans = []
    for name, tensor in told.items():
        kind, shape, begin, end = _tensor(path, name, tensor)
        sizes[name] = (WORDS.get(kind, kind.lower()), end - begin, shape)
        spans.append((begin, end, name))
    last = 0
    for begin, end, name in sorted(spans):
        if begin < last:
            _refuse(path, f"lays {name!r:.60} over another tensor")
        last = end
    if last > data_bytes:
        _refuse(path, f"ends {last - data_bytes:,} bytes before its last tensor does; download it again")
    return sizes, about if isinstance(about, Mapping) else {}


def _json(path: Path) -> tuple[dict[str, Any], int]:
    """(the object that the header holds, bytes of all tensors); raises HeaderError."""
    if reason := why_irregular(path):
        _refuse(path, reason)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH), "little")
        if size < LENGTH or length > size - LENGTH:
            _refuse(path, f"has a header of {length:,} bytes, and {size:,} bytes in all; download it again")
        if length > MOST_BYTES:
            _refuse(path, f"has a header of {length:,} bytes, more than {MOST_BYTES:,}")
        data = file.read(length)
    try:
        told = parse_json(data.decode("utf-8"))
    except ValueError as error:
        _refuse(path, f"has a header that is not JSON ({one_line(error)})")
    if not isinstance(told, dict):
        _refuse(path, "has a header that is not an object")
    return told, size - LENGTH - length


def _tensor(path: Path, name: str, told: Any) -> tuple[str, tuple[int, ...], int, int]:
    """(type, sizes, first byte, byte after the last) of one tensor; raises HeaderError."""
    fields = told if isinstance(told, dict) else {}
    kind, shape, span = fields.get("dtype"), _counts(fields.get("shape")), _counts(fields.get("data_offsets"))
    if kind not in BITS:
        _refuse(path, f"has {name!r:.60} of the type {kind!r:.20}, which is not known")
    if shape is None or span is None or len(span) != 2 or span[0] > span[1]:
        _refuse(
            path,
            f"has {name!r:.60} with sizes {fields.get('shape')!r:.40} at {fields.get('data_offsets')!r:.40}",
        )
    begin, end = span
    needed = -(-elements(shape) * BITS[kind] // 8)
    if end - begin != needed:
        _refuse(path, f"has {end - begin:,} bytes for {name!r:.60}, whose sizes need {needed:,}")
    return kind, shape, begin, end


def _counts(value: Any) -> tuple[int, ...] | None:
    """Whole numbers of 0 or more; None for anything else."""
    valid = isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)
    return tuple(value) if valid else None


def _refuse(path: Path, reason: str) -> NoReturn:
    raise HeaderError(f"{path}: {reason}; give another file of safetensors, or a folder with config.json")
