"""Named causes of slow calls, each a rule with its threshold: an entry of CAUSES is all that one needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuralpower.layers import Layer
from neuralpower.layers.attention import Attention, by_torch
from neuralpower.layers.base import in_tf32
from neuralpower.layers.collective import Collective
from neuralpower.traces.calls import DTYPES
from neuralpower.traces.events import HALVES, Operator

PRODUCTS = frozenset("linear addmm mm bmm baddbmm matmul addmv einsum _scaled_mm".split())
CONVOLUTIONS = frozenset("conv1d conv2d conv3d convolution _convolution".split())
COPYING = frozenset("contiguous clone".split())
NORMS = frozenset("batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm instance_norm".split())
SOFTMAXES = frozenset("softmax _softmax".split())
POINTWISE = frozenset("add add_ sub mul mul_ div silu gelu relu sigmoid tanh pow exp".split())
WHOLE_TILES = {2: 8, 4: 4, 1: 16}  # numbers of a row that fill 16 bytes, by their size in bytes
SLOWER = 1.1  # times that a call takes at least, measured against what it would
STRIDED = 1.5  # the same of operands that are not in order, and of exchanges


@dataclass(frozen=True)
class Seen:
    """Equal calls with what stands before and after them, and the trace around them."""

    operator: Operator
    layers: tuple[Layer, ...]
    kernels: frozenset[str]
    measured_s: float  # all calls together
    calls: int
    before: tuple[Seen, ...]  # calls right before the first of them on the device, the nearest last
    after: tuple[Seen, ...]
    usual: str  # type of most of the products' time, as the profiler writes it
    trains: bool
    on_cpu: bool
    price: Callable[[Sequence[Layer]], float]  # seconds on the device

    @property
    def name(self) -> str:
        return self.operator.name

    @property
    def dtypes(self) -> list[str]:
        """The types of its tensors that have axes: single numbers are doubles anyway."""
        types = self.operator.inputs.get("Input type", ())
        return [str(one) for i, one in enumerate(types) if one in DTYPES and self.dims(i)]

    def dims(self, i: int = 0) -> list[int]:
        """Sizes of an input; none where it is not a tensor."""
        sizes = self.operator.inputs.get("Input Dims", ())
        found = sizes[i] if i < len(sizes) else []
        return [one for one in found if isinstance(one, int)] if isinstance(found, list) else []

    def text(self, i: int) -> str:
        texts = self.operator.inputs.get("Concrete Inputs", ())
        return str(texts[i]) if i < len(texts) else ""

    def against(self, layers: Sequence[Layer], slower: float = SLOWER) -> float:
        """Seconds that other layers would save; 0 where times differ by as much anyway."""
        would = self.calls * self.price(layers)
        return self.measured_s - would if self.measured_s > slower * would else 0.0


@dataclass(frozen=True)
class Cause:
    """A rule: the seconds that calls would save, 0 where it does not apply, and what to do."""

    name: str
    fix: str
    saves: Callable[[Seen], float]
    least: float = 0.03  # share of the span that all its calls have to save


def _unaligned(seen: Seen) -> float:
    """Sides of a product whose rows do not fill 16 bytes, on a GPU."""
    if seen.on_cpu or not seen.layers:
        return 0.0
    padded = []
    for layer in seen.layers:
        whole = WHOLE_TILES.get(int(layer.itemsize), 4)
        sides = _sides(layer)
        odd = {name: value for name, value in sides.items() if value % whole and value > whole}
        if odd:
            sizes: dict[str, Any] = {name: math.ceil(value / whole) * whole for name, value in odd.items()}
            layer = replace(layer, **sizes)
        padded.append(layer)
    return seen.against(padded) if padded != list(seen.layers) else 0.0


def _sides(layer: Layer) -> dict[str, int]:
    """The sizes of a product, or of attention, that its rows are as long as."""
    names = {
        "linear": ("in_features", "out_features"),
        "matmul": ("inner", "columns"),
        "attention": ("query_length", "key_length", "head_size"),
    }
    if isinstance(layer, Attention) and not layer.masked:
        return {}
    held = {name: getattr(layer, name, None) for name in names.get(layer.kind, ())}
    return {name: value for name, value in held.items() if isinstance(value, int)}


def _copied(seen: Seen) -> float:
    """A copy of a whole tensor before a product, which reads operands in any order, or after one."""
    if seen.name not in COPYING:
        return 0.0
    before, after = (one.name if one else "" for one in (last(seen.before), last(seen.after[:1])))
    return seen.measured_s if after in PRODUCTS or (before in PRODUCTS and "attention" not in after) else 0.0


def last(some: Sequence[Seen]) -> Seen | None:
    return some[-1] if some else None


def _wide(seen: Seen) -> float:
    """Float64 where others are not; half of the time or more is its width."""
    if "double" not in seen.dtypes or seen.usual == "double":
        return 0.0
    return seen.measured_s / 2


def _single(seen: Seen) -> float:
    """Products in float32 where most are of 16 bits."""
    if seen.usual not in HALVES or seen.name not in PRODUCTS | CONVOLUTIONS:
        return 0.0
    if set(seen.dtypes) != {"float"}:
        return 0.0
    dtype = "bfloat16" if seen.usual == HALVES[0] else "float16"
    return max(seen.against([replace(layer, dtype=dtype) for layer in seen.layers]), seen.measured_s / 4)


def _full_precision(seen: Seen) -> float:
    """Products in float32 without TF32, by their kernels' names."""
    if seen.on_cpu or seen.name not in PRODUCTS or set(seen.dtypes) != {"float"}:
        return 0.0
    if not any("sgemm" in kernel or "ffma" in kernel for kernel in seen.kernels):
        return 0.0
    return seen.against([in_tf32(layer) for layer in seen.layers])


