"""Records the memory of a training step on tensors without values, operator by operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.errors import InputError
from neuralpower.layers.tensors import tensors_in
from neuralpower.layers.workspace import workspaces
from neuralpower.networks.running import Assumed, grouped_product, name_of
from neuralpower.platforms import CPU, Platform
from neuralpower.trace.lifetimes import GRADIENTS, OPTIMIZER, Lifetimes
from neuralpower.trace.operators.modules import ModuleStack
from neuralpower.trace.steps.compiled_step import joins

# ---- Sparse gradients on fake tensors, which forget how many rows they have ----


BAGS = "aten._embedding_bag_backward"


class Parts(NamedTuple):
    """The places and values of a sparse tensor."""

    places: Tensor  # [sides, rows], int64
    values: Tensor  # [rows, width], or [rows] where each place holds one number


class FakeRows:
    """Follows sparse tensors, and the results of operators on them."""

    def __init__(self) -> None:
        self._parts = WeakIdKeyDictionary()  # of a sparse tensor
        self._made: dict[str, Callable[..., Parts]] = {
            "aten._sparse_coo_tensor_with_dims_and_tensors": lambda *args, **_: Parts(*args[3:5]),
            BAGS: _of_bags,
            "aten.add": self._joined,
            "aten.add_": self._joined,
            "aten.sparse_mask": lambda dense, rows, *_, **__: _new(self.of(rows)),
        }

    def of(self, tensor: Tensor) -> Parts:
        """The places and values of a sparse tensor."""
        parts: Parts = self._parts[tensor]
        return parts

    def within(self, tensors: Iterable[Any]) -> Iterator[Any]:
        """The same, each sparse tensor replaced by its places and values."""
        for tensor in tensors:
            yield from self.of(tensor) if is_sparse(tensor) else (tensor,)

    def answered(self, name: str, args: Sequence[Any]) -> Any:
        """The result of a call that reads a sparse tensor's parts; else NotImplemented."""
        part = {"aten._values": "values", "aten._indices": "places"}.get(name)
        return getattr(self.of(args[0]), part) if part else NotImplemented

    @staticmethod
    def made(name: str, args: Sequence[Any]) -> Any:
        """The sparse gradient of bags, whose code for fake tensors knows no factors; else NotImplemented."""
        # (gradient, places, ..., rows of the table, scaled, mode, sparse, factors, padding)
        if name != BAGS or not args[9]:
            return NotImplemented
        size = (args[6], args[0].shape[1])
        return torch.sparse_coo_tensor(*_of_bags(*args), size, check_invariants=False)

    def note(self, name: str, args: Sequence[Any], kwargs: Any, output: Any) -> Any:
        """Follow a call; what it brings into the world: its output, or what that is made of."""
        outputs = output if isinstance(output, (tuple, list)) else [output]
        if output is None and name.startswith("aten._foreach") and name.endswith("_"):
            outputs = list(args[0])  # it works in place on a list, and returns nothing
        if not any(is_sparse(tensor) for tensor in tensors_in(outputs)):
            return output
        for number, tensor in enumerate(outputs):
            if is_sparse(tensor):
                of_one = [arg[number] if _are_tensors(arg) else arg for arg in args]
                self._parts[tensor] = self._made_by(name, of_one, kwargs)
        return [*self.within(outputs)]

    def _made_by(self, name: str, args: Sequence[Any], kwargs: Any) -> Parts:
        make = self._made.get(name.replace("_foreach_", ""))
        if make is not None:
            return make(*args, **kwargs)
        before = self.of(next(tensor for tensor in args if is_sparse(tensor)))
        same = name.endswith("_") or name in ("aten.detach", "aten.alias")
        return before if same else _new(before)

    def _joined(self, one: Tensor, other: Any, *_: Any, **__: Any) -> Parts:
        (places, values), (more_places, more_values) = self.of(one), self.of(other)
        sides, rows = places.shape
        return Parts(
            places.new_empty((sides, rows + more_places.shape[1])),
            values.new_empty((len(values) + len(more_values), *values.shape[1:])),
        )


def _of_bags(gradient: Tensor, places: Tensor, *_: Any, **__: Any) -> Parts:
    return Parts(places.view(1, -1), gradient.new_empty((places.numel(), *gradient.shape[1:])))


def _new(like: Parts) -> Parts:
    return Parts(*(part.new_empty(part.shape) for part in like))


def is_sparse(value: Any) -> bool:
    """Whether it is a tensor of rows and places."""
    return isinstance(value, Tensor) and value.layout == torch.sparse_coo


