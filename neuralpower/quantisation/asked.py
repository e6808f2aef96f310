"""`--weights TEXT`: the scheme that a name and a group stand for, such as int4:128, fp8 or q4_k_m.

Parts of a network, such as those of a pipeline, may have one each: transformer=nf4,text_encoder_2=int8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from neuralpower.errors import InputError, unknown
from neuralpower.quantisation.formats import ROW, Format
from neuralpower.quantisation.gguf import MIXTURES
from neuralpower.quantisation.schemes import Scheme

FP8, BLOCK = "float8_e4m3fn", 128  # DeepSeek-V3's blocks, arXiv:2412.19437, section 3.3
# bitsandbytes keeps for each matrix the 16 values that 4 bits stand for and the 256 that scales of 8 bits
# stand for, all float32 (bitsandbytes/functional.py, QuantState).
CODE_BITS, NESTED_BITS = 16 * 32, 256 * 32
INT8 = Format(dtype="int8", group=ROW, scale_bits=16)
# Two scales for each matrix besides those of groups: of its weights and of its inputs, float32.
NVFP4 = Format(dtype="nvfp4", matrix_bits=2 * 32, activations="nvfp4", dynamic=True)
FORMATS: Mapping[str, Format] = {
    "int4": Format(dtype="int4", group=128, scale_bits=16),
    "int8": INT8,
    "w8a8": Format(dtype="int8", group=ROW, scale_bits=16, activations="int8", dynamic=True),
    "fp8": Format(dtype=FP8, group=ROW, scale_bits=32, activations=FP8, dynamic=True),
    "nvfp4": NVFP4,
    "mxfp4": Format(dtype="mxfp4"),
    "nf4": Format(  # blocks run through the whole matrix, row after row
        dtype="nf4", scale_bits=8 + 32 / 256, group=64, matrix_bits=CODE_BITS + NESTED_BITS, ragged=True
    ),
    "awq": Format(dtype="uint4", group=128, scale_bits=20),
    "gptq": Format(dtype="uint4", group=128, scale_bits=20, input_bits=32),
}
"""Names and what they mean where no group is given.

    int4   symmetric, float16 scales: compressed-tensors' W4A16
    int8   a float16 scale for each output, inputs as they are; w8a8 rounds inputs to int8, too
    fp8    a float32 scale for each output, inputs rounded to fp8 token by token
    nvfp4  weights and inputs, 16 share a scale of 8 bits
    mxfp4  weights alone, 32 share a scale of 8 bits, as gpt-oss has them
    nf4    bitsandbytes' with double quantization
    awq    with zero points, as AutoAWQ writes them; gptq: with an index for each input, too
"""
FIXED = {"nvfp4": 16, "mxfp4": 32}  # groups that the format itself defines
ALIASES = {"w4a16": "int4", "w8a16": "int8", "int8_wo": "int8", "int4_wo": "int4", "e4m3": "fp8"}


def parsed(text: str) -> Scheme:
    """The scheme that a text names, or those of the parts that it names; raises InputError."""
    if "=" not in text:
        return _named(text)
    pairs = [one.partition("=") for one in text.split(",")]
    parts = [part.strip() for part, _, _ in pairs]
    if len({*parts}) < len(parts) or not all(part and scheme for part, _, scheme in pairs):
        raise InputError(f"weights {text!r}: write each part once, as in transformer=nf4,text_encoder=int8")
    schemes = tuple((part, _named(scheme)) for part, (_, _, scheme) in zip(parts, pairs, strict=True))
    return Scheme(
        name=",".join(f"{part}={scheme.name}" for part, scheme in schemes), form=None, parts=schemes
    )


def _named(text: str) -> Scheme:
    lowered = text.strip().lower()
    name, colon, size = lowered.partition(":")
    name = ALIASES.get(name, name).replace("-", "_")
    if name in MIXTURES:
        if colon:
            raise InputError(f"weights {text!r}: {name.upper()} has fixed blocks; leave :{size} out")
        return Scheme(name=name, form=None, mixture=name)
    if name not in FORMATS:
        raise unknown("weights", text, (*FORMATS, *ALIASES, *MIXTURES))
    return Scheme(name=lowered, form=_grouped(text, name, size) if colon else FORMATS[name])


def _grouped(text: str, name: str, size: str) -> Format:
    """The format with groups of `size` inputs."""
    form = FORMATS[name]
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", size):
        raise InputError(f"weights {text!r}: a group must be a number of inputs; write {name}:64")
    group = int(size)
    if name in FIXED and group != FIXED[name]:
        raise InputError(f"weights {text!r}: {name} has groups of {FIXED[name]} by definition; write {name}")
    if name in FIXED:
        return form
    if name == "fp8":
        return replace(form, group=group, rows=group, ragged=True, activations_group=group)
    return replace(form, group=group)
