"""`path/network.onnx`: a graph that another framework, or torch.onnx, has exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    from neuralpower.networks.source import Source


def is_onnx(given: Given) -> bool:
    """Whether a text names an ONNX file."""
    return given.may_be_path and given.path.suffix == ".onnx"


def main_dtype(given: Given) -> str | None:
    """The type of most of its weights; raises ModelError."""
    from neuralpower.networks.onnx_files.reading import read_graph

    return read_graph(given.path).main


@model_source("FILE.onnx", place=85, recognises=is_onnx, runs_code=False, dtype=main_dtype)
def onnx_file(given: Given) -> Source:
    """Its overrides are sizes by name: network.onnx?batch=8."""
    from neuralpower.networks.onnx_files.inputs import onnx_source

    return onnx_source(given.text, given.path, given.overrides)