def _in_training_mode(seen: Seen) -> float:
    """A norm that takes its batch's mean where nothing is trained: kept statistics could be folded."""
    if seen.trains or seen.name not in NORMS or seen.text(5) != "True":
        return 0.0
    return seen.measured_s


def _unfused(seen: Seen) -> float:
    """Softmax between two products of matrices: what fused attention does in one kernel."""
    if seen.name not in SOFTMAXES or len(seen.dims()) < 3:
        return 0.0
    *batch, queries, keys = seen.dims()
    first = next((one for one in reversed(seen.before) if one.name in PRODUCTS), None)
    second = next((one for one in seen.after if one.name in PRODUCTS), None)
    if first is None or second is None or not first.layers or not second.layers:
        return 0.0
    of_scores = second.dims(0)
    if math.prod(of_scores) != math.prod(seen.dims()) or of_scores[-2:] != [queries, keys]:
        return 0.0
    head = second.dims(1)[-1:] or [0]
    between = _between(seen, first, second)
    one = Attention(
        batch=1,
        query_heads=math.prod(batch),
        key_heads=math.prod(batch),
        query_length=queries,
        key_length=keys,
        head_size=max(head[0], 1),
        causal=False,
        masked=False,
        dtype=second.layers[0].dtype,
    )
    took = sum(part.measured_s / part.calls for part in between) * seen.calls
    fused = seen.calls * seen.price([one if seen.on_cpu else by_torch(one)])
    return max(took - fused, seen.measured_s)


def _between(seen: Seen, first: Seen, second: Seen) -> list[Seen]:
    """Both products, the softmax, and what stands between them."""
    before = list(seen.before[[*seen.before].index(first) :])
    return [*before, seen, *seen.after[: [*seen.after].index(second) + 1]]


def _split(seen: Seen) -> float:
    """Products whose inner side is split over kernels, and summed by another."""
    if seen.on_cpu or not any("splitk" in name.lower().replace("_", "") for name in seen.kernels):
        return 0.0
    return seen.against(seen.layers)


def _out_of_order(seen: Seen) -> float:
    """Operands of an element-wise call with holes between their rows, or whose orders in memory differ."""
    if seen.name not in POINTWISE or not seen.layers:
        return 0.0
    names = "Input Dims", "Input Strides"
    held = zip(*(seen.operator.inputs.get(name, ()) for name in names), strict=False)
    whole = [one for one in held if isinstance(one[0], list) and one[0] and one[1]]
    largest = max((math.prod(sizes) for sizes, _ in whole), default=0)
    orders = {_order(*one) for one in whole if math.prod(one[0]) == largest}  # others are broadcast
    if None not in orders and len(orders) < 2:
        return 0.0
    runs: dict[str, Any] = {"run": 0}
    in_order = [replace(layer, **runs) if hasattr(layer, "run") else layer for layer in seen.layers]
    return seen.against(in_order, STRIDED)


def _order(sizes: Sequence[int], steps: Sequence[int]) -> tuple[int, ...] | None:
    """Axes by their strides; None for a tensor with holes. Broadcasts have neither."""
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    if len(sizes) != len(steps) or any(steps[axis] == 0 for axis in axes):
        return ()
    axes.sort(key=lambda axis: -steps[axis])
    if steps[axes[0]] * sizes[axes[0]] > math.prod(sizes) if axes else False:
        return None
    return tuple(axes)


def _late(seen: Seen) -> float:
    """Exchanges between devices that take longer than their size: a device that comes early waits in them."""
    if not seen.layers or not all(isinstance(layer, Collective) for layer in seen.layers):
        return 0.0
    return seen.against(seen.layers, STRIDED)


CAUSES: tuple[Cause, ...] = (
    Cause("norm in training mode", "call model.eval() before it serves", _in_training_mode, 0.005),
    Cause("float64 island", "keep tensors in the type of the weights", _wide, 0.0),
    Cause("float32 island", "cast these products to the type of the others, or use autocast", _single),
    Cause("unfused attention", "use torch.nn.functional.scaled_dot_product_attention", _unfused, 0.02),
    Cause("unaligned sides", "pad these sides to whole 16 bytes, such as multiples of 8", _unaligned),
    Cause("TF32 off", "torch.set_float32_matmul_precision('high')", _full_precision),
    Cause("copy next to a product", "products read any order: leave contiguous() out", _copied, 0.01),
    Cause("split-K", "larger batches, or a fused product, need no partial sums", _split),
    Cause("waiting in exchanges", "give each device as much work, or exchange under other work", _late),
    Cause("operands out of order", "keep one memory format, or make them contiguous once", _out_of_order),
)
"""A call has the first cause that applies to it."""
