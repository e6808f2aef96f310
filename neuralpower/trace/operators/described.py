"""Operator calls as layers, and the work of decompositions and Fourier transforms, which are none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from neuralpower.dtypes import DTYPES, FLOATING
from neuralpower.errors import InputError, Unmodelled
from neuralpower.layers import BY_OPERATOR, KINDS, Layer
from neuralpower.layers.base import of_real
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.tensors import check_output, common_dtype, dtype_name, tensors_in, torchs_dtype_name
from neuralpower.networks.call_cache import key_of
from neuralpower.networks.refusals import refused
from neuralpower.networks.running import name_of
from neuralpower.trace.parts.routing import Routing

REAL = {name: dtype.parts for name, dtype in DTYPES.items() if dtype.parts}  # of complex numbers
BY_TAG = {torch.Tag.pointwise: "elementwise", torch.Tag.reduction: "reduction"}


class Descriptions:
    """The layers that calls are, each made once."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Layer | str] = {}
        self._fitting: set[Hashable] = set()  # operators with types and axes that PyTorch takes
        self.have_run = False  # calls that were recorded elsewhere: their types are not tried

    def of(self, operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any] = ()) -> Layer | str:
        """The layer that a call is, or the reason why no kind describes it; of equal calls the same."""
        key = key_of(operator, output, args, kwargs)
        if key is None:
            return _description(operator, output, args, kwargs, tags)
        call = (key, *tags)
        if call not in self._made:
            self._made[call] = _description(operator, output, args, kwargs, tags)
        return self._made[call]

    def check_types(self, where: str, func: Any, args: Any, kwargs: Any) -> None:
        """Raise InputError where PyTorch refuses the types of a call without values; once for each sort.

        `where` is the path of the module that calls, for the message.
        """
        if self.have_run:
            return
        sort = (func, *((t.dtype, t.dim()) for t in tensors_in((args, kwargs))))
        if sort in self._fitting:
            return
        name = name_of(func).split(".", 1)[-1]
        if said := refused(name, func, args, kwargs):
            types = ", ".join(dict.fromkeys(torchs_dtype_name(t) for t in tensors_in((args, kwargs))))
            raise InputError(
                f"{where}: {name} of {types} is refused by PyTorch "
                f"({said}); give inputs of its type, such as floating numbers in the dtype of the "
                "weights, ids as int64"
            )
        self._fitting.add(sort)


def _description(operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any]) -> Layer | str:
    fields: Mapping[str, Any] = {}
    try:
        plain = plain_call(operator, args, kwargs, output)
        if plain is not None:
            operator, args, kwargs, fields = plain.operator, plain.args, {}, plain.fields
            output = output if plain.output is None else plain.output
            tags = (torch.Tag.pointwise,)
        by_tag = (KINDS[kind] for tag, kind in BY_TAG.items() if tag in tags)
        kind = BY_OPERATOR.get(operator) or next(by_tag, None)
        if kind is None:
            return "no layer kind knows this operator"
        layer = kind.from_call(operator, output, *args, **kwargs)
        check_output(layer, operator, output)
        dtype = common_dtype(args, kwargs, output)
        if layer.multiplies and dtype in REAL:
            layer, dtype = of_real(layer), REAL[dtype]
    except Unmodelled as reason:
        return str(reason)
    return dataclasses.replace(layer, **{"dtype": dtype, **fields})


class Experts:
    """The products with the weights of the experts that the tokens are taken to reach."""

    def __init__(self, routing: Routing, placed: Set[str]) -> None:
        self.routing = routing
        self.per_token = 1  # the last choice of the largest that was made
        self._placed = placed  # experts of a rank, by path: there is no choice left

    def reached(self, layer: Matmul, path: str, pairs: int, experts: int) -> tuple[Matmul, str]:
        """One kernel for the products of a module of that path, and the assumption as text."""
        whole = pairs % self.per_token == 0 and self.per_token <= experts and path not in self._placed
        per_token = self.per_token if whole else 1
        reached, rows = self.routing.grouped(pairs, per_token, experts)
        grouped = dataclasses.replace(layer, batch=reached, rows=rows)
        return grouped, self.routing.note(pairs, per_token, experts)


