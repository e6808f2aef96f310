"""Sparse gradients: rows of a table with their places, in place of a gradient as large as the table.

who makes them   an embedding or a bag of embeddings with `sparse=True`, a gather with `sparse_grad=True`
how many rows    as many as were looked up: a row that is looked up twice is there twice (PyTorch calls that uncoalesced)
added up         rows and rows: joined, one behind the other; rows and a dense gradient: added into the dense one
optimizers       sgd, adagrad and sparseadam touch these rows alone, the others refuse them (torch/optim)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from neuralpower.dtypes import DTYPES, FLOATING
from neuralpower.errors import InputError
from neuralpower.layers import Layer
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.movement import Movement
from neuralpower.layers.optimizer import CLASSES, FUSED, SPARSE
from neuralpower.layers.reduction import Reduction

PLACE_BYTES = 8  # a place is an int64
BAGS = ("_embedding_bag", "_embedding_bag_forward_only")
MAKERS = frozenset(("embedding", "gather", *BAGS))
Asks = Callable[[Tensor], bool]  # whether a tensor asks for a gradient
MEAN = 1  # the mode of a bag, as `aten._embedding_bag` has it
SCALINGS = frozenset(
    ("mul", "div", "neg")
)  # what passes rows on as rows, where its other factor asks for no gradient

# What each optimizer does with rows, one operator after the other (torch/optim/adagrad.py and _functional.py): "coalesce"
# sorts places and adds up rows of equal ones, "look up" reads rows of a dense state, "write" adds rows into a dense tensor.
# Others are functions of numbers, those that end with _ in place, those of two operands in TWO.
STEPS: Mapping[str, str] = {
    "adagrad": "coalesce square write look_up sqrt_ add_ div write",
    "sparseadam": "coalesce look_up sub mul_ write look_up square sub_ mul_ write add_ add_ sqrt_ add_number_ div_ mul write",
}
TWO = frozenset("sub sub_ add_ div div_".split())


def gradient_dtype(tensor: Tensor) -> str:
    """The type that its gradient is priced in: float32 for those that no kind knows, as of complex numbers."""
    name = str(tensor.dtype).removeprefix("torch.")
    return name if name in FLOATING else "float32"


@dataclass(frozen=True)
class Rows:
    """A gradient of `count` rows of `width` numbers, each with so many `places` that say where it belongs."""

    count: int
    width: int
    dtype: str = "float32"
    places: int = 1
    shared: bool = False  # its places are the model's own, so that a parameter keeps a copy of it

    @property
    def elements(self) -> int:
        """Numbers in all rows."""
        return self.count * self.width

    @property
    def bytes(self) -> int:
        """B of rows and places."""
        numbers = math.ceil(DTYPES[self.dtype].itemsize * self.elements)
        return numbers + PLACE_BYTES * self.places * self.count

    def times(self, number: int) -> Rows:
        """So many of them, joined."""
        return replace(self, count=number * self.count)

    def scaled(self) -> Rows:
        """As a product with something else has it."""
        return replace(self, shared=False)

    def and_also(self, other: Rows) -> Rows:
        """Both, joined."""
        return replace(self, count=self.count + other.count, shared=False)


class SparseUse(NamedTuple):
    """What a call gives its first operand for a gradient, and what its backward pass runs to make it."""

    rows: Rows
    layers: tuple[Layer, ...]


def sparse_use(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], asks: Asks) -> SparseUse | None:
    """Of an operator call; None where the gradient of its first operand is dense, or not asked for.

    Raises:
        InputError: PyTorch refuses such a backward pass.
    """
    if name not in MAKERS:
        return None
    sparse, by_frequency = _settings(name, args, kwargs)
    if not sparse or not asks(args[0]):
        return None
    rows = _rows_of(name, args, by_frequency)
    factors = _given(args, kwargs, 6, "per_sample_weights", None) if name in BAGS else None
    return SparseUse(rows, _made_by(name, rows, args, kwargs, factors is not None and asks(factors)))


def _rows_of(name: str, args: Sequence[Any], by_frequency: bool) -> Rows:
    table, index = args[0], args[2] if name == "gather" else args[1]
    if by_frequency:
        raise InputError(
            f"an embedding of {tuple(table.shape)} has sparse=True and scale_grad_by_freq=True, and PyTorch has no such gradient; "
            "choose one of them"
        )
    dtype = gradient_dtype(table)
    if name == "gather":
        return Rows(index.numel(), 1, dtype, places=table.dim(), shared=True)
    own = name in BAGS or _given(args, {}, 2, "padding_idx", -1) >= 0
    return Rows(index.numel(), table.shape[1], dtype, shared=not own)


def _settings(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
    """(whether the gradient is sparse, whether it is scaled by how often each row is looked up)."""
    if name == "embedding":  # (table, places, padding, scaled, sparse)
        return bool(_given(args, kwargs, 4, "sparse")), bool(_given(args, kwargs, 3, "scale_grad_by_freq"))
    if name in BAGS:  # (table, places, offsets, scaled, mode, sparse, factors, last offset, padding)
        return bool(_given(args, kwargs, 5, "sparse")), bool(_given(args, kwargs, 3, "scale_grad_by_freq"))
    return name == "gather" and bool(_given(args, kwargs, 3, "sparse_grad")), False


def _given(
    args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, default: Any = False
) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else default)


def passes_rows(name: str, asking: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Whether the call's backward pass makes rows of rows: it scales its first operand by what asks for no gradient."""
    return name in SCALINGS and len(asking) == 1 and asking[0] is inputs[0]


