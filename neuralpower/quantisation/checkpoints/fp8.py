"""Weights of fp8: in blocks as DeepSeek-V3's, a scale for each matrix, or for each output as FBGEMM's.

Sources: DeepSeek-V3's checkpoint (`weight_scale_inv` float32 [outputs / 128, inputs / 128], rounded up);
transformers' finegrained_fp8 (without `weight_block_size` one scale; static inputs have one, too); FBGEMM's
`weight_scale` float32 [outputs, 1] with `input_scale_ub` float32 [1]. MXFP8 has a byte for 32 inputs.
"""

from __future__ import annotations

from dataclasses import replace

from neuralpower.quantisation.asked import FP8
from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import ROW, TENSOR, Format
from neuralpower.quantisation.schemes import Scheme


@checkpoint_reader("fp8")
def fp8(fields: Fields) -> Scheme:
    """All fully connected layers and experts but the head and those of `modules_to_not_convert`."""
    static = fields.text("activation_scheme", "dynamic", known=("dynamic", "static")) == "static"
    rows, group = fields.sides("weight_block_size") or (1, TENSOR)
    form = Format(
        dtype=FP8, group=group, rows=rows, scale_bits=32, ragged=True, matrix_bits=32 if static else 0
    )
    return _scheme(fields, form, group=max(group, 0), dynamic=not static)


@checkpoint_reader("fbgemm-fp8")
def fbgemm(fields: Fields) -> Scheme:
    """The same with a scale for each output."""
    return _scheme(fields, Format(dtype=FP8, group=ROW, scale_bits=32, matrix_bits=32))


@checkpoint_reader("mxfp8")
def mxfp8(fields: Fields) -> Scheme:
    """Groups of 32 with scales of one byte (OCP Microscaling Formats, version 1.0)."""
    form = Format(dtype="mxfp8", activations="mxfp8", dynamic=True)
    names = ("modules_to_not_convert", "ignored_layers")
    left_out, heads = fields.patterns(*names), fields.lists(*names)
    return Scheme(name=fields.method, form=form, left_out=left_out, head=heads)


def _scheme(fields: Fields, form: Format, group: int = 0, dynamic: bool = True) -> Scheme:
    names = ("modules_to_not_convert", "ignored_layers")
    return Scheme(
        name=fields.method,
        form=replace(form, activations=FP8, activations_group=group, dynamic=dynamic),
        left_out=fields.patterns(*names),
        head=fields.lists(*names),
    )
