"""Headers of GGUF, versions 2 and 3: metadata and the table of tensors (ggml-org/ggml, docs/gguf.md)."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from neuralpower.files.paths import why_irregular
from neuralpower.networks.headers.tensors import MOST_TENSORS, Header, HeaderError, elements, header

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
        _refuse(path, reason)
    with path.open("rb") as file:
        reader = _Reader(path, file)
        if file.read(4) != MAGIC:
            _refuse(path, "does not begin with GGUF")
        version = reader.number("<I")
        if version not in VERSIONS:
            how = (
                "convert it again with a newer llama.cpp" if version < min(VERSIONS) else "it may be damaged"
            )
            _refuse(path, f"is of version {version}, and {' and '.join(map(str, VERSIONS))} are read; {how}")
        tensors, pairs = reader.number("<Q"), reader.number("<Q")
        if tensors > MOST_TENSORS or pairs > MOST_PAIRS:
            _refuse(path, f"has {tensors:,} tensors and {pairs:,} fields, more than any model")
        metadata = {}
        for _ in range(pairs):
            name = reader.text()
            metadata[name] = reader.value(reader.number("<I"))
        sizes, spans = {}, []
        for _ in range(tensors):
            name, kind, size, shape, begin = reader.tensor()
            if name in sizes:
                _refuse(path, f"has {name!r:.60} twice")
            sizes[name] = (kind, size, shape)
            spans.append((begin, begin + size, name))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
            _refuse(path, f"aligns tensors to {alignment!r:.20} bytes")
        start = -(-file.tell() // alignment) * alignment
        room = os.fstat(file.fileno()).st_size - start
    last = 0
    for begin, end, name in sorted(spans):
        if begin < last:
            _refuse(path, f"lays {name!r:.60} over another tensor")
        last = end
    if last > room:
        _refuse(path, f"ends {last - room:,} bytes before its last tensor does; download it again")
    return header(str(path), sizes, metadata=metadata)


class _Reader:
    """The parts of a file, one after another; each method raises HeaderError at its end."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        data = self.file.read(count)
        if len(data) < count:
            _refuse(self.path, "ends within its header; download it again")
        return data

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        length = self.number("<Q")
        if length > MOST_TEXT:
            _refuse(self.path, f"has a text of {length:,} bytes")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            _refuse(self.path, "has a text that is not UTF-8")

    def value(self, kind: int) -> Any:
        """A value of metadata; a long list as its length, as {"count": 128256}."""
        if kind == TEXT:
            return self.text()
        if kind in FIXED:
            return self.number(FIXED[kind])
        if kind != LIST:
            _refuse(self.path, f"has a value of the type {kind}, which is not known")
        inner, count = self.number("<I"), self.number("<Q")
        if inner in FIXED:
            size = struct.calcsize(FIXED[inner])
            if count <= KEPT:
                return [self.number(FIXED[inner]) for _ in range(count)]
            if count * size > os.fstat(self.file.fileno()).st_size:
                _refuse(self.path, f"has a list of {count:,} numbers, and ends before")
            self.file.seek(count * size, os.SEEK_CUR)
        elif inner == TEXT:
            texts = [self._skipped() if at >= KEPT else self.text() for at in range(count)]
            if count <= KEPT:
                return texts
        else:
            _refuse(self.path, f"has a list of the type {inner}, which is not known")
        return {"count": count}

    def _skipped(self) -> str:
        """A text that is not kept."""
        self.take(min(self.number("<Q"), MOST_TEXT))
        return ""

    def tensor(self) -> tuple[str, str, int, tuple[int, ...], int]:
        """(name, type, bytes, sizes as in torch, first byte) of one tensor."""
        name, dimensions = self.text(), self.number("<I")
        if dimensions > MOST_SIZES:
            _refuse(self.path, f"has {name!r:.60} of {dimensions:,} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dimensions))[::-1]
        number, begin = self.number("<I"), self.number("<Q")
        if number not in TYPES:
            _refuse(self.path, f"has {name!r:.60} of the type {number}, which is not known")
        kind, block, block_bytes = TYPES[number]
        if shape and shape[-1] % block:
            _refuse(self.path, f"has {name!r:.60} with rows of {shape[-1]}; {kind} has blocks of {block}")
        return name, kind, elements(shape) // block * block_bytes, shape, begin


def _refuse(path: Path, reason: str) -> NoReturn:
    raise HeaderError(f"{path}: {reason}; give another GGUF file, or a folder with config.json")