def _made_by(
    name: str, rows: Rows, args: Sequence[Any], kwargs: Mapping[str, Any], factors_ask: bool
) -> tuple[Layer, ...]:
    """What the backward pass of a call runs to make the rows: nothing for an embedding, whose rows are the gradient's own."""
    if name == "gather":  # the other places of each number are counted up
        return tuple(_integers(function, rows.count) for function in ("copy", "repeat"))
    if name == "embedding":
        padding = _given(args, kwargs, 2, "padding_idx", -1)
        return (*_unpadded(rows),) if padding >= 0 else ()
    layers: list[Layer] = [_rows_moved("index", rows)]
    factors = _given(args, kwargs, 6, "per_sample_weights", None)
    if _given(args, kwargs, 4, "mode", 0) == MEAN or factors is not None:
        layers.append(scaled(rows, broadcast=True))
    if factors_ask:  # a product of the row and the bag's gradient, added up
        sums = Reduction(dtype=rows.dtype, function="sum", elements=rows.elements, outputs=rows.count)
        layers += [_numbers("mul", rows, 2), sums]
    padding = _given(args, kwargs, 8, "padding_idx", -1)
    return (*layers, *_unpadded(rows)) if padding >= 0 else tuple(layers)


def _unpadded(rows: Rows) -> Iterator[Layer]:
    """Rows of the padding are left out: a mask, and what it picks; none is taken to be padding."""
    yield Elementwise(dtype="int64", function="ne", elements=rows.count, operands=1, broadcast=False)
    yield _integers("index", rows.count)
    yield _rows_moved("index", rows)


def scaled(rows: Rows, broadcast: bool = False) -> Layer:
    """Rows times a number, or each times its own."""
    return Elementwise(
        dtype=rows.dtype, function="mul", elements=rows.elements, operands=1 + broadcast, broadcast=broadcast
    )


def stored(rows: Rows) -> tuple[Layer, ...]:
    """The gradient of a parameter that has none yet: nothing, or a copy of rows and places that are the model's own."""
    if not rows.shared:
        return ()
    return _rows_moved("copy", rows), _integers("copy", rows.places * rows.count)


def joined(rows: Rows) -> tuple[Layer, ...]:
    """`rows` in all, joined of two parts."""
    return _rows_moved("cat", rows), _integers("cat", rows.places * rows.count)


