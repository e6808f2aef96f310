"""Checkpoints of packed integers: AWQ, GPTQ and llama.cpp's GGUF."""

from __future__ import annotations

from collections.abc import Mapping

from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import ROW, Format
from neuralpower.quantisation.gguf import MIXTURES
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.weights import REGEX, Pattern

# AWQ: 4 bits packed in int32, zero points of 4 bits packed alike, float16 scales.
#
# Source: AutoAWQ's WQLinear_GEMM (casper-hansen/AutoAWQ, awq/modules/linear/gemm.py): `qweight` int32
# [inputs, outputs / 8], `qzeros` int32 [inputs / group, outputs / 8], `scales` float16 [inputs / group,
# outputs].


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


# GPTQ: 2, 3, 4 or 8 bits packed in int32, zero points packed alike, float16 scales, an index per input.
#
# Source: GPTQModel's and AutoGPTQ's QuantLinear: `qweight` int32 [inputs x bits / 32, outputs], `qzeros`
# int32 [inputs / group, outputs x bits / 32], `scales` float16 [inputs / group, outputs], `g_idx` int32
# [inputs].

BITS = {2: "uint2", 3: "uint3", 4: "uint4", 8: "int8"}


@checkpoint_reader("gptq", "gptqmodel", "auto-round", "intel/auto-round")
def gptq(fields: Fields) -> Scheme:
    """The fully connected layers of blocks, but for those that `dynamic` excludes or changes.

    auto-round writes the same layout, or AWQ's where its `packing_format` says so.
    """
    packed_as_awq = "awq" in fields.text("packing_format", "gptq")
    return Scheme(
        name=fields.method,
        form=_form(fields, indexed=not packed_as_awq),
        left_out=fields.patterns("modules_to_not_convert"),
        rules=_dynamic(fields),
        head=bool(fields.values.get("lm_head", False)),
    )


def _form(fields: Fields, indexed: bool) -> Format:
    bits, group = fields.whole("bits", 4, known=tuple(BITS)), fields.group()
    return Format(
        dtype=BITS[bits],
        group=ROW if group == -1 else group,
        scale_bits=16 + bits,
        input_bits=32 if indexed else 0,
    )


def _dynamic(fields: Fields) -> tuple[tuple[Pattern, Format | None], ...]:
    """GPTQModel's rules: `-:REGEX` excludes modules, `+:REGEX` or `REGEX` gives them other fields."""
    rules: list[tuple[Pattern, Format | None]] = []
    for key, changes in (fields.values.get("dynamic") or {}).items():
        pattern = Pattern(str(key).removeprefix("-:").removeprefix("+:"), REGEX)
        if str(key).startswith("-:"):
            rules.append((pattern, None))
        elif isinstance(changes, Mapping):
            changed = Fields(fields.model, fields.method, {**fields.values, **changes})
            rules.append((pattern, _form(changed, indexed=True)))
        else:
            raise fields.wrong("dynamic", changes, "an object of fields for each rule")
    return tuple(rules)


# Files of llama.cpp: a mixture of types, which `neuralpower.quantisation.gguf` gives to tensors.


@checkpoint_reader("gguf")
def gguf(fields: Fields) -> Scheme:
    """The mixture that the file's metadata name, and the types of its tensors."""
    mixture = fields.text("mixture", "q4_k_m", known=tuple(MIXTURES))
    types = fields.values.get("types") or {}
    return Scheme(name=mixture, form=None, mixture=mixture, types=dict(types))
