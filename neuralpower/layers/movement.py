"""Movements of data without arithmetic: copies, casts, concatenations, gathers, fills, resampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import Self

from neuralpower.dtypes import FLOATING
from neuralpower.errors import Unmodelled
from neuralpower.late import F, Tensor, torch
from neuralpower.layers import (
    Bytes,
    Call,
    Described,
    Draw,
    Hardware,
    Layer,
    Training,
    View,
    Views,
    layer_kind,
)
from neuralpower.layers.base import BACKWARD, RECURRING, torch_dtype
from neuralpower.layers.pointwise import Pointwise
from neuralpower.layers.tensors import common_dtype, contiguous_run, strided
from neuralpower.layers.training import KEEPS_NOTHING, KEEPS_OUTPUTS, is_floating

FUNCTIONS = {
    "copy": """
        clone contiguous reshape copy_ flatten expand_copy to type_as _reshape_copy t_copy view_copy
        permute_copy _unsafe_view swapaxes diag_embed unfold_copy lift_fresh_copy _pack_padded_sequence
    """,
    "cast": "_to_copy float half bfloat16 double long int bool type",
    "cat": "cat concat concatenate stack hstack vstack",
    "pad": """
        pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d replication_pad1d
        _pad_packed_sequence select_backward slice_backward diagonal_backward to_padded_tensor
        _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward
    """,
    "roll": "roll flip rot90 pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle",
    "repeat": "repeat tile repeat_interleave",
    "index": "index index_select take",
    "gather": "gather take_along_dim masked_select nll_loss nll_loss_nd nll_loss_forward nll_loss2d_forward",
    "scatter": """
        index_put index_put_ scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_
        masked_scatter masked_scatter_ slice_scatter select_scatter
    """,
    "index_add": "index_add index_add_ index_copy index_copy_ index_fill index_fill_",
    "unfold": "im2col",
    "fold": "col2im",
    "fill": """
        arange zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full fill_ zero_ linspace
        rand randn rand_like randn_like eye scalar_tensor fill one_hot randint meshgrid normal_ uniform_
        randperm
    """,
    "triangle": "tril triu tril_ triu_",
    "scan": "cumsum cumprod cummax logcumsumexp",
    "sort": "sort argsort",
    "topk": "topk kthvalue",
    "search": "searchsorted bucketize multinomial",
    "select": "nonzero nonzero_static bincount histc",
    "unique": "unique unique_consecutive unique_dim _unique2",
    "upsample_nearest": "upsample_nearest2d upsample_nearest1d _upsample_nearest_exact2d",
    "upsample_linear": """
        upsample_bilinear2d upsample_linear1d _upsample_bilinear2d_aa grid_sampler_2d grid_sampler
    """,
    "upsample_cubic": "upsample_bicubic2d _upsample_bicubic2d_aa",
}
OPERATORS = {f"aten.{name}": function for function, names in FUNCTIONS.items() for name in names.split()}
SWEPT = """
    copy copy copy copy cast cat cat append append pad roll repeat index gather scatter fill triangle scan
    sort upsample_nearest upsample_linear upsample_cubic sort topk topk search select index_add scatter_rows
    unfold fold unique
""".split()
APPENDED = 9  # a cache has at least this many times the tokens that a step adds
ALIAS = "alias"  # a view that a loop makes: its time is that of the call itself
VIEWED = ("copy", "cat", "append")  # their gradients are views of the one that came
APART = """
    append sort topk search select scan upsample_linear upsample_cubic scatter gather index index_add
    scatter_rows unfold fold unique alias
