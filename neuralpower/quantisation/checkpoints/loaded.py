"""Libraries that quantise weights while they load: bitsandbytes, HQQ, Quanto and torchao."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neuralpower.quantisation.asked import CODE_BITS, FP8, NESTED_BITS
from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import ROW, TENSOR, Format
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.weights import EXACT, REGEX, Pattern

# bitsandbytes: LLM.int8() with a float32 scale for each output, and blocks of 64 weights in NF4 or FP4.
#
# Source: bitsandbytes/functional.py and nn/modules.py (bitsandbytes-foundation): `weight` int8, `SCB`
# float32 [outputs]; `weight` uint8 [numbers / 2], `absmax` float32 [numbers / 64], or, with double
# quantization, uint8 with a float32 for 256 of them; `quant_map` float32 [16], `nested_quant_map` float32
# [256]. Its note in JSON, of about 80 bytes for each matrix, is not counted.

FOUR_BITS = {"nf4": "nf4", "fp4": "float4_e2m1fn"}
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
    kind = fields.text("bnb_4bit_quant_type", "fp4", known=tuple(FOUR_BITS))
    double = bool(fields.values.get("bnb_4bit_use_double_quant"))
    return Format(
        dtype=FOUR_BITS[kind],
        group=BLOCK,
        scale_bits=8 + 32 / 256 if double else 32,
        matrix_bits=CODE_BITS + (NESTED_BITS + 32 if double else 0),
        ragged=True,  # blocks run through the whole matrix, row after row
    )


# HQQ: 1 to 8 bits, a scale and a zero point of 16 bits for each group.
#
# Source: mobiusml/hqq, hqq/core/quantize.py: `W_q` packed; each group has `scale` and `zero`, of 16 bits.

BITS = {2: "uint2", 3: "uint3", 4: "uint4", 8: "int8"}


@checkpoint_reader("hqq")
def hqq(fields: Fields) -> Scheme:
    """All fully connected layers but those of `skip_modules`; a configuration may be for each layer."""
    config = fields.part("quant_config") or fields
    left_out = fields.patterns("skip_modules")
    weights = config.part("weight_quant_params")
    if weights is not None or "nbits" in config.values:
        return Scheme(name=fields.method, form=_hqq_form(weights or config), left_out=left_out, head=True)
    rules = []
    for name in config.values:
        own = config.part(name)
        if own is None:
            raise config.wrong(name, None, "an object with nbits and group_size")
        rules.append((Pattern(name), _hqq_form(own.part("weight_quant_params") or own)))
    return Scheme(name=fields.method, form=None, rules=tuple(rules))


def _hqq_form(fields: Fields) -> Format:
    bits = fields.whole("nbits", 4, known=tuple(BITS))
    return Format(dtype=BITS[bits], group=fields.group(default=64), scale_bits=32)


# Quanto and EETQ: int8 and fp8 with a scale for each output, int4 and int2 with groups of 128.
#
# Source: huggingface/optimum-quanto, optimum/quanto/tensor: a scale and a shift of each group in the
# network's type.

QUANTO_TYPES = {
    "int8": Format(dtype="int8", group=ROW, scale_bits=16),
    "float8": Format(dtype=FP8, group=ROW, scale_bits=16),
    "int4": Format(dtype="uint4", group=128, scale_bits=32),
    "int2": Format(dtype="uint2", group=128, scale_bits=32),
}


@checkpoint_reader("quanto", "eetq")
def quanto(fields: Fields) -> Scheme:
    """All fully connected layers but the head and those of `modules_to_not_convert`."""
    form = QUANTO_TYPES[fields.text("weights", "int8", known=tuple(QUANTO_TYPES))]
    inputs = fields.values.get("activations")
    if inputs is not None and {"int8": "int8", "float8": FP8}.get(str(inputs)) == form.dtype:
        form = replace(form, activations=form.dtype)
    name = "modules_to_not_convert"
    return Scheme(name=fields.method, form=form, left_out=fields.patterns(name), head=fields.lists(name))


# torchao: configurations of `quantize_`, by the names of their classes or by older short ones.
#
# Source: pytorch/ao, torchao/quantization: int4 weight-only has a scale and a zero point in bfloat16 for
# each group; int8 a scale for each output in the network's type; fp8 float32 scales, for each matrix or
# output.

TORCHAO_TYPES: Mapping[str, Format] = {
    "int4_weight_only": Format(dtype="uint4", group=128, scale_bits=32),
    "int8_weight_only": Format(dtype="int8", group=ROW, scale_bits=16),
    "int8_dynamic_activation_int8_weight": Format(
        dtype="int8", group=ROW, scale_bits=16, activations="int8", dynamic=True
    ),
    "int8_dynamic_activation_int4_weight": Format(dtype="int4", group=32, scale_bits=16),
    "float8_weight_only": Format(dtype=FP8, group=ROW, scale_bits=32),
    "float8_dynamic_activation_float8_weight": Format(
        dtype=FP8, group=TENSOR, scale_bits=32, activations=FP8, dynamic=True
    ),
}


@checkpoint_reader("torchao")
def torchao(fields: Fields) -> Scheme:
    """All fully connected layers but the head, unless input and output embeddings are included."""
    kind = fields.values.get("quant_type")
    embeds = bool(fields.values.get("include_input_output_embeddings"))
    left_out = fields.patterns("modules_to_not_convert")
    if isinstance(kind, Mapping):
        kind = kind.get("default", kind)
    if isinstance(kind, Mapping) and "ModuleFqnToConfig" in str(kind.get("_type")):
        rules, form = _by_module(fields, kind)
        return Scheme(name=fields.method, form=form, rules=rules, left_out=left_out, head=embeds)
    form = _form(fields, kind, fields.values.get("quant_type_kwargs") or {})
    return Scheme(
        name=fields.method, form=form, left_out=left_out, head=embeds, embeddings=form if embeds else None
    )


def _by_module(
    fields: Fields, kind: Mapping[str, Any]
) -> tuple[tuple[tuple[Pattern, Format | None], ...], Format | None]:
    """(rules by module, the form of the others) of a configuration for each module."""
    data = kind.get("_data") or {}
    by_module = data.get("module_fqn_to_config") or {} if isinstance(data, Mapping) else {}
    rules = tuple(
        (
            Pattern(name.removeprefix("re:"), REGEX if name.startswith("re:") else EXACT),
            None if config is None else _form(fields, config, {}),
        )
        for name, config in by_module.items()
        if name != "_default"
    )
    usual = by_module.get("_default")
    return rules, None if usual is None else _form(fields, usual, {})


def _form(fields: Fields, kind: Any, more: Mapping[str, Any]) -> Format:
    if isinstance(kind, Mapping):
        data = kind.get("_data")
        kind, more = kind.get("_type"), data if isinstance(data, Mapping) else {}
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(kind).removesuffix("Config")).lower()
    if name not in TORCHAO_TYPES:
        raise fields.wrong("quant_type", kind, f"one of {', '.join(TORCHAO_TYPES)}")
    form = TORCHAO_TYPES[name]
    inner = Fields(fields.model, fields.method, more)
    if form.group > 0:
        return replace(form, group=inner.group(default=form.group))
    if name.startswith("float8_dyn") and "PerRow" in str(more.get("granularity")):
        return replace(form, group=ROW)
    return form
