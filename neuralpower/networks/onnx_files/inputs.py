"""The network of an ONNX file, and the sizes of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import FixedSizeError, InputError, ModelError, is_count
from neuralpower.networks.inputs.input_request import InputRequest
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.promised_values import RANDOM, say_made_up
from neuralpower.networks.onnx_files.module import OnnxModule
from neuralpower.networks.onnx_files.reading import Graph, Input, read_graph
from neuralpower.networks.source import Source

MOST_ID = 100  # below which made-up ids lie: all vocabularies have as many


def onnx_source(text: str, path: Path, sizes: Mapping[str, Any]) -> Source:
    """The network of a file; `sizes` by the names of those that vary. Raises ModelError."""
    graph = read_graph(path)
    known = {name for one in graph.inputs for name in one.sizes if isinstance(name, str) and name}
    for name, size in sizes.items():
        if name not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "all its sizes are fixed"
            raise ModelError(f"{text:.200}: no size of an input is called {name:.60}; {has}")
        if not is_count(size):
            raise ModelError(f"{text:.200}: size {name:.60} is {size!r:.40}; write a whole number, 1 or more")

    def construct(dtype: torch.dtype) -> nn.Module:
        return OnnxModule(graph, dtype)

    def brings(model: nn.Module) -> Inputs | None:
        fixed = all(isinstance(size, int) for one in graph.inputs for size in one.sizes)
        return _inputs(text, graph, {}, InputRequest()) if fixed else None

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        return _inputs(text, graph, sizes, request)

    def untyped() -> nn.Module:
        return OnnxModule(graph, getattr(torch, graph.main))

    return Source(text, construct, examples, brings=brings, untyped=untyped)


def _inputs(text: str, graph: Graph, sizes: Mapping[str, Any], request: InputRequest) -> Inputs:
    """An input for each of the graph's, of the requested sizes."""
    shape = request.input_shape
    if shape is not None and len(graph.inputs) != 1:
        names = ", ".join(one.name for one in graph.inputs)[:200]
        raise InputError(
            f"input_shape is {shape}, but {text:.200} has the inputs {names}; give sizes with --dim"
        )
    generator = torch.Generator().manual_seed(0)
    missing: dict[str, None] = {}
    tensors = []
    for one in graph.inputs:
        asked = [*_asked(text, one, sizes, request, holds_batch=one is graph.inputs[0])]
        missing |= dict.fromkeys(name for name in asked if isinstance(name, str))
        if not missing:
            tensors.append(_tensor(one, [int(size) for size in asked], request.dtype, graph.main, generator))
    if missing:
        written = ",".join(f"{name or 'NAME'}=N" for name in missing)
        names = ", ".join(name or "(without a name)" for name in missing)
        raise ModelError(
            f"{text:.200}: sizes {names} of its inputs vary; add --dim {written}, or --input-shape"
        )
    return Inputs(tuple(tensors))


def _asked(
    text: str, one: Input, sizes: Mapping[str, Any], request: InputRequest, *, holds_batch: bool
) -> Iterator[int | str]:
    """The sizes of an input; a text is the name of one that nothing says.

    `holds_batch`: its first size, if it is fixed, is the batch; that of edges or states is none.
    """
    whole = None if request.input_shape is None else (request.batch_size, *request.input_shape)
    if whole is not None and len(whole) != len(one.sizes):
        raise InputError(
            f"input_shape is {request.input_shape}, but {one.name:.60} of {text:.200} has {len(one.sizes)} "
            f"sizes with the batch: {', '.join(map(str, one.sizes))}"
        )
    for i, size in enumerate(one.sizes):
        asked = sizes.get(size) if isinstance(size, str) else None
        if asked is None and whole is not None:
            asked = whole[i]
        elif (
            asked is None and i == 0 and (isinstance(size, str) or (holds_batch and request.batch_size != 1))
        ):
            asked = request.batch_size
        elif asked is None and i == 1 and len(one.sizes) == 2:
            asked = request.seq_len
        if isinstance(size, int) and asked not in (None, size):
            what = "batch" if i == 0 else f"size {i}"
            raise FixedSizeError(
                f"{what} is {asked}, but {one.name:.60} of {text:.200} is exported for {size}; give this "
                "one, or export it with dynamic sizes"
            )
        yield size if isinstance(size, int) else size if asked is None else int(asked)


def _tensor(
    one: Input, sizes: list[int], dtype: torch.dtype, main: str, generator: torch.Generator
) -> Tensor:
    kind: torch.dtype = getattr(torch, one.dtype)
    if kind.is_floating_point:
        drawn = torch.randn(sizes, generator=generator).to(dtype if one.dtype == main else kind)
    elif kind == torch.bool:
        return torch.ones(sizes, dtype=kind)
    else:
        drawn = torch.randint(0, MOST_ID, sizes, generator=generator).to(kind)
    return say_made_up(drawn, RANDOM)
