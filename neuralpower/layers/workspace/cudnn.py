"""cuDNN's work space on NVIDIA GPUs, as its heuristics choose kernels (`torch.backends.cudnn.benchmark` off).

Tensor cores want channels last, so most convolutions work on copies of input, weight and output in that
order; the weight's gradient has partial sums besides. The rules were read off 1,032 convolutions of twelve
networks in float32 (TensorFloat-32) and bfloat16 on an H200 (torch 2.11, cuDNN 9.19), each measured by the
allocator's peak:

    depthwise                    none: PyTorch's own kernels
    at most 4 input channels     none, but for kernels of 7 x 7 or more with strides
    1 x 1, stride 1              none, where the picture is a multiple of 4 pixels or channels are few;
                                 the weight's gradient: a weight for each sample, or the copies if less
    others                       input + weight + output; the weight's gradient: 6 MiB more

Call by call they are off by 5 to 18 % of the measured bytes in float32 and by 3 to 23 % in bfloat16 (`python
-m benchmarks.gpu_memory`).

With `benchmark = True`, cuDNN tries each kernel whose work space is within the free memory: up to 38 GB for
VGG-16 at batch 8. PyTorch gives that back after the trials. Then the fastest kernel's work space counts; it
was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neuralpower.late import Tensor, torch

PARTIAL = 6 * 2**20  # partial sums of a weight's gradient: the median of 250 calls with copies
FEW = 4  # input channels that need no copy
LARGE = 7  # width of a kernel from which few channels are copied, too
WIDE = 128  # channels from which a product of an odd picture is copied, too
Rule = Callable[..., tuple[int, ...]]


def most_bytes(blocks: Sequence[int]) -> int:
    """Bytes of a call's blocks at most at one time: each is given back before the next."""
    return max(blocks, default=0)


def _convolution(stride_at: int, groups_at: int) -> Rule:
    """The rule of an operator of input, weight and more [batch, channels, ...]; what is where in `more`."""

    def rule(output: Tensor, input: Tensor, weight: Tensor, *more: Any, **named: Any) -> tuple[int, ...]:
        groups = more[groups_at] if len(more) > groups_at else named.get("groups", 1)
        stride = more[stride_at] if len(more) > stride_at else named.get("stride", 1)
        return (_pass_bytes(input, weight, output, stride, groups),)

    return rule


def _backward(output: Any, gradient: Tensor, input: Tensor, weight: Tensor, *more: Any) -> tuple[int, ...]:
    """The rule of `aten.convolution_backward`: of the input's gradient, then of the weight's."""
    stride, groups, mask = more[1], more[-2], more[-1]
    of_input = 0 if _few(input) else _pass_bytes(input, weight, gradient, stride, groups)
    of_weight = _weight_bytes(input, weight, gradient, stride, groups)
    return (of_input if mask[0] else 0, of_weight if mask[1] else 0)


def _pass_bytes(input: Tensor, weight: Tensor, output: Tensor, stride: Any, groups: int) -> int:
    """Bytes of a forward pass, or of the input's gradient."""
    if _own(input, weight, groups) or _plain(input, weight, stride) or _few_small(input, weight, stride):
        return 0
    return _copies(input, weight, output)


def _weight_bytes(input: Tensor, weight: Tensor, output: Tensor, stride: Any, groups: int) -> int:
    if _own(input, weight, groups) or _few_small(input, weight, stride):
        return 0
    copies = _copies(input, weight, output) + PARTIAL
    return min(len(input) * weight.nbytes, copies) if _plain(input, weight, stride) else copies


def _own(input: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether PyTorch's own kernels run it, or a product of vectors."""
    depthwise = groups > 1 and groups == input.shape[1]
    return depthwise or not input.is_floating_point() or math.prod(input.shape[2:]) == 1


def _plain(input: Tensor, weight: Tensor, stride: Any) -> bool:
    """Whether it is a product of matrices as they lie in memory."""
    if math.prod(weight.shape[2:]) > 1:
        return False
    channels = min(weight.shape[:2])
    if _widest(stride) > 1:
        return input.shape[1] <= WIDE // 2
    return math.prod(input.shape[2:]) % 4 == 0 or channels < WIDE


def _few(input: Tensor) -> bool:
    return input.shape[1] <= FEW


def _few_small(input: Tensor, weight: Tensor, stride: Any) -> bool:
    return _few(input) and (max(weight.shape[2:]) < LARGE or _widest(stride) == 1)


def _widest(stride: Any) -> int:
    """The largest of a convolution's strides, given one or several."""
    return max(stride) if isinstance(stride, (list, tuple)) else int(stride)


def _copies(input: Tensor, weight: Tensor, output: Tensor) -> int:
    """Bytes of input, weight and output in another order; none of what is in that order already."""
    last = torch.channels_last if input.dim() == 4 else torch.channels_last_3d
    if input.dim() in (4, 5) and input.is_contiguous(memory_format=last) and not input.is_contiguous():
        return 0
    return input.nbytes + weight.nbytes + output.nbytes


RULES: Mapping[str, Rule] = {
    "aten.convolution": _convolution(1, 6),
    "aten.convolution_backward": _backward,
    **{f"aten.conv{name}d": _convolution(1, 4) for name in ("1", "2", "3")},
    **{f"aten.conv_transpose{name}d": _convolution(1, 4) for name in ("1", "2", "3")},
}
