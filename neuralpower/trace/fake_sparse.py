"""Sparse gradients on fake tensors, which forget how many rows they have: rows and places are kept apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.layers.tensors import tensors_in

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
