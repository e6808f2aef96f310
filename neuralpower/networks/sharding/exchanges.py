"""What the ranks of a group exchange, forward and backward, as operators; the rank that is followed.

A tensor between two modules is whole on every rank, split along one axis, or partial: then the sum over all
ranks is the tensor. Each change has the conjugate change of the gradient (Shoeybi et al., "Megatron-LM",
2019, figure 3; Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022,
figure 5):

    from        to          forward            backward
    whole       whole       nothing            all-reduce, where each rank makes a part of the gradient
    whole       split       a slice            all-gather
    split       whole       all-gather         reduce-scatter of parts, and an all-gather of what is not kept;
                                               else a slice
    partial     whole       all-reduce         nothing
    partial     split       reduce-scatter     all-gather
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from neuralpower.devices.cluster import Layout

Placement = str | int
"""WHOLE, PARTIAL, BETWEEN, or the axis that is split."""
WHOLE, PARTIAL = "whole", "partial"
BETWEEN = "between"  # as tensors lie between pairs of products: whole, or split along the tokens


def turned(x: Tensor, before: Placement, after: Placement, group: Group, *, partial: bool = False) -> Tensor:
    """A tensor in another placement; `partial`: each rank makes a part of the gradient of a whole tensor."""
    if isinstance(after, int):
        if before == WHOLE:
            return sliced(x, group, after)
        if before == PARTIAL:
            return reduce_scattered(x, group, after)
        if before == after or before % x.dim() == after % x.dim():
            return x
        whole = gathered(x, group, int(before))
        return sliced(whole, group, after)
    if isinstance(before, int):
        return gathered(x, group, before, partial=partial)
    if before == PARTIAL:
        return reduced(x, group) if after == WHOLE else x
    return copied(x, group) if partial else x


NCCL, ENGINE = "nccl", "engine"  # libraries of `layers/collective.py`


@dataclass(frozen=True)
class Group:
    """Ranks that exchange data."""

    ranks: int
    nodes: int = 1  # that they are spread over
    library: str = NCCL  # that moves data
    sums: str = NCCL  # that makes sums of all ranks

    def run(self, function: str, x: Tensor, dim: int = 0) -> Tensor:
        """One collective: what the rank has after it."""
        operator = getattr(torch.ops.neuralpower, function)
        library = self.sums if function == "all_reduce" else self.library
        found: Tensor = operator(x, self.ranks, self.nodes, library, dim)
        return found

    def part(self, x: Tensor, dim: int) -> Tensor:
        return x.narrow(dim, 0, share(x.shape[dim], self.ranks))


def share(size: int, ranks: int) -> int:
    """The largest part of a size that is split over ranks."""
    return -(-size // ranks)


class _Copy(Function):
    """Whole, read by modules of which each rank has a part: gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.group.run("all_reduce", gradient.contiguous()), None


class _Reduce(Function):
    """Partial to whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return group.run("all_reduce", x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class _Gather(Function):
    """Split to whole; `partial`: whether each rank makes a part of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int, partial: bool) -> Tensor:
        ctx.group, ctx.dim, ctx.partial = group, dim, partial
        if partial:
            ctx.save_for_backward(x)
        return group.run("all_gather", x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.partial:
            ctx.group.run("all_gather", ctx.saved_tensors[0], ctx.dim)
            back = ctx.group.run("reduce_scatter", gradient.contiguous(), ctx.dim)
        else:
            back = ctx.group.part(gradient, ctx.dim)
        return back, None, None, None


class _Slice(Function):
    """Whole to split."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim, ctx.size = group, dim, x.shape[dim]
        return group.part(x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        back = ctx.group.run("all_gather", gradient.contiguous(), ctx.dim)
        return back.narrow(ctx.dim, 0, ctx.size), None, None


class _ReduceScatter(Function):
    """Partial to split."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return group.run("reduce_scatter", x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.group.run("all_gather", gradient.contiguous(), ctx.dim), None, None


class _AllToAll(Function):
    """Each rank sends a part of its rows to each; the gradient goes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.run("all_to_all", x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.group.run("all_to_all", gradient.contiguous()), None


class _Beside(Function):
    """Nothing happens to x; in the backward pass `numbers` of a gradient are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, numbers: int) -> Tensor:
        ctx.group, ctx.numbers = group, numbers
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.group.run("all_reduce", gradient.new_empty((ctx.numbers,)))
        return gradient, None, None


def copied(x: Tensor, group: Group) -> Tensor:
    """`x`, whose gradient is summed over the ranks."""
    return _called(_Copy, x, group)


