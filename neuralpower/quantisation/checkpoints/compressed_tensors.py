"""compressed-tensors, as llm-compressor writes it: groups of modules, each with its own types and scales.

Source: vllm-project/compressed-tensors, `quantization/quant_args.py` and `compressors/`: pack-quantized has
`weight_packed` int32, `weight_scale`, `weight_shape` int64 [2], where asymmetric `weight_zero_point` packed
alike, and where ordered `weight_g_idx` int32 [inputs]; nvfp4-pack-quantized `weight_packed` uint8,
`weight_scale` fp8 and two float32, the second for inputs. Scales are of the network's 16-bit type.
"""

from __future__ import annotations

from dataclasses import replace

from neuralpower.quantisation.asked import FP8, NVFP4
from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.formats import ROW, TENSOR, Format
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.weights import CLASS, EXACT, REGEX, Pattern

CLASSES = ("Linear", "FusedMoE", "MoE")  # names of classes among targets
TYPES = {("int", 4): "int4", ("int", 8): "int8", ("float", 8): FP8}
SHAPE_BITS = 2 * 64  # the matrix's sides, as int64


@checkpoint_reader("compressed-tensors")
def compressed_tensors(fields: Fields) -> Scheme:
    """The modules that groups name as `targets`, but for those that `ignore` names."""
    groups = fields.part("config_groups")
    if groups is None or not groups.values:
        raise fields.wrong("config_groups", fields.values.get("config_groups"), "an object of groups")
    rules: list[tuple[Pattern, Format | None]] = [
        (_pattern(text.text), None) for text in fields.patterns("ignore")
    ]
    for name in groups.values:
        group = groups.part(name)
        if group is None:
            raise groups.wrong(name, None, "an object with targets and weights")
        form = _form(group, fields.text("format", "dense"))
        rules += [(_pattern(one.text), form) for one in group.patterns("targets")]
    return Scheme(name=fields.method, form=None, rules=tuple(rules), head=True)


def _pattern(text: str) -> Pattern:
    if text.startswith("re:"):
        return Pattern(text.removeprefix("re:"), REGEX)
    return Pattern(text, CLASS if text in CLASSES else EXACT)


def _form(group: Fields, usual: str) -> Format | None:
    """The format of a group; None where its weights are not quantised."""
    weights, inputs = group.part("weights"), group.part("input_activations")
    if weights is None:
        return None
    packed = group.text("format", usual)
    bits, kind = weights.whole("num_bits", 8), weights.text("type", "int", known=("int", "float"))
    if kind == "float" and bits == 4:
        micro = "mxfp4" in packed or weights.whole("group_size", 16) == 32
        form = Format(dtype="mxfp4") if micro else Format(dtype="nvfp4", matrix_bits=NVFP4.matrix_bits)
    elif (kind, bits) in TYPES:
        form = _scaled(weights, TYPES[kind, bits], bits, "pack" in packed)
    else:
        raise weights.wrong("num_bits", bits, "4 or 8")
    return _with_inputs(form, inputs)


def _scaled(weights: Fields, dtype: str, bits: int, packed: bool) -> Format:
    """Integers or fp8 with scales of 16 bits."""
    known = ("tensor", "channel", "group", "block")
    usual = "group" if weights.values.get("group_size") else "tensor"
    strategy = weights.text("strategy", usual, known=known)
    rows, ragged, group = 1, False, {"tensor": TENSOR, "channel": ROW}.get(strategy, 0)
    if strategy == "group":
        group = weights.group()
    elif strategy == "block":
        (rows, group), ragged = weights.sides("block_structure") or (1, TENSOR), True
    zero = 0 if weights.values.get("symmetric", True) else bits
    ordered = str(weights.values.get("actorder")).lower() in ("group", "true")
    return Format(
        dtype=f"u{dtype}" if zero and dtype == "int4" else dtype,
        group=group,
        rows=rows,
        ragged=ragged,
        scale_bits=16 + zero,
        input_bits=32 if ordered else 0,
        matrix_bits=SHAPE_BITS if packed else 0,
    )


def _with_inputs(form: Format, inputs: Fields | None) -> Format:
    """The format with the type that inputs are rounded to."""
    if inputs is None:
        return form
    bits, kind = inputs.whole("num_bits", 8), inputs.text("type", "int", known=("int", "float"))
    types = {("int", 8): "int8", ("float", 8): FP8, ("float", 4): form.dtype}
    if (kind, bits) not in types:
        raise inputs.wrong("num_bits", bits, "4 or 8")
    if types[kind, bits] != form.dtype:  # such as W4A8: no such arithmetic; weights are widened
        return form
    group = inputs.whole("group_size", 0) if form.dtype in ("int8", FP8) else 0
    dynamic = inputs.values.get("dynamic") is not False
    return replace(form, activations=form.dtype, activations_group=max(group, 0), dynamic=dynamic)
