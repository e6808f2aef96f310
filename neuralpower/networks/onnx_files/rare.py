"""Operators of ONNX that few networks have: integer products, samples of pictures, sequences, random numbers.

Integer products run in the network's floating type: what they cost there is known of every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neuralpower.errors import ModelError
from neuralpower.networks.onnx_files.operators import OPERATORS as USUAL
from neuralpower.networks.onnx_files.operators import Call, Operator

Given = Any  # a tensor, or None for an input that is missing


def _floating(call: Call, x: Tensor) -> Tensor:
    return x.to(call.cast(torch.float32))


def _integer_conv(call: Call, x: Tensor, weight: Tensor, *_: Given) -> Tensor:
    return _whole(USUAL["Conv"](call, _floating(call, x), _floating(call, weight)), torch.int32)


def _integer_matmul(call: Call, a: Tensor, b: Tensor, *_: Given) -> Tensor:
    return _whole(torch.matmul(_floating(call, a), _floating(call, b)), torch.int32)


def _whole(x: Any, dtype: torch.dtype) -> Tensor:
    whole: Tensor = x.to(dtype)
    return whole


def _quantised_conv(call: Call, x: Tensor, *more: Given) -> Tensor:
    """X, its scale and zero; weight, its scale and zero; the result's scale and zero; bias."""
    _, _, weight, _, _, _, zero, bias = [*more, None][:8]
    bias = None if bias is None else _floating(call, bias)
    return _whole(USUAL["Conv"](call, _floating(call, x), _floating(call, weight), bias), zero.dtype)


def _quantised_matmul(call: Call, a: Tensor, *more: Given) -> Tensor:
    """A, its scale and zero; b, its scale and zero; the result's scale and zero."""
    _, _, b, _, _, _, zero = more
    return _whole(torch.matmul(_floating(call, a), _floating(call, b)), zero.dtype)


def _dynamic_quantize(call: Call, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale = (x.amax() - x.amin()) / 255
    return (x / scale).round().clamp(0, 255).to(torch.uint8), scale, torch.zeros_like(scale).to(torch.uint8)


def _grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    way = {"linear": "bilinear", "cubic": "bicubic"}.get(text := _text(call, "mode", "bilinear"), text)
    padding = _text(call, "padding_mode", "zeros")
    return F.grid_sample(x, grid, way, padding, bool(call.get("align_corners", 0)))


def _text(call: Call, name: str, default: str) -> str:
    held = call.get(name, default)
    return held.decode() if isinstance(held, bytes) else str(held)


def _affine_grid(call: Call, theta: Tensor, size: Tensor) -> Tensor:
    return F.affine_grid(theta, call.ints(size) or [], bool(call.get("align_corners", 0)))


def _mean_variance(call: Call, x: Tensor) -> Tensor:
    axes = call.get("axes") or [0, 2, 3]
    return (x - x.mean(axes, True)) / (x.var(axes, correction=0, keepdim=True) + 1e-9).sqrt()


def _lp_pool(call: Call, x: Tensor) -> Tensor:
    p = float(call.get("p", 2))
    sides = call.get("kernel_shape")
    pooled: Tensor = USUAL["AveragePool"](call, x.abs().pow(p))
    return pooled.mul(math.prod(sides)).pow(1 / p)


def _global_lp_pool(call: Call, x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, call.get("p", 2), [*range(2, x.dim())], keepdim=True)
    return norm


def _hardmax(call: Call, x: Tensor) -> Tensor:
    axis = call.get("axis", -1)
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1)


def _cumulated(function: Callable[..., Tensor]) -> Operator:
    return lambda call, x, axis: function(x, int(call.numbers(axis)[0]))


def _eye_like(call: Call, x: Tensor) -> Tensor:
    number = call.get("dtype")
    dtype = x.dtype if number is None else call.dtype(number)
    return torch.eye(x.shape[0], x.shape[1], dtype=dtype, device=x.device)


def _random(call: Call, sizes: Sequence[int], like: Given = None) -> Tensor:
    number = call.get("dtype")
    dtype = (
        call.dtype(1)
        if number is None and like is None
        else like.dtype
        if number is None
        else call.dtype(number)
    )
    function = torch.randn if "Normal" in call.node.op else torch.rand
    return function([*sizes], dtype=dtype)


