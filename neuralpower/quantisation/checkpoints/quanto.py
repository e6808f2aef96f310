"""Quanto and EETQ: int8 and fp8 with a scale for each output, int4 and int2 with groups of 128.

Source: huggingface/optimum-quanto, optimum/quanto/tensor: a scale and a shift of each group in the network's
type.
"""

from __future__ import annotations

from dataclasses import replace

from neuralpower.quantisation.asked import FP8
from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import ROW, Format
from neuralpower.quantisation.schemes import Scheme

TYPES = {
    "int8": Format(dtype="int8", group=ROW, scale_bits=16),
    "float8": Format(dtype=FP8, group=ROW, scale_bits=16),
    "int4": Format(dtype="uint4", group=128, scale_bits=32),
    "int2": Format(dtype="uint2", group=128, scale_bits=32),
}


@checkpoint_reader("quanto", "eetq")
def quanto(fields: Fields) -> Scheme:
    """All fully connected layers but the head and those of `modules_to_not_convert`."""
    form = TYPES[fields.text("weights", "int8", known=tuple(TYPES))]
    inputs = fields.values.get("activations")
    if inputs is not None and {"int8": "int8", "float8": FP8}.get(str(inputs)) == form.dtype:
        form = replace(form, activations=form.dtype)
    name = "modules_to_not_convert"
    return Scheme(name=fields.method, form=form, left_out=fields.patterns(name), head=fields.lists(name))
