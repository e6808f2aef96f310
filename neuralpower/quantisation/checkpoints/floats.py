"""Checkpoints of short floating-point numbers: FP8, MXFP4 and NVIDIA's ModelOpt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neuralpower.quantisation.asked import FP8, INT8, NVFP4
from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import ROW, TENSOR, Format
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.weights import EXACT, GLOB, Pattern

# Weights of fp8: in blocks as DeepSeek-V3's, a scale for each matrix, or for each output as FBGEMM's.
#
# Sources: DeepSeek-V3's checkpoint (`weight_scale_inv` float32 [outputs / 128, inputs / 128], rounded up);
# transformers' finegrained_fp8 (without `weight_block_size` one scale; static inputs have one, too);
# FBGEMM's `weight_scale` float32 [outputs, 1] with `input_scale_ub` float32 [1]. MXFP8 has a byte for 32
# inputs.


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


# MXFP4 as in gpt-oss: experts' weights, 32 of 4 bits with a scale of one byte, inputs as they are.
#
# Source: openai/gpt-oss's checkpoints, `gate_up_proj_blocks` uint8 [experts, outputs, inputs / 32, 16] and
# `gate_up_proj_scales` uint8 [experts, outputs, inputs / 32] (OCP Microscaling Formats, version 1.0).


@checkpoint_reader("mxfp4")
def mxfp4(fields: Fields) -> Scheme:
    """All but `modules_to_not_convert`: in gpt-oss the experts alone."""
    name, form = "modules_to_not_convert", Format(dtype="mxfp4")
    return Scheme(name=fields.method, form=form, left_out=fields.patterns(name), head=fields.lists(name))


# NVIDIA's Model Optimizer: fp8, nvfp4, 4-bit weights, by config.json or the hf_quant_config.json next to it.
#
# Source: NVIDIA/Model-Optimizer, unified checkpoints of Hugging Face: fp8 has `weight_scale`, `input_scale`,
# float32 for each matrix; nvfp4 `weight` uint8, `weight_scale` fp8 for 16 inputs, `weight_scale_2` and
# `input_scale` float32. Names of excluded modules may hold stars.

_FP8 = Format(dtype=FP8, group=TENSOR, scale_bits=32, activations=FP8)  # with static scales of inputs
ALGORITHMS: Mapping[str, Format] = {
    "fp8": replace(_FP8, matrix_bits=32),
    "fp8_per_channel_per_token": replace(_FP8, group=ROW, dynamic=True),
    "fp8_pb_wo": Format(dtype=FP8, group=128, rows=128, scale_bits=32, ragged=True),
    "nvfp4": NVFP4,
    "nvfp4_awq": NVFP4,
    "w4a16_nvfp4": Format(dtype="nvfp4", matrix_bits=32),
    "w4a16_awq": Format(dtype="int4", group=128, scale_bits=16),
    "w4a8_awq": Format(dtype="int4", group=128, scale_bits=16),
    "w8a16": INT8,
    "w8a8_sq_per_channel": Format(dtype="int8", group=ROW, scale_bits=32, activations="int8"),
}
GROUPED = ("w4a16_awq", "w4a8_awq")


@checkpoint_reader("modelopt", "modelopt-fp4")
def modelopt(fields: Fields) -> Scheme:
    """All fully connected layers and experts but those of `exclude_modules` or `ignore`."""
    inner = fields.part("quantization") or fields
    algorithm = inner.text("quant_algo", "").replace("-", "_")
    left_out = inner.patterns("exclude_modules", "ignore", way=GLOB)
    if algorithm == "mixed_precision":
        layers = inner.part("quantized_layers")
        if layers is None:
            raise inner.wrong("quantized_layers", None, "an object of modules with their quant_algo")
        rules = tuple((Pattern(name, EXACT), _of(layers.part(name), inner)) for name in layers.values)
        return Scheme(name="modelopt", form=None, rules=rules, head=True)
    return Scheme(name="modelopt", form=_form(inner, algorithm), left_out=left_out, head=True)


def _of(layer: Fields | None, inner: Fields) -> Format:
    if layer is None:
        raise inner.wrong("quantized_layers", None, "an object of modules with their quant_algo")
    return _form(layer, layer.text("quant_algo", ""))


def _form(fields: Fields, algorithm: str) -> Format:
    if algorithm not in ALGORITHMS:
        raise fields.wrong("quant_algo", algorithm or None, f"one of {', '.join(ALGORITHMS)}")
    form = ALGORITHMS[algorithm]
    size: Any = fields.values.get("group_size")
    if algorithm in GROUPED and size is not None:
        return replace(form, group=fields.group())
    return form
