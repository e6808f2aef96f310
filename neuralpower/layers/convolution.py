"""Convolutions over one axis, an image or a volume; in transposed ones each input adds a scaled kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

from neuralpower.errors import Unmodelled
from neuralpower.late import F, Tensor, torch
from neuralpower.layers import (
    BY_OPERATOR,
    Bytes,
    Call,
    Described,
    Draw,
    Hardware,
    KindLaw,
    Layer,
    Training,
    View,
    Views,
    layer_kind,
)
from neuralpower.layers.columns import same_rank
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.tensors import check_output, is_channels_last
from neuralpower.layers.terms import ceil_to, floor_div
from neuralpower.layers.training import Args, Named, keeps_inputs
from neuralpower.layers.traits import Traits, by_code, of_product, only, steps
from neuralpower.layers.views import bytes_terms
from neuralpower.layers.windowed import Windowed, image

ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = (*ARGUMENTS[:5], "output_padding", "groups", "dilation")
GENERAL = (*ARGUMENTS[:6], "transposed", "output_padding", "groups")  # of `aten.convolution`
SMALL, NARROW = 20_480, 3  # numbers of a sample, and side of a kernel, up to which a CPU does without oneDNN
BLOCKS = (4, 8, 16)  # channels that oneDNN's vectors take at once
FEW_INPUTS = 4  # channels of an image: libraries have kernels of their own for so few
DEPTHWISE = (2, 3, 5, 6)  # exponents of steps of a depthwise window: 4 to 64 places
FAR = 6  # padding beyond which oneDNN has no loop over such blocks


def _group(layer: Convolution) -> Any:
    groups, channels = np.asarray(layer.groups), np.asarray(layer.in_channels)
    depthwise = (groups == channels) & (groups == np.asarray(layer.out_channels)) & (groups > 1)
    return np.where(groups == 1, "dense", np.where(depthwise, "depthwise", "grouped"))


def _gradients(layer: Convolution) -> Mapping[str, tuple[Layer, ...]]:
    """Two more convolutions with as many multiply-adds, for input and weights; a sum for the bias."""
    again = replace(layer, phase="forward", bias=False)
    elements, channels = math.prod(layer.made), layer.made[1]
    summed = Reduction(dtype=layer.dtype, function="sum", elements=elements, outputs=channels, last=False)
    return {"input": (again,), "weight": (again,), "bias": (summed,) if layer.bias else ()}


# Backward passes of 360 depthwise convolutions and 1,900 dense ones on two EPYCs over two forward passes, by
# places of the window: beyond 3 x 3 no vector instruction makes the gradients of depthwise ones.
WINDOWS, DEPTHWISE_BACK, DENSE_BACK = (9, 25, 49), (1.05, 4.1, 7.5), 1.15


def _gradient_on_cpu(layer: Convolution) -> Any:
    group, windows = _group(layer), np.interp(layer.window, WINDOWS, DEPTHWISE_BACK)
    return np.where(group == "depthwise", windows, np.where(group == "dense", DENSE_BACK, 1.0))


def _operands_of(operator: str, output: Any, args: Args, kwargs: Named) -> Named:
    """The first three arguments of every convolution."""
    return {**dict(zip(ARGUMENTS[:3], args, strict=False)), **kwargs}


def _terms(layer: Convolution, hardware: Hardware) -> Described:
    """Multiply-adds by kernel, stride and map, padded to registers; what im2col and repacking move."""
    macs, moved = layer.macs(), layer.bytes()
    inner, outer = layer.in_channels / layer.groups, layer.out_channels / layer.groups
    window, positions, width = layer.window, layer.positions, layer.out_sizes[-1]
    strides = math.prod(layer.sizes("stride"))
    rows = layer.batch * layer.groups * positions * window
    unfolded = layer.batch * positions * layer.in_channels * window * layer.itemsize
    block, native = layer.block, layer.native
    by_group = (layer.groups > 1) & (block == 0)  # a product of each
    macs_by_group = layer.batch * layer.groups * ceil_to(positions, 48) * ceil_to(outer, 8) * inner * window
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
        "macs_channels_last": macs * layer.channels_last,
        "weights": moved.weights,
        "weights_1x1": moved.weights * (window == 1),
        "weights_3x3": moved.weights * (window == 9),
        "batch_weights": layer.batch * moved.weights,
        "inputs": moved.input,
        "inputs_strided": moved.input * (strides > 1),
        "unfolded": unfolded,
        "macs_native": macs * native,
        "unfolded_native": unfolded * (native & moves),
        "macs_blocked": macs * (block > 0) * max(BLOCKS) / np.maximum(block, 1),
        "blocked": (moved.input + moved.output) * (block > 0),
        "macs_product": macs_by_group * by_group,
        "unfolded_product": unfolded * (by_group & moves),
        "waves": ceil_to(layer.batch * layer.groups, hardware.cores) / layer.groups * macs / layer.batch,
        **bytes_terms(layer, hardware),
    }


def _features(layer: Convolution, hardware: Hardware) -> Described:
    """How channels and maps fit the vectors, and which kernel it is."""
    return {**_shape_features(layer, hardware), "native": 1.0 * layer.native, "block": layer.block}


def _shape_features(layer: Convolution, _: Hardware) -> Described:
    return {
        "macs": np.log2(layer.macs()),
        "window": np.log2(layer.window),
        "groups": np.log2(layer.groups),
        "in_mod_16": layer.in_channels / layer.groups % 16,
        "out_mod_16": layer.out_channels / layer.groups % 16,
        "width": layer.out_sizes[-1],
        "stride": math.prod(layer.sizes("stride")),
        "bias": layer.bias,
        "dilation": math.prod(layer.sizes("dilation")),
        "channels_last": layer.channels_last,
        "padding": math.prod(layer.sizes("padding")) > 0,
    }


def _traits(layer: Convolution) -> Traits:
    """Window, memory format and stride; channels, which are sides of a product unless it is depthwise."""
    inner, outer = layer.in_channels / layer.groups, layer.out_channels / layer.groups
    window, last = np.asarray(layer.window), np.asarray(layer.channels_last, dtype=bool)
    depthwise, grouped = _group(layer) == "depthwise", _group(layer) == "grouped"
    dense = ~depthwise & ~grouped
    stem = dense & (inner <= FEW_INPUTS)
    sorts = {
        "depthwise": depthwise,
        "grouped": grouped,
        "few inputs": stem,
        "1x1": dense & ~stem & (window == 1),
        "window": dense & ~stem & (window > 1),
    }
    layouts = {" channels first": ~last, " channels last": last}
    named = {sort + name: 1.0 * (is_ & lies) for sort, is_ in sorts.items() for name, lies in layouts.items()}
    strided = {"strided": 1.0 * (math.prod(layer.sizes("stride")) > 1)}
    axes = {f"{len(layer.axes)} axes": np.full(np.shape(window), 1.0 * (len(layer.axes) != 2))}
    axes["transposed"] = np.full(np.shape(window), 1.0 * ("output_padding" in layer.sized))
    product = of_product(
        layer.itemsize, layer.groups, layer.batch * layer.mac_positions, outer, inner * window
    )
    of_dense, of_groups = only(dense, product), only(grouped, product)
    of_groups = {f"grouped {name}": share for name, share in of_groups.items()}
    of_window = only(depthwise, steps("depthwise window", window, DEPTHWISE))
    shared = named | axes
    return Traits(shared | strided | of_dense | of_groups | of_window, shared | strided, depthwise)


@dataclass(frozen=True, kw_only=True)
class Convolution(Windowed):
    """A convolution over `axes`; x [batch, in_channels, *in], y [batch, out_channels, *out]."""

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    bias: bool
    channels_last: bool = False  # memory format that it runs in: one operand in it turns the other

    sized: ClassVar[tuple[str, ...]] = ("in", "kernel", "stride", "padding", "dilation")
    function: ClassVar[str]  # of torch.nn.functional
    argument_order: ClassVar[tuple[str, ...]] = ARGUMENTS
    largest_input: ClassVar[int] = 512

    dimensions = ("batch", "positions", "in_channels", "out_channels")
    group_names = ("dense", "depthwise", "grouped")
    multiplies = True
    savings = 4.5  # Winograd's F(4x4, 3x3)
    short_s = 1.5e-4  # a library's code of its own for each shape, weights to be reordered: cold for longer
    rule = "groups must divide the channels of both sides, strides and dilations be 1 or more"
    views = Views(
        cpu=View(group=_group, terms=_terms, features=_features), kernels=View(features=_shape_features)
    )
    # libraries run all of them as products of unfolded inputs
    law = KindLaw(
        alike="convolution",
        traits=_traits,
        on_cpu=by_code(12.0, {"grouped": 60.0}),
        gradient_on_cpu=_gradient_on_cpu,
    )
    training = Training(gradients=_gradients, operands_of=_operands_of, keeps=keeps_inputs)

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
        return cls(
            batch=x.shape[0],
            in_channels=x.shape[1],
            out_channels=output.shape[1],
            groups=int(given.get("groups", 1)),
            bias=given.get("bias") is not None,
            channels_last=any(map(is_channels_last, (x, weight) if rank > 1 else (x,))),
            **cls.fields_of(sizes),
        )

    def output_shape(self, operator: str) -> tuple[int, ...] | None:
        return self.made

    @property
    def made(self) -> tuple[Any, ...]:
        return self.batch, self.out_channels, *self.out_sizes

    @property
    def mac_positions(self) -> Any:
        """Positions at which every kernel weight is multiplied once."""
        return self.positions

    def macs(self) -> Any:
        """Multiply-adds; symmetric in the channels, so that it holds for transposed convolutions, too."""
        every = self.batch * self.mac_positions * self.window * self.in_channels * self.out_channels
        return floor_div(every, self.groups)

    def flops(self) -> int:
        """2 FLOP per multiply-add; by convention padding counts as computed, the bias does not count."""
        return 2 * self.macs()

    @functools.cached_property
    def native(self) -> Any:
        """Whether a CPU takes it without oneDNN."""
        kernel = self.sizes("kernel")
        return small_for_onednn(self.batch, self.in_channels, self.sizes("in"), kernel, self.groups)

    @functools.cached_property
    def block(self) -> Any:
        """Channels of a group that oneDNN's loop takes at once: the largest of BLOCKS that divides both.

        A depthwise loop takes as many groups at once. 0 for one group, and where no block divides the
        channels: each group's input is then unfolded for a product of its own. Source: oneDNN,
        src/cpu/x64/jit_avx512_common_conv_kernel.cpp (init_conf) and src/cpu/gemm_convolution.cpp.
        """
        inner, outer = floor_div(self.in_channels, self.groups), floor_div(self.out_channels, self.groups)
        block = np.where((inner == 1) & (outer == 1), max(BLOCKS), 0)
        for size in BLOCKS:
            block = np.where((inner % size == 0) & (outer % size == 0), size, block)
        near = (self.sizes("padding")[-1] <= FAR) | np.asarray(self.channels_last, dtype=bool)
        return np.where(self.groups > 1, block * near, 0)

    def possible(self) -> Any:
        steps = functools.reduce(np.minimum, (*self.sizes("stride"), *self.sizes("dilation")))
        return (steps >= 1) & (self.in_channels % self.groups == 0) & (self.out_channels % self.groups == 0)

    def parameters(self) -> int:
        weights = floor_div(self.window * self.in_channels * self.out_channels, self.groups)
        return weights + self.made[1] * self.bias

    def bytes(self) -> Bytes:
        size = self.itemsize
        return Bytes(
            size * self.batch * self.in_channels * math.prod(self.sizes("in")),
            size * self.parameters(),
            size * self.batch * self.out_channels * self.positions,
        )

    def build(self, device: torch.device) -> Call:
        x = image(self, self.batch, self.in_channels, self.sizes("in"), device)
        bias = self.tensor(self.out_channels, device=device) if self.bias else None
        given: dict[str, Any] = {"input": x, "weight": self.weight(device), "bias": bias}
        given["groups"] = self.groups
        given |= {name: self.sizes(name) for name in self.argument_order if name not in given}
        return Call(getattr(F, self.function), tuple(given[name] for name in self.argument_order), warm=(x,))

    def weight(self, device: torch.device) -> Tensor:
        """[out_channels, in_channels / groups, *kernel]."""
        inner = self.in_channels // self.groups
        return self.tensor(self.out_channels, inner, *self.sizes("kernel"), device=device)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Dense, grouped and depthwise; 1x1 to 11x11; strides 1, 2 and patches; some over an image."""
        style = draw.choice("dense dense dense depthwise depthwise grouped grouped image".split())
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
            groups, inner, outer, kernel = _grouped(draw, inner, kernel)
        tokens = style == "dense" and len(cls.axes) == 1 and draw.chance(0.4)
        if tokens:  # projections of transformers, written as convolutions
            kernel, stride, inner, outer = 1, 1, draw.size(64, 4096), draw.size(64, 4096)
        dilation = 2 if kernel == 3 and style == "dense" and draw.chance(0.08) else 1
        smallest = max(dilation * (kernel - 1) + 1, 4) if style != "image" else max(32, kernel)
        largest = cls.largest_input if style == "image" else cls.largest_input // 2
        sizes = [draw.octaves(smallest, max(largest, smallest))]
        sizes += [
            sizes[0] if draw.chance(0.85) else draw.octaves(smallest, 2 * sizes[0]) for _ in cls.axes[1:]
        ]
        if tokens:
            sizes = [draw.octaves(8, 1024)]
        elif kernel == 1 and style == "dense" and draw.chance(0.25):
            sizes, stride = [1] * len(cls.axes), 1  # of a pooled map, as squeeze-and-excitation has them
        batch = draw.choice((1, 1, 1, 2, 4, 8, draw.octaves(1, 32)))
        if style == "dense" and not tokens and len(cls.axes) < 3 and draw.chance(0.15):
            # words or patches, each a sample
            batch, sizes = draw.octaves(32, 2048), [draw.octaves(smallest, max(32, smallest))] * len(cls.axes)
            inner, outer = draw.size(8, 128), draw.size(8, 128)
        padding = 0 if stride == kernel or draw.chance(0.1) else dilation * (kernel - 1) // 2
        alike = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
        bias, last = draw.chance(0.4), inner > 1 and draw.chance(0.06 if len(cls.axes) == 2 else 0.3)
        return cls(
            batch=batch,
            in_channels=inner,
            out_channels=outer,
            groups=groups,
            bias=bias,
            channels_last=last and math.prod(sizes) > 1,
            **cls.fields_of({"in": sizes, **{name: [n] * len(cls.axes) for name, n in alike.items()}}),
        )