def _are_tensors(values: Any) -> bool:
    return isinstance(values, (tuple, list)) and bool(values) and all(isinstance(v, Tensor) for v in values)


# ---- Float32 masters of trained 16-bit weights, as Megatron-LM, DeepSpeed and apex keep them ----
# The optimizer steps the masters. A weight's 16-bit gradient is added to a float32 one and then freed, as
# Megatron-LM's and DeepSpeed's hooks do. The states follow from the optimizer's step on the masters, so
# that states of 8 bits stay as they are.


WIDE = torch.float32


class Masters:
    """What the optimizer steps: float32 masters of narrower weights, and the other weights themselves.

    Args:
        trained: the weights, of fake tensors.
        fake: their mode.
        wanted: whether there are masters; without, the optimizer steps the weights themselves.
    """

    def __init__(self, trained: Sequence[nn.Parameter], fake: FakeTensorMode, wanted: bool) -> None:
        self.stepped = [_master(one, fake) if wanted and _narrow(one) else one for one in trained]
        self._of = {id(one): own for one, own in zip(trained, self.stepped, strict=True)}

    def of(self, weight: Tensor) -> Tensor:
        """What is stepped for a weight; the tensor itself where nothing is."""
        return self._of.get(id(weight), weight)

    @property
    def made(self) -> Iterable[Tensor]:
        return (own for own in self.stepped if id(own) not in self._of)

    def move_gradient(self, weight: Tensor) -> Tensor | None:
        """Add a weight's new gradient to that of its master, and free it; the gradient that is kept."""
        master = self.of(weight)
        if master is not weight and weight.grad is not None:
            if master.grad is None:
                master.grad = weight.grad.to(WIDE)
            else:
                master.grad += weight.grad
            weight.grad = None
        return master.grad


def _narrow(weight: Tensor) -> bool:
    return weight.is_floating_point() and weight.element_size() < WIDE.itemsize


def _master(weight: Tensor, fake: FakeTensorMode) -> nn.Parameter:
    """A float32 parameter of the same shape."""
    with fake:
        return nn.Parameter(torch.empty(weight.shape, dtype=WIDE, device=weight.device))


# ---- The recorder ----


INDEXED = ("aten.index", "aten.index_put", "aten.index_put_")
PRODUCT, SOFTMAX = "aten.bmm", "aten._softmax"
PRODUCTS = (PRODUCT, "aten.mm", "aten.addmm", "aten.baddbmm", "aten._grouped_mm")


class Blocks(ModuleStack):
    """Notes when a network's repeated blocks run first."""

    def __init__(self, model: nn.Module, lifetimes: Lifetimes) -> None:
        super().__init__(model)
        self._lifetimes = lifetimes
        self.first: dict[str, int] = {}  # path -> operator calls before it

    def entered(self, path: str) -> None:
        if path.rpartition(".")[2].isdigit():
            self.first.setdefault(path, self._lifetimes.calls)


class StepRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Notes what every operator brings into the world.

    Numbers that are drawn and masks made from data have values: they decide which layers run and which places
    are masked. Where a step asks whether a mask is all ones, it is, as in a trace.
    """

    def __init__(self, model: nn.Module, platform: Platform) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.name = type(model).__name__
        self._bits = platform.family != CPU.family  # kernels of dropout keep a mask of one byte a number
        self.lifetimes = Lifetimes()
        self.blocks = Blocks(model, self.lifetimes)
        self._known = WeakIdKeyDictionary()  # tensors with values, and what was computed from these alone
        self._assumed = Assumed()
        self._rows = FakeRows()
        self._products: list[tuple[str, int]] = []  # products of activations and softmaxes, and their calls
        self.weights_read: list[tuple[int, str]] = []  # (operator call, name) of weights of matrix products
        self.joined: list[int] = []  # calls that Inductor joins into kernels, or that make nothing
        # whether the optimizer's step runs: what it asks of its tensors' values, such as their norm, is 1
        self.stepping = False
        self._paths: dict[int, str] = {}  # number of a node of autograd's graph -> module that made it

    def _path(self) -> str:
        """Path of the module whose forward or backward pass is running; "" outside of all."""
        running = self.blocks.path
        autograd: Any = torch._C
        if (node := autograd._current_autograd_node()) is not None:
            return running or self._paths.get(node._sequence_nr(), "")
        # a call without a node of its own comes after the one that has the number
        if torch.is_grad_enabled():
            self._paths.setdefault(autograd._autograd._get_sequence_nr() - 1, running)
        return running

    def scores(self) -> list[tuple[int, int]]:
        """(first, last) operator call of what lies between two products of activations, with a softmax."""
        names = [name for name, _ in self._products]
        return [
            (self._products[i - 1][1], self._products[i + 1][1] - 1)
            for i in range(1, len(names) - 1)
            if names[i - 1 : i + 2] == [PRODUCT, SOFTMAX, PRODUCT]
        ]

    def begins(self, state: Sequence[Any]) -> None:
        """An optimizer's state that is there before its first step; counts of steps have values."""
        self.lifetimes.hold(state, OPTIMIZER)
        known = [v for v in state if isinstance(v, Tensor) and not isinstance(v, FakeTensor)]
        self._known.update(dict.fromkeys(known, True))

    def follow_gradients(self, parameters: Sequence[Tensor], kept: Callable[[Tensor], Tensor | None]) -> None:
        """Count what is `kept` of each parameter's accumulated gradient."""
        for parameter in parameters:
            hook: Any = parameter.register_post_accumulate_grad_hook
            hook(lambda p: self.assign([kept(p)], GRADIENTS))

    def assign(self, tensors: Sequence[Any], part: str) -> None:
        self.lifetimes.assign(self._rows.within(tensors), part)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = name_of(func), kwargs or {}
        tensors = tensors_in((args, kwargs))
        if torch.is_grad_enabled() and name != "aten.detach":
            self._refuse(tensors)
        if name == "aten._local_scalar_dense" and (value := self._assumed.value(args[0])) is not None:
            return value
        if self.stepping and name == "aten._local_scalar_dense" and _unknown(args[0]):
            return 1.0 if args[0].is_floating_point() else 1
        if (output := self._rows.answered(name, args)) is not NotImplemented:
            return output
        if name == "aten._grouped_mm":
            output = grouped_product(*args)
        elif (output := self._rows.made(name, args)) is not NotImplemented:
            pass
        elif self._has_values(func, name, args, tensors):
            with unset_fake_temporarily():
                output = func(*args, **kwargs)
            self._known.update(dict.fromkeys(tensors_in(output), True))
        else:
            output = func(*(self._at_places(args) if name in INDEXED else args), **kwargs)
            if isinstance(output, Tensor):
                self._assumed.note(name.split(".", 1)[-1], output, args)
        new = self._rows.note(name, args, kwargs, output)
        if name == "aten.bernoulli_" and self._bits:
            self.lifetimes.resize(output, output.numel())
        if name in (PRODUCT, SOFTMAX):
            self._products.append((name, self.lifetimes.calls + 1))
        if name in PRODUCTS:
            names = filter(None, map(self.lifetimes.name, tensors))
            self.weights_read += [(self.lifetimes.calls + 1, one) for one in names]
        made = self.lifetimes.called(new, workspaces(name, args, kwargs, output), (self._path(), name))
        if not made or joins(name, func):
            self.joined.append(self.lifetimes.calls)
        return output

    def _has_values(self, func: Any, name: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> bool:
        """Whether a call's result is known, or drawn as a single number."""
        if name == "aten.lift_fresh":
            return tensors[0].dtype == torch.bool and not isinstance(tensors[0], FakeTensor)
        if tensors:
            return all(tensor in self._known for tensor in tensors)
        sizes = [value for value in args if isinstance(value, (list, tuple))]
        return torch.Tag.nondeterministic_seeded in func.tags and any(math.prod(size) == 1 for size in sizes)

    def _at_places(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments of an indexing call, with places instead of known masks, which alone say how many."""
        source, masks, *more = args
        places: list[Any] = []
        with unset_fake_temporarily():
            for mask in masks:
                if mask is None or mask.dtype != torch.bool:
                    places.append(mask)
                elif mask in self._known:
                    places += mask.nonzero().unbind(1)
                elif torch._C._current_graph_task_id() >= 0:  # a backward pass: which places are padding
                    places += [mask.new_empty((mask.numel(),), dtype=torch.int64) for _ in mask.shape]
                else:
                    places.append(mask)
        return source, places, *more

    def _refuse(self, tensors: Sequence[Tensor]) -> None:
        """Raise InputError for what would be left with a gradient of this step, which has no values."""
        for tensor in tensors:
            if not isinstance(tensor, FakeTensor) and tensor.requires_grad and tensor.is_leaf:
                raise InputError(
                    f"{self.name}: its forward uses weights of {tuple(tensor.shape)} that are not "
                    "its parameters, but a global's, or in a plain list. Make them an attribute and call "
                    "them through self, or detach them"
                )


def _unknown(tensor: Tensor) -> bool:
    """Whether a tensor has no values, not even a constant's."""
    return isinstance(tensor, FakeTensor) and tensor.constant is None