def reduced(x: Tensor, group: Group) -> Tensor:
    return _called(_Reduce, x, group)


def gathered(x: Tensor, group: Group, dim: int, *, partial: bool = False) -> Tensor:
    """All ranks' parts along an axis; `partial`: whether each rank makes a part of the gradient."""
    return _called(_Gather, x, group, _axis(x, dim), partial)


def sliced(x: Tensor, group: Group, dim: int) -> Tensor:
    """The rank's part along an axis."""
    return _called(_Slice, x, group, _axis(x, dim))


def reduce_scattered(x: Tensor, group: Group, dim: int) -> Tensor:
    """The rank's part of the sum over the ranks."""
    return _called(_ReduceScatter, x, group, _axis(x, dim))


def exchanged(x: Tensor, group: Group) -> Tensor:
    """Rows that come from all ranks in exchange for the rank's own."""
    return _called(_AllToAll, x, group)


def summed_beside(x: Tensor, group: Group, numbers: int) -> Tensor:
    """`x`; its backward pass also sums a gradient of `numbers` elements over the ranks."""
    return _called(_Beside, x, group, numbers)


def _called(kind: Any, x: Tensor, *settings: Any) -> Tensor:
    found: Tensor = kind.apply(x, *settings)
    return found


def _axis(x: Tensor, dim: int) -> int:
    return dim % x.dim()


# The rank that is followed: its groups, and what hooks of its modules share.

SEQUENCE = -2  # the axis of tokens, in [batch, tokens, width] and in [tokens, width]


@dataclass
class Rank:
    """One rank of a layout. The one with the largest part of uneven splits is followed."""

    layout: Layout
    tensor: Group
    expert: Group
    config: Any = None  # of the network, where it has one
    sequence: bool = False  # whether tokens are split now, between products: a step of one token is not
    _last: tuple[Any, Any, Tensor] | None = field(default=None, repr=False)

    @property
    def between(self) -> Placement:
        """The placement of tensors between pairs of products."""
        return SEQUENCE if self.sequence else WHOLE

    def laid(self, placement: Placement) -> Placement:
        """The placement that a style names."""
        return self.between if placement == BETWEEN else placement

    def configured(self, name: str) -> Any:
        """A number of the configuration, or of that of its text model."""
        text = getattr(self.config, "text_config", None)
        return getattr(self.config, name, getattr(text, name, None))

    def shared(self, x: Tensor, before: Placement, after: Placement, partial: bool) -> Tensor:
        """`x` in another placement; modules that read the same tensor share one exchange, as q, k, v do."""
        if before == after and not partial:
            return x
        how = before, after, partial
        if self._last is not None and self._last[0]() is x and self._last[1] == how:
            return self._last[2]
        found = turned(x, before, after, self.tensor, partial=partial)
        self._last = (weakref.ref(x, self._forget), how, found)
        return found

    def slice_of(self, x: Tensor) -> Tensor | None:
        """What the rank has of a tensor that was gathered last; None of other tensors."""
        if self._last is None or self._last[1][0] != SEQUENCE or self._last[2].numel() != x.numel():
            return None
        same = self._last[2].untyped_storage()._cdata == x.untyped_storage()._cdata
        found: Tensor | None = self._last[0]() if same else None
        return found

    def _forget(self, dead: Any) -> None:
        if self._last is not None and self._last[0] is dead:
            self._last = None

    def ends(self) -> None:
        """Keep nothing after a pass."""
        self._last = None

    def whole(self, x: Tensor, *, partial: bool) -> Tensor:
        """A tensor between products, made whole; `partial`: each rank makes a part of its gradient."""
        return self.shared(x, self.between, WHOLE, partial)

    def from_partial(self, x: Tensor) -> Tensor:
        """A partial tensor as it is between products."""
        return turned(x, PARTIAL, self.between, self.tensor)

    @staticmethod
    def first(args: Any, kwargs: Any, change: Callable[[Tensor], Tensor], *, floating: bool = True) -> Any:
        """The arguments of a call with the first tensor changed."""
        for place, value in enumerate(args):
            if isinstance(value, Tensor) and value.is_floating_point() == floating:
                return (*args[:place], change(value), *args[place + 1 :]), kwargs
        for name, value in kwargs.items():
            if isinstance(value, Tensor) and value.is_floating_point() == floating:
                return args, {**kwargs, name: change(value)}
        return args, kwargs

    @staticmethod
    def outputs(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
        """The output of a call with its first tensor changed."""
        if isinstance(output, Tensor):
            return change(output)
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            return (change(output[0]), *output[1:])
        return output
