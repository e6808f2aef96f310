"""Sparse gradients: rows of a table with their places, instead of a gradient as large as the table.

who makes them   an embedding or a bag of embeddings with `sparse=True`, a gather with `sparse_grad=True`
how many rows    as many as were looked up; a row looked up twice is there twice (PyTorch: uncoalesced)
added up         rows and rows are joined, one behind the other; rows are added into a dense gradient
optimizers       sgd, adagrad and sparseadam touch these rows alone, the others refuse them (torch/optim)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from neuralpower.dtypes import DTYPES, FLOATING
from neuralpower.errors import InputError
from neuralpower.late import Tensor
from neuralpower.layers import Layer
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.movement import Movement
from neuralpower.layers.optimizer import SPARSE
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.rows import to_row
from neuralpower.layers.tensors import torchs_dtype_name
from neuralpower.optimizers.registry import FUSED, KNOWN

PLACE_BYTES = 8  # a place is an int64
BAGS = ("_embedding_bag", "_embedding_bag_forward_only")
MAKERS: Mapping[str, Mapping[str, int]] = {  # operator -> places of its settings
    "embedding": {"padding_idx": 2, "scale_grad_by_freq": 3, "sparse": 4},
    "gather": {"sparse_grad": 3},
    **dict.fromkeys(
        BAGS,
        {"scale_grad_by_freq": 3, "mode": 4, "sparse": 5, "per_sample_weights": 6, "padding_idx": 8},
    ),
}
Asks = Callable[[Tensor], bool]  # whether a tensor asks for a gradient
MEAN = 1  # the mode of a bag in `aten._embedding_bag`
SCALINGS = frozenset(("mul", "div", "neg"))  # pass rows on where the other factor needs no gradient

# What each optimizer does with rows, operator by operator (torch/optim/adagrad.py and _functional.py):
# "coalesce" sorts places and adds up rows of equal ones, "look_up" reads rows of a dense state, "write" adds
# rows into a dense tensor. Others are functions of numbers: with _ in place, those of two operands in TWO.
STEPS: Mapping[str, str] = {
    "sgd": "write",
    "adagrad": "coalesce square write look_up sqrt_ add_ div write",
    "sparseadam": "coalesce look_up sub mul_ write look_up square sub_ mul_ write"
    " add_ add_ sqrt_ add_number_ div_ mul write",
}
TWO = frozenset("sub sub_ add_ div div_".split())


def gradient_dtype(tensor: Tensor) -> str:
    """The type that its gradient is priced in: float32 for types that no kind knows, such as complex ones."""
    name = torchs_dtype_name(tensor)
    return name if name in FLOATING else "float32"


@dataclass(frozen=True)
class Rows:
    """A gradient of `count` rows of `width` numbers, each each with `places` numbers for its place."""

    count: int
    width: int
    dtype: str = "float32"
    places: int = 1
    shared: bool = False  # its places are the model's own, so that a parameter keeps a copy of it

    @property
    def elements(self) -> int:
        return self.count * self.width

    @property
    def bytes(self) -> int:
        numbers = math.ceil(DTYPES[self.dtype].itemsize * self.elements)
        return numbers + PLACE_BYTES * self.places * self.count

    def times(self, number: int) -> Rows:
        """`number` of them, joined."""
        return replace(self, count=number * self.count)

    def and_also(self, other: Rows) -> Rows:
        """Both, joined."""
        return replace(self, count=self.count + other.count, shared=False)


class SparseUse(NamedTuple):
    """The gradient that a call gives its first operand, and the calls of its backward pass that make it."""

    rows: Rows
    layers: tuple[Layer, ...]


def sparse_use(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], asks: Asks) -> SparseUse | None:
    """The sparse gradient of a call; None where its first operand's gradient is dense, or not needed.

    Raises:
        InputError: PyTorch refuses such a backward pass.
    """
    if name not in MAKERS:
        return None
    named = {key: args[place] for key, place in MAKERS[name].items() if len(args) > place} | dict(kwargs)
    if not (named.get("sparse") or named.get("sparse_grad")) or not asks(args[0]):
        return None
    table, index = args[0], args[2] if name == "gather" else args[1]
    if named.get("scale_grad_by_freq"):
        raise InputError(
            f"an embedding of {tuple(table.shape)} has sparse=True and scale_grad_by_freq=True, "
            "and PyTorch has no such gradient; choose one of them"
        )
    if name == "gather":  # the other places of each number are counted up
        rows = Rows(index.numel(), 1, gradient_dtype(table), places=table.dim(), shared=True)
        return SparseUse(rows, tuple(_integers(function, rows.count) for function in ("copy", "repeat")))
    padded = named.get("padding_idx", -1) >= 0
    rows = Rows(index.numel(), table.shape[1], gradient_dtype(table), shared=not padded and name not in BAGS)
    made = [*_made_by_bags(rows, named, asks)] if name in BAGS else []  # else the gradient's own rows
    return SparseUse(rows, (*made, *(_unpadded(rows) if padded else ())))


def passes_rows(name: str, asking: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Whether the backward pass scales rows: the first operand of a scaling alone asks for a gradient."""
    return name in SCALINGS and len(asking) == 1 and asking[0] is inputs[0]


