"""HQQ: 1 to 8 bits, a scale and a zero point of 16 bits for each group.

Source: mobiusml/hqq, hqq/core/quantize.py: `W_q` packed; each group has `scale` and `zero`, of 16 bits.
"""

from __future__ import annotations

from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import Format
from neuralpower.quantisation.names import Pattern
from neuralpower.quantisation.schemes import Scheme

BITS = {2: "uint2", 3: "uint3", 4: "uint4", 8: "int8"}


@checkpoint_reader("hqq")
def hqq(fields: Fields) -> Scheme:
    """All fully connected layers but those of `skip_modules`; a configuration may be for each layer."""
    config = fields.part("quant_config") or fields
    left_out = fields.patterns("skip_modules")
    weights = config.part("weight_quant_params")
    if weights is not None or "nbits" in config.values:
        return Scheme(name=fields.method, form=_form(weights or config), left_out=left_out, head=True)
    rules = []
    for name in config.values:
        own = config.part(name)
        if own is None:
            raise config.wrong(name, None, "an object with nbits and group_size")
        rules.append((Pattern(name), _form(own.part("weight_quant_params") or own)))
    return Scheme(name=fields.method, form=None, rules=tuple(rules))


def _form(fields: Fields) -> Format:
    bits = fields.whole("nbits", 4, known=tuple(BITS))
    return Format(dtype=BITS[bits], group=fields.group(default=64), scale_bits=32)
