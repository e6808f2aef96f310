"""Which calls of a forward pass a backward pass goes through, and what it adds to theirs.

A gradient is asked for what depends on a trainable parameter, or on an input that requires one. Followed while the forward
pass runs, tensor by tensor:

    differentiable   a call with such an input, whose output the loss depends on: its backward pass runs
    share            of that backward pass, where not all of its operands ask for a gradient: images do not, nor do masks
    additions        a tensor that is used n times gathers n gradients, which takes n - 1 additions
    slices           the gradient of a part is one of the whole, zero elsewhere; parts of a split are joined; what was
                     expanded is summed
    rows             what a sparse embedding looks up gets rows for a gradient, unless something else asks for all of it
    own              an autograd function's own backward pass says which of its inputs get a gradient: it is run, the last one
                     first, once it is known which of its outputs have one
    views            a tensor and its views ask together, once one of them was written what asks: a scan's steps into its result
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.layers import Layer
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.movement import Movement
from neuralpower.layers.reduction import Reduction
from neuralpower.networks.repeats import tensors_in
from neuralpower.trace.sparse_gradients import Rows, SparseUse, gathered, gradient_dtype, passes_rows, scaled

OwnBackward = Callable[
    [Sequence[bool]], Sequence[bool]
]  # which outputs have a gradient -> which inputs get one
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


@dataclass(eq=False)
class _Views:
    """A tensor and its views; detached ones are others."""

    writers: list[_Made] = field(default_factory=list)  # that wrote into one of them what asks for a gradient


Uses = dict[_Value, list[tuple[_Made, int]]]
"""By tensor: the calls that ask for its gradient, in order, and its number among what each uses."""


class Gradients:
    """Follows tensors from those on of which gradients are wanted."""

    def __init__(self, parameters: Iterable[Tensor], found: bool = False) -> None:
        self._found = found  # those that say that they require one are found on the way
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
        return tensor in self._values or bool(self._writers(tensor)) or (self._found and tensor.requires_grad)

    def hook(self, tensor: Tensor, call: Callable[[], None]) -> None:
        """Call it once the gradient of a tensor that asks for one is there."""
        self._value(tensor).hooks.append(call)

    def again(self) -> Gradients:
        """The same so far, to end elsewhere."""
        made = copy.copy(self)
        made._made = [*self._made]
        return made

    def reached(self) -> list[Tensor]:
        """The parameters and inputs that a gradient reaches."""
        used = {value for made in self._made for value in made.used}
        return [
            tensor
            for tensor in [*self._values]
            if self._values[tensor].made is None and self._values[tensor] in used
        ]

    def reaches(self, tensor: Tensor) -> bool:
        """Whether a gradient reaches it."""
        return tensor in self._values and any(self._values[tensor] in made.used for made in self._made)

    def _writers(self, tensor: Tensor) -> list[_Made]:
        return self._views[tensor].writers if tensor in self._views else []

    def asked(self, operands: Mapping[str, Any]) -> frozenset[str]:
        """The names of those among a call's operands that ask for a gradient."""
        return frozenset(name for name, given in operands.items() if any(map(self.asks, tensors_in(given))))

    def share(self, kind: str, args: Any, kwargs: Any) -> float:
        """The part of a call's backward pass that is asked for: 0 where none of its inputs asks."""
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
            of = self._views[inputs[0]] if inputs[0] in self._views else _Views()
            self._views.update(dict.fromkeys((inputs[0], *outputs), of))
        if not asking or not outputs:
            return
        used = tuple(self._value(t) for t in asking)
        before = [value.made for value in used if value.made] + [
            made for t in asking for made in self._writers(t)
        ]
        turned = tuple(_of_view(name, inputs[0], outputs)) if view else ()
        made = _Made(path, at, used, tuple(dict.fromkeys(before)), turned)
        made.sparse = sparse if asking[0] is inputs[0] else None
        made.passes = passes_rows(name, asking, inputs)
        self._make(made, outputs, view)

    def note_own(
        self, path: str, at: int, inputs: Sequence[Any], outputs: Sequence[Tensor], run: OwnBackward
    ) -> None:
        """Follow a call that has a backward pass of its own, from those of its `inputs` that ask for a gradient."""
        asking = [isinstance(one, Tensor) and differentiable(one) and self.asks(one) for one in inputs]
        values = tuple(self._value(one) if asks else None for one, asks in zip(inputs, asking, strict=True))
        before = tuple(
            tuple(dict.fromkeys(m for m in (value.made, *self._writers(one)) if m)) if value else ()
            for one, value in zip(inputs, values, strict=True)
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
            if not view and tensor in self._views:
                self._views[tensor].writers.append(made)

    def end_at(self, losses: Collection[Tensor] | None) -> None:
        """Forget the calls that no loss depends on, as those of a head that it does not read; where none asks, or None, none.

        Backward passes of calls' own are run, each once all calls that came after it are known to be reached or not.
        """
        asking = [t for t in losses or () if t in self._values]
        reached = {made for t in asking for made in (self._values[t].made, *self._writers(t)) if made}
        everything = not reached
        arrived = {self._values[t] for t in asking}
        for made in reversed(self._made):
            if everything or made in reached:
                _call_hooks(value for value in made.outputs if everything or value in arrived)
                if made.own is not None:
                    with_gradient = [everything or value in arrived for value in made.outputs]
                    _run_own(
                        made, made.own, with_gradient if any(with_gradient) else [True for _ in with_gradient]
                    )
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
        """Of each parameter in their order, whether a gradient arrives: an optimizer passes by the others."""
        used = {value for made in self._made for value in made.used}
        return [leaf in used for leaf in self._leaves]

    def beside(self) -> Iterator[tuple[str, Layer, int]]:
        """(path, layer, operator call) of what a backward pass takes beside the calls' own: additions, and what views turn into."""
        additions = self._additions()
        for made in self._made:
            for number, _ in enumerate(made.used):
                for layer in additions.get((made, number), ()):
                    yield made.path, layer, made.at
            for layer in made.layers:
                yield made.path, layer, made.at

    def _additions(self) -> dict[tuple[_Made, int], tuple[Layer, ...]]:
        """By call and number among what it uses: what adds this gradient to others of the same tensor."""
        found: dict[tuple[_Made, int], tuple[Layer, ...]] = {}
        every = self._uses()
        for value, uses in every.items():
            if len(uses) < 2:
                continue
            rows = [_rows(made, number, every) for made, number in uses]
            if any(rows):  # the last comes first
                found |= dict(zip(reversed(uses), gathered(rows[::-1], value.addition), strict=True))
            else:
                found |= dict.fromkeys(uses[1:], (value.addition,))
        return found

    def _uses(self) -> Uses:
        uses: Uses = {}
        for made in self._made:
            for number, value in enumerate(made.used):
                uses.setdefault(value, []).append((made, number))
        return uses

    def sparse(self) -> list[Rows | None]:
        """Of each parameter in their order, its gradient where that is rows."""
        uses = self._uses()
        return [_gradient(leaf, uses) for leaf in self._leaves]

    def instead(self) -> Iterator[tuple[int, tuple[Layer, ...]]]:
        """(operator call, layers) of those whose backward pass makes rows: what it runs in place of what its kind says."""
        uses = self._uses()
        for made in self._made:
            if made.sparse is not None:
                yield made.at, made.sparse.layers
            elif made.passes and (rows := _rows(made, 0, uses)):
                yield made.at, (scaled(rows),)


def _rows(made: _Made, number: int, uses: Uses) -> Rows | None:
    """What the call gives the tensor of that number for a gradient; None where it is dense."""
    if number or not (made.sparse or made.passes):
        return None
    if made.sparse:
        return made.sparse.rows
    rows = _gradient(made.outputs[0], uses)
    return rows.scaled() if rows else None


def _gradient(value: _Value, uses: Uses) -> Rows | None:
    """The gradient of a tensor where it is rows alone, all of them; None where it is dense, or there is none."""
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
    """Run a call's own backward pass; what gets no gradient of it asked in vain."""
    gets = own.run(with_gradient)
    made.used = tuple(value for value, got in zip(own.inputs, gets, strict=True) if value is not None and got)
    made.before = tuple(
        dict.fromkeys(m for some, got in zip(own.before, gets, strict=True) if got for m in some)
    )


def differentiable(tensor: Tensor) -> bool:
    """Whether numbers of its type can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def addition(dtype: str, elements: int) -> Layer:
    """A gradient added in place to the one that is there."""
    return Elementwise(
        dtype=dtype, function="add", elements=elements, operands=2, broadcast=False, inplace=True
    )


def _sum(of: Tensor) -> Layer:
    """Of two gradients of a tensor."""
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