def _made_by_bags(rows: Rows, given: Mapping[str, Any], asks: Asks) -> Iterator[Layer]:
    """Calls of the backward pass of bags that make the rows."""
    yield _rows_moved("index", rows)
    factors = given.get("per_sample_weights")
    if given.get("mode", 0) == MEAN or factors is not None:
        yield scaled(rows, broadcast=True)
    if factors is not None and asks(factors):  # a product of the row and the bag's gradient, added up
        yield _numbers("mul", rows, 2)
        yield Reduction(dtype=rows.dtype, function="sum", elements=rows.elements, outputs=rows.count)


def _unpadded(rows: Rows) -> Iterator[Layer]:
    """Calls that drop rows of the padding: a mask, and its selection; no row is assumed to be padding."""
    yield Elementwise(dtype="int64", function="ne", elements=rows.count, operands=1, broadcast=False)
    yield _integers("index", rows.count)
    yield _rows_moved("index", rows)


def scaled(rows: Rows, broadcast: bool = False) -> Layer:
    """Rows times a number, or each times its own."""
    return _numbers("mul", rows, 1 + broadcast, broadcast=broadcast)


def stored(rows: Rows) -> tuple[Layer, ...]:
    """A parameter's first gradient: the rows themselves, or a copy of those that the model shares."""
    if not rows.shared:
        return ()
    return _rows_moved("copy", rows), _integers("copy", rows.places * rows.count)


def joined(rows: Rows) -> tuple[Layer, ...]:
    """`rows` in all, joined of two parts."""
    return _rows_moved("cat", rows), _integers("cat", rows.places * rows.count)


def written(rows: Rows) -> Layer:
    """Rows added into a dense tensor."""
    function, run = ("index_add", rows.width) if rows.width > 1 else ("scatter", 0)
    return Movement(dtype=rows.dtype, function=function, elements=rows.elements, run=run, inplace=True)


def gathered(uses: Sequence[Rows | None], dense: Layer) -> list[tuple[Layer, ...]]:
    """Calls that add each gradient of one tensor, in order, to those before; None is dense.

    Rows are added into a copy of a dense gradient, a dense gradient is added to rows in place
    (torch/csrc/autograd/input_buffer.cpp).
    """
    additions: list[tuple[Layer, ...]] = [()]
    so_far = uses[0]
    for rows in uses[1:]:
        if rows is not None and so_far is not None:
            so_far = so_far.and_also(rows)
            additions.append(joined(so_far))
        elif rows is not None:
            table = int(to_row(dense)["elements"])
            additions.append((Movement(dtype=dense.dtype, function="copy", elements=table), written(rows)))
        else:
            additions.append((dense if so_far is None else written(so_far),))
            so_far = None
    return additions


def step_of_rows(function: str, rows: Rows) -> Iterator[Layer]:
    """Calls of an optimizer's second step on a parameter whose gradient is rows.

    A momentum is rows, too: each step joins its own to those of all steps before.
    """
    if function == "momentum":
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
    """Raise InputError for gradients that PyTorch's optimizer refuses, given their parameters' names."""
    known = KNOWN[optimizer].make if optimizer in KNOWN else optimizer
    kind = known if isinstance(known, str) else optimizer
    others = "choose sgd or adagrad"
    if sparse and (optimizer not in SPARSE or implementation == FUSED):
        way = f"{kind} (fused)" if optimizer in SPARSE else kind
        leave = "or leave fused out" if optimizer in SPARSE else "or give its layer sparse=False"
        said = f"its gradient is sparse, which {way} does not support; {others}, {leave}"
        raise InputError(f"{sparse[0]}: {said}")
    if dense and optimizer == "sparseadam":
        raise InputError(
            f"{dense[0]}: its gradient is dense, and {kind} supports sparse ones alone; {others}"
        )


def grows(sparse: Sequence[tuple[str, Rows]], accumulation: int) -> str:
    """A note on the momentum of sparse gradients, each with its parameter's name."""
    names = ", ".join(name for name, _ in sparse[:3])
    more = f" and {len(sparse) - 3} more" if len(sparse) > 3 else ""
    count = accumulation * sum(rows.count for _, rows in sparse)
    return (
        f"momentum keeps that of sparse gradients ({names}{more}) as rows, {count} more per step: "
        "steps become slower and larger; this is the second step"
    )


def _numbers(
    function: str, rows: Rows, operands: int, inplace: bool = False, broadcast: bool = False
) -> Layer:
    how: dict[str, Any] = {"operands": operands, "broadcast": broadcast, "inplace": inplace}
    return Elementwise(dtype=rows.dtype, function=function, elements=rows.elements, **how)


def _rows_moved(function: str, rows: Rows) -> Layer:
    return Movement(dtype=rows.dtype, function=function, elements=rows.elements)


def _integers(function: str, count: int) -> Layer:
    return Movement(dtype="int64", function=function, elements=count)
