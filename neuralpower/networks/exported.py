"""Networks that torch.export has saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import ModelError
from neuralpower.files.paths import is_file, shown
from neuralpower.networks.exported_archive import check_exported, no_program
from neuralpower.networks.input_request import InputRequest
from neuralpower.networks.inputs import Inputs, batch_of, in_batches
from neuralpower.networks.running import quiet
from neuralpower.networks.source import Source


def exported_source(text: str, path: Path, overrides: dict[str, Any]) -> Source:
    """A .pt2 file: its shapes are those of the export, except where these were dynamic."""
    if overrides:
        raise ModelError(
            f"{text!r} has overrides, but an exported program is fixed; export it again with other sizes"
        )
    if not is_file(path):
        raise ModelError(
            f"there is no file {shown(path)}; give an existing .pt2, written by torch.export.save"
        )
    check_exported(path)  # loading it unpickles and evaluates what it holds
    try:
        with quiet("torch.export"):
            program = torch.export.load(path)
    except Exception as error:
        raise no_program(path) from error

    def construct(dtype: torch.dtype) -> nn.Module:
        if torch.get_default_device().type == "meta":
            raise NotImplementedError("an exported graph names its devices")
        return program.module()  # in its own types, whatever is asked

    def brings(model: nn.Module) -> Inputs | None:
        return None if program.example_inputs is None else Inputs(*program.example_inputs)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        inputs = brings(model)
        if inputs is None:
            raise ModelError(
                f"{text} was saved without its example inputs; export it again with torch.export.save"
            )
        if request.input_shape is not None or request.seq_len is not None:
            raise ModelError(
                f"{text} is exported for fixed shapes; leave input_shape and seq_len out, or export it again"
            )
        if request.batch_size != batch_of(inputs) and not _has_dynamic_batch(program):
            raise ModelError(
                f"batch size is {request.batch_size}, but {text} is exported for a batch of "
                f"{batch_of(inputs)}; give this one, or export it with a dynamic batch (torch.export.Dim)"
            )
        return in_batches(inputs, request.batch_size)

    return Source(text, construct, examples, brings=brings, untyped=program.module)


def _has_dynamic_batch(program: Any) -> bool:
    """Whether the first size of the first input is a symbol."""
    names = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in names and isinstance(value, Tensor) and value.dim():
            return isinstance(value.shape[0], torch.SymInt)
    return False
