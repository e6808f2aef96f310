"""AWQ: 4 bits packed in int32, zero points of 4 bits packed alike, float16 scales.

Source: AutoAWQ's WQLinear_GEMM (casper-hansen/AutoAWQ, awq/modules/linear/gemm.py): `qweight` int32 [inputs,
outputs / 8], `qzeros` int32 [inputs / group, outputs / 8], `scales` float16 [inputs / group, outputs].
"""

from __future__ import annotations

from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import ROW, Format
from neuralpower.quantisation.schemes import Scheme


@checkpoint_reader("awq")
def awq(fields: Fields) -> Scheme:
    """All fully connected layers but the head and those of `modules_to_not_convert`."""
    fields.whole("bits", 4, known=(4,))
    group = fields.group()
    return Scheme(
        name="awq",
        form=Format(dtype="uint4", group=ROW if group == -1 else group, scale_bits=16 + 4),
        left_out=fields.patterns("modules_to_not_convert"),
    )
