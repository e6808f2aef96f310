"""Headers of files of weights: which tensors they hold, of which types and sizes. No weight is read."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from neuralpower.errors import InputError, one_line
from neuralpower.files.json_files import parse_json, read_json
from neuralpower.files.paths import is_file, why_irregular

MOST_TENSORS = 1_000_000  # the largest published checkpoints have some 100,000


class HeaderError(InputError):
    """A file of weights whose header cannot be, or cannot be read."""


@dataclass(frozen=True)
class Header:
    """The tensors of a file, or of all files of an index."""

    name: str
    bytes_by_type: Mapping[str, int]  # the largest first
    parameters: int
    tensors: Mapping[str, tuple[int, ...]]  # name -> sizes, as in torch
    types: Mapping[str, str]  # name -> type
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(self.bytes_by_type.values())

    def in_words(self) -> str:
        """The sizes as text: `4.58 GiB in 291 tensors: q4_k 3.93 GiB, q6_k 0.65 GiB`."""
        parts = ", ".join(f"{kind} {size / 2**30:.3g} GiB" for kind, size in self.bytes_by_type.items())
        return f"{self.bytes / 2**30:.3g} GiB in {len(self.tensors):,} tensors: {parts}"


def header(name: str, sizes: Mapping[str, tuple[str, int, tuple[int, ...]]], **more: Any) -> Header:
    """The header of tensors, each name -> (type, bytes, sizes)."""
    by_type: dict[str, int] = {}
    for kind, size, _ in sizes.values():
        by_type[kind] = by_type.get(kind, 0) + size
    ordered = dict(sorted(by_type.items(), key=lambda item: -item[1]))
    shapes = {tensor: shape for tensor, (_, _, shape) in sizes.items()}
    types = {tensor: kind for tensor, (kind, _, _) in sizes.items()}
    count = sum(elements(shape) for shape in shapes.values())
    return Header(name, ordered, count, shapes, types, **more)


def elements(shape: tuple[int, ...]) -> int:
    """How many numbers a tensor has."""
    product = 1
    for size in shape:
        product *= size
    return product


# Headers of GGUF, versions 2 and 3: metadata and the table of tensors (ggml-org/ggml, docs/gguf.md).

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_PAIRS = 100_000  # of metadata
MOST_TEXT = 64 * 2**20  # bytes of a text
MOST_SIZES = 8  # dimensions of a tensor; ggml has 4
KEPT = 1024  # entries of a list of metadata that are kept: a vocabulary is counted alone
# Type's number -> (name, numbers of a block, bytes of a block): ggml.h and ggml-common.h.
TYPES = {
    **{0: ("float32", 1, 4), 1: ("float16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20)},
    **{6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 36)},
    **{10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176)},
    **{14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292), 16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74)},
    **{18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110)},
    **{22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136), 24: ("int8", 1, 1), 25: ("int16", 1, 2)},
    **{26: ("int32", 1, 4), 27: ("int64", 1, 8), 28: ("float64", 1, 8), 29: ("iq1_m", 256, 56)},
    **{30: ("bfloat16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17)},
    **{40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18)},
}
# Number of a whole file's mixture -> its name: `llama_ftype` of llama.h.
MIXTURES = {
    **{0: "float32", 1: "float16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k"},
    **{11: "q3_k_s", 12: "q3_k_m", 13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m"},
    **{18: "q6_k", 19: "iq2_xxs", 20: "iq2_xs", 21: "q2_k_s", 22: "iq3_xs", 23: "iq3_xxs", 24: "iq1_s"},
    **{25: "iq4_nl", 26: "iq3_s", 27: "iq3_m", 28: "iq2_s", 29: "iq2_m", 30: "iq4_xs", 31: "iq1_m"},
    **{32: "bfloat16", 36: "tq1_0", 37: "tq2_0", 38: "mxfp4", 39: "nvfp4"},
}
FIXED = dict(zip(range(8), ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"), strict=True))
FIXED |= {10: "<Q", 11: "<q", 12: "<d"}  # number of a value's type -> how it lies
TEXT, LIST = 8, 9


def read_gguf(path: Path) -> Header:
    """The header of one file. Lists of metadata longer than KEPT are their length. Raises HeaderError."""
    if reason := why_irregular(path):
        _refuse_gguf(path, reason)
    with path.open("rb") as file:
        reader = _Reader(path, file)
        if file.read(4) != MAGIC:
            _refuse_gguf(path, "does not begin with GGUF")
        version = reader.number("<I")
        if version not in VERSIONS:
            how = (
                "convert it again with a newer llama.cpp" if version < min(VERSIONS) else "it may be damaged"
            )
            _refuse_gguf(
                path, f"is of version {version}, and {' and '.join(map(str, VERSIONS))} are read; {how}"
            )
        tensors, pairs = reader.number("<Q"), reader.number("<Q")
        if tensors > MOST_TENSORS or pairs > MOST_PAIRS:
            _refuse_gguf(path, f"has {tensors:,} tensors and {pairs:,} fields, more than any model")
        metadata = {}
        for _ in range(pairs):
            name = reader.text()
            metadata[name] = reader.value(reader.number("<I"))
        sizes, spans = {}, []
        for _ in range(tensors):
            name, kind, size, shape, begin = reader.tensor()
            if name in sizes:
                _refuse_gguf(path, f"has {name!r:.60} twice")
            sizes[name] = (kind, size, shape)
            spans.append((begin, begin + size, name))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
            _refuse_gguf(path, f"aligns tensors to {alignment!r:.20} bytes")
        start = -(-file.tell() // alignment) * alignment
        room = os.fstat(file.fileno()).st_size - start
    _check_spans(spans, room, functools.partial(_refuse_gguf, path))
    return header(str(path), sizes, metadata=metadata)


class _Reader:
    """The parts of a file, one after another; each method raises HeaderError at its end."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        data = self.file.read(count)
        if len(data) < count:
            _refuse_gguf(self.path, "ends within its header; download it again")
        return data

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        length = self.number("<Q")
        if length > MOST_TEXT:
            _refuse_gguf(self.path, f"has a text of {length:,} bytes")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            _refuse_gguf(self.path, "has a text that is not UTF-8")

    def value(self, kind: int) -> Any:
        """A value of metadata; a long list as its length, as {"count": 128256}."""
        if kind == TEXT:
            return self.text()
        if kind in FIXED:
            return self.number(FIXED[kind])
        if kind != LIST:
            _refuse_gguf(self.path, f"has a value of the type {kind}, which is not known")
        inner, count = self.number("<I"), self.number("<Q")
        if inner in FIXED:
            size = struct.calcsize(FIXED[inner])
            if count <= KEPT:
                return [self.number(FIXED[inner]) for _ in range(count)]
            if count * size > os.fstat(self.file.fileno()).st_size:
                _refuse_gguf(self.path, f"has a list of {count:,} numbers, and ends before")
            self.file.seek(count * size, os.SEEK_CUR)
        elif inner == TEXT:
            texts = [self._skipped() if at >= KEPT else self.text() for at in range(count)]
            if count <= KEPT:
                return texts
        else:
            _refuse_gguf(self.path, f"has a list of the type {inner}, which is not known")
        return {"count": count}

    def _skipped(self) -> str:
        """A text that is not kept."""
        self.take(min(self.number("<Q"), MOST_TEXT))
        return ""

    def tensor(self) -> tuple[str, str, int, tuple[int, ...], int]:
        """(name, type, bytes, sizes as in torch, first byte) of one tensor."""
        name, dimensions = self.text(), self.number("<I")
        if dimensions > MOST_SIZES:
            _refuse_gguf(self.path, f"has {name!r:.60} of {dimensions:,} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dimensions))[::-1]
        number, begin = self.number("<I"), self.number("<Q")
        if number not in TYPES:
            _refuse_gguf(self.path, f"has {name!r:.60} of the type {number}, which is not known")
        kind, block, block_bytes = TYPES[number]
        if shape and shape[-1] % block:
            _refuse_gguf(
                self.path, f"has {name!r:.60} with rows of {shape[-1]}; {kind} has blocks of {block}"
            )
        return name, kind, elements(shape) // block * block_bytes, shape, begin


def _check_spans(spans: list[tuple[int, int, str]], room: int, refuse: Callable[[str], NoReturn]) -> None:
    """Refuse tensors, by their first byte, the byte after their last and name, that overlap or do not fit."""
    last = 0
    for begin, end, name in sorted(spans):
        if begin < last:
            refuse(f"lays {name!r:.60} over another tensor")
        last = end
    if last > room:
        refuse(f"ends {last - room:,} bytes before its last tensor does; download it again")


def _refuse_gguf(path: Path, reason: str) -> NoReturn:
    raise HeaderError(f"{path}: {reason}; give another GGUF file, or a folder with config.json")


# Headers of safetensors: 8 bytes with a length, then that much JSON (huggingface/safetensors, README).

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
        _refuse_safetensors(path, f"is not an index of safetensors ({one_line(error)})")
    sizes: Sized = {}
    for name in files:
        if not isinstance(name, str) or Path(name).name != name:
            _refuse_safetensors(path, f"names a file outside its folder, {str(name)!r:.60}")
        if not is_file(path.with_name(name)):
            _refuse_safetensors(path, f"names {name!r:.60}, which its folder does not hold")
        own, _ = _sized(path.with_name(name))
        if doubled := sizes.keys() & own.keys():
            _refuse_safetensors(path, f"has {min(doubled)!r:.60} in two files")
        sizes |= own
    return header(str(path), sizes)


def _sized(path: Path) -> tuple[Sized, Mapping[str, Any]]:
    """(name -> type, bytes and sizes; metadata) of one file; raises HeaderError."""
    told, data_bytes = _json(path)
    about = told.pop("__metadata__", {})
    if len(told) > MOST_TENSORS:
        _refuse_safetensors(path, f"names {len(told):,} tensors, more than {MOST_TENSORS:,}")
    sizes: Sized = {}
    spans = []
    for name, tensor in told.items():
        kind, shape, begin, end = _tensor(path, name, tensor)
        sizes[name] = (WORDS.get(kind, kind.lower()), end - begin, shape)
        spans.append((begin, end, name))
    _check_spans(spans, data_bytes, functools.partial(_refuse_safetensors, path))
    return sizes, about if isinstance(about, Mapping) else {}


def _json(path: Path) -> tuple[dict[str, Any], int]:
    """(the object that the header holds, bytes of all tensors); raises HeaderError."""
    if reason := why_irregular(path):
        _refuse_safetensors(path, reason)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH), "little")
        if size < LENGTH or length > size - LENGTH:
            _refuse_safetensors(
                path, f"has a header of {length:,} bytes, and {size:,} bytes in all; download it again"
            )
        if length > MOST_BYTES:
            _refuse_safetensors(path, f"has a header of {length:,} bytes, more than {MOST_BYTES:,}")
        data = file.read(length)
    try:
        told = parse_json(data.decode("utf-8"))
    except ValueError as error:
        _refuse_safetensors(path, f"has a header that is not JSON ({one_line(error)})")
    if not isinstance(told, dict):
        _refuse_safetensors(path, "has a header that is not an object")
    return told, size - LENGTH - length


