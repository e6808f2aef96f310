"""What the convolution kinds share: sizes named by axis, output sizes, costs, terms, sweep.

A kind names its `axes` ("height", "width") and its functional call, and writes its fields out: `in_height`,
`kernel_height`, `stride_height`, `padding_height`, `dilation_height` and so on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from neuralpower.devices.hardware import Hardware
from neuralpower.errors import Unmodelled
from neuralpower.layers.base import KEEPS_INPUTS, Bytes, Layer, memory_terms
from neuralpower.layers.call import Call
from neuralpower.layers.columns import same_rank
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.sweep import Draw
from neuralpower.layers.terms import ceil_to, floor_div

ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
SMALL, NARROW = (
    20_480,
    3,
)  # numbers of a sample, and a kernel's side, up to which PyTorch does without oneDNN on a CPU
BLOCKS = (4, 8, 16)  # channels that oneDNN's vectors take at once
FAR = 6  # padding beyond which oneDNN has no loop over such blocks


@dataclass(frozen=True, kw_only=True)
class Convolution(Layer):
    """A convolution over `axes`; x [batch, in_channels, *in], y [batch, out_channels, *out]."""

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    bias: bool
    channels_last: bool = False  # memory format of the input

    axes: ClassVar[tuple[str, ...]] = ()
    function: ClassVar[Callable[..., Tensor]]
    argument_order: ClassVar[tuple[str, ...]] = ARGUMENTS
    largest_input: ClassVar[int] = 512

    dimensions = ("batch", "positions", "in_channels", "out_channels")
    group_names = ("dense", "depthwise", "grouped")
    multiplies = True
    savings = 4.5  # Winograd's F(4x4, 3x3)
    short_s = 1.5e-4  # a library's code of its own for each shape, weights to be reordered: cold for longer
    rule = "groups must divide the channels of both sides, strides and dilations be 1 or more"

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.convNd(x, W, b, stride, padding, dilation, groups)`, padding as numbers or by name."""
        given: dict[str, Any] = {**dict(zip(cls.argument_order, args, strict=False)), **kwargs}
        x, weight, rank = given["input"], given["weight"], len(cls.axes)
        if x.dim() == rank + 1:  # one sample
            x, output = x.unsqueeze(0), output.unsqueeze(0)
        sizes = {"in": tuple(x.shape[2:]), "kernel": tuple(weight.shape[2:])}
        for name, default in (("stride", 1), ("dilation", 1), ("padding", 0), ("output_padding", 0)):
            value = given.get(name, default)
            if isinstance(value, str):
                whole = [d * (k - 1) for d, k in zip(sizes["dilation"], sizes["kernel"], strict=True)]
                if value == "same" and any(all_ % 2 for all_ in whole):
                    raise Unmodelled(
                        f"padding {value!r} of {whole} differs by side: an input that is padded first"
                    )
                value = [all_ // 2 for all_ in whole] if value == "same" else 0
            sizes[name] = same_rank(name, value, rank)
        fields = {
            f"{name}_{axis}": v
            for name, values in sizes.items()
            for axis, v in zip(cls.axes, values, strict=True)
        }
        return cls(
            batch=x.shape[0],
            in_channels=x.shape[1],
            out_channels=output.shape[1],
            groups=int(given.get("groups", 1)),
            bias=given.get("bias") is not None,
            channels_last=is_channels_last(x),
            **{name: value for name, value in fields.items() if name in cls.field_names()},
        )

    def sizes(self, name: str) -> tuple[Any, ...]:
        """The values of `name` ("kernel", "stride", ...) along the axes."""
        return reader(self.axes, name)(self)

    @functools.cached_property
    def out_sizes(self) -> tuple[Any, ...]:
        """Output size per axis."""
        names = ("in", "padding", "dilation", "kernel", "stride")
        return tuple(
            [
                floor_div(size + 2 * padding - dilation * (kernel - 1) - 1, stride) + 1
                for size, padding, dilation, kernel, stride in zip(*map(self.sizes, names), strict=True)
            ]
        )

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        """As `made`."""
        return self.made

    @property
    def made(self) -> tuple[Any, ...]:
        """[batch, out_channels, *out]."""
        return self.batch, self.out_channels, *self.out_sizes

    @property
    def positions(self) -> Any:
        """Output positions of one image."""
        return math.prod(self.out_sizes)

    @property
    def window(self) -> Any:
        """Kernel positions."""
        return math.prod(self.sizes("kernel"))

    @property
    def mac_positions(self) -> Any:
        """Positions at which every kernel weight is multiplied once."""
        return self.positions

    def macs(self) -> Any:
        """Multiply-adds; symmetric in the channels, so that it holds for transposed convolutions, too."""
        every = self.batch * self.mac_positions * self.window * self.in_channels * self.out_channels
        return floor_div(every, self.groups)

    def flops(self) -> int:
        """2 FLOP per multiply-add; padding counts as computed, the bias does not count, as is the convention."""
        return 2 * self.macs()

    def possible(self) -> Any:
        """As `rule` says."""
        steps = functools.reduce(np.minimum, (*self.sizes("stride"), *self.sizes("dilation")))
        return (steps >= 1) & (self.in_channels % self.groups == 0) & (self.out_channels % self.groups == 0)

    def parameters(self) -> int:
        """Weights and bias."""
        weights = floor_div(self.window * self.in_channels * self.out_channels, self.groups)
        return weights + self.made[1] * self.bias

    def bytes(self) -> Bytes:
        """Input, weights and output, once each."""
        size = self.itemsize
        return Bytes(
            size * self.batch * self.in_channels * math.prod(self.sizes("in")),
            size * self.parameters(),
            size * self.batch * self.out_channels * self.positions,
        )

    def build(self, device: torch.device) -> Call:
        """The functional call."""
        x = image(self, self.batch, self.in_channels, self.sizes("in"), device)
        bias = self.tensor(self.out_channels, device=device) if self.bias else None
        given: dict[str, Any] = {
            "input": x,
            "weight": self.weight(device),
            "bias": bias,
            "groups": self.groups,
        }
        for name in set(self.argument_order) - set(given):
            given[name] = self.sizes(name)
        return Call(type(self).function, tuple(given[name] for name in self.argument_order), warm=(x,))

    def weight(self, device: torch.device) -> Tensor:
        """[out_channels, in_channels / groups, *kernel]."""
        return self.tensor(
            self.out_channels, self.in_channels // self.groups, *self.sizes("kernel"), device=device
        )

    def group(self) -> Any:
        """Dense, grouped and depthwise convolutions run different code."""
        groups, channels = np.asarray(self.groups), np.asarray(self.in_channels)
        depthwise = (groups == channels) & (groups == np.asarray(self.out_channels)) & (groups > 1)
        return np.where(groups == 1, "dense", np.where(depthwise, "depthwise", "grouped"))

    def keeps(self) -> str:
        """The factors."""
        return KEEPS_INPUTS

    def gradients(self) -> Mapping[str, tuple[Layer, ...]]:
        """Two more convolutions, for the gradients of input and weights, each with as many multiply-adds; the bias's sums."""
        again = replace(self, phase="forward", bias=False)
        elements, channels = math.prod(self.made), self.made[1]
        summed = Reduction(dtype=self.dtype, function="sum", elements=elements, outputs=channels, last=False)
        return {"input": (again,), "weight": (again,), "bias": (summed,) if self.bias else ()}

    @classmethod
    def operands_of(
        cls, operator: str, output: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The first three arguments of every convolution."""
        return {**dict(zip(ARGUMENTS[:3], args, strict=False)), **kwargs}

    @functools.cached_property
    def native(self) -> Any:
        """Whether a CPU takes it without oneDNN."""
        return small_for_onednn(
            self.batch, self.in_channels, self.sizes("in"), self.sizes("kernel"), self.groups
        )

    @functools.cached_property
    def block(self) -> Any:
        """Channels of a group that oneDNN's loop takes at once: the largest of BLOCKS that divides those of input and output.

        Depthwise, it takes as many groups at once. 0 where there is one group, or where none divides them and each group's
        input is unfolded for a product of its own (oneDNN: src/cpu/x64/jit_avx512_common_conv_kernel.cpp, init_conf;
        src/cpu/gemm_convolution.cpp).
        """
        inner, outer = floor_div(self.in_channels, self.groups), floor_div(self.out_channels, self.groups)
        block = np.where((inner == 1) & (outer == 1), max(BLOCKS), 0)
        for size in BLOCKS:
            block = np.where((inner % size == 0) & (outer % size == 0), size, block)
        near = (self.sizes("padding")[-1] <= FAR) | np.asarray(self.channels_last, dtype=bool)
        return np.where(self.groups > 1, block * near, 0)

    def terms(self, hardware: Hardware) -> dict[str, Any]:
        """Multiply-adds by kernel, stride and map size; padded to registers; what im2col and repacking move."""
        macs, moved = self.macs(), self.bytes()
        inner, outer = self.in_channels / self.groups, self.out_channels / self.groups
        window, positions, width = self.window, self.positions, self.out_sizes[-1]
        strides = math.prod(self.sizes("stride"))
        rows = self.batch * self.groups * positions * window
        unfolded = self.batch * positions * self.in_channels * window * self.itemsize
        block, native = self.block, self.native
        by_group = (self.groups > 1) & (block == 0)  # a product of each
        macs_by_group = self.batch * self.groups * ceil_to(positions, 48) * ceil_to(outer, 8) * inner * window
        moves = (window > 1) | (strides > 1)  # else the input lies as if it were unfolded
        return {
            "macs": macs,
            "macs_channels_16": rows * ceil_to(inner, 16) * ceil_to(outer, 16),
            "macs_channels_64": rows * ceil_to(inner, 64) * ceil_to(outer, 64),
            "macs_rows_28": macs / width * ceil_to(width, 28),
            "macs_rows_14": macs / width * ceil_to(width, 14),
            "macs_1x1": macs * (window == 1),
            "macs_3x3": macs * (window == 9),
            "macs_large": macs * (window >= 25),
            "macs_small_map": macs * (positions <= 64),
            "macs_few_inputs": macs * (inner <= 4),
            "macs_strided": macs * (strides > 1),
            "macs_channels_last": macs * self.channels_last,
            "weights": moved.weights,
            "weights_1x1": moved.weights * (window == 1),
            "weights_3x3": moved.weights * (window == 9),
            "batch_weights": self.batch * moved.weights,
            "inputs": moved.input,
            "inputs_strided": moved.input * (strides > 1),
            "unfolded": unfolded,
            "macs_native": macs * native,
            "unfolded_native": unfolded * (native & moves),
            "macs_blocked": macs * (block > 0) * max(BLOCKS) / np.maximum(block, 1),
            "blocked": (moved.input + moved.output) * (block > 0),
            "macs_product": macs_by_group * by_group,
            "unfolded_product": unfolded * (by_group & moves),
            "waves": ceil_to(self.batch * self.groups, hardware.cores) / self.groups * macs / self.batch,
            **memory_terms(self, hardware),
        }

    def features(self) -> dict[str, Any]:
        """How channels and maps fit the vectors, and which kernel it is."""
        return {**self._shape_features(), "native": 1.0 * self.native, "block": self.block}

    def kernel_features(self, hardware: Hardware) -> dict[str, Any]:
        """The same but for what a CPU's libraries make of it."""
        return self._shape_features()

    def _shape_features(self) -> dict[str, Any]:
        return {
            "macs": np.log2(self.macs()),
            "window": np.log2(self.window),
            "groups": np.log2(self.groups),
            "in_mod_16": self.in_channels / self.groups % 16,
            "out_mod_16": self.out_channels / self.groups % 16,
            "width": self.out_sizes[-1],
            "stride": math.prod(self.sizes("stride")),
            "bias": self.bias,
            "dilation": math.prod(self.sizes("dilation")),
            "channels_last": self.channels_last,
            "padding": math.prod(self.sizes("padding")) > 0,
        }

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Dense, grouped and depthwise; 1x1 to 11x11; strides 1, 2 and patches; now and then an image's 3 channels."""
        style = draw.choice(
            ("dense", "dense", "dense", "depthwise", "depthwise", "grouped", "grouped", "image")
        )
        kernel = draw.choice((1, 1, 1, 3, 3, 3, 3, 5, 7, 11))
        stride = draw.choice((1, 1, 1, 2)) if style != "image" else draw.choice((1, 2, 2, 4))
        inner, outer, groups = draw.size(8, 1024), draw.size(8, 1024), 1
        if style == "image":
            inner, kernel = draw.choice((1, 3, 3, 3, 4)), draw.choice((3, 3, 5, 7, 11, 4, 8, 16))
            stride = kernel if kernel in (4, 8, 16) else stride
        elif style == "depthwise":
            kernel = draw.choice((3, 3, 3, 5, 5, 7, 9))
            outer = groups = inner
        elif style == "grouped":
            way = draw.choice(("number", "number", "width", "width", "wide"))
            if way == "number":
                groups = draw.choice((2, 3, 4, 8, 16, 32, 64))
                sides = [draw.size(2, max(1024 // groups, 8)) for _ in range(2)]
            elif way == "width":
                sides = [draw.choice((4, 8, 8, 16, 24, 32, 64))] * 2
                groups = max(inner // sides[0], 2)
            else:  # a few wide groups, mostly of single pixels: projections of transformers that are squeezed so
                groups, sides = draw.choice((2, 4, 4, 8)), [draw.size(64, 1024) for _ in range(2)]
                kernel = draw.choice((1, 1, 3))
            inner, outer = groups * sides[0], groups * sides[1]
            outer = inner if draw.chance(0.6) else outer
        tokens = style == "dense" and len(cls.axes) == 1 and draw.chance(0.4)
        if tokens:  # projections of transformers, written as convolutions
            kernel, stride, inner, outer = 1, 1, draw.size(64, 4096), draw.size(64, 4096)
        dilation = 2 if kernel == 3 and style == "dense" and draw.chance(0.08) else 1
        smallest = max(dilation * (kernel - 1) + 1, 4) if style != "image" else max(32, kernel)
        sizes = [
            draw.octaves(
                smallest, max(cls.largest_input if style == "image" else cls.largest_input // 2, smallest)
            )
        ]
        sizes += [
            sizes[0] if draw.chance(0.85) else draw.octaves(smallest, 2 * sizes[0]) for _ in cls.axes[1:]
        ]
        if tokens:
            sizes = [draw.octaves(8, 1024)]
        elif kernel == 1 and style == "dense" and draw.chance(0.25):
            sizes, stride = [1] * len(cls.axes), 1  # of a pooled map, as squeeze-and-excitation has them
        batch = draw.choice((1, 1, 1, 2, 4, 8, draw.octaves(1, 32)))
        if (
            style == "dense" and not tokens and len(cls.axes) < 3 and draw.chance(0.15)
        ):  # words or patches, each a sample
            batch, sizes = draw.octaves(32, 2048), [draw.octaves(smallest, max(32, smallest))] * len(cls.axes)
            inner, outer = draw.size(8, 128), draw.size(8, 128)
        padding = 0 if stride == kernel or draw.chance(0.1) else dilation * (kernel - 1) // 2
        values = {
            "kernel": kernel,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "output_padding": 0,
        }
        fields: dict[str, Any] = {
            f"{name}_{axis}": value for name, value in values.items() for axis in cls.axes
        }
        fields |= {f"in_{axis}": size for axis, size in zip(cls.axes, sizes, strict=True)}
        return cls(
            batch=batch,
            in_channels=inner,
            out_channels=outer,
            groups=groups,
            bias=draw.chance(0.4),
            channels_last=inner > 1
            and draw.chance(0.06 if len(cls.axes) == 2 else 0.3)
            and math.prod(sizes) > 1,
            **{name: value for name, value in fields.items() if name in cls.field_names()},
        )


def small_for_onednn(
    batch: Any, channels: Any, sizes: Sequence[Any], kernel: Sequence[Any], groups: Any
) -> Any:
    """Whether PyTorch unfolds an input [batch, channels, *sizes] for one product on a CPU, rather than ask oneDNN.

    As its `use_mkldnn` has it (aten/src/ATen/native/Convolution.cpp): of a volume it looks at the first two sizes and the
    last two of the kernel, and what has one axis is an image of height 1.
    """
    narrow = np.minimum(*kernel[-2:]) <= NARROW if len(kernel) > 1 else True
    return (groups == 1) & (batch == 1) & (channels * math.prod(sizes[:2]) <= SMALL) & narrow


@functools.cache
def along(axes: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The fields that hold `name` along the axes."""
    return tuple(f"{name}_{axis}" for axis in axes)


@functools.cache
def reader(axes: tuple[str, ...], name: str) -> Callable[[object], tuple[Any, ...]]:
    """What reads these fields of a layer: a search asks for them millions of times."""
    first, *others = along(axes, name)
    return attrgetter(first, *others) if others else lambda layer: (getattr(layer, first),)


def is_channels_last(x: Tensor) -> bool:
    """Whether x [batch, channels, *sizes] lies in memory with its channels side by side."""
    return (
        x.shape[1] > 1 and x.stride(1) == 1 and x.numel() > x.shape[0] * x.shape[1] and not x.is_contiguous()
    )


def image(layer: Any, batch: int, channels: int, sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """A random x [batch, channels, *sizes], in the memory format of `layer`."""
    if layer.channels_last:
        return torch.movedim(layer.tensor(batch, *sizes, channels, device=device), -1, 1)
    return torch.as_tensor(layer.tensor(batch, channels, *sizes, device=device))