def _rotary(call: Call, x: Tensor, cos: Tensor, sin: Tensor, positions: Given = None) -> Tensor:
    """X [batch, heads, length, width] or [batch, length, heads x width]; halves, or neighbours, turn."""
    given = x.shape
    if x.dim() == 3:
        heads = call.get("num_heads", 0)
        x = x.reshape(*given[:2], heads, -1).transpose(1, 2)
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    width = call.get("rotary_embedding_dim", 0) or x.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if call.get("interleaved", 0):
        a, b = turned[..., 0::2], turned[..., 1::2]
        y = torch.stack((cos * a - sin * b, sin * a + cos * b), -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        y = torch.cat((cos * a - sin * b, sin * a + cos * b), -1)
    y = torch.cat((y, rest), -1) if rest.shape[-1] else y
    return y if len(given) == 4 else y.transpose(1, 2).reshape(given)


def _boxes(call: Call, boxes: Tensor, scores: Tensor, most: Given = None, *_: Given) -> Tensor:
    """As many boxes as may be left: `most` of each class and picture."""
    pictures, classes, count = scores.shape
    kept = 0 if most is None else int(call.numbers(most)[0])
    return boxes.new_zeros((pictures * classes * min(kept, count), 3), dtype=torch.int64)


def _roi_align(call: Call, x: Tensor, rois: Tensor, _: Tensor) -> Tensor:
    """Bilinear samples of each region, and their mean."""
    high, wide = call.get("output_height", 1), call.get("output_width", 1)
    ratio = call.get("sampling_ratio", 0) or 2
    grid = rois.new_zeros((len(rois), high * ratio, wide * ratio, 2))
    sampled = F.grid_sample(x[:1].expand(len(rois), -1, -1, -1), grid, align_corners=False)
    return F.avg_pool2d(sampled, ratio)


def _reverse_sequence(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    return torch.flip(x, [call.get("time_axis", 0)])


def _center_crop_pad(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    axes = call.get("axes") or [*range(x.dim())]
    for axis, size in zip(axes, call.ints(shape) or [], strict=True):
        more = size - x.shape[axis]
        if more > 0:
            pads = [0] * (2 * x.dim())
            at = 2 * (x.dim() - 1 - axis % x.dim())
            pads[at : at + 2] = [more // 2, more - more // 2]
            x = F.pad(x, pads)
        else:
            x = x.narrow(axis, -more // 2, size)
    return x


Parts = list[Tensor]


def _split_to_sequence(call: Call, x: Tensor, split: Given = None) -> tuple[Parts]:
    axis = call.get("axis", 0)
    if split is None:
        parts = torch.split(x, 1, axis)
        return ([*parts] if call.get("keepdims", 1) else [part.squeeze(axis) for part in parts],)
    sizes = call.ints(split) or []
    return ([*torch.split(x, sizes if split.dim() else sizes[0], axis)],)


def _inserted(call: Call, parts: Parts, x: Tensor, at: Given = None) -> tuple[Parts]:
    place = len(parts) if at is None else int(call.numbers(at)[0])
    return ([*parts[:place], x, *parts[place:]],)


def _joined(call: Call, parts: Parts) -> Tensor:
    axis = call.get("axis", 0)
    return torch.stack(parts, axis) if call.get("new_axis", 0) else torch.cat(parts, axis)


def _shift(call: Call, x: Tensor, by: Tensor) -> Tensor:
    return x << by if _text(call, "direction", "LEFT") == "LEFT" else x >> by


def _shrink(call: Call, x: Tensor) -> Tensor:
    bound, bias = call.get("lambd", 0.5), call.get("bias", 0.0)
    return torch.where(x < -bound, x + bias, torch.where(x > bound, x - bias, 0.0))


def _window(function: Callable[..., Tensor]) -> Operator:
    return lambda call, size: function(int(call.numbers(size)[0]), periodic=bool(call.get("periodic", 1)))


def _deform_conv(
    call: Call, x: Tensor, weight: Tensor, offset: Tensor, bias: Given = None, mask: Given = None
) -> Tensor:
    """Samples for each weight, and a product with them: as `torchvision.ops.deform_conv2d`."""
    sides, rows, columns = math.prod(weight.shape[2:]), *offset.shape[2:]
    grid = offset.new_zeros((len(x), sides * rows, columns, 2))
    taken = F.grid_sample(x, grid, align_corners=False).reshape(len(x), -1, rows * columns)
    if mask is not None:
        taken = taken * mask.reshape(len(x), 1, -1).expand(-1, 1, -1)[..., :1]
    groups = call.get("group", 1)
    flat = weight.reshape(groups, len(weight) // groups, -1)
    parts = taken.reshape(len(x), groups, -1, rows * columns)
    y = torch.matmul(flat, parts).reshape(len(x), len(weight), rows, columns)
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)


def _columns(call: Call, x: Tensor, size: Tensor, block: Tensor) -> Tensor:
    dilations, strides = (tuple(call.get(name) or (1, 1)) for name in ("dilations", "strides"))
    padding = tuple((call.get("pads") or [0, 0])[:2])
    return F.fold(x, tuple(call.ints(size) or ()), tuple(call.ints(block) or ()), dilations, padding, strides)


def _refused(why: str) -> Operator:
    def run(call: Call, *_: Given) -> Any:
        raise ModelError(f"node {call.node.name:.60} ({call.node.op}): {why}; export the network up to there")

    return run


COUNTED = "only a run knows how many numbers it finds"
RARE: Mapping[str, Operator] = {
    "Acosh": lambda call, x: torch.acosh(x),
    "AffineGrid": _affine_grid,
    "Asinh": lambda call, x: torch.asinh(x),
    "Atanh": lambda call, x: torch.atanh(x),
    "Bernoulli": lambda call, x: torch.bernoulli(x),
    "BitShift": _shift,
    "BitwiseXor": lambda call, a, b: torch.bitwise_xor(a, b),
    "BlackmanWindow": _window(torch.blackman_window),
    "CenterCropPad": _center_crop_pad,
    "Col2Im": _columns,
    "Compress": _refused(COUNTED),
    "ConcatFromSequence": _joined,
    "ConvInteger": _integer_conv,
    "CumProd": _cumulated(torch.cumprod),
    "DeformConv": _deform_conv,
    "Det": lambda call, x: torch.det(x),
    "DynamicQuantizeLinear": _dynamic_quantize,
    "EyeLike": _eye_like,
    "GlobalLpPool": _global_lp_pool,
    "GridSample": _grid_sample,
    "HammingWindow": _window(torch.hamming_window),
    "HannWindow": _window(torch.hann_window),
    "Hardmax": _hardmax,
    "LpPool": _lp_pool,
    "MatMulInteger": _integer_matmul,
    "MeanVarianceNormalization": _mean_variance,
    "NonMaxSuppression": _boxes,
    "NonZero": _refused(COUNTED),
    "QLinearConv": _quantised_conv,
    "QLinearMatMul": _quantised_matmul,
    "RandomNormal": lambda call: _random(call, call.get("shape")),
    "RandomNormalLike": lambda call, x: _random(call, x.shape, x),
    "RandomUniform": lambda call: _random(call, call.get("shape")),
    "RandomUniformLike": lambda call, x: _random(call, x.shape, x),
    "ReverseSequence": _reverse_sequence,
    "RoiAlign": _roi_align,
    "RotaryEmbedding": _rotary,
    "Scatter": USUAL["ScatterElements"],
    "SequenceAt": lambda call, parts, at: parts[int(call.numbers(at)[0])],
    "SequenceConstruct": lambda call, *parts: ([*parts],),
    "SequenceEmpty": lambda call: ([],),
    "SequenceInsert": _inserted,
    "SequenceLength": lambda call, parts: torch.tensor(len(parts)),
    "Shrink": _shrink,
    "SplitToSequence": _split_to_sequence,
    "Unique": _refused(COUNTED),
}
OPERATORS: Mapping[str, Operator] = {**USUAL, **RARE}
"""All operators by their names in ONNX."""
