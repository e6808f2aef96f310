"""MXFP4 as in gpt-oss: experts' weights, 32 of 4 bits with a scale of one byte, inputs as they are.

Source: openai/gpt-oss's checkpoints, `gate_up_proj_blocks` uint8 [experts, outputs, inputs / 32, 16] and
`gate_up_proj_scales` uint8 [experts, outputs, inputs / 32] (OCP Microscaling Formats, version 1.0).
"""

from __future__ import annotations

from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import Format
from neuralpower.quantisation.schemes import Scheme


@checkpoint_reader("mxfp4")
def mxfp4(fields: Fields) -> Scheme:
    """All but `modules_to_not_convert`: in gpt-oss the experts alone."""
    name, form = "modules_to_not_convert", Format(dtype="mxfp4")
    return Scheme(name=fields.method, form=form, left_out=fields.patterns(name), head=fields.lists(name))
