"""bitsandbytes: LLM.int8() with a float32 scale for each output, and blocks of 64 weights in NF4 or FP4.

Source: bitsandbytes/functional.py and nn/modules.py (bitsandbytes-foundation): `weight` int8, `SCB` float32
[outputs]; `weight` uint8 [numbers / 2], `absmax` float32 [numbers / 64], or, with double quantization, uint8
with a float32 for 256 of them; `quant_map` float32 [16], `nested_quant_map` float32 [256]. Its note in JSON,
of about 80 bytes for each matrix, is not counted.
"""

from __future__ import annotations

from neuralpower.quantisation.asked import CODE_BITS, NESTED_BITS
from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import ROW, Format
from neuralpower.quantisation.schemes import Scheme

TYPES = {"nf4": "nf4", "fp4": "float4_e2m1fn"}
BLOCK = 64


@checkpoint_reader("bitsandbytes")
def bitsandbytes(fields: Fields) -> Scheme:
    """All fully connected layers but the head, or but those of `llm_int8_skip_modules`."""
    skipped = fields.patterns("llm_int8_skip_modules")
    eight = any(fields.values.get(name) for name in ("load_in_8bit", "_load_in_8bit"))
    four = any(fields.values.get(name) for name in ("load_in_4bit", "_load_in_4bit"))
    if eight == four:
        given = fields.values.get("load_in_4bit")
        raise fields.wrong("load_in_4bit", given, "true, or load_in_8bit, and not both")
    form = (
        Format(dtype="int8", group=ROW, scale_bits=32, activations="int8", dynamic=True)
        if eight
        else _four(fields)
    )
    return Scheme(name=fields.method, form=form, left_out=skipped, head=fields.lists("llm_int8_skip_modules"))


def _four(fields: Fields) -> Format:
    kind = fields.text("bnb_4bit_quant_type", "fp4", known=tuple(TYPES))
    double = bool(fields.values.get("bnb_4bit_use_double_quant"))
    return Format(
        dtype=TYPES[kind],
        group=BLOCK,
        scale_bits=8 + 32 / 256 if double else 32,
        matrix_bits=CODE_BITS + (NESTED_BITS + 32 if double else 0),
        ragged=True,  # blocks run through the whole matrix, row after row
    )
