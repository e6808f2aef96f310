"""Operators of `torch.ao.quantization`, read as the calls of plain tensors that do their work.

`quantized.linear_dynamic(x, packed)` is `aten.linear(x, W, b)` in int8. Weights lie in opaque objects, which
unpack them. A fused relu or addition takes no pass of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from neuralpower.dtypes import FLOATING
from neuralpower.errors import Unmodelled
from neuralpower.layers.tensors import dtype_name

Args = Sequence[Any]
QUANTISED, DECOMPOSED = "quantized.", "quantized_decomposed."
CASTS = ("quantize_per", "dequantize", "quantized_decomposed.")  # beginnings of names, without aten
BYTES = "int8"  # the type that products of 8 bits run in
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# operators of one tensor, or of two -> how many of their first arguments the plain operator takes
FIRST = {
    **dict.fromkeys(
        "hardswish sigmoid leaky_relu elu celu relu6 dropout threshold clamp instance_norm".split(), 1
    ),
    **dict.fromkeys("add mul cat prelu softmax layer_norm group_norm".split(), 2),
    **dict.fromkeys(("max_pool1d", "max_pool2d"), 4),
}


@dataclass(frozen=True)
class PlainCall:
    """A call of plain tensors, and the fields of its layer that these do not say."""

    operator: str
    args: tuple[Any, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None  # where it differs from that of the quantised operator


def plain_call(operator: str, args: Args, kwargs: Mapping[str, Any], output: Any) -> PlainCall | None:
    """The plain call of a quantised operator; None for others. Raises Unmodelled where it is not known."""
    name = operator.removeprefix("aten.")
    if name.startswith(CASTS):
        return PlainCall("aten.to", (args[0],))
    if "fake_quantize" in name or name == "_fused_moving_avg_obs_fq_helper":
        return PlainCall("aten.clamp", (args[0],))
    if name.startswith("quantized_") and name.removeprefix("quantized_") in RECURRENT:
        dtype = "float16" if kwargs.get("dtype") == torch.float16 else BYTES
        return PlainCall(f"aten.{name.removeprefix('quantized_')}", tuple(args), {"dtype": dtype})
    if not name.startswith(QUANTISED):
        return None
    name = name.removeprefix(QUANTISED)
    try:
        return _read(name, args, output)
    except (RuntimeError, AttributeError, TypeError, IndexError) as error:
        raise Unmodelled(f"{operator}: its arguments cannot be read ({error})") from error


def _read(name: str, args: Args, output: Any) -> PlainCall | None:
    """The plain call of `quantized.NAME`."""
    for beginning, read in READERS.items():
        if name.startswith(beginning):
            call = read(name, args)
            return replace(call, output=(output,)) if name.startswith("embedding_bag") else call
    plain = name if name in FIRST else name.removesuffix("_relu")
    return PlainCall(f"aten.{plain}", tuple(args[: FIRST[plain]])) if plain in FIRST else None


def _linear(name: str, args: Args) -> PlainCall:
    """`linear`, `linear_relu`, `linear_dynamic`, `linear_dynamic_fp16` and their like."""
    x, packed = args[:2]
    weight, bias = _unpacked(packed)
    if "fp16" in name:
        return PlainCall("aten.linear", (x, weight, bias), {"dtype": "float32", "weights_dtype": "float16"})
    return PlainCall("aten.linear", (x, weight, bias), _of_bytes(name, x))


def _of_bytes(name: str, x: Tensor) -> dict[str, Any]:
    """Fields of a product of 8 bits: a dynamic one reads and writes the input's type, and rounds it."""
    own = dtype_name(x)
    dynamic = "dynamic" in name and own in FLOATING
    return {"dtype": BYTES, **({"output_dtype": own, "quantises": True} if dynamic else {})}


def _convolution(name: str, args: Args) -> PlainCall:
    """`conv2d`, `conv2d_relu`, `conv2d_add_relu`, `conv_transpose2d`, `conv2d_dynamic` and their like."""
    packed: Any = next(arg for arg in args if isinstance(arg, torch.ScriptObject))
    weight, bias = _unpacked(packed)
    rank = int(name.split("d")[0][-1])  # one of a line is packed as one of an image
    named = ("stride", "padding", "dilation", "output_padding")
    sizes = {one: list(getattr(packed, one)())[-rank:] for one in named}
    weight = weight.new_empty((*weight.shape[:2], *weight.shape[-rank:]))
    given: tuple[Any, ...] = (args[0], weight, bias, sizes["stride"], sizes["padding"])
    if packed.transpose():
        given = (*given, sizes["output_padding"], packed.groups(), sizes["dilation"])
        return PlainCall(f"aten.conv_transpose{rank}d", given, {"dtype": BYTES})
    return PlainCall(f"aten.conv{rank}d", (*given, sizes["dilation"], packed.groups()), {"dtype": BYTES})


def _embedding(name: str, args: Args) -> PlainCall:
    """`embedding_byte`, `embedding_bag_byte`, `embedding_bag_4bit` and their like, which give float32."""
    table = args[0]
    if not isinstance(table, Tensor):
        with _disable_current_modes():
            table = torch.ops.quantized.embedding_bag_unpack(table)
    operator = "aten._embedding_bag" if name.startswith("embedding_bag") else "aten.embedding"
    return PlainCall(operator, (_meta(table), args[1]), {"dtype": "float32"})


def _cell(name: str, args: Args) -> PlainCall:
    """A step of `quantized_lstm_cell_dynamic` and its like: x [batch, inputs], states [batch, outputs]."""
    function = next(one for one in RECURRENT if f"_{one}_" in f"{name}_")
    states = args[1] if isinstance(args[1], (tuple, list)) else [args[1]]
    x, hidden = _meta(args[0])[None], [_meta(state)[None] for state in states]
    return PlainCall(f"aten.{function}", (x, hidden, [], True, 1, 0.0, False, False, False), {"dtype": BYTES})


def _batch_norm(name: str, args: Args) -> PlainCall:
    """`batch_norm2d(x, weight, bias, mean, variance, epsilon, ...)`."""
    return PlainCall("aten.batch_norm", (*args[:5], False))


def _scaled(name: str, args: Args) -> PlainCall:
    """`add_scalar`, `mul_scalar_relu` and their like."""
    return PlainCall(f"aten.{name.split('_')[0]}", (args[0],))


def _matmul(name: str, args: Args) -> PlainCall:
    """A product of batches of matrices."""
    a, b = map(_meta, args[:2])
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    shapes = ((math.prod(batch), *one.shape[-2:]) for one in (a, b))
    return PlainCall("aten.bmm", tuple(a.new_empty(shape) for shape in shapes), {"dtype": BYTES})


READERS: Mapping[str, Callable[[str, Args], PlainCall]] = {
    "linear": _linear,
    "conv": _convolution,
    "embedding": _embedding,
    "quantized_": _cell,
    "batch_norm": _batch_norm,
    "add_scalar": _scaled,
    "mul_scalar": _scaled,
    "matmul": _matmul,
}


def _unpacked(packed: Any) -> tuple[Tensor, Tensor | None]:
    """Weights and bias of a packed object, without values."""
    with _disable_current_modes():
        weight, bias = packed.unpack()
    return _meta(weight), None if bias is None else _meta(bias)


def _meta(tensor: Tensor) -> Tensor:
    """A dense tensor of that shape without values."""
    with _disable_current_modes():
        return torch.empty(tuple(tensor.shape), device="meta")
