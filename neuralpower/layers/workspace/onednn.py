"""oneDNN's work space on a CPU.

Convolutions (torch: aten/src/ATen/native/mkldnn/Conv.cpp) work on copies in blocks of 16 channels,

    forward    make input' and weight', compute output', free the two, copy output out of output'
    backward   of the input: make gradient' and weight', compute input-gradient', copy it out; while that is
               kept, of the weight: make input' and gradient', compute weight-gradient', copy it out

A tensor in the order channels_last, or of fewer than five channels, is used without a copy. An LSTM's weights
are reordered at every call (RNN.cpp there). A max pooling always makes the places of the largest. Other
kernels' needs are small, and part of the framework's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neuralpower.late import Tensor, torch
from neuralpower.layers.convolution import small_for_onednn

BLOCK = 16  # channels in a block
PLAIN = 4  # channels at most that are left in their order
Rule = Callable[..., tuple[int, ...]]


def most_bytes(blocks: Sequence[int]) -> int:
    """Bytes that a call's blocks take beyond inputs and outputs, at most at one time.

    All but the last are given back before the outputs are made.
    """
    return max(sum(blocks[:-1]), blocks[-1]) if blocks else 0


def _convolution(at: int) -> Rule:
    """The rule of an operator of input [batch, channels, ...], weight and more, where `groups` is at `at`."""

    def rule(output: Tensor, input: Tensor, weight: Tensor, *more: Any, **named: Any) -> tuple[int, ...]:
        groups = more[at] if len(more) > at else named.get("groups", 1)
        if not _blocked(input, weight, groups):
            return ()
        return _copy_bytes(input), _weight_bytes(weight, groups), _copy_bytes(output)

    return rule


def _backward(output: Any, gradient: Tensor, input: Tensor, weight: Tensor, *more: Any) -> tuple[int, ...]:
    """The rule of `aten.convolution_backward`; `more` ends in groups, and which gradients are needed."""
    groups, mask = more[-2:]
    if not _blocked(input, weight, groups):
        return ()
    weights, size = _weight_bytes(weight, groups), weight.nbytes
    above, below = _copy_bytes(gradient), _copy_bytes(input)
    kept = input.nbytes if mask[0] else 0
    made = size if mask[1] else 0
    of_input = max(above + weights + below, below + kept) if mask[0] else 0
    of_weight = kept + max(below + above + weights, weights + size) if mask[1] else 0
    return (max(of_input, of_weight, kept + made) - kept - made,)


def _lstm(output: Any, *args: Any, **_: Any) -> tuple[int, ...]:
    """`aten.lstm(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first)`.

    A layer takes its weights in oneDNN's order, four gates for every step, and the output of the layer below.
    """
    input, params, layers, both = args[0], args[2], args[4], args[7]
    if not isinstance(args[3], bool):  # a packed sequence goes another way
        return ()
    size = len(params) // (layers * (2 if both else 1))
    starts = range(0, len(params), size)
    matrices = max(sum(p.numel() for p in params[i : i + size] if p.dim() == 2) for i in starts)
    steps, hidden = math.prod(input.shape[:-1]), params[1].shape[1]
    below = steps * output[0].shape[-1] if layers > 1 else 0
    return (int((matrices + 4 * steps * hidden + below) * input.element_size()),)


def _max_pool(output: Any, *_: Any, **__: Any) -> tuple[int, ...]:
    """The rule of a pooling that returns the largest alone: the places of these, as 64-bit numbers."""
    return (int(output.numel() * 8),)


def _blocked(source: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether oneDNN is asked, and works on copies in its own order."""
    if source.dim() not in (4, 5) or not source.is_floating_point():
        return False
    last = torch.channels_last if source.dim() == 4 else torch.channels_last_3d
    if source.is_contiguous(memory_format=last) and not source.is_contiguous():
        return False
    batch, channels, *sizes = source.shape
    return not small_for_onednn(batch, channels, sizes, weight.shape[2:], groups)


def _copy_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor [batch, channels, ...] in blocks of channels."""
    channels = tensor.shape[1]
    if channels <= PLAIN:
        return 0
    return tensor.shape[0] * _in_blocks(channels) * math.prod(tensor.shape[2:]) * tensor.element_size()


def _weight_bytes(weight: Tensor, groups: int) -> int:
    """Bytes of weights in blocks of output and input channels; a group is too small for blocks on both."""
    first, second, *kernel = weight.shape
    if groups == 1 and second > PLAIN:
        second = _in_blocks(second)
    return _in_blocks(first) * second * math.prod(kernel) * weight.element_size()


def _in_blocks(channels: int) -> int:
    return -(-channels // BLOCK) * BLOCK


RULES: Mapping[str, Rule] = {
    "aten.convolution": _convolution(6),
    "aten.convolution_backward": _backward,
    "aten.lstm": _lstm,
    "aten.max_pool2d": _max_pool,
    **{f"aten.conv{name}d": _convolution(4) for name in ("2", "3", "_transpose2", "_transpose3")},
}