def _tensor(path: Path, name: str, told: Any) -> tuple[str, tuple[int, ...], int, int]:
    """(type, sizes, first byte, byte after the last) of one tensor; raises HeaderError."""
    fields = told if isinstance(told, dict) else {}
    kind, shape, span = fields.get("dtype"), _counts(fields.get("shape")), _counts(fields.get("data_offsets"))
    if kind not in BITS:
        _refuse_safetensors(path, f"has {name!r:.60} of the type {kind!r:.20}, which is not known")
    if shape is None or span is None or len(span) != 2 or span[0] > span[1]:
        _refuse_safetensors(
            path,
            f"has {name!r:.60} with sizes {fields.get('shape')!r:.40} at {fields.get('data_offsets')!r:.40}",
        )
    begin, end = span
    needed = -(-elements(shape) * BITS[kind] // 8)
    if end - begin != needed:
        _refuse_safetensors(path, f"has {end - begin:,} bytes for {name!r:.60}, whose sizes need {needed:,}")
    return kind, shape, begin, end


def _counts(value: Any) -> tuple[int, ...] | None:
    """Whole numbers of 0 or more; None for anything else."""
    valid = isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)
    return tuple(value) if valid else None


def _refuse_safetensors(path: Path, reason: str) -> NoReturn:
    raise HeaderError(f"{path}: {reason}; give another file of safetensors, or a folder with config.json")
