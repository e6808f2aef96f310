"""An ONNX file as plain values: nodes, constants and inputs. Weights are not kept; none of its code runs."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.errors import ModelError, quoted
from neuralpower.files.paths import is_file, shown

LEAST_OPSET, MOST_OPSET = 7, 25
MOST_BYTES = 2**31 - 1  # of a protobuf
MOST_ELEMENTS = 2**40  # of a tensor
MOST_NODES = 200_000
KEPT = 4096  # numbers of a constant whose values are kept: shapes, axes, scales
OWN_DOMAINS = ("", "ai.onnx")
INSTALL = "onnx is not installed, and it reads ONNX files; pip install onnx"
# ONNX's numbers of element types (TensorProto.DataType) -> torch's names
TYPES: Mapping[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    14: "complex64",
    16: "bfloat16",
    17: "float8_e4m3fn",
    19: "float8_e5m2",
}


@dataclass(frozen=True)
class Weight:
    """A tensor that the file holds: its values are known if it is small."""

    name: str
    sizes: tuple[int, ...]
    dtype: str
    values: np.ndarray | None = None


@dataclass(frozen=True)
class Node:
    """A call: attributes are numbers, lists, texts, weights or graphs."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Input:
    """An input: sizes are numbers, or names of sizes that vary ("" without a name)."""

    name: str
    sizes: tuple[int | str, ...]
    dtype: str


