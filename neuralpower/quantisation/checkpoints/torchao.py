"""torchao: configurations of `quantize_`, by the names of their classes or by older short ones.

Source: pytorch/ao, torchao/quantization: int4 weight-only has a scale and a zero point in bfloat16 for each
group; int8 a scale for each output in the network's type; fp8 float32 scales, for each matrix or output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neuralpower.quantisation.asked import FP8
from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import ROW, TENSOR, Format
from neuralpower.quantisation.names import EXACT, REGEX, Pattern
from neuralpower.quantisation.schemes import Scheme

TYPES: Mapping[str, Format] = {
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
    if name not in TYPES:
        raise fields.wrong("quant_type", kind, f"one of {', '.join(TYPES)}")
    form = TYPES[name]
    inner = Fields(fields.model, fields.method, more)
    if form.group > 0:
        return replace(form, group=inner.group(default=form.group))
    if name.startswith("float8_dyn") and "PerRow" in str(more.get("granularity")):
        return replace(form, group=ROW)
    return form