# FLOP in the time of a byte's way to memory: devices have 5 to 15 at their peaks, such work reaches a third
FLOPS_PER_BYTE = 2.0
# FLOP of an m x n matrix, m >= n, with vectors (Golub, Van Loan, "Matrix Computations", 4th ed., 3.2 to 8.6)
WORK: Mapping[str, Callable[[int, int], float]] = {
    "inv": lambda m, n: 2 * n**3,
    "cholesky": lambda m, n: n**3 / 3,
    "qr": lambda m, n: 4 * n**2 * (m - n / 3),
    "lstsq": lambda m, n: 2 * n**2 * (m - n / 3),
    **dict.fromkeys(("svd", "pinv"), lambda m, n: 6 * m * n**2 + 20 * n**3),
    "eigh": lambda m, n: 9 * n**3,
    "eig": lambda m, n: 25 * n**3,
    "matrix_exp": lambda m, n: 16 * n**3,
    **dict.fromkeys(("solve", "lu", "det", "slogdet", "ldl"), lambda m, n: n**2 * (m - n / 3)),
}


def equivalent_bytes(operator: str, size: int, args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Bytes that memory moves while `aten.linalg_inv_ex` or its like runs; at least its tensors' `size`."""
    name = operator.split(".", 1)[-1].removeprefix("_").removeprefix("linalg_")
    of = WORK.get(name.removesuffix("_ex").removesuffix("_factor"))
    if not args or not isinstance(args[0], Tensor) or not args[0].numel():
        return size
    shape = tuple(args[0].shape)
    if of is not None and len(shape) > 1:
        *batch, rows, columns = shape
        flops = math.prod(batch) * of(max(rows, columns), min(rows, columns))
        if name in ("solve_ex", "lstsq"):  # for each right-hand side
            flops += 2 * args[1].numel() * min(rows, columns)
    elif of is None and name.startswith("fft_"):
        numbers = max(math.prod(shape), *(tensor.numel() for tensor in outputs))
        length = math.prod(shape[dim] for dim in args[1])
        flops = 5 * numbers * math.log2(max(length, 2))  # as FFTW counts them
    else:
        return size
    return max(size, round(flops / FLOPS_PER_BYTE))


# ---- Operators of `torch.ao.quantization`, read as the calls of plain tensors that do their work ----
# `quantized.linear_dynamic(x, packed)` is `aten.linear(x, W, b)` in int8. Weights lie in opaque objects,
# which unpack them. A fused relu or addition takes no pass of its own.

Args = Sequence[Any]
QUANTISED, DECOMPOSED = "quantized.", "quantized_decomposed."
CASTS = ("quantize_per", "dequantize", "quantized_decomposed.")  # beginnings of names, without aten
BYTES = "int8"  # the type that products of 8 bits run in
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# operators of one tensor, or of two -> how many of their first arguments the plain operator takes
FIRST = {
    **dict.fromkeys(
        "hardswish sigmoid leaky_relu elu celu relu6 dropout threshold clamp instance_norm".split(), 1
    ),
    **dict.fromkeys("add mul cat prelu softmax layer_norm group_norm".split(), 2),
    **dict.fromkeys(("max_pool1d", "max_pool2d"), 4),
}


@dataclass(frozen=True)
class PlainCall:
    """A call of plain tensors, and the fields of its layer that these do not say."""

    operator: str
    args: tuple[Any, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None  # where it differs from that of the quantised operator


def plain_call(operator: str, args: Args, kwargs: Mapping[str, Any], output: Any) -> PlainCall | None:
    """The plain call of a quantised operator; None for others. Raises Unmodelled where it is not known."""
    name = operator.removeprefix("aten.")
    if name.startswith(CASTS):
        return PlainCall("aten.to", (args[0],))
    if "fake_quantize" in name or name == "_fused_moving_avg_obs_fq_helper":
        return PlainCall("aten.clamp", (args[0],))
    if name.startswith("quantized_") and name.removeprefix("quantized_") in RECURRENT:
        dtype = "float16" if kwargs.get("dtype") == torch.float16 else BYTES
        return PlainCall(f"aten.{name.removeprefix('quantized_')}", tuple(args), {"dtype": dtype})
    if not name.startswith(QUANTISED):
        return None
    name = name.removeprefix(QUANTISED)
    try:
        return _read(name, args, output)
    except (RuntimeError, AttributeError, TypeError, IndexError) as error:
        raise Unmodelled(f"{operator}: its arguments cannot be read ({error})") from error


def _read(name: str, args: Args, output: Any) -> PlainCall | None:
    """The plain call of `quantized.NAME`."""
    for beginning, read in READERS.items():
        if name.startswith(beginning):
            call = read(name, args)
            return replace(call, output=(output,)) if name.startswith("embedding_bag") else call
    plain = name if name in FIRST else name.removesuffix("_relu")
    return PlainCall(f"aten.{plain}", tuple(args[: FIRST[plain]])) if plain in FIRST else None


def _linear(name: str, args: Args) -> PlainCall:
    """`linear`, `linear_relu`, `linear_dynamic`, `linear_dynamic_fp16` and their like."""
    x, packed = args[:2]
    weight, bias = _unpacked(packed)
    if "fp16" in name:
        return PlainCall("aten.linear", (x, weight, bias), {"dtype": "float32", "weights_dtype": "float16"})
    return PlainCall("aten.linear", (x, weight, bias), _of_bytes(name, x))


def _of_bytes(name: str, x: Tensor) -> dict[str, Any]:
    """Fields of a product of 8 bits: a dynamic one reads and writes the input's type, and rounds it."""
    own = dtype_name(x)
    dynamic = "dynamic" in name and own in FLOATING
    return {"dtype": BYTES, **({"output_dtype": own, "quantises": True} if dynamic else {})}


def _convolution(name: str, args: Args) -> PlainCall:
    """`conv2d`, `conv2d_relu`, `conv2d_add_relu`, `conv_transpose2d`, `conv2d_dynamic` and their like."""
    packed: Any = next(arg for arg in args if isinstance(arg, torch.ScriptObject))
    weight, bias = _unpacked(packed)
    rank = int(name.split("d")[0][-1])  # one of a line is packed as one of an image
    named = ("stride", "padding", "dilation", "output_padding")
    sizes = {one: list(getattr(packed, one)())[-rank:] for one in named}
    weight = weight.new_empty((*weight.shape[:2], *weight.shape[-rank:]))
    given: tuple[Any, ...] = (args[0], weight, bias, sizes["stride"], sizes["padding"])
    if packed.transpose():
        given = (*given, sizes["output_padding"], packed.groups(), sizes["dilation"])
        return PlainCall(f"aten.conv_transpose{rank}d", given, {"dtype": BYTES})
    return PlainCall(f"aten.conv{rank}d", (*given, sizes["dilation"], packed.groups()), {"dtype": BYTES})


def _embedding(name: str, args: Args) -> PlainCall:
    """`embedding_byte`, `embedding_bag_byte`, `embedding_bag_4bit` and their like, which give float32."""
    table = args[0]
    if not isinstance(table, Tensor):
        with _disable_current_modes():
            table = torch.ops.quantized.embedding_bag_unpack(table)
    operator = "aten._embedding_bag" if name.startswith("embedding_bag") else "aten.embedding"
    return PlainCall(operator, (_meta(table), args[1]), {"dtype": "float32"})


def _cell(name: str, args: Args) -> PlainCall:
    """A step of `quantized_lstm_cell_dynamic` and its like: x [batch, inputs], states [batch, outputs]."""
    function = next(one for one in RECURRENT if f"_{one}_" in f"{name}_")
    states = args[1] if isinstance(args[1], (tuple, list)) else [args[1]]
    x, hidden = _meta(args[0])[None], [_meta(state)[None] for state in states]
    return PlainCall(f"aten.{function}", (x, hidden, [], True, 1, 0.0, False, False, False), {"dtype": BYTES})


def _batch_norm(name: str, args: Args) -> PlainCall:
    """`batch_norm2d(x, weight, bias, mean, variance, epsilon, ...)`."""
    return PlainCall("aten.batch_norm", (*args[:5], False))


def _scaled(name: str, args: Args) -> PlainCall:
    """`add_scalar`, `mul_scalar_relu` and their like."""
    return PlainCall(f"aten.{name.split('_')[0]}", (args[0],))


def _matmul(name: str, args: Args) -> PlainCall:
    """A product of batches of matrices."""
    a, b = map(_meta, args[:2])
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    shapes = ((math.prod(batch), *one.shape[-2:]) for one in (a, b))
    return PlainCall("aten.bmm", tuple(a.new_empty(shape) for shape in shapes), {"dtype": BYTES})


READERS: Mapping[str, Callable[[str, Args], PlainCall]] = {
    "linear": _linear,
    "conv": _convolution,
    "embedding": _embedding,
    "quantized_": _cell,
    "batch_norm": _batch_norm,
    "add_scalar": _scaled,
    "mul_scalar": _scaled,
    "matmul": _matmul,
}


def _unpacked(packed: Any) -> tuple[Tensor, Tensor | None]:
    """Weights and bias of a packed object, without values."""
    with _disable_current_modes():
        weight, bias = packed.unpack()
    return _meta(weight), None if bias is None else _meta(bias)


def _meta(tensor: Tensor) -> Tensor:
    """A dense tensor of that shape without values."""
    with _disable_current_modes():
        return torch.empty(tuple(tensor.shape), device="meta")
