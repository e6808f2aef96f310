"""Which calls of a forward pass a backward pass goes through, and what it adds to theirs.

A gradient is asked for what depends on a trainable parameter, or on an input that requires one. Followed while the forward
pass runs, tensor by tensor:

    differentiable   a call with such an input, whose output the loss depends on: its backward pass runs
    share            of that backward pass, where not all of its operands ask for a gradient: images do not, nor do masks
    additions        a tensor that is used n times gathers n gradients, which takes n - 1 additions
    slices           the gradient of a part is one of the whole, zero elsewhere; parts of a split are joined; what was
                     expanded is summed
    views            a tensor and its views ask together, once one of them was written what asks: a scan's steps into its result
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.dtypes import FLOATING
from neuralpower.layers import Layer
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.movement import Movement
from neuralpower.layers.reduction import Reduction
from neuralpower.repeats import tensors_in

PARTS = frozenset("slice select narrow unfold diagonal".split())  # views whose gradient is a padded one
NO_GRADIENT = frozenset("detach detach_ argmax argmin sign floor ceil round".split())


@dataclass(eq=False)
class _Made:
    """One call that a gradient may go through."""

    path: str
    at: int  # which operator call it is
    used: tuple[_Value, ...] = ()  # that ask for a gradient
    before: tuple[_Made, ...] = ()  # what made them
    layers: tuple[Layer, ...] = ()  # that its backward pass takes beside its own


@dataclass(eq=False)
class _Value:
    """A tensor that asks for a gradient, until it is written again."""

    addition: Layer  # of two gradients of it
    made: _Made | None = None  # None: a parameter or an input


@dataclass(eq=False)
class _Views:
    """A tensor and its views; detached ones are others."""

    writers: list[_Made] = field(default_factory=list)  # that wrote into one of them what asks for a gradient


class Gradients:
    """Follows tensors from those on of which gradients are wanted."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._values = WeakIdKeyDictionary()  # tensors that ask for a gradient
        self._views = WeakIdKeyDictionary()  # tensors that are viewed, and views: of which they are
        self._made: list[_Made] = []
        self.forgotten: frozenset[int] = (
            frozenset()
        )  # the operator calls that a gradient would go through, did a loss read them
        self._leaves: list[_Value] = []
        for parameter in parameters:
            self._values[parameter] = _Value(_sum(parameter))
            self._leaves.append(self._values[parameter])

    def asks(self, tensor: Tensor) -> bool:
        """Whether a gradient is asked for it."""
        return tensor in self._values or bool(self._writers(tensor))

    def _writers(self, tensor: Tensor) -> list[_Made]:
        return self._views[tensor].writers if tensor in self._views else []

    def asked(self, operands: Mapping[str, Any]) -> frozenset[str]:
        """The names of those among a call's operands that ask for a gradient."""
        return frozenset(name for name, given in operands.items() if any(map(self.asks, tensors_in(given))))

    def share(self, kind: str, args: Any, kwargs: Any) -> float:
        """The part of a call's backward pass that is asked for: 0 where none of its inputs asks."""
        tensors = [t for t in tensors_in((args, kwargs)) if _differentiable(t)]
        asked = [self.asks(t) for t in tensors]
        if not any(asked):
            return 0.0
        if kind != "elementwise":
            return 1.0
        counted = [a for a, t in zip(asked, tensors, strict=True) if t.numel() > 1] or asked
        return sum(counted) / len(counted)

    def note(self, path: str, at: int, name: str, inputs: Sequence[Tensor], output: Any, view: bool) -> None:
        """Follow one call."""
        if name in NO_GRADIENT:
            return
        outputs = [t for t in tensors_in(output) if _differentiable(t)]
        asking = [t for t in inputs if self.asks(t)]
        if view and outputs:
            of = self._views[inputs[0]] if inputs[0] in self._views else _Views()
            self._views.update(dict.fromkeys((inputs[0], *outputs), of))
        if not asking or not outputs:
            return
        for tensor in asking:
            if tensor not in self._values:
                self._values[tensor] = _Value(_sum(tensor))
        used = tuple(self._values[t] for t in asking)
        before = [value.made for value in used if value.made] + [made for t in asking for made in self._writers(t)]
        turned = tuple(_of_view(name, inputs[0], outputs)) if view else ()
        made = _Made(path, at, used, tuple(dict.fromkeys(before)), turned)
        self._made.append(made)
        for tensor in outputs:
            self._values[tensor] = _Value(_sum(tensor), made)  # what was written in place begins anew
            if not view and tensor in self._views:
                self._views[tensor].writers.append(made)

    def end_at(self, losses: Iterable[Tensor]) -> None:
        """Forget the calls that no loss depends on, as those of a head that it does not read; where none asks, none."""
        left = [made for t in losses if t in self._values for made in (self._values[t].made, *self._writers(t)) if made]
        reached: set[_Made] = set()
        while left:
            made = left.pop()
            if made not in reached:
                reached.add(made)
                left += made.before
        if reached:
            before = self.passed
            self._made = [made for made in self._made if made in reached]
            self.forgotten = before - self.passed

    @property
    def passed(self) -> frozenset[int]:
        """The operator calls that a gradient goes through."""
        return frozenset(made.at for made in self._made)

    def arrived(self) -> list[bool]:
        """Of each parameter in their order, whether a gradient arrives: an optimizer passes by the others."""
        used = {value for made in self._made for value in made.used}
        return [leaf in used for leaf in self._leaves]

    def beside(self) -> Iterator[tuple[str, Layer, int]]:
        """(path, layer, operator call) of what a backward pass takes beside the calls' own: additions, and what views turn into."""
        seen: set[_Value] = set()
        for made in self._made:
            for value in made.used:
                if value in seen:
                    yield made.path, value.addition, made.at
                seen.add(value)
            for layer in made.layers:
                yield made.path, layer, made.at


def _differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def addition(dtype: str, elements: int) -> Layer:
    """A gradient added in place to the one that is there."""
    return Elementwise(dtype=dtype, function="add", elements=elements, operands=2, broadcast=False, inplace=True)


def _sum(of: Tensor) -> Layer:
    """Of two gradients of a tensor."""
    return addition(_dtype(of), of.numel())


def _of_view(name: str, whole: Tensor, outputs: list[Tensor]) -> Iterator[Layer]:
    dtype, elements = _dtype(whole), whole.numel()
    if len(outputs) > 1:
        yield Movement(dtype=dtype, function="cat", elements=elements)
    elif outputs[0].nbytes > whole.nbytes:  # not of complex numbers seen as pairs
        yield Reduction(dtype=dtype, function="sum", elements=outputs[0].numel(), outputs=elements, last=False)
    elif name in PARTS and outputs[0].numel() < elements:
        yield Movement(dtype=dtype, function="pad", elements=elements)


def _dtype(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return name if name in FLOATING else "float32"
