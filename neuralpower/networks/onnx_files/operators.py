"""ONNX's operators as calls of aten: an entry of OPERATORS is all that an operator needs.

A function takes the node's `Call` and its inputs, None where one is missing, and gives a tensor or several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neuralpower.errors import ModelError
from neuralpower.networks.onnx_files.patterns import FUSED_ATTENTION, OF_LAYER, STACKED, UNROLLED
from neuralpower.networks.onnx_files.reading import TYPES, Node

Given = Any  # a tensor, or None for an input that is missing
Operator = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """A node that runs, with what its operator may ask."""

    node: Node
    opset: int
    cast: Callable[[torch.dtype], torch.dtype]  # of the file -> of the run

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.node.attributes.get(name, default)

    def dtype(self, number: int) -> torch.dtype:
        """The type of ONNX's number; raises ModelError."""
        if number not in TYPES:
            raise ModelError(f"node {self.node.name:.60} makes elements of type {number}, which is not read")
        found: torch.dtype = getattr(torch, TYPES[number])
        return self.cast(found)

    def ints(self, value: Given, attribute: str = "") -> list[int] | None:
        """Whole numbers that an input has, or an attribute of earlier opsets; raises ModelError."""
        if value is None:
            held = self.get(attribute)
            return held if held is None or isinstance(held, list) else [held]
        return [int(one) for one in self.numbers(value)]

    def numbers(self, value: Tensor) -> list[float]:
        """The numbers of an input that is known before the run; raises ModelError."""
        if value.is_meta or type(value) is not Tensor:
            raise ModelError(
                f"node {self.node.name:.60} ({self.node.op}) needs numbers that only a run makes, such as "
                "counts of what is found; export the network up to there"
            )
        found: list[float] = value.flatten().tolist()
        return found


def _binary(function: Operator) -> Operator:
    return lambda call, a, b: function(a, b)


def _unary(function: Operator) -> Operator:
    return lambda call, x: function(x)


