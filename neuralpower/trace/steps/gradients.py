"""The calls of a forward pass that a backward pass goes through, and the calls that it adds.

What depends on a trainable parameter, or on an input that requires a gradient, asks for one. Tensors are
followed while the forward pass runs:

    differentiable   a call with such an input, whose output the loss depends on: its backward pass runs
    share            of that backward pass, where not all operands ask for a gradient: images and masks do not
    additions        a tensor that is used n times gathers n gradients, which takes n - 1 additions
    slices           the gradient of a part is one of the whole, zero elsewhere; parts of a split are joined;
                     what was expanded is summed
    rows             a sparse embedding's table gets rows, unless something else asks for all of it
    own              an autograd function's own backward pass says which inputs get a gradient: they run,
                     the last one first, once it is known which outputs have a gradient
    views            a tensor and its views ask together, once what asks was written into one of them
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neuralpower.late import Tensor, torch
from neuralpower.layers import Layer
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.movement import Movement
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.tensors import tensors_in
from neuralpower.trace.steps.sparse_gradients import (
    Rows,
    SparseUse,
    gathered,
    gradient_dtype,
    passes_rows,
    scaled,
)

# which outputs have a gradient -> which inputs get one
OwnBackward = Callable[[Sequence[bool]], Sequence[bool]]
PARTS = frozenset("slice select narrow unfold diagonal".split())  # views whose gradient is a padded one
NO_GRADIENT = frozenset("detach detach_ argmax argmin sign floor ceil round".split())


@dataclass(eq=False)
class _Made:
    """One call that a gradient may go through."""

    path: str
    at: int  # which operator call it is
    used: tuple[_Value, ...] = ()  # that ask for a gradient
    before: tuple[_Made, ...] = ()  # what made them
    layers: tuple[Layer, ...] = ()  # that its backward pass takes in addition to its own
    outputs: list[_Value] = field(default_factory=list)
    sparse: SparseUse | None = None  # what the first of `used` gets, where that is rows
    passes: bool = False  # the first of `used` gets rows where the output does
    own: _Own | None = None  # of an autograd function


@dataclass(eq=False)
class _Own:
    """A backward pass of its own, and what comes before each of its inputs."""

    run: OwnBackward
    inputs: tuple[_Value | None, ...]  # None asks for no gradient
    before: tuple[tuple[_Made, ...], ...]


@dataclass(eq=False)
class _Value:
    """A tensor that asks for a gradient, until it is written again."""

    addition: Layer  # of two gradients of it
    made: _Made | None = None  # None: a parameter or an input
    hooks: list[Callable[[], None]] = field(default_factory=list)  # that its gradient is given to


Uses = dict[_Value, list[tuple[_Made, int]]]  # the calls that ask for a tensor's gradient, its number in each


class Gradients:
    """Follows tensors that depend on `parameters`."""

    def __init__(self, parameters: Iterable[Tensor], found: bool = False) -> None:
        self._found = found  # whether tensors that require a gradient are found on the way
        self._values: MutableMapping[Tensor, _Value] = (
            torch.utils.weak.WeakIdKeyDictionary()
        )  # tensors that ask for a gradient
        # a tensor or a view (detached ones are others) -> who wrote into any
        self._writers: MutableMapping[Tensor, list[_Made]] = torch.utils.weak.WeakIdKeyDictionary()
        self._made: list[_Made] = []
        self.forgotten: frozenset[int] = frozenset()  # calls that a gradient misses since no loss reads them
        self._leaves = [self._value(parameter) for parameter in dict.fromkeys(parameters)]

    def asks(self, tensor: Tensor) -> bool:
        known = tensor in self._values or bool(self._writers.get(tensor))
        return known or (self._found and tensor.requires_grad)

    def hook(self, tensor: Tensor, call: Callable[[], None]) -> None:
        """Call it once the gradient of a tensor that asks for one is there."""
        self._value(tensor).hooks.append(call)

    def again(self) -> Gradients:
        """A copy of the state so far, to end at another loss."""
        made = copy.copy(self)
        made._made = [*self._made]
        return made

    def reached(self) -> list[Tensor]:
        """The parameters and inputs that a gradient reaches."""
        used = self._used()
        return [t for t in [*self._values] if self._values[t].made is None and self._values[t] in used]

    def reaches(self, tensor: Tensor) -> bool:
        return self._values.get(tensor) in self._used()

    def _used(self) -> set[_Value | None]:
        return {value for made in self._made for value in made.used}

    def _makers(self, tensor: Tensor) -> list[_Made]:
        """The calls that a gradient of the tensor goes to."""
        value = self._values.get(tensor)
        return [*([value.made] if value and value.made else []), *self._writers.get(tensor, ())]

    def asked(self, operands: Mapping[str, Any]) -> frozenset[str]:
        """The names of those among a call's operands that ask for a gradient."""
        return frozenset(name for name, given in operands.items() if any(map(self.asks, tensors_in(given))))

    def share(self, kind: str, args: Any, kwargs: Any) -> float:
        """The part of a call's backward pass that is needed: 0 where none of its inputs needs a gradient."""
        tensors = [t for t in tensors_in((args, kwargs)) if differentiable(t)]
        asked = [self.asks(t) for t in tensors]
        if not any(asked):
            return 0.0
        if kind != "elementwise":
            return 1.0
        counted = [a for a, t in zip(asked, tensors, strict=True) if t.numel() > 1] or asked
        return sum(counted) / len(counted)

    def note(
        self,
        path: str,
        at: int,
        name: str,
        inputs: Sequence[Tensor],
        output: Any,
        view: bool,
        sparse: SparseUse | None = None,
    ) -> None:
        """Follow one call; `sparse`: what it gives its first input for a gradient."""
        if name in NO_GRADIENT:
            return
        outputs = [t for t in tensors_in(output) if differentiable(t)]
        asking = [t for t in inputs if self.asks(t)]
        if view and outputs:
            writers: list[_Made] = self._writers.get(inputs[0], [])
            self._writers.update(dict.fromkeys((inputs[0], *outputs), writers))
        if not asking or not outputs:
            return
        used = tuple(self._value(t) for t in asking)
        before = [value.made for value in used if value.made]
        before += [made for t in asking for made in self._writers.get(t, ())]
        turned = tuple(_of_view(name, inputs[0], outputs)) if view else ()
        made = _Made(path, at, used, tuple(dict.fromkeys(before)), turned)
        made.sparse = sparse if asking[0] is inputs[0] else None
        made.passes = passes_rows(name, asking, inputs)
        self._make(made, outputs, view)

    def note_own(
        self, path: str, at: int, inputs: Sequence[Any], outputs: Sequence[Tensor], run: OwnBackward
    ) -> None:
        """Follow a call that has a backward pass of its own, from those `inputs` that ask for a gradient."""
        asking = [isinstance(one, Tensor) and differentiable(one) and self.asks(one) for one in inputs]
        values = tuple(self._value(one) if asks else None for one, asks in zip(inputs, asking, strict=True))
        before = tuple(
            tuple(self._makers(one)) if asks else () for one, asks in zip(inputs, asking, strict=True)
        )
        self._make(_Made(path, at, own=_Own(run, values, before)), outputs, view=False)

    def _value(self, tensor: Tensor) -> _Value:
        if tensor not in self._values:
            self._values[tensor] = _Value(_sum(tensor))
        value: _Value = self._values[tensor]
        return value

    def _make(self, made: _Made, outputs: Iterable[Tensor], view: bool) -> None:
        self._made.append(made)
        for tensor in outputs:
            self._values[tensor] = _Value(_sum(tensor), made)  # what was written in place begins anew
            made.outputs.append(self._values[tensor])
            if not view and tensor in self._writers:
                self._writers[tensor].append(made)

    def end_at(self, losses: Collection[Tensor] | None) -> None:
        """Forget the calls that no loss depends on, as those of a head that it does not read.

        Forget none where `losses` is None or none asks for a gradient. Calls' own backward passes run, each
        once it is known which of the calls after it are reached.
        """
        asking = [t for t in losses or () if t in self._values]
        reached = {made for t in asking for made in self._makers(t)}
        everything = not reached
        arrived = {self._values[t] for t in asking}
        for made in reversed(self._made):
            if everything or made in reached:
                with_gradient = [everything or value in arrived for value in made.outputs]
                _call_hooks(value for value, has in zip(made.outputs, with_gradient, strict=True) if has)
                if made.own is not None:
                    _run_own(made, made.own, with_gradient)
                reached.update(made.before)
                arrived.update(made.used)
        _call_hooks(leaf for leaf in self._leaves if leaf in arrived)
        if not everything:
            before = self.passed
            self._made = [made for made in self._made if made in reached]
            self.forgotten = before - self.passed

    @property
    def passed(self) -> frozenset[int]:
        """The operator calls that a gradient goes through."""
        return frozenset(made.at for made in self._made)

    def arrived(self) -> list[bool]:
        """Whether a gradient arrives at each parameter: an optimizer passes by the others."""
        used = self._used()
        return [leaf in used for leaf in self._leaves]

    def beside(self) -> Iterator[tuple[str, Layer, int]]:
        """(path, layer, operator call) of what a backward pass runs besides the calls' own: sums, views."""
        additions = self._additions()
        for made in self._made:
            sums = (additions.get((made, number), ()) for number in range(len(made.used)))
            for layer in itertools.chain(*sums, made.layers):
                yield made.path, layer, made.at

    def _additions(self) -> dict[tuple[_Made, int], tuple[Layer, ...]]:
        """The addition of this gradient to others of the same tensor, by call and operand."""
        sums: dict[tuple[_Made, int], tuple[Layer, ...]] = {}
        every = self._uses()
        for value, uses in every.items():
            if len(uses) < 2:
                continue
            rows = [_rows(made, number, every) for made, number in uses]
            if any(rows):  # the last comes first
                sums |= dict(zip(reversed(uses), gathered(rows[::-1], value.addition), strict=True))
            else:
                sums |= dict.fromkeys(uses[1:], (value.addition,))
        return sums

    def _uses(self) -> Uses:
        uses: Uses = {}
        for made in self._made:
            for number, value in enumerate(made.used):
                uses.setdefault(value, []).append((made, number))
        return uses

    def sparse(self) -> list[Rows | None]:
        """The gradient of each parameter where that is rows."""
        uses = self._uses()
        return [_gradient(leaf, uses) for leaf in self._leaves]

    def instead(self) -> Iterator[tuple[int, tuple[Layer, ...]]]:
        """(operator call, layers) of backward passes that make rows: what runs in place of the kind's own."""
        uses = self._uses()
        for made in self._made:
            if made.sparse is not None:
                yield made.at, made.sparse.layers
            elif made.passes and (rows := _rows(made, 0, uses)):
                yield made.at, (scaled(rows),)