@dataclass(frozen=True)
class Graph:
    """Nodes in the order in which they run."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    weights: tuple[Weight, ...]
    nodes: tuple[Node, ...]
    opset: int

    @property
    def main(self) -> str:
        """The floating type of most numbers of its weights, else of its inputs."""
        count: dict[str, int] = {}
        held: tuple[Weight | Input, ...] = (*self.weights, *self.inputs)
        for one in held:
            if "float" in one.dtype:
                sizes = [size for size in one.sizes if isinstance(size, int)]
                count[one.dtype] = count.get(one.dtype, 0) + math.prod(sizes)
        return max(count, key=lambda name: count[name], default="float32")


def read_graph(path: Path) -> Graph:
    """The graph of a file. Raises ModelError: no file, no ONNX, or what it holds cannot be read."""
    if not is_file(path):
        raise ModelError(f"there is no file {shown(path)}; give an existing .onnx")
    status = path.stat()
    return _read(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _read(path: Path, size: int, _changed: int) -> Graph:
    if importlib.util.find_spec("onnx") is None:
        raise ModelError(INSTALL)
    import onnx

    if size > MOST_BYTES:
        raise ModelError(
            f"{shown(path)} has {size:,} bytes, more than a protobuf can have; save its weights as "
            "external data"
        )
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own classes differ by version
        raise ModelError(
            f"{shown(path)} is not an ONNX file, or cut off ({quoted(error)}); export it again"
        ) from None
    if not model.graph.node:
        raise ModelError(f"{shown(path)} is not an ONNX file, or has no nodes; export it again")
    opset = _opset(path, model)
    if model.functions:
        model = _inlined(path, model)
    return _Reader(path, opset).graph(model.graph)


def _opset(path: Path, model: Any) -> int:
    versions = [one.version for one in model.opset_import if one.domain in OWN_DOMAINS]
    opset = int(max(versions, default=1))
    if not LEAST_OPSET <= opset <= MOST_OPSET:
        raise ModelError(
            f"{shown(path)} is of opset {opset}, and {LEAST_OPSET} to {MOST_OPSET} are read; convert it with "
            "onnx.version_converter.convert_version(model, 18)"
        )
    return opset


def _inlined(path: Path, model: Any) -> Any:
    """The model with its own functions in place of their calls."""
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        raise ModelError(f"functions of {shown(path)} cannot be inlined ({quoted(error)})") from None


class _Reader:
    """Turns protobufs into plain values, and refuses what a stranger's file may hold."""

    def __init__(self, path: Path, opset: int) -> None:
        self.path, self.opset = path, opset
        self.count = 0

    def graph(self, proto: Any, outer: frozenset[str] = frozenset()) -> Graph:
        weights = tuple(self.weight(one) for one in proto.initializer)
        named = {one.name for one in weights}
        inputs = tuple(
            Input(one.name, (), "") if outer else self.input(one)
            for one in proto.input
            if one.name not in named
        )
        made = outer | named | {one.name for one in inputs}
        nodes = []
        for node in proto.node:
            self.count += 1
            if self.count > MOST_NODES:
                raise self.wrong(f"has more than {MOST_NODES:,} nodes")
            nodes.append(self.node(node, made))
            made |= set(node.output)
        missing = [one.name for one in proto.output if one.name not in made]
        if missing:
            raise self.wrong(f"never makes its output {missing[0]:.60}")
        return Graph(inputs, tuple(one.name for one in proto.output), weights, tuple(nodes), self.opset)

    def node(self, proto: Any, made: frozenset[str] | set[str]) -> Node:
        name = proto.name or proto.op_type
        if proto.domain not in OWN_DOMAINS:
            raise ModelError(
                f"{shown(self.path)}: node {name:.60} is {proto.domain:.40}::{proto.op_type:.40}, of a "
                "domain of its own; export without custom operators, or predict the module itself"
            )
        early = next((one for one in proto.input if one and one not in made), None)
        if early is not None:
            raise self.wrong(
                f"has a node {name:.60} that needs {early:.60} before it is made: a cycle, or unsorted"
            )
        attributes = {one.name: self.attribute(one, frozenset(made)) for one in proto.attribute}
        return Node(proto.op_type, name, tuple(proto.input), tuple(proto.output), attributes)

    def attribute(self, proto: Any, made: frozenset[str]) -> Any:
        """A number, a text, a list of them, a weight, or a graph."""
        kind = proto.type
        if kind == 1:
            return proto.f
        if kind == 2:
            return proto.i
        if kind == 3:
            return proto.s.decode("utf-8", "replace")
        if kind == 4:
            return self.weight(proto.t)
        if kind == 5:
            return self.graph(proto.g, made)
        if kind == 6:
            return list(proto.floats)
        if kind == 7:
            return list(proto.ints)
        if kind == 8:
            return [one.decode("utf-8", "replace") for one in proto.strings]
        return None

    def weight(self, proto: Any) -> Weight:
        sizes = tuple(proto.dims)
        if proto.data_type not in TYPES:
            raise self.wrong(f"holds a tensor {proto.name:.60} of type {proto.data_type}, which is not read")
        if any(size < 0 for size in sizes) or math.prod(sizes) > MOST_ELEMENTS:
            raise self.wrong(f"holds a tensor {proto.name:.60} of sizes {sizes!s:.80}, which none has")
        values = None
        if math.prod(sizes) <= KEPT:
            values = self.values(proto, sizes)
        elif proto.data_location == 1:
            self.external(proto)
        return Weight(proto.name, sizes, TYPES[proto.data_type], values)

    def values(self, proto: Any, sizes: Sequence[int]) -> np.ndarray:
        """The numbers of a small tensor."""
        from onnx import numpy_helper

        if proto.data_location == 1:
            about = self.external(proto)
            file = self.path.parent / about["location"]
            start, length = int(about.get("offset", 0)), int(about.get("length", 0))
            with file.open("rb") as data:
                data.seek(start)
                raw = data.read(length or 16 * max(math.prod(sizes), 1))
            proto = _with_raw(proto, raw)
        try:
            found = numpy_helper.to_array(proto)
        except Exception as error:
            text = f"holds a tensor {proto.name:.60} whose data do not fill its sizes ({quoted(error)[:120]})"
            raise self.wrong(text) from None
        return np.asarray(found if found.dtype.kind in "biuf" else found.astype(np.float32))

    def external(self, proto: Any) -> dict[str, str]:
        """Where a tensor's data lie; raises ModelError for a place outside the file's folder."""
        about = {one.key: one.value for one in proto.external_data}
        location = about.get("location", "")
        folder = self.path.parent.resolve()
        file = (folder / location).resolve()
        numbers = (about.get("offset", "0"), about.get("length", "0"))
        if not location or Path(location).is_absolute() or not file.is_relative_to(folder):
            raise self.wrong(f"takes data from {location!r:.80}, outside of its folder")
        if not all(one.isdigit() and len(one) < 16 for one in numbers):
            raise self.wrong(f"takes data from {location!r:.80} at {numbers!s:.60}, which cannot be one")
        if not is_file(file):
            raise ModelError(
                f"{shown(self.path)} takes data from {location:.80}, which is missing; put it there"
            )
        if file.stat().st_size < sum(map(int, numbers)):
            raise self.wrong(f"takes data from {location!r:.80} beyond its end")
        return about

    def input(self, proto: Any) -> Input:
        kind = proto.type.tensor_type
        if not proto.type.HasField("tensor_type") or kind.elem_type not in TYPES:
            raise self.wrong(f"has an input {proto.name:.60} that is not a tensor of numbers")
        if not kind.HasField("shape"):
            raise self.wrong(f"has an input {proto.name:.60} without a number of axes")
        sizes = tuple(self.sizes(kind.shape.dim))
        return Input(proto.name, sizes, TYPES[kind.elem_type])

    def sizes(self, dims: Any) -> Iterator[int | str]:
        for one in dims:
            if one.HasField("dim_value") and one.dim_value > 0:
                if one.dim_value > MOST_ELEMENTS:
                    raise self.wrong(f"has an input of size {one.dim_value:,}, which none has")
                yield int(one.dim_value)
            else:
                yield str(one.dim_param)

    def wrong(self, text: str) -> ModelError:
        return ModelError(f"{shown(self.path)} {text}; export it again")


def _with_raw(proto: Any, raw: bytes) -> Any:
    """A copy of a tensor that holds its data."""
    import onnx

    copied = onnx.TensorProto()
    copied.CopyFrom(proto)
    copied.ClearField("external_data")
    copied.ClearField("data_location")
    copied.raw_data = raw
    return copied