def _div(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def _mod(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if call.get("fmod", 0) else torch.remainder(a, b)


def _folded(function: Operator) -> Operator:
    """An operator of any number of inputs."""

    def run(call: Call, first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = function(first, other)
        return first

    return run


def _mean(call: Call, *values: Tensor) -> Tensor:
    whole: Tensor = _folded(torch.add)(call, *values)
    return whole / len(values)


def _matmul(call: Call, a: Tensor, b: Tensor, bias: Given = None) -> Tensor:
    """A product; one with a matrix is a linear layer, as in the network that was exported."""
    if b.dim() == 2 and a.dim() >= 2:
        return F.linear(a, b.t(), bias)
    product = torch.matmul(a, b)
    return product if bias is None else product + bias


def _gemm(call: Call, a: Tensor, b: Tensor, c: Given = None) -> Tensor:
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    a = a.t() if call.get("transA", 0) else a
    plain = alpha == 1.0 and (c is None or (beta == 1.0 and c.dim() == 1))
    if plain:
        bias = None if c is None or c.numel() == 1 else c
        product = F.linear(a, b if call.get("transB", 0) else b.t(), bias)
        return product if bias is not None or c is None else product + c
    b = b.t() if call.get("transB", 0) else b
    return alpha * torch.mm(a, b) if c is None else torch.addmm(c, a, b, alpha=alpha, beta=beta)


def _padded(call: Call, x: Tensor, sides: Sequence[int], value: float = 0.0) -> tuple[Tensor, list[int]]:
    """(input with what no symmetric padding says, padding of each axis) of a window's sizes."""
    rank = x.dim() - 2
    strides = call.get("strides") or [1] * rank
    dilations = call.get("dilations") or [1] * rank
    auto = call.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        ends = []
        for size, side, stride, dilation in zip(x.shape[2:], sides, strides, dilations, strict=True):
            whole = max((math.ceil(size / stride) - 1) * stride + (side - 1) * dilation + 1 - size, 0)
            ends.append((whole // 2, whole - whole // 2))
        before, after = ([pair[i] for pair in ends] for i in range(2))
        if auto == "SAME_LOWER":
            before, after = after, before
    else:
        pads = [0] * (2 * rank) if auto == "VALID" else call.get("pads") or [0] * (2 * rank)
        before, after = list(pads[:rank]), list(pads[rank:])
    if before == after:
        return x, before
    around = [end for pair in reversed([*zip(before, after, strict=True)]) for end in pair]
    return F.pad(x, around, value=value), [0] * rank


def _conv(call: Call, x: Tensor, weight: Tensor, bias: Given = None) -> Tensor:
    x, padding = _padded(call, x, weight.shape[2:])
    rank = x.dim() - 2
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    stride, dilation = (call.get(name) or [1] * rank for name in ("strides", "dilations"))
    return function(x, weight, bias, stride, padding, dilation, call.get("group", 1))


def _conv_transpose(call: Call, x: Tensor, weight: Tensor, bias: Given = None) -> Tensor:
    rank = x.dim() - 2
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    stride, dilation = (call.get(name) or [1] * rank for name in ("strides", "dilations"))
    more = call.get("output_padding") or [0] * rank
    pads = call.get("pads") or [0] * (2 * rank)
    before, after = list(pads[:rank]), list(pads[rank:])
    more = [extra + low - high for extra, low, high in zip(more, before, after, strict=True)]
    if any(extra < 0 for extra in more):
        before, more = after, call.get("output_padding") or [0] * rank
    return function(x, weight, bias, stride, before, more, call.get("group", 1), dilation)


def _max_pool(call: Call, x: Tensor) -> Any:
    sides = call.get("kernel_shape")
    lowest = float("-inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
    x, padding = _padded(call, x, sides, lowest)
    rank = len(sides)
    indices = len([one for one in call.node.outputs if one]) > 1
    function: Operator = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    strides, dilations = (call.get(name) or [1] * rank for name in ("strides", "dilations"))
    if any(2 * pad > side for pad, side in zip(padding, sides, strict=True)):
        x, padding = F.pad(x, [pad for pad in reversed(padding) for _ in range(2)], value=lowest), [0] * rank
    ceil = bool(call.get("ceil_mode", 0))
    return function(x, sides, strides, padding, dilations, ceil_mode=ceil, return_indices=indices)


def _average_pool(call: Call, x: Tensor) -> Tensor:
    sides = call.get("kernel_shape")
    x, padding = _padded(call, x, sides)
    rank = len(sides)
    strides, ceil = call.get("strides") or [1] * rank, bool(call.get("ceil_mode", 0))
    if rank == 1:
        return F.avg_pool1d(x, sides, strides, padding, ceil, bool(call.get("count_include_pad", 0)))
    function = (F.avg_pool2d, F.avg_pool3d)[rank - 2]
    return function(x, sides, strides, padding, ceil, bool(call.get("count_include_pad", 0)))


def _global_pool(kind: str) -> Operator:
    def run(call: Call, x: Tensor) -> Any:
        return getattr(F, f"adaptive_{kind}_pool{x.dim() - 2}d")(x, 1)

    return run


def _batch_norm(call: Call, x: Tensor, scale: Given, bias: Given, mean: Given, variance: Given) -> Tensor:
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.1, call.get("epsilon", 1e-5))


def _layer_norm(call: Call, x: Tensor, scale: Tensor, bias: Given = None) -> Tensor:
    axis = call.get("axis", -1) % x.dim()
    return F.layer_norm(x, x.shape[axis:], scale.reshape(x.shape[axis:]), bias, call.get("epsilon", 1e-5))


def _rms_norm(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    axis = call.get("axis", -1) % x.dim()
    return F.rms_norm(x, tuple(x.shape[axis:]), scale, call.get("epsilon", 1e-5))


def _group_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = call.get("num_groups")
    if scale.shape[0] == groups and groups != x.shape[1]:  # opset 18: of each group
        scale, bias = (one.repeat_interleave(x.shape[1] // groups) for one in (scale, bias))
    return F.group_norm(x, groups, scale, bias, call.get("epsilon", 1e-5))


def _local_response(call: Call, x: Tensor) -> Tensor:
    more = (call.get(name, usual) for name, usual in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    return F.local_response_norm(x, call.get("size"), *more)


def _softmax(function: Operator) -> Operator:
    def run(call: Call, x: Tensor) -> Any:
        if call.opset >= 13:
            return function(x, call.get("axis", -1))
        axis = call.get("axis", 1) % max(x.dim(), 1)
        if axis == x.dim() - 1:
            return function(x, axis)
        return function(x.flatten(axis), -1).reshape(x.shape)

    return run


def _clip(call: Call, x: Tensor, low: Given = None, high: Given = None) -> Tensor:
    ends = [
        call.get(name) if value is None else call.numbers(value)[0]
        for name, value in (("min", low), ("max", high))
    ]
    if ends == [0.0, 6.0]:
        return F.relu6(x)
    return x if ends == [None, None] else torch.clamp(x, *ends)


def _gelu(call: Call, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=call.get("approximate", "none"))


def _reduced(function: Operator) -> Operator:
    def run(call: Call, x: Tensor, axes: Given = None) -> Any:
        found, keep = call.ints(axes, "axes"), bool(call.get("keepdims", 1))
        if not found:
            if call.get("noop_with_empty_axes", 0):
                return x
            found = [*range(x.dim())]
        return function(x, found, keep) if found else x

    return run


def _product(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = torch.prod(x, axis, keep)
    return x


def _arg(function: Operator) -> Operator:
    return lambda call, x: function(x, call.get("axis", 0), bool(call.get("keepdims", 1)))


def _reshape(call: Call, x: Tensor, sizes: Given = None) -> Tensor:
    asked = call.ints(sizes, "shape") or []
    if not call.get("allowzero", 0):
        asked = [x.shape[i] if size == 0 else size for i, size in enumerate(asked)]
    return x.reshape(asked)


def _flatten(call: Call, x: Tensor) -> Tensor:
    axis = call.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _squeeze(call: Call, x: Tensor, axes: Given = None) -> Tensor:
    found = call.ints(axes, "axes")
    return x.squeeze() if found is None else x.squeeze(tuple(axis % x.dim() for axis in found))


def _unsqueeze(call: Call, x: Tensor, axes: Given = None) -> Tensor:
    found = call.ints(axes, "axes") or []
    rank = x.dim() + len(found)
    for axis in sorted(axis % rank for axis in found):
        x = x.unsqueeze(axis)
    return x


def _transpose(call: Call, x: Tensor) -> Tensor:
    return x.permute(call.get("perm") or [*reversed(range(x.dim()))])


def _concat(call: Call, *values: Tensor) -> Tensor:
    return torch.cat(values, call.get("axis", 1))


def _split(call: Call, x: Tensor, sizes: Given = None) -> Sequence[Tensor]:
    axis, found = call.get("axis", 0), call.ints(sizes, "split")
    if found is None:
        count = call.get("num_outputs") or len(call.node.outputs)
        found_size = -(-x.shape[axis] // count)
        return torch.split(x, found_size, axis)
    return torch.split(x, found, axis)


def _slice(
    call: Call, x: Tensor, starts: Given = None, ends: Given = None, axes: Given = None, steps: Given = None
) -> Tensor:
    begin, end = call.ints(starts, "starts") or [], call.ints(ends, "ends") or []
    along = call.ints(axes, "axes") or [*range(len(begin))]
    by = call.ints(steps) or [1] * len(begin)
    for low, high, axis, step in zip(begin, end, along, by, strict=True):
        size = x.shape[axis]
        if step < 0:
            first = min(low + size if low < 0 else low, size - 1)
            last = max(high + size if -size <= high < 0 else high, -1)
            places = torch.arange(first, last, step, device=x.device)
            x = x.index_select(axis, places)
        else:
            key: list[Any] = [slice(None)] * x.dim()
            key[axis] = slice(low, high, step)
            x = x[tuple(key)]
    return x


def _gather(call: Call, x: Tensor, places: Tensor) -> Tensor:
    axis = call.get("axis", 0) % max(x.dim(), 1)
    if axis == 0 and x.dim() == 2 and places.dim() > 0 and x.is_floating_point():
        return F.embedding(places.long(), x)
    if places.dim() == 0 and not places.is_meta and type(places) is Tensor:
        return x.select(axis, int(places))
    found = x.index_select(axis, places.reshape(-1).long())
    return found.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])


def _gather_nd(call: Call, x: Tensor, places: Tensor) -> Tensor:
    if call.get("batch_dims", 0):
        raise ModelError(f"node {call.node.name:.60}: GatherND with batch_dims is not read")
    return x[tuple(places.long().unbind(-1))]


def _gather_elements(call: Call, x: Tensor, places: Tensor) -> Tensor:
    return torch.gather(x, call.get("axis", 0), places.long())


def _scatter_elements(call: Call, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    return torch.scatter(x, call.get("axis", 0), places.long(), updates)


def _scatter_nd(call: Call, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    return x.index_put(tuple(places.long().unbind(-1)), updates)


def _expand(call: Call, x: Tensor, sizes: Tensor) -> Tensor:
    asked = call.ints(sizes) or []
    return x.expand(*torch.broadcast_shapes(x.shape, asked))  # type: ignore[no-untyped-call]


def _tile(call: Call, x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat(call.ints(repeats) or [])


def _pad(call: Call, x: Tensor, pads: Given = None, value: Given = None, axes: Given = None) -> Tensor:
    ends = call.ints(pads, "pads") or []
    along = [axis % x.dim() for axis in call.ints(axes) or range(x.dim())]
    around = [0] * (2 * x.dim())
    half = len(ends) // 2
    for axis, low, high in zip(along, ends[:half], ends[half:], strict=True):
        place = 2 * (x.dim() - 1 - axis)
        around[place : place + 2] = low, high
    if not any(around):
        return x
    mode = call.get("mode", "constant")
    if mode == "constant":
        return F.pad(x, around, value=call.get("value", 0.0) if value is None else call.numbers(value)[0])
    while len(around) > 2 and around[-2:] == [0, 0]:
        around = around[:-2]
    return F.pad(x, around, mode={"edge": "replicate", "wrap": "circular"}.get(mode, mode))


def _resize(call: Call, x: Tensor, *more: Given) -> Tensor:
    roi_scales = [*more, None, None, None][:3]
    scales, sizes = (roi_scales[0], None) if call.opset < 11 or len(more) == 1 else roi_scales[1:]
    if sizes is not None and sizes.numel():
        asked = call.ints(sizes) or []
    else:
        factors = call.get("scales") if scales is None else call.numbers(scales)
        axes = call.get("axes")
        whole = [1.0] * x.dim()
        for axis, factor in zip(axes or range(x.dim()), factors, strict=True):
            whole[axis] = factor
        asked = [int(math.floor(size * factor)) for size, factor in zip(x.shape, whole, strict=True)]
    if axes := (call.get("axes") if len(asked) != x.dim() else None):
        full = [*x.shape]
        for axis, size in zip(axes, asked, strict=True):
            full[axis] = size
        asked = full
    rank = x.dim() - 2
    modes = {"linear": ("linear", "bilinear", "trilinear")[max(rank - 1, 0)], "cubic": "bicubic"}
    mode = modes.get(call.get("mode", "nearest"), "nearest")
    aligned = call.get("coordinate_transformation_mode") == "align_corners"
    return F.interpolate(x, asked[2:], mode=mode, align_corners=None if mode == "nearest" else aligned)


def _depth_to_space(call: Call, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    side = call.get("blocksize")
    if call.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, side)
    parts = x.reshape(n, side, side, c // side**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // side**2, h * side, w * side)


def _space_to_depth(call: Call, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    side = call.get("blocksize")
    parts = x.reshape(n, c, h // side, side, w // side, side).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * side**2, h // side, w // side)


def _cast(call: Call, x: Tensor) -> Tensor:
    dtype = call.dtype(call.get("to"))
    return x if x.dtype == dtype else x.to(dtype)


def _constant_of_shape(call: Call, sizes: Tensor) -> Tensor:
    value = call.get("value")
    asked = call.ints(sizes) or []
    if math.prod(asked) > 2**40:
        raise ModelError(f"node {call.node.name:.60} makes a tensor of sizes {asked}, which none has")
    if value is None:
        return torch.zeros(asked, dtype=call.cast(torch.float32))
    number = 0 if value.values is None or not value.values.size else value.values.reshape(-1)[0].item()
    return torch.full(asked, number, dtype=call.cast(getattr(torch, value.dtype)))


def _range(call: Call, start: Tensor, stop: Tensor, step: Tensor) -> Tensor:
    return torch.arange(*(call.numbers(one)[0] for one in (start, stop, step)), dtype=start.dtype)


def _top_k(call: Call, x: Tensor, k: Given = None) -> Any:
    count = (call.ints(k, "k") or [1])[0]
    return torch.topk(x, count, call.get("axis", -1), bool(call.get("largest", 1)))


def _one_hot(call: Call, places: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    count = (call.ints(depth) or [1])[0]
    hot = (places.unsqueeze(-1) == torch.arange(count, device=places.device)).to(values.dtype)
    axis = call.get("axis", -1)
    return hot if axis == -1 else hot.movedim(-1, axis)


def _trilu(call: Call, x: Tensor, k: Given = None) -> Tensor:
    diagonal = 0 if k is None else (call.ints(k) or [0])[0]
    return torch.triu(x, diagonal) if call.get("upper", 1) else torch.tril(x, diagonal)


def _einsum(call: Call, *values: Tensor) -> Tensor:
    return torch.einsum(call.get("equation"), *values)


def _cumsum(call: Call, x: Tensor, axis: Tensor) -> Tensor:
    return torch.cumsum(x, (call.ints(axis) or [0])[0])


def _quantize(call: Call, x: Tensor, scale: Tensor, zero: Given = None) -> Tensor:
    return torch.round(x / scale).to(torch.uint8 if zero is None else zero.dtype)


def _dequantize(call: Call, x: Tensor, scale: Tensor, zero: Given = None) -> Tensor:
    if scale.dim() == 1 and x.dim() > 1:
        axis = call.get("axis", 1) % x.dim()
        scale = scale.reshape([-1 if i == axis else 1 for i in range(x.dim())])
    return x.to(scale.dtype) * scale


def _attention(call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Given = None, *past: Given) -> Tensor:
    if any(one is not None for one in past):
        raise ModelError(f"node {call.node.name:.60}: Attention with a cache is not read; export without")
    flat = q.dim() == 3
    if flat:
        heads, keys = call.get("q_num_heads"), call.get("kv_num_heads")
        q, k, v = (
            x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2)
            for x, n in ((q, heads), (k, keys), (v, keys))
        )
    causal = bool(call.get("is_causal", 0))
    y = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=call.get("scale"), enable_gqa=q.shape[1] != k.shape[1]
    )
    return y.transpose(1, 2).flatten(2) if flat else y


def _fused_attention(call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Given = None) -> Tensor:
    """What `patterns` puts together; `turned`: keys come as [..., head size, keys]."""
    k = k.transpose(-1, -2) if call.get("turned") else k
    lead = v.shape[:-2]
    q, k = q.reshape(*lead, *q.shape[-2:]), k.reshape(*lead, *k.shape[-2:])
    return F.scaled_dot_product_attention(q, k, v, mask)


def _recurrent(kind: str, gates: int) -> Operator:
    """`kind`: lstm, gru or rnn_tanh; x [steps, batch, inputs], weights [directions, gates x outputs, ...]."""

    def run(call: Call, x: Tensor, w: Tensor, r: Tensor, *more: Given) -> Any:
        bias, _lengths, first, cell = [*more, None, None, None, None][:4]
        size, ways = call.get("hidden_size"), w.shape[0]
        if call.get("layout", 0):
            x = x.transpose(0, 1)
        weights: list[Tensor] = []
        for way in range(ways):
            weights += [w[way], r[way]]
            if bias is not None:
                weights += [bias[way, : gates * size], bias[way, gates * size :]]
        states = [x.new_zeros(ways, x.shape[1], size) if one is None else one for one in (first, cell)]
        hidden: Any = states if kind == "lstm" else states[0]
        function = getattr(torch, kind)
        settings = (bias is not None, 1, 0.0, False, ways == 2, False)
        y, *last = function(x, hidden, weights, *settings)
        y = y.reshape(x.shape[0], x.shape[1], ways, size).transpose(1, 2)
        return y, *last

    return run


def _stacked(call: Call, x: Tensor, *more: Given) -> Any:
    """Layers of `patterns`: weights, recurrent weights, biases and lengths of each, then first states."""
    kind, gates = {"GRU": ("gru", 3), "LSTM": ("lstm", 4), "RNN": ("rnn_tanh", 1)}[call.get("of")]
    size, place = call.get("hidden_size"), call.get("states") - 1
    layers = [more[i : i + OF_LAYER] for i in range(0, place, OF_LAYER)]
    ways = layers[0][0].shape[0]
    weights: list[Any] = []
    for w, r, bias, _lengths in layers:
        for way in range(ways):
            weights += [w[way], r[way]]
            if bias is not None:
                weights += [bias[way, : gates * size], bias[way, gates * size :]]
    given = more[place:]
    several = (given[: len(layers)], given[len(layers) :])[: 2 if kind == "lstm" else 1]
    states = [_first_states(x, one, ways, size) for one in several]
    settings = (layers[0][2] is not None, len(layers), 0.0, False, ways == 2, False)
    hidden: Any = states if kind == "lstm" else states[0]
    y, *last = getattr(torch, kind)(x, hidden, weights, *settings)
    return y.reshape(x.shape[0], x.shape[1], ways, size).transpose(1, 2), *last


def _first_states(x: Tensor, given: Sequence[Given], ways: int, size: int) -> Tensor:
    """The states of all layers: zeros where none are given, or one constant is that of each."""
    if all(one is given[0] for one in given):
        return x.new_zeros(len(given) * ways, x.shape[1], size)
    return torch.cat([x.new_zeros(ways, x.shape[1], size) if one is None else one for one in given])


def _unrolled(call: Call, x: Tensor, inward: Tensor, over: Tensor, *biases: Given) -> Any:
    """A recurrent layer of `patterns`: x [steps, batch, inputs], both weights as products take them."""
    held = [one for one in biases if one is not None]
    weights = [inward.t(), over.t(), *(held if len(held) == 2 else ())]
    state = x.new_zeros(1, x.shape[1], over.shape[0])
    settings = (len(held) == 2, 1, 0.0, False, False, False)
    return getattr(torch, call.get("kind"))(x, state, weights, *settings)


def _dropout(call: Call, x: Tensor, *_more: Given) -> Any:
    return x if len(call.node.outputs) < 2 else (x, torch.ones_like(x, dtype=torch.bool))


def _constant(call: Call) -> Tensor:
    raise ModelError(f"node {call.node.name:.60}: a constant of this kind is not read")


UNARY: Mapping[str, Operator] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Asin": torch.asin,
    "Atan": torch.atan,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": F.hardswish,
    "Identity": lambda x: x,
    "IsInf": torch.isinf,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": F.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": F.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
    "BitwiseNot": torch.bitwise_not,
}
BINARY: Mapping[str, Operator] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Pow": torch.pow,
    "PRelu": lambda x, slope: torch.where(x > 0, x, slope * x),
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}
REDUCING: Mapping[str, Operator] = {
    "L1": lambda x, axes, keep: x.abs().sum(axes, keep),
    "L2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep),
    "LogSum": lambda x, axes, keep: x.sum(axes, keep).log(),
    "LogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keep),
    "Max": lambda x, axes, keep: torch.amax(x, axes, keep),
    "Mean": lambda x, axes, keep: torch.mean(x, axes, keep),
    "Min": lambda x, axes, keep: torch.amin(x, axes, keep),
    "Prod": _product,
    "Sum": lambda x, axes, keep: torch.sum(x, axes, keep),
    "SumSquare": lambda x, axes, keep: x.square().sum(axes, keep),
}
OPERATORS: Mapping[str, Operator] = {
    FUSED_ATTENTION: _fused_attention,
    STACKED: _stacked,
    UNROLLED: _unrolled,
    **{name: _unary(function) for name, function in UNARY.items()},
    **{name: _binary(function) for name, function in BINARY.items()},
    **{f"Reduce{name}": _reduced(function) for name, function in REDUCING.items()},
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "Attention": _attention,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "CastLike": lambda call, x, like: x.to(like.dtype),
    "Celu": lambda call, x: F.celu(x, call.get("alpha", 1.0)),
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "CumSum": _cumsum,
    "DepthToSpace": _depth_to_space,
    "DequantizeLinear": _dequantize,
    "Div": _div,
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Elu": lambda call, x: F.elu(x, call.get("alpha", 1.0)),
    "Expand": _expand,
    "Flatten": _flatten,
    "GRU": _recurrent("gru", 3),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool("avg"),
    "GlobalMaxPool": _global_pool("max"),
    "GroupNormalization": _group_norm,
    "HardSigmoid": lambda call, x: F.hardsigmoid(x),
    "InstanceNormalization": lambda call, x, scale, bias: F.instance_norm(x, None, None, scale, bias),
    "LRN": _local_response,
    "LSTM": _recurrent("lstm", 4),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda call, x: F.leaky_relu(x, call.get("alpha", 0.01)),
    "LogSoftmax": _softmax(torch.log_softmax),
    "LpNormalization": lambda call, x: F.normalize(x, call.get("p", 2), call.get("axis", -1)),
    "MatMul": _matmul,
    "Max": _folded(torch.maximum),
    "MaxPool": _max_pool,
    "Mean": _mean,
    "Min": _folded(torch.minimum),
    "Mod": _mod,
    "OneHot": _one_hot,
    "Pad": _pad,
    "QuantizeLinear": _quantize,
    "RMSNormalization": _rms_norm,
    "RNN": _recurrent("rnn_tanh", 1),
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Selu": lambda call, x: F.selu(x),
    "Shape": lambda call, x: torch.tensor([*x.shape][slice(call.get("start", 0), call.get("end"))]),
    "Size": lambda call, x: torch.tensor(x.numel()),
    "Slice": _slice,
    "Softmax": _softmax(torch.softmax),
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sum": _folded(torch.add),
    "Swish": lambda call, x: (
        F.silu(x) if call.get("alpha", 1.0) == 1.0 else x * torch.sigmoid(x * call.get("alpha"))
    ),
    "ThresholdedRelu": lambda call, x: F.threshold(x, call.get("alpha", 1.0), 0.0),
    "Tile": _tile,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Upsample": _resize,
    "Where": lambda call, condition, a, b: torch.where(condition, a, b),
}
"""Operators by their names in ONNX."""