def _rows(made: _Made, number: int, uses: Uses) -> Rows | None:
    """The gradient that the call gives the tensor of that number; None where it is dense."""
    if number or not (made.sparse or made.passes):
        return None
    if made.sparse:
        return made.sparse.rows
    rows = _gradient(made.outputs[0], uses)
    return replace(rows, shared=False) if rows else None


def _gradient(value: _Value, uses: Uses) -> Rows | None:
    """The gradient of a tensor where it is rows alone; None where it is dense, or there is none."""
    total: Rows | None = None
    for made, number in uses.get(value, ()):
        rows = _rows(made, number, uses)
        if rows is None:
            return None
        total = rows if total is None else total.and_also(rows)
    return total


def _call_hooks(values: Iterable[_Value]) -> None:
    for value in values:
        for call in value.hooks:
            call()


def _run_own(made: _Made, own: _Own, with_gradient: Sequence[bool]) -> None:
    """Run a call's own backward pass; an input that gets no gradient asked in vain."""
    gets = own.run(with_gradient if any(with_gradient) else [True] * len(with_gradient))
    made.used = tuple(value for value in itertools.compress(own.inputs, gets) if value is not None)
    made.before = tuple(dict.fromkeys(m for some in itertools.compress(own.before, gets) for m in some))


def differentiable(tensor: Tensor) -> bool:
    """Whether numbers of its type can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def addition(dtype: str, elements: int) -> Layer:
    """A gradient added in place to the one that is there."""
    return Elementwise(
        dtype=dtype, function="add", elements=elements, operands=2, broadcast=False, inplace=True
    )


def _sum(of: Tensor) -> Layer:
    """The sum of two gradients of a tensor."""
    return addition(gradient_dtype(of), of.numel())


def _of_view(name: str, whole: Tensor, outputs: list[Tensor]) -> Iterator[Layer]:
    dtype, elements = gradient_dtype(whole), whole.numel()
    if len(outputs) > 1:
        yield Movement(dtype=dtype, function="cat", elements=elements)
    elif outputs[0].nbytes > whole.nbytes:  # not of complex numbers seen as pairs
        yield Reduction(
            dtype=dtype, function="sum", elements=outputs[0].numel(), outputs=elements, last=False
        )
    elif name in PARTS and outputs[0].numel() < elements:
        yield Movement(dtype=dtype, function="pad", elements=elements)