""".split()
ROWS = ("index_add", "scatter_rows")  # whole rows go to a place each: `run` is their length
RANKED = ("sort", "topk")  # row by row: `run` is their length
# `run` of a loss that is gathered: the classes of each row
READ = (*RANKED, "search", "select", "unique", "fold")  # what they read says how long they take
FEW, PLACES = 8, 256  # the topmost of a row, and the sorted numbers that are searched, in what is measured
JOINED = ("cat", "append")
PLAIN = ("copy", "cast", "cat", "append", "pad", "roll", "repeat", "unfold", "fold")  # not by places


def _sample_recurring(kind: type[Movement], draw: Draw) -> Movement:
    """Views and copies above all, and what else loops take apart and put together."""
    if draw.chance(0.45):
        return kind(function=ALIAS, elements=draw.octaves(1, 2**16), recurs=True)
    if draw.chance(0.6):
        function, elements = draw.choice("copy copy cast cat fill".split()), draw.octaves(1, 2**14)
        run = draw.choice((0, 1, 16, 64)) if function == "copy" else 0
        return kind(function=function, elements=max(16 * run, 1) * elements, run=run, recurs=True)
    return replace(kind.sample(draw), recurs=True)


def _features(layer: Movement, hardware: Hardware) -> Described:
    """Features that distinguish the commonest functions of the cheap group."""
    function = np.asarray(layer.function)
    names = ("cat", "pad", "roll", "fill", "cast", "repeat")
    return {
        **Pointwise.views.cpu.features(layer, hardware),
        **{name: (function == name) * 1.0 for name in names},
    }


def _differentiable(layer: Movement) -> bool:
    """A fill depends on nothing, and places are whole numbers."""
    passes = is_floating(layer) and layer.function not in ("fill", "search", "select", ALIAS)
    return passes and set(layer.types()) <= {*FLOATING}


def _is_reversed_in_parts(layer: Movement) -> bool:
    """A loss, whose gradient fills all classes of each row."""
    return bool(layer.function == "gather" and layer.run)


def _backward(layer: Movement) -> tuple[Layer, ...]:
    """The gradient moves back the same way, what was picked is scattered."""
    if not _differentiable(layer):
        return ()
    stand_ins = {"index": "scatter", "gather": "scatter", "append": "copy"}
    stand_ins |= {**dict.fromkeys(ROWS, "index"), "unfold": "fold", "fold": "unfold"}
    stand_ins |= dict.fromkeys(RANKED, "scatter")
    function = stand_ins.get(layer.function, layer.function)
    if _is_reversed_in_parts(layer):  # zeros, and the gradient of what was picked
        zeros = replace(layer, phase="forward", function="fill", elements=layer.elements * layer.run, run=0)
        return zeros, replace(layer, phase="forward", function=function, run=0)
    run = 0 if layer.function in (*ROWS, *RANKED) else layer.run
    back = replace(layer, phase="forward", function=function, inplace=False, run=run)
    if layer.function == "cast":
        read, written = layer.types()
        back = replace(back, from_dtype=written, to_dtype=read)
    return (back,)


def _group(layer: Movement) -> Any:
    """Copies in order are bandwidth-bound, what grows a cache reads it cold; each search is its own code.

    Backward passes of copies and joins are views.
    """
    function = np.asarray(layer.function)
    views = (np.asarray(layer.phase) == BACKWARD) & np.isin(function, VIEWED)
    return np.where(views, "view", np.where(np.isin(function, APART), function, "copy"))


@layer_kind("movement", *OPERATORS)
@dataclass(frozen=True, kw_only=True)
class Movement(Pointwise):
    """`elements` numbers are written; views are free, and come here only where a loop makes them."""

    sweep_share = 2.2
    recurring_share = 0.2
    group_names = ("view", "copy", *APART)
    alone = frozenset({ALIAS})
    several = (
        "sort",
        "topk",
        "search",
        "select",
        "scan",
        "unique",
        "fold",
        "upsample_linear",
        "upsample_cubic",
    )
    samples = {RECURRING: _sample_recurring}
    words = {"function": (*FUNCTIONS, "append", "scatter_rows", ALIAS)}
    views = Views(cpu=View(group=_group, features=_features), of=Pointwise.views)
    training = Training(
        differentiable=_differentiable,
        backward=_backward,
        keeps=lambda layer: KEEPS_NOTHING if layer.function in PLAIN else KEEPS_OUTPUTS,  # places alone
        in_parts=_is_reversed_in_parts,
    )

    @classmethod
    def from_call(cls, operator: str, output: Any, *args: Any, **kwargs: Any) -> Self:
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        tensors = [t for t in outputs if isinstance(t, Tensor)]
        if not tensors:
            raise Unmodelled(f"{operator} returns no tensor")
        y, function = tensors[0], OPERATORS[operator]
        x = args[0] if args and isinstance(args[0], Tensor) else None
        source: Any = args[1] if operator == "aten.copy_" else x
        if function == "copy" and isinstance(source, Tensor) and source.dtype != y.dtype:
            function = "cast"
        if operator.startswith("aten.nll_loss"):  # picks what a row has for its label, and takes their mean
            return cls(
                function=function, elements=args[1].numel(), run=args[0].shape[min(args[0].dim() - 1, 1)]
            )
        if operator in ("aten.cat", "aten.concat") and _appends(args, kwargs):
            function = "append"
        elements = sum(t.numel() for t in tensors)
        if x is not None and (function in READ or operator == "aten.masked_select"):
            elements = y.numel() if operator == "aten.searchsorted" else x.numel()
        run = 0
        if x is not None and function in RANKED:
            run = _ranked(operator, x, args, kwargs)
        if function in ("scatter", "index_add"):
            written = _written(operator, y, args)
            elements = written if operator.endswith("_") else max(written, elements)
            run = _row(operator, y, args)
            if function == "scatter" and run:
                function = "scatter_rows"
        moved = function in ("copy", "cast", "roll") and isinstance(source, Tensor)
        if moved and source.numel() == y.numel() > 1:
            # what changes its shape is copied in the order of its axes
            run = contiguous_run(source, y if source.shape == y.shape else source.new_empty(source.shape))
            run = min(filter(None, (run, _gaps(y))), default=0)
        elif function in JOINED:
            run = _joined_run(y, args, kwargs)
        layer = cls(
            dtype=common_dtype(args, kwargs, output),
            function=function,
            elements=elements,
            inplace=operator.endswith("_"),
            run=run,
        )
        return layer if function in READ else layer.typed_as(source, y)

    def usual_types(self) -> tuple[Any, Any]:
        """A cast is to float32, and one of float32 is to bfloat16."""
        if isinstance(self.dtype, str):
            other = "bfloat16" if self.dtype == "float32" else "float32"
            return self.dtype, other if self.function == "cast" else self.dtype
        other = np.where(self.dtype == "float32", "bfloat16", "float32")
        return self.dtype, np.where(np.asarray(self.function) == "cast", other, self.dtype)

    @classmethod
    def sample(cls, draw: Draw) -> Self:
        """Transposed copies above all, as in attention and windowed networks."""
        function = draw.choice(SWEPT)
        if function in ROWS:
            run, rows = draw.choice((8, 16, 32, 64, 64, 128, 256)), draw.octaves(2, 2**15)
            return cls(function=function, elements=run * rows, run=run, inplace=True)
        if function in ("unfold", "fold"):
            side, channels = draw.choice((4, 7, 8, 14, 16, 28, 32, 56)), draw.octaves(1, 192)
            return cls(function=function, elements=9 * side * side * channels)
        if function == "unique":
            return cls(dtype="int64", function=function, elements=draw.octaves(16, 2**19))
        if function in RANKED:
            run = draw.octaves(4, 2**17)
            elements = run * draw.octaves(1, max(2 ** (18 if function == "sort" else 21) // run, 1))
            dtype = "int64" if function == "sort" and draw.chance(0.25) else "float32"
            return cls(dtype=dtype, function=function, elements=elements, run=run)
        elements = draw.size(16, 2**22 if function in APART[1:] else 2**24)
        run = draw.choice((0, 1, 1, 4, 16, 32, 64, 64, 128)) if function == "copy" else 0
        elements = max(elements // 16, APPENDED + 1 if function == "append" else 1) * 16
        if run:
            elements = max(elements // (16 * run), 1) * 16 * run
        integer = function in ("copy", "cat", "roll", "repeat", "pad", "fill") and draw.chance(0.12)
        return cls(dtype="int64" if integer else "float32", function=function, elements=elements, run=run)

    def build(self, device: torch.device) -> Call:
        """One call of the function's commonest operator."""
        n, function = self.elements, self.function
        if function == ALIAS:
            return Call(Tensor.select, (self.tensor(2, n, device=device), 0, 1))
        if function == "fill":
            return Call(torch.zeros, ((n,),), {"dtype": torch_dtype(self.dtype), "device": device})
        if function in ("copy", "cast"):
            x, written = strided(self.reading(), n, self.run, device), torch_dtype(self.types()[1])
            if self.inplace:
                return Call(Tensor.copy_, (torch.empty(x.shape, dtype=written, device=device), x))
            if function == "cast":
                return Call(Tensor.to, (x, written), warm=(x,))
            return Call(torch.clone, (x,), {"memory_format": torch.contiguous_format}, warm=(x,))
        if function == "unique":
            return Call(torch.unique, (torch.randint(0, n, (n,), device=device).to(torch_dtype(self.dtype)),))
        own = {"append": self._appended, "unfold": self._folded, "fold": self._folded}
        own |= dict.fromkeys(ROWS, self._to_places)
        usual = self._resampled if function.startswith("upsample") else self._of_rows
        return own.get(function, usual)(device)

    def _appended(self, device: torch.device) -> Call:
        """A cache of keys, and those of one token more."""
        n = self.elements
        width = next(d for d in (128, 64, 32, 16, 8, 4, 2, 1) if n % d == 0 and (n // d > APPENDED or d == 1))
        rows = n // width
        heads = next(h for h in (8, 4, 2, 1) if rows % h == 0 and (rows // h > APPENDED or h == 1))
        cache = self.tensor(1, heads, rows // heads - 1, width, device=device)  # last read a step ago: cold
        new = self.tensor(1, heads, 1, width, device=device)
        return Call(torch.cat, ([cache, new],), {"dim": -2}, warm=(new,))

    def _resampled(self, device: torch.device) -> Call:
        n = self.elements
        side = next(s for s in (64, 32, 16, 8, 4, 2, 1) if n % (4 * s * s) == 0 or s == 1)
        x = self.tensor(1, max(n // (4 * side * side), 1), side, side, device=device)
        mode = {"upsample_nearest": "nearest", "upsample_linear": "bilinear", "upsample_cubic": "bicubic"}
        return Call(F.interpolate, (x,), {"scale_factor": 2, "mode": mode[self.function]}, warm=(x,))

    def _folded(self, device: torch.device) -> Call:
        """An image taken apart into windows of 3 x 3, or put together from them."""
        n, kernel = self.elements, 3 if self.elements % 9 == 0 else 1
        side = next(s for s in (64, 56, 32, 28, 16, 14, 8, 7, 4, 2, 1) if n % (kernel * s) ** 2 == 0)
        channels, padding = n // (kernel * side) ** 2, kernel // 2
        if self.function == "unfold":
            x = self.tensor(1, channels, side, side, device=device)
            return Call(F.unfold, (x, kernel), {"padding": padding}, warm=(x,))
        x = self.tensor(1, channels * kernel**2, side * side, device=device)
        return Call(F.fold, (x, side, kernel), {"padding": padding}, warm=(x,))

    def _of_rows(self, device: torch.device) -> Call:
        n, function = self.elements, self.function
        width = next(d for d in range(min(256, math.isqrt(n)), 0, -1) if n % d == 0)
        if function in RANKED and self.run:
            width = self.run
        rows = n // width
        x = self.tensor(rows, width, device=device)
        match function:
            case "cat":
                half = max(rows // 2, 1)
                return Call(torch.cat, ([x[:half], x[half:]],), warm=(x,))
            case "pad":
                narrow = x[:, : max(width - 1, 1)]
                return Call(F.pad, (narrow, (0, width - narrow.shape[1])), warm=(x,))
            case "index":
                index = torch.randint(0, rows, (rows,), device=device)
                return Call(torch.index_select, (x, 0, index), warm=(x,))
            case "gather":
                index = torch.randint(0, rows, (rows, width), device=device)
                return Call(torch.gather, (x, 0, index), warm=(x,))
            case "scatter":
                index = torch.randint(0, rows, (rows, width), device=device)
                source = self.tensor(rows, width, device=device)
                return Call(torch.scatter, (x, 0, index, source), warm=(x,))
            case "search":
                places = self.tensor(PLACES, device=device).sort()[0]
                return Call(torch.searchsorted, (places, x), warm=(x,))
            case "repeat":
                x = x if rows % 2 == 0 or width % 2 else x.reshape(2 * rows, -1)
                times = 2 if len(x) % 2 == 0 else 1
                return Call(Tensor.repeat, (x[: len(x) // times], times, 1), warm=(x,))
        table: dict[str, tuple[Any, ...]] = {
            "roll": (torch.roll, x, 1, 0),
            "triangle": (torch.tril, x),
            "scan": (torch.cumsum, x, -1),
            "sort": (torch.sort, x, -1),
            "topk": (torch.topk, x, min(FEW, width)),
            # the others take as long, and their outputs' sizes are data
            "select": (torch.histc, x, 64, -3.0, 3.0),
        }
        operator, *arguments = table[function]
        return Call(operator, tuple(arguments), warm=(x,))

    def _to_places(self, device: torch.device) -> Call:
        """Rows, each added to one of a quarter as many."""
        width = self.run or 1
        rows = self.elements // width
        source, target = (self.tensor(count, width, device=device) for count in (rows, max(rows // 4, 1)))
        index = torch.randint(0, len(target), (rows,), device=device)
        if self.function == "index_add":
            return Call(Tensor.index_add_, (target, 0, index, source), warm=(source,))
        places = index[:, None].expand(rows, width)
        return Call(Tensor.scatter_add_, (target, 0, places, source), warm=(source,))

    def flops(self) -> int:
        return 0 * self.elements

    def _moved(self, read: Any, written: Any) -> Bytes:
        """In once, out once; a fill reads nothing, a view moves nothing."""
        function = np.asarray(self.function)
        moved = self.elements * (function != ALIAS)
        return Bytes(read * moved * (function != "fill"), 0, written * moved)


def _gaps(y: Tensor) -> int:
    """Elements side by side in a result that is a part of something larger; 0 where it has no gaps."""
    return contiguous_run(y, y)


def _joined_run(y: Tensor, args: Any, kwargs: Any) -> int:
    """Elements side by side in the worst of the parts that are joined to y, in y's order."""
    axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    parts = [part for part in args[0] if isinstance(part, Tensor) and part.dim() == y.dim()]
    found = [contiguous_run(part, y.narrow(axis, 0, part.shape[axis])) for part in parts if part.numel() > 1]
    return min(filter(None, found), default=0)


def _written(operator: str, y: Tensor, args: Any) -> int:
    """Numbers that a scatter writes into y: one for each place; all of y for a mask, which does not tell."""
    name = operator.removeprefix("aten.").rstrip("_")
    if name.startswith("scatter"):
        return int(args[2].numel())
    if name in ("index_add", "index_copy", "index_fill"):
        return y.numel() // max(y.shape[args[1]], 1) * int(args[2].numel()) if y.dim() else 1
    indices = args[1] if name == "index_put" else ()
    places = {axis: index for axis, index in enumerate(indices) if index is not None}
    if not places or any(index.dtype in (torch.bool, torch.uint8) for index in places.values()):
        return y.numel()
    one = y.numel() // max(math.prod(y.shape[axis] for axis in places), 1)
    shape = torch.broadcast_shapes(*(i.shape for i in places.values()))  # type: ignore[no-untyped-call]
    return one * math.prod(shape)


def _row(operator: str, y: Tensor, args: Any) -> int:
    """Length of the rows that go to one place each; 0 where each number has a place of its own."""
    name = operator.removeprefix("aten.").rstrip("_")
    if name in ("index_add", "index_copy", "index_fill"):
        return math.prod(y.shape[args[1] % y.dim() + 1 :]) if y.dim() else 1
    index = args[2] if name.startswith("scatter") and len(args) > 2 else None
    if not isinstance(index, Tensor) or index.dim() < 2:
        return 0
    run = 1
    for axis in range(index.dim() - 1, args[1] % index.dim(), -1):  # along which it was expanded
        if index.stride(axis) and index.shape[axis] > 1:
            break
        run *= index.shape[axis]
    return run if run > 1 else 0


def _ranked(operator: str, x: Tensor, args: Any, kwargs: Any) -> int:
    """Length of the rows that are sorted, or looked through for their topmost."""
    at = 1 if operator in ("aten.sort", "aten.argsort") else 2
    dim = kwargs.get("dim", args[at] if len(args) > at and not isinstance(args[at], bool) else -1)
    return x.shape[dim] if x.dim() else 1


def _appends(args: Any, kwargs: Any) -> bool:
    """Whether a concatenation appends to a cache of keys or values [batch, heads, length, head size]."""
    parts, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if len(parts) != 2 or parts[0].dim() != 4 or dim not in (-2, 2):
        return False
    return bool(parts[0].shape[2] >= APPENDED * parts[1].shape[2] > 0)
