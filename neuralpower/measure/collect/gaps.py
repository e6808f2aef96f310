"""Layers that sweeps and networks at usual sizes leave out: what large vision and language batches run.

A topic is a source of clusters: neighbours that differ in one thing, such as a convolution in both memory
formats, or a product and one with an unaligned side. Topics come in turn, so that a collection that is cut
off has some of each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any

from neuralpower.dtypes import TENSORFLOAT32
from neuralpower.layers import Draw, Layer
from neuralpower.layers.activation import Activation
from neuralpower.layers.attention import Attention
from neuralpower.layers.base import BACKWARD, FORWARD, typed
from neuralpower.layers.convolution import Conv2d
from neuralpower.layers.elementwise import Elementwise
from neuralpower.layers.linear import Linear
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.movement import Movement
from neuralpower.layers.norm import Norm
from neuralpower.layers.pooling import Pool2d
from neuralpower.layers.softmax import Softmax

Cluster = Sequence[Layer]

BATCHES = (32, 64, 128, 128, 256, 256, 512)
MAPS = (7, 7, 14, 14, 28, 28, 56, 56, 112)
ALIGNED = (16, 32, 64, 64, 96, 128, 128, 192, 256, 256, 384, 512, 512, 768, 1024, 2048)
UNALIGNED = (12, 20, 24, 36, 40, 50, 63, 72, 100, 129, 144, 180, 228, 342, 528, 1000)
GROUP_WIDTHS = (4, 8, 8, 16, 24, 32, 48, 56, 64, 112, 168, 232)  # ResNeXt and RegNet
HEAD_SIZES = (64, 64, 128)
VOCABULARIES = (30_522, 32_000, 32_001, 50_257, 50_304, 65_024, 100_277, 128_256, 151_936)
CASTS: Sequence[dict[str, str]] = (
    {},
    {},
    {"to_dtype": "float16"},
    {"from_dtype": "int64", "to_dtype": "float32"},
    {"from_dtype": "bool", "to_dtype": "float32"},
    {"to_dtype": "int64"},
    {"dtype": "int64", "to_dtype": "int32"},
)
RUNS = (32, 64, 128, 256)  # numbers side by side in a slice
WEIGHTS = {"bfloat16": 4, "float16": 3, TENSORFLOAT32: 2}  # of a dtype against the others, which have 1
# Planning values of a call's time, from which the longest are omitted: they cost more than they tell.
FLOPS_PER_S = {"float32": 4e13, "float64": 3e13, TENSORFLOAT32: 2e14}
SHORT_FLOPS_PER_S = 4e14  # of types of two bytes
GROUPED_SLOWER = 30  # convolutions of many groups, whose tiles are mostly empty
BYTES_PER_S = 2e12
CALL_S = 4e-3
EXPANDED_BYTES = 4 * 2**30  # of memory that attention takes where no fused kernel does
ATTEMPTS, FRUITLESS = 40, 200  # draws for each layer that is wanted; draws without one, as of other kinds


@dataclass(frozen=True)
class Topic:
    """A source of clusters, of which a share runs backward where both phases are requested."""

    draw: Callable[[Draw], Cluster]
    backward: float = 0.0
    call_s: float = CALL_S  # the longest call, as planned


def _both_formats(layer: Conv2d) -> Cluster:
    return replace(layer, channels_last=True), replace(layer, channels_last=False)


def _convolution(draw: Draw, channels: tuple[int, int], kernel: int, stride: int, groups: int = 1) -> Cluster:
    """A padded convolution of a square map in both formats; a patch is as wide as its stride."""
    inner, outer = channels
    side = draw.choice(MAPS) if inner > 4 else draw.choice((112, 160, 224, 224, 224))
    padding = 0 if stride >= kernel > 1 else kernel // 2
    sizes = {"in": side, "kernel": kernel, "stride": stride, "padding": padding, "dilation": 1}
    layer = Conv2d(
        batch=draw.choice(BATCHES),
        in_channels=inner,
        out_channels=outer,
        groups=groups,
        bias=draw.chance(0.3),
        **Conv2d.fields_of({name: (size, size) for name, size in sizes.items()}),
    )
    return _both_formats(layer)


def _channels(draw: Draw) -> int:
    return draw.choice(ALIGNED if draw.chance(0.6) else UNALIGNED)


def _pointwise_convolution(draw: Draw) -> Cluster:
    return _convolution(draw, (_channels(draw), _channels(draw)), 1, 1)


def _three_by_three(draw: Draw) -> Cluster:
    inner = _channels(draw)
    return _convolution(draw, (inner, inner if draw.chance(0.6) else _channels(draw)), 3, 1)


def _large_kernel(draw: Draw) -> Cluster:
    return _convolution(draw, (_channels(draw), _channels(draw)), draw.choice((5, 5, 7)), 1)


def _stem(draw: Draw) -> Cluster:
    kernel, stride = draw.choice(((3, 2), (3, 2), (7, 2), (4, 4), (11, 4), (7, 4), (3, 1)))
    return _convolution(draw, (3, draw.choice((16, 24, 32, 32, 48, 64, 64, 96, 128))), kernel, stride)


def _strided(draw: Draw) -> Cluster:
    kernel = draw.choice((1, 2, 3, 3))
    return _convolution(draw, (_channels(draw), _channels(draw)), kernel, 2)


def _depthwise(draw: Draw) -> Cluster:
    channels, kernel = _channels(draw), draw.choice((3, 3, 5, 5, 7))
    return _convolution(draw, (channels, channels), kernel, draw.choice((1, 1, 1, 2)), channels)


def _grouped(draw: Draw) -> Cluster:
    if draw.chance(0.3):  # few and wide
        groups, width = draw.choice((2, 2, 4, 8)), draw.choice((32, 48, 64, 96, 128, 256))
        return _convolution(draw, (groups * width, groups * width), draw.choice((1, 3, 3)), 1, groups)
    width, groups = draw.choice(GROUP_WIDTHS), draw.choice((2, 4, 8, 16, 32, 32, 64))
    return _convolution(draw, (width * groups, width * groups), 3, draw.choice((1, 1, 2)), groups)


def _patches(draw: Draw) -> Cluster:
    side, channels = draw.choice((8, 14, 16, 16, 16, 32)), draw.choice((192, 384, 768, 1024, 1280))
    return _convolution(draw, (3, channels), side, side)


def _map(draw: Draw) -> tuple[int, int, int]:
    """(batch, channels, side) of a map of tens to hundreds of MB."""
    while True:
        batch, channels, side = draw.choice(BATCHES), _channels(draw), draw.choice(MAPS)
        if 2**22 <= batch * channels * side**2 <= 2**28:
            return batch, channels, side


def _batch_norm(draw: Draw) -> Cluster:
    batch, channels, side = _map(draw)
    function = draw.choice(("batch", "batch", "batch_training"))
    layer = Norm(function=function, rows=batch, width=channels, spatial=side**2)
    return replace(layer, strided=True), layer


def _other_norm(draw: Draw) -> Cluster:
    batch, channels, side = _map(draw)
    function = draw.choice(("layer", "layer", "rms", "group"))
    if function == "group":
        layer = Norm(function=function, rows=batch, width=channels, spatial=side**2)
        return layer, replace(layer, strided=True)
    layer = Norm(function=function, rows=batch * side**2, width=channels)
    return (layer, replace(layer, strided=True)) if draw.chance(0.3) else (layer,)


def _pooling(draw: Draw) -> Cluster:
    batch, channels, side = _map(draw)
    function, kernel, stride = draw.choice(
        (
            *(("max", 3, 2), ("max", 2, 2), ("avg", 2, 2), ("avg", 3, 1), ("max", 5, 1)),
            *(("adaptive_avg", side, side), ("adaptive_avg", side, side), ("avg", 7, 7)),
        )
    )
    kernel = min(kernel, side)
    window = {"in": side, "kernel": kernel, "stride": stride, "padding": (stride < kernel) * (kernel // 2)}
    fields = Pool2d.fields_of({name: (size, size) for name, size in window.items()})
    layer = Pool2d(function=function, batch=batch, channels=channels, **fields)
    return replace(layer, channels_last=True), layer


def _moved(draw: Draw) -> Cluster:
    batch, channels, side = _map(draw)
    elements = batch * channels * side**2
    function = draw.choice("upsample_nearest upsample_linear cat cat pad roll copy copy index".split())
    if function.startswith("upsample"):
        side = draw.choice((8, 16, 32, 64))
        return (Movement(function=function, elements=4 * side**2 * max(elements // (4 * side**2), 1)),)
    if function == "copy":  # of a channels-last map, and of one without jumps
        return tuple(Movement(function=function, elements=elements, run=run) for run in (1, 0))
    return (Movement(function=function, elements=elements),)


def _cast(draw: Draw) -> Cluster:
    batch, channels, side = _map(draw)
    elements = batch * channels * side**2
    types: dict[str, Any] = dict(draw.choice(CASTS))
    return tuple(Movement(function="cast", elements=n, **types) for n in (elements, elements // 16))


def _activation(draw: Draw) -> Cluster:
    batch, channels, side = _map(draw)
    function = draw.choice("relu relu silu silu gelu gelu hardswish sigmoid gelu_tanh relu6 tanh".split())
    layer = Activation(function=function, elements=batch * channels * side**2)
    if function in ("relu", "silu", "relu6") and draw.chance(0.5):
        return layer, replace(layer, inplace=True)
    return (layer, _sliced(draw, layer)) if draw.chance(0.3) else (layer,)


def _sliced(draw: Draw, layer: Activation) -> Activation:
    """The function of one half of each row."""
    run = draw.choice(RUNS)
    return replace(layer, run=run, elements=layer.elements // (4 * run) * 4 * run)


def _arithmetic(draw: Draw) -> Cluster:
    batch, channels, side = _map(draw)
    layer = Elementwise(
        function=draw.choice(("add", "add", "mul")),
        elements=batch * channels * side**2,
        operands=2,
        broadcast=False,
        inplace=draw.chance(0.3),
    )
    style = draw.random.random()
    if style < 0.3:  # a number for each channel
        return (replace(layer, broadcast=True, inplace=False),)
    if style < 0.5:  # an operand in the other memory format
        return layer, replace(layer, run=1, inplace=False)
    if style < 0.6:  # a short type added to a long one
        return (replace(layer, from_dtype="bfloat16", inplace=False),)
    return (layer,)


def _unaligned(draw: Draw, side: int) -> int:
    """A neighbour of a side that is a multiple of 64: odd, or a multiple of 2, 4 or 8."""
    return max(side + draw.choice((-1, 1, 2, -2, 4, -4, 8, -8)), 1)


def _with(layer: Layer, name: str, size: int) -> Layer:
    changes: dict[str, Any] = {name: size}
    return replace(layer, **changes)


def _linear(draw: Draw) -> Cluster:
    rows, inner, outer = (64 * draw.octaves(1, most) for most in (512, 96, 96))
    layer = Linear(rows=rows, in_features=inner, out_features=outer, bias=draw.chance(0.5))
    changed = draw.choice(("rows", "in_features", "out_features", "in_features", "out_features"))
    return layer, _with(layer, changed, _unaligned(draw, getattr(layer, changed)))


def _matmul(draw: Draw) -> Cluster:
    batch, rows, inner, columns = draw.octaves(1, 64), *(64 * draw.octaves(1, 32) for _ in range(3))
    layer = Matmul(batch=batch, rows=rows, inner=inner, columns=columns, transposed=draw.chance(0.5))
    changed = draw.choice(("rows", "inner", "columns"))
    return layer, _with(layer, changed, _unaligned(draw, getattr(layer, changed)))


def _long_inner(draw: Draw) -> Cluster:
    """Few outputs, each of a long sum: libraries split the sum over the cores."""
    rows, outer = (draw.choice((16, 32, 48, 64, 96, 128, 256, 512)) for _ in range(2))
    inner = draw.choice((12_288, 25_088, 32_768, 65_536, 98_304, 98_304, 131_072, 200_704))
    return (
        Linear(rows=rows, in_features=inner, out_features=outer, bias=False, transposed=draw.chance(0.5)),
    )


def _windows(draw: Draw) -> Cluster:
    """Scores and contexts of attention in windows."""
    batch = draw.choice((512, 1024, 2048, 4096, 4096, 8192, 16_384))
    tokens, head = draw.choice((16, 49, 49, 64, 144, 197)), draw.choice((16, 24, 32, 32, 48, 64))
    scores = Matmul(batch=batch, rows=tokens, inner=head, columns=tokens, transposed=True)
    return scores, Matmul(batch=batch, rows=tokens, inner=tokens, columns=head)


def _softmax(draw: Draw) -> Cluster:
    width = draw.choice((16, 49, 64, 144, 196, 197, 256, 257, 577, 1024, 1025, 2048, 4096, 5185, 32_769))
    rows = max(draw.octaves(2**22, 2**27) // width, 1)
    layer = Softmax(rows=rows, width=width, strided=draw.chance(0.1))
    if draw.chance(0.15):  # scores in a short type, weights in float32
        return (replace(layer, dtype="bfloat16", to_dtype="float32"),)
    return (replace(layer, copied=not layer.strided and draw.chance(0.05)),)


def _attention(batch: int, heads: int, tokens: int, head: int, **changes: bool | int) -> Attention:
    shape: dict[str, int] = {"query_heads": heads, "key_heads": heads, "query_length": tokens}
    shape |= {"key_length": tokens, "batch": batch, "head_size": head, "causal": False, "masked": False}
    return Attention(**{**shape, **changes})  # type: ignore[arg-type]  # flags among the sizes


def _vision_attention(draw: Draw) -> Cluster:
    if draw.chance(0.3):
        batch, tokens = draw.choice((512, 2048, 4096)), draw.choice((49, 49, 64, 144))
        layer = _attention(batch, draw.choice((3, 4, 6, 8, 12)), tokens, 32)
        return layer, replace(layer, masked=True)
    batch, tokens = draw.choice((8, 32, 64, 128, 256)), draw.choice((50, 196, 197, 197, 257, 577, 785))
    return (_attention(batch, draw.choice((3, 6, 12, 12, 16)), tokens, draw.choice((32, 64, 64, 80))),)


def _diffusion_attention(draw: Draw) -> Cluster:
    tokens = draw.choice((4096, 4096, 4250, 4608, 8192, 9216, 16_384, 17_776, 32_760))
    head = draw.choice((64, 64, 128))
    layer = _attention(draw.choice((1, 1, 2)), draw.choice((10, 16, 24, 24, 40)), tokens, head)
    return layer, replace(layer, key_length=draw.choice((77, 154, 256, 512)))  # and across to a text


def _grouped_heads(draw: Draw) -> dict[str, int]:
    query_heads, key_heads = draw.choice(((32, 8), (32, 32), (16, 8), (28, 4), (40, 8), (64, 8), (12, 12)))
    return {"query_heads": query_heads, "key_heads": key_heads}


def _prefill(draw: Draw) -> Cluster:
    tokens, batch = draw.choice((128, 512, 1000, 1024, 2048, 2047, 4096, 8192)), draw.choice((1, 1, 2, 4, 8))
    layer = _attention(batch, 32, tokens, draw.choice(HEAD_SIZES), **_grouped_heads(draw))
    masked = tokens <= 4096 and draw.chance(0.4)
    return (_masked(layer) if masked else replace(layer, causal=True),)


def _decode(draw: Draw) -> Cluster:
    batch, keys = draw.choice((1, 1, 4, 8, 16, 32, 64)), draw.octaves(64, 32_768)
    layer = _attention(batch, 32, 1, draw.choice(HEAD_SIZES), **_grouped_heads(draw))
    layer = replace(layer, key_length=keys)
    return (_masked(layer) if draw.chance(0.3) else layer,)


def _masked(layer: Attention) -> Attention:
    """With a mask; networks then repeat keys for the query heads that share them."""
    return replace(layer, masked=True, key_heads=layer.query_heads)


def _sampling(draw: Draw) -> Cluster:
    """The steps from scores to a token: softmax over a vocabulary, its largest, in order, by running sums."""
    rows, width = draw.choice((1, 1, 4, 8, 16, 32, 64, 128, 256)), draw.choice(VOCABULARIES)
    functions = draw.random.sample(("sort", "topk", "scan", "search"), 2)
    found: list[Layer] = [Softmax(rows=rows, width=width)]
    for function in functions:
        run = width if function in ("sort", "topk") else 0
        found.append(Movement(function=function, elements=rows * width, run=run))
    return found


TOPICS = (
    Topic(_pointwise_convolution, backward=0.15),
    Topic(_linear, backward=0.1),
    Topic(_depthwise, backward=0.15),
    Topic(_batch_norm, backward=0.15),
    Topic(_three_by_three, backward=0.15),
    Topic(_vision_attention, backward=0.05, call_s=1e-2),
    Topic(_grouped, backward=0.15),
    Topic(_activation, backward=0.1),
    Topic(_stem, backward=0.1),
    Topic(_matmul, backward=0.1),
    Topic(_strided, backward=0.15),
    Topic(_pooling, backward=0.1),
    Topic(_decode),
    Topic(_large_kernel, backward=0.1),
    Topic(_other_norm, backward=0.15),
    Topic(_long_inner),
    Topic(_patches, backward=0.1),
    Topic(_arithmetic),
    Topic(_diffusion_attention, call_s=4e-2),
    Topic(_moved),
    Topic(_windows),
    Topic(_prefill, backward=0.05, call_s=1e-2),
    Topic(_softmax, backward=0.1),
    Topic(_cast),
    Topic(_sampling),
)


def gap_layers(
    count: int, kinds: Sequence[type[Layer]], dtypes: Sequence[str], phases: Sequence[str], seed: int
) -> list[Layer]:
    """About `count` distinct layers of these kinds, dtypes and phases, topics in turn.

    Fewer if there are no more. The seed decides them.
    """
    share = -(-count // len(TOPICS))
    rows = [_distinct(topic, share, kinds, dtypes, phases, seed) for topic in TOPICS]
    in_turn = chain.from_iterable(zip_longest(*rows))
    return list(dict.fromkeys(layer for layer in in_turn if layer is not None))


def _distinct(
    topic: Topic,
    count: int,
    kinds: Sequence[type[Layer]],
    dtypes: Sequence[str],
    phases: Sequence[str],
    seed: int,
) -> list[Layer]:
    draw = Draw(f"{topic.draw.__name__} {seed}")
    layers: dict[Layer, None] = {}
    for attempt in range(ATTEMPTS * count):
        if len(layers) >= count or (attempt == FRUITLESS and not layers):
            break
        cluster = topic.draw(draw)
        phase = BACKWARD if FORWARD not in phases or draw.chance(topic.backward) else FORWARD
        dtype = _dtype(draw.random, dtypes)
        if phase not in phases or (phase == BACKWARD and not topic.backward):
            continue
        for layer in cluster:
            variant = _variant(layer, dtype, phase)
            fits = planned_s(variant) <= topic.call_s and expanded_bytes(variant) <= EXPANDED_BYTES
            if type(variant) in kinds and variant.possible() and fits:
                layers[variant] = None
    return list(layers)[:count]


def _variant(layer: Layer, dtype: str, phase: str) -> Layer:
    """The layer in a dtype, unless it names its types, and in a phase; forward if it passes no gradient."""
    named = any(getattr(layer, name, "") for name in ("from_dtype", "to_dtype"))
    variant = layer if named else typed(layer, dtype)
    if phase == BACKWARD and variant.training.differentiable(variant):
        variant = replace(variant.training.turned(variant), phase=BACKWARD)
    return variant


def _dtype(generator: random.Random, dtypes: Sequence[str]) -> str:
    return generator.choices(list(dtypes), [WEIGHTS.get(dtype, 1) for dtype in dtypes])[0]


def planned_s(layer: Layer) -> float:
    """Seconds of a call by planning values of a large GPU."""
    rate = FLOPS_PER_S.get(layer.dtype, SHORT_FLOPS_PER_S)
    if isinstance(layer, Conv2d) and layer.groups > 1:
        rate /= GROUPED_SLOWER
    once = layer.flops() / rate * layer.multiplies + sum(layer.bytes()) / BYTES_PER_S
    return once * (1 + 2 * (layer.phase == BACKWARD))


def expanded_bytes(layer: Layer) -> int:
    """Bytes of scores, and of keys and values for each query head, where torch has no fused kernel.

    None takes shared keys in types of four bytes.
    """
    if not isinstance(layer, Attention) or layer.itemsize < 4 or layer.query_heads == layer.key_heads:
        return 0
    numbers = layer.query_length + 2 * layer.head_size
    return layer.itemsize * layer.batch * layer.query_heads * layer.key_length * numbers