def _grouped(draw: Draw, channels: int, kernel: int) -> tuple[int, int, int, int]:
    """(Groups, input channels, output channels, kernel) of a grouped convolution."""
    way = draw.choice(("number", "number", "width", "width", "wide"))
    if way == "number":
        groups = draw.choice((2, 3, 4, 8, 16, 32, 64))
        sides = [draw.size(2, max(1024 // groups, 8)) for _ in range(2)]
    elif way == "width":
        sides = [draw.choice((4, 8, 8, 16, 24, 32, 64))] * 2
        groups = max(channels // sides[0], 2)
    else:  # a few wide groups, mostly of single pixels, as in squeezed transformers' projections
        groups, sides = draw.choice((2, 4, 4, 8)), [draw.size(64, 1024) for _ in range(2)]
        kernel = draw.choice((1, 1, 3))
    inner, outer = groups * sides[0], groups * sides[1]
    return groups, inner, inner if draw.chance(0.6) else outer, kernel


@layer_kind("conv1d", "aten.conv1d", "aten.conv_tbc")
@dataclass(frozen=True, kw_only=True)
class Conv1d(Convolution):
    """One call of torch.nn.functional.conv1d, as in speech and text networks."""

    axes = ("length",)
    function = "conv1d"
    largest_input = 16384
    sweep_share = 1.5
    short_s = 5e-4

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.conv1d`, and `aten.conv_tbc(x [length, batch, in], W [kernel, in, out], b, padding)`."""
        if operator != "aten.conv_tbc":
            return super().from_call(operator, output, *args, **kwargs)
        x, weight, bias, *padding = args
        given = {"input": x.permute(1, 2, 0), "weight": weight.permute(2, 1, 0), "bias": bias}
        given["padding"] = padding[0] if padding else kwargs.get("pad", 0)
        return super().from_call("aten.conv1d", output.permute(1, 2, 0), **given)


@layer_kind("conv2d", "aten.conv2d", "aten.convolution")
@dataclass(frozen=True, kw_only=True)
class Conv2d(Convolution):
    axes = ("height", "width")
    sweep_share = 6.0
    function = "conv2d"
    largest_input = 320

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.conv2d`; `aten.convolution`, of which complex ones consist, is the kind of its axes."""
        if operator != "aten.convolution":
            return super().from_call(operator, output, *args, **kwargs)
        given: dict[str, Any] = {**dict(zip(GENERAL, args, strict=False)), **kwargs}
        name = f"aten.conv{'_transpose' if given['transposed'] else ''}{given['weight'].dim() - 2}d"
        return BY_OPERATOR[name].from_call(name, output, **given)  # type: ignore[return-value]  # of any axes

    def weight(self, device: torch.device) -> Tensor:
        """In the format of the input: else a GPU's library converts it in each call.

        A CPU's library reorders weights in any case.
        """
        last = self.channels_last and device.type != "cpu"
        form = torch.channels_last if last else torch.contiguous_format
        return super().weight(device).contiguous(memory_format=form)


@layer_kind("conv3d", "aten.conv3d", "aten.conv_transpose3d")
@dataclass(frozen=True, kw_only=True)
class Conv3d(Convolution):
    transposed: bool = False  # it leads back, from what the other fields call its output to their input

    axes = ("depth", "height", "width")
    later = frozenset({"transposed"})
    sweep_share = 2.0
    function = "conv3d"
    largest_input = 48

    @classmethod
    def from_call(cls, operator: str, output: Tensor, *args: Any, **kwargs: Any) -> Self:
        """`aten.conv3d`; `aten.conv_transpose3d` has the products of the convolution that leads back."""
        if operator != "aten.conv_transpose3d":
            return super().from_call(operator, output, *args, **kwargs)
        given: dict[str, Any] = {**dict(zip(TRANSPOSED, args, strict=False)), **kwargs}
        back = super().from_call("aten.conv3d", given["input"], **{**given, "input": output})
        check_output(back, "aten.conv3d", given["input"])
        return replace(back, transposed=True)

    @property
    def made(self) -> tuple[Any, ...]:
        """[batch, channels, depth, height, width] of the side that it leads to."""
        there, back = (self.out_channels, *self.out_sizes), (self.in_channels, *self.sizes("in"))
        return self.batch, *(a + self.transposed * (b - a) for a, b in zip(there, back, strict=True))

    def bytes(self) -> Bytes:
        read, weights, written = super().bytes()
        more = self.transposed * (written - read)
        return Bytes(read + more, weights, written - more)

    def build(self, device: torch.device) -> Call:
        """The functional call; a transposed one adds to its output what its stride leaves open."""
        if not self.transposed:
            return super().build(device)
        x = image(self, self.batch, self.out_channels, self.out_sizes, device)
        bias = self.tensor(self.in_channels, device=device) if self.bias else None
        names = ("in", "kernel", "stride", "padding", "dilation")
        extra = tuple(
            (size + 2 * padding - dilation * (kernel - 1) - 1) % stride
            for size, kernel, stride, padding, dilation in zip(*map(self.sizes, names), strict=True)
        )
        settings = (self.sizes("stride"), self.sizes("padding"), extra, self.groups, self.sizes("dilation"))
        return Call(F.conv_transpose3d, (x, self.weight(device), bias, *settings), warm=(x,))


@layer_kind("conv_transpose2d", "aten.conv_transpose2d", "aten.conv_transpose1d")
@dataclass(frozen=True, kw_only=True)
class ConvTranspose2d(Convolution):
    """One call of torch.nn.functional.conv_transpose2d; PyTorch runs those of one axis with height 1."""

    axes = ("height", "width")
    sized = ("in", "kernel", "stride", "padding", "output_padding", "dilation")
    output_padding_height = output_padding_width = 0
    sweep_share = 1.2
    law = replace(Convolution.law, on_cpu=lambda layer: 50.0)
    function = "conv_transpose2d"
    argument_order = TRANSPOSED

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        """`aten.conv_transposeNd(x, W, b, stride, padding, output_padding, groups, dilation)`."""
        if operator != "aten.conv_transpose1d":
            return super().from_call(operator, output, *args, **kwargs)
        given: dict[str, Any] = {**dict(zip(cls.argument_order, args, strict=False)), **kwargs}
        given |= {name: given[name].unsqueeze(-2) for name in ("input", "weight")}
        for name, of_height in (("stride", 1), ("dilation", 1), ("padding", 0), ("output_padding", 0)):
            given[name] = (of_height, *same_rank(name, given.get(name, of_height), 1))
        return super().from_call(operator, output.unsqueeze(-2), **given)

    @property
    def out_sizes(self) -> tuple[Any, ...]:
        """Output size per axis (torch.nn.ConvTranspose2d)."""
        axes = zip(*map(self.sizes, self.sized), strict=True)
        return tuple((n - 1) * step - 2 * p + d * (k - 1) + extra + 1 for n, k, step, p, extra, d in axes)

    @property
    def mac_positions(self) -> Any:
        """Input positions: each meets every weight."""
        return math.prod(self.sizes("in"))

    def weight(self, device: torch.device) -> Tensor:
        """[in_channels, out_channels / groups, *kernel]."""
        outer = self.out_channels // self.groups
        return self.tensor(self.in_channels, outer, *self.sizes("kernel"), device=device)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Upsampling by 2, 4 or 8 and trained smoothing, from small maps."""
        stride = draw.choice((1, 2, 2, 2, 4, 8))
        kernel = draw.choice((stride, 2 * stride, 3, 4, 5)) if stride <= 4 else stride
        kernel = max(kernel, stride)
        size = draw.octaves(4, 64)
        both = {"in": size, "kernel": kernel, "stride": stride, "padding": (kernel - stride) // 2}
        both |= {"output_padding": 0, "dilation": 1}
        return cls(
            batch=draw.choice((1, 1, 2, 4)),
            in_channels=draw.size(8, 512),
            out_channels=draw.size(1, 512),
            groups=1,
            bias=draw.chance(0.6),
            **cls.fields_of({name: (value, value) for name, value in both.items()}),
        )


def small_for_onednn(batch: Any, channels: Any, sizes: Args, kernel: Args, groups: Any) -> Any:
    """Whether PyTorch unfolds an input [batch, channels, *sizes] for one product on a CPU, without oneDNN.

    Source: `use_mkldnn` (aten/src/ATen/native/Convolution.cpp). It looks at a volume's first two sizes and
    its kernel's last two, and takes what has one axis for an image of height 1.
    """
    narrow = np.minimum(*kernel[-2:]) <= NARROW if len(kernel) > 1 else True
    return (groups == 1) & (batch == 1) & (channels * math.prod(sizes[:2]) <= SMALL) & narrow
