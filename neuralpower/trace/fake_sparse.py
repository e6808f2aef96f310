"""Sparse gradients on fake tensors, which forget how many rows they have: the rows and places are tensors beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.networks.repeats import tensors_in

BAGS = "aten._embedding_bag_backward"


class Parts(NamedTuple):
    """What a sparse tensor is made of."""

    places: Tensor  # [sides, rows], int64
    values: Tensor  # [rows, width], or [rows] where each place holds one number


class FakeRows:
    """Follows sparse tensors, and says what operators make of them."""

    def __init__(self) -> None:
        self._parts = WeakIdKeyDictionary()  # of a sparse tensor
        self._made: dict[str, Callable[..., Parts]] = {
            "aten._sparse_coo_tensor_with_dims_and_tensors": lambda *args, **_: Parts(*args[3:5]),
            BAGS: self._of_bags,
            "aten.add": self._joined,
            "aten.add_": self._joined,
            "aten.sparse_mask": lambda dense, rows, *_, **__: self._new(self.of(rows)),
        }

    def of(self, tensor: Tensor) -> Parts:
        """What a sparse tensor is made of."""
        parts: Parts = self._parts[tensor]
        return parts

    def within(self, tensors: Iterable[Any]) -> Iterator[Any]:
        """The same, each sparse tensor as what it is made of."""
        for tensor in tensors:
            yield from self.of(tensor) if is_sparse(tensor) else (tensor,)

    def answered(self, name: str, args: Sequence[Any]) -> Any:
        """What a call that looks into a sparse tensor returns; else NotImplemented."""
        if name == "aten._values":
            return self.of(args[0]).values
        if name == "aten._indices":
            return self.of(args[0]).places
        return NotImplemented

    @staticmethod
    def made(name: str, args: Sequence[Any]) -> Any:
        """The sparse gradient of bags of embeddings, whose own code for fake tensors knows no factors; else NotImplemented."""
        # (gradient, places, ..., rows of the table, scaled, mode, sparse, factors, padding)
        if name != BAGS or not args[9]:
            return NotImplemented
        gradient, places = args[:2]
        size = (args[6], gradient.shape[1])
        values = gradient.new_empty((places.numel(), size[1]))
        return torch.sparse_coo_tensor(places.view(1, -1), values, size, check_invariants=False)

    def note(self, name: str, args: Sequence[Any], kwargs: Any, output: Any) -> Any:
        """Follow a call; what it brings into the world: its output, or what that is made of."""
        lists = output if isinstance(output, (tuple, list)) else self._lists(name, args, output)
        if not any(is_sparse(tensor) for tensor in tensors_in(lists)):
            return output
        for number, tensor in enumerate(lists):
            if is_sparse(tensor):
                of_one = [
                    arg[number] if isinstance(arg, (tuple, list)) and _of_tensors(arg) else arg
                    for arg in args
                ]
                self._parts[tensor] = self._made_by(name, of_one, kwargs)
        return [part for tensor in lists for part in (self.of(tensor) if is_sparse(tensor) else (tensor,))]

    def _lists(self, name: str, args: Sequence[Any], output: Any) -> list[Any]:
        """The outputs of a call; one on lists, in place, returns none."""
        in_place = output is None and name.startswith("aten._foreach") and name.endswith("_")
        return list(args[0]) if in_place else [output]

    def _made_by(self, name: str, args: Sequence[Any], kwargs: Any) -> Parts:
        make = self._made.get(name.replace("_foreach_", ""))
        if make is not None:
            return make(*args, **kwargs)
        before = self.of(next(tensor for tensor in args if is_sparse(tensor)))
        same = name.endswith("_") or name in ("aten.detach", "aten.alias")
        return before if same else self._new(before)

    def _of_bags(self, gradient: Tensor, places: Tensor, *_: Any, **__: Any) -> Parts:
        return Parts(places.view(1, -1), gradient.new_empty((places.numel(), *gradient.shape[1:])))

    def _joined(self, one: Tensor, other: Any, *_: Any, **__: Any) -> Parts:
        first, second = self.of(one), self.of(other)
        places = first.places.new_empty(
            (first.places.shape[0], first.places.shape[1] + second.places.shape[1])
        )
        values = first.values
        return Parts(places, values.new_empty((len(values) + len(second.values), *values.shape[1:])))

    @staticmethod
    def _new(like: Parts) -> Parts:
        return Parts(like.places.new_empty(like.places.shape), like.values.new_empty(like.values.shape))


def is_sparse(value: Any) -> bool:
    """Whether it is a tensor of rows and places."""
    return isinstance(value, Tensor) and value.layout == torch.sparse_coo


def _of_tensors(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, Tensor) for value in values)