def written(rows: Rows) -> Layer:
    """Rows added into a dense tensor."""
    function = "index_add" if rows.width > 1 else "scatter"
    return Movement(
        dtype=rows.dtype,
        function=function,
        elements=rows.elements,
        run=rows.width if rows.width > 1 else 0,
        inplace=True,
    )


def gathered(uses: Sequence[Rows | None], dense: Layer) -> list[tuple[Layer, ...]]:
    """For each of the gradients of one tensor, in the order of their coming, what adds it to those before; None is dense.

    Rows are added to a dense gradient in a copy of it, a dense gradient to rows in place (torch/csrc/autograd/input_buffer.cpp).
    """
    found: list[tuple[Layer, ...]] = [()]
    so_far = uses[0]
    for rows in uses[1:]:
        if rows is not None and so_far is not None:
            so_far = so_far.and_also(rows)
            found.append(joined(so_far))
        elif rows is not None:
            table = int(dense.to_row()["elements"])
            found.append((Movement(dtype=dense.dtype, function="copy", elements=table), written(rows)))
        else:
            found.append((dense if so_far is None else written(so_far),))
            so_far = None
    return found


def step_of_rows(function: str, rows: Rows) -> Iterator[Layer]:
    """What an optimizer's step does to a parameter that has rows for a gradient.

    The momentum of sgd is rows, too: each step joins its own to those of all steps before. This is the second step.
    """
    if function == "sgd":
        yield _numbers("mul", rows, 1, inplace=True)
        yield from joined(rows.times(2))
        yield written(rows.times(2))
        return
    for name in STEPS[function].split():
        if name == "coalesce":
            yield Movement(dtype="int64", function="sort", elements=rows.count, run=rows.count)
            yield written(rows)
        elif name == "look_up":
            yield _rows_moved("index", rows)
        elif name == "write":
            yield written(rows)
        else:
            function = name.removesuffix("_").removesuffix("_number")
            yield _numbers(function, rows, 1 + (name in TWO), inplace=name.endswith("_"))


def check_sparse(optimizer: str, implementation: str, sparse: Sequence[str], dense: Sequence[str]) -> None:
    """Raise InputError for what PyTorch's optimizer refuses, given the names of parameters by their gradients."""
    kind = getattr(CLASSES[optimizer], "__name__", optimizer)
    others = f"choose {' or '.join(name for name in SPARSE if name != 'sparseadam')}"
    if sparse and (optimizer not in SPARSE or implementation == FUSED):
        way = f"{kind} (fused)" if optimizer in SPARSE else kind
        leave = "or leave fused out" if optimizer in SPARSE else "or give its layer sparse=False"
        raise InputError(
            f"{sparse[0]}: its gradient is sparse, which {way} does not support; {others}, {leave}"
        )
    if dense and optimizer == "sparseadam":
        raise InputError(
            f"{dense[0]}: its gradient is dense, and {kind} supports sparse ones alone; {others}"
        )


def grows(sparse: Sequence[tuple[str, Rows]], accumulation: int) -> str:
    """In words, what becomes of sgd's momentum of sparse gradients, each with its parameter's name."""
    names = ", ".join(name for name, _ in sparse[:3])
    more = f" and {len(sparse) - 3} more" if len(sparse) > 3 else ""
    count = accumulation * sum(rows.count for _, rows in sparse)
    return (
        f"sgd keeps the momentum of sparse gradients ({names}{more}) as rows, {count} more in each step, so that steps become "
        "slower and larger; this is the second step"
    )


def _numbers(function: str, rows: Rows, operands: int, inplace: bool = False) -> Layer:
    return Elementwise(
        dtype=rows.dtype,
        function=function,
        elements=rows.elements,
        operands=operands,
        broadcast=False,
        inplace=inplace,
    )


def _rows_moved(function: str, rows: Rows) -> Layer:
    return Movement(dtype=rows.dtype, function=function, elements=rows.elements)


def _integers(function: str, count: int) -> Layer:
    return Movement(dtype="int64", function=function, elements=count)
