"""Networks of which counters were reported to be wrong: FLOP of products and parameters, worked out by hand.

The names say which counter, and what went wrong in it: `thop`, `ptflops`, `fvcore`, `torchinfo`, `calflops`,
DeepSpeed's profiler, PyTorch's `FlopCounterMode`. One multiply-add is 2 FLOP; a bias has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import neuralpower
from neuralpower.networks.phases import Phase
from neuralpower.trace.tracer import trace

# torch says what of recurrent layers and of parametrizations it will change
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


class Net(nn.Module):
    """A function of parts and inputs: the parts are parameters, buffers and modules, by name."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def shared_in_two_parents() -> nn.Module:
    first = nn.Sequential(nn.Linear(10, 10))
    return nn.Sequential(first, nn.Sequential(first[0]))


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


class Block(nn.Module):
    """Two layers with an activation that all blocks share."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.act(layer(x))
        return x


def blocks() -> nn.Module:
    act = nn.ReLU()
    return nn.Sequential(*(Block(act) for _ in range(3)))


class Siamese(nn.Module):
    """Two images through the same layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8 * 6 * 6, 1)

    def branch(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.conv(x).flatten(1))
        return y

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.branch(a) - self.branch(b)


class Tied(nn.Module):
    """A head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 16), nn.Linear(16, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(self.embed(ids))
        return y


class Experts(nn.Module):
    """Two of four experts for each token, chosen by a router, all tokens through dense masks."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(16, 4), nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).softmax(-1)
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * gates[:, None]).sum(-1)


def attention(batch: int, heads: int, query: int, key: int, size: int, value_size: int | None = None) -> int:
    """FLOP of both products of an attention: 2 x batch x heads x query x key x (size + value's)."""
    return 2 * batch * heads * query * key * (size + (value_size or size))


def qkv(query_heads: int, key_heads: int, query: int, key: int, size: int) -> tuple[Tensor, ...]:
    return (
        torch.randn(2, query_heads, query, size),
        torch.randn(2, key_heads, key, size),
        torch.randn(2, key_heads, key, size),
    )


def sdpa(**how: Any) -> nn.Module:
    return Net(lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v, **how))


def encoder(width: int, heads: int, hidden: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, heads, hidden, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def looped(times: int) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        for _ in range(times):
            x = net.layer(x)
        return x

    return Net(forward, layer=nn.Linear(10, 10))


def packed(net: Any, x: Tensor) -> Any:
    return net.rnn(pack_padded_sequence(x, torch.tensor([7, 3]), batch_first=True))[0].data


def unfolded(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net.w @ F.unfold(x, 3)
    return y


def graph(net: Any, x: Tensor, edges: Tensor) -> Tensor:
    messages = net.layer(x[edges[0]])
    return torch.zeros(5, 16).index_add(0, edges[1], messages)


def through_forward(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net.layer.forward(net.other.forward(x))
    return y


class ReZero(nn.Sequential):
    """Blocks with a factor each, which the container itself holds."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__(*blocks)
        self.weights = nn.Parameter(torch.zeros(len(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        for at, block in enumerate(self):
            x = x + self.weights[at] * block(x)
        return x


class Deconvolution(nn.ConvTranspose2d):
    """A class of somebody's own, of a known one."""


class Padded(nn.Conv2d):
    """A convolution that pads as TensorFlow does, as EfficientNets have it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, self.stride, 0, 1, self.groups)


class Merged(nn.Linear):
    """A layer with an adapter of rank 2, added to what it makes."""

    def __init__(self) -> None:
        super().__init__(8, 16)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.up(self.down(x))


def modulated(net: Any, x: Tensor, style: Tensor) -> Tensor:
    """StyleGAN: weights of each image's own, as groups of one convolution."""
    n, c, *plane = x.shape
    w = net.w[None] * net.layer(style).view(n, 1, c, 1, 1)
    y = F.conv2d(x.reshape(1, n * c, *plane), w.flatten(0, 1), padding=1, groups=n)
    return y.view(n, -1, *plane)


def windows(net: Any, x: Tensor) -> Tensor:
    """Swin: windows of 4 x 4 that a shift has moved, with products of functions alone."""
    n, h, w, c = x.shape
    x = x.roll((-2, -2), (1, 2)).view(n, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
    q, k, v = F.linear(x, net.qkv).view(-1, 16, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
    y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
    return F.linear(y.transpose(1, 2).reshape(-1, 16, c), net.out)


def chosen(net: Any, x: Tensor) -> Tensor:
    """Mixtral: each token through two of four experts, as one gathered product."""
    gates, at = net.router(x).topk(2)
    y = torch.einsum("td,tkdh->tkh", x, net.w[at])
    return (y * gates.softmax(-1)[..., None]).sum(1)


def rows_of_a_state(net: Any, x: Tensor) -> Tensor:
    state = torch.zeros(4, 12)
    for _ in range(10):
        state = state + 0.1 * (-state + torch.sigmoid(state @ net.w + net.layer(x)))
    return state


def by_cells(net: Any, x: Tensor) -> Tensor:
    h = c = torch.zeros(3, 20)
    for step in x:
        h, c = net.cell(step, (h, c))
    return h


def in_parts(net: Any, x: Tensor) -> Tensor:
    """A long sequence in chunks, so that no large table of weights is made."""
    parts = [F.scaled_dot_product_attention(q, x, x) for q in x.split(5, -2)]
    return torch.cat(parts, -2)


@torch.inference_mode()
def without_gradients(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net.layer(x)
    return y


@torch.no_grad()
def teacher(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net.layer(x)
    return y


def distilled(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net.student(x) - teacher(net, x)
    return y


def separable(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Linear attention: keys by values first."""
    return query @ (key.transpose(-2, -1) @ value)


X = torch.randn(4, 8)
IMAGE = torch.randn(2, 3, 8, 8)
EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 0, 2, 4]])
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
LINEAR, WIDE = 2 * 4 * 8 * 16, 64  # FLOP of 4 rows of 8 through 16 outputs

# name -> (module, its inputs, FLOP of its products, parameters)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], int, int]] = {
    # what is shared, called twice, or called by another way
    "thop: a layer of two parents counts 4 times": (shared_in_two_parents, (torch.randn(1, 10),), 400, 110),
    "thop: a layer of a loop counts once": (lambda: looped(5), (torch.randn(1, 10),), 1000, 110),
    "thop: its own parameters are 0": (lambda: nn.Linear(10, 11), (torch.randn(1, 10),), 220, 121),
    "torchinfo: an activation of all blocks": (blocks, (torch.randn(1, 4),), 6 * 32, 6 * 20),
    "torchinfo: two inputs through one network": (
        Siamese,
        (IMAGE, IMAGE),
        2 * (2 * 2 * 8 * 36 * 27 + 2 * 2 * 288),
        8 * 27 + 8 + 289,
    ),
    "torchinfo: tied weights count twice": (
        Tied,
        (torch.zeros(2, 5, dtype=torch.int64),),
        2 * 10 * 16 * 100,
        1600,
    ),
    "torchinfo: containers are added to their layers": (
        lambda: nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))),
        (IMAGE,),
        2 * 2 * (8 * 36 * 27 + 8 * 16 * 72),
        8 * 27 + 8 + 8 * 72 + 8,
    ),
    "torchinfo: a list of parameters has no size": (
        lambda: Net(lambda n, x: (x @ n.ws[0]) @ n.ws[1], ws=nn.ParameterList([weight(8, 5), weight(5, 3)])),
        (X,),
        2 * 4 * (40 + 15),
        55,
    ),
    "DeepSpeed: three calls of one layer count 9": (
        lambda: Net(lambda n, x: sum(n.layer(part) for part in x.chunk(3, 1)), layer=nn.Linear(100, 100)),
        (torch.randn(1, 300),),
        60_000,
        10_100,
    ),
    "hooks: a layer called by its forward": (
        lambda: Net(through_forward, layer=nn.Linear(16, 8), other=nn.Linear(8, 16)),
        (X,),
        2 * LINEAR,
        2 * 128 + 24,
    ),
    "hooks: frozen weights count nothing": (
        lambda: frozen(encoder(32, 4, 64)),
        (torch.randn(1, 6, 32),),
        2 * 6 * 32 * (4 * 32 + 2 * 64) + attention(1, 4, 6, 6, 8),
        4 * 32 * 33 + 32 * 64 + 64 + 64 * 32 + 32 + 4 * 32,
    ),
    "checkpoint: a block that runs again counts once forward": (
        lambda: Net(lambda n, x: checkpoint(n.layer, x, use_reentrant=False), layer=nn.Linear(8, 16)),
        (X,),
        LINEAR,
        144,
    ),
    # functional products
    "ptflops: F.linear": (lambda: Net(lambda n, x: F.linear(x, n.w), w=weight(16, 8)), (X,), LINEAR, 128),
    "DeepSpeed: x @ w": (lambda: Net(lambda n, x: x @ n.w, w=weight(8, 16)), (X,), LINEAR, 128),
    "DeepSpeed: torch.mm": (lambda: Net(lambda n, x: torch.mm(x, n.w), w=weight(8, 16)), (X,), LINEAR, 128),
    "DeepSpeed: x.matmul": (lambda: Net(lambda n, x: x.matmul(n.w), w=weight(8, 16)), (X,), LINEAR, 128),
    "DeepSpeed: vector by vector counts 8 times": (
        lambda: Net(lambda n, x: x @ n.w, w=weight(8)),
        (torch.randn(8),),
        16,
        8,
    ),
    "DeepSpeed: matrix by vector": (lambda: Net(lambda n, x: x @ n.w, w=weight(8)), (X,), 64, 8),
    "DeepSpeed: vector by matrix": (
        lambda: Net(lambda n, x: x @ n.w, w=weight(8, 16)),
        (torch.randn(8),),
        256,
        128,
    ),
    "DeepSpeed: broadcast batches count a third": (
        lambda: Net(lambda n, x: x @ n.w, w=weight(3, 8, 5)),
        (torch.randn(2, 1, 4, 8),),
        2 * 960,
        120,
    ),
    "DeepSpeed: addmm": (
        lambda: Net(lambda n, x: torch.addmm(n.b, x, n.w), w=weight(8, 5), b=weight(5)),
        (X,),
        2 * 4 * 8 * 5,
        45,
    ),
    "fvcore: baddbmm": (
        lambda: Net(lambda _, a, b, c: torch.baddbmm(a, b, c)),
        (torch.randn(3, 4, 5), torch.randn(3, 4, 8), torch.randn(3, 8, 5)),
        2 * 3 * 4 * 8 * 5,
        0,
    ),
    "fvcore: bmm": (
        lambda: Net(lambda _, a, b: torch.bmm(a, b)),
        (torch.randn(3, 4, 8), torch.randn(3, 8, 5)),
        2 * 3 * 4 * 8 * 5,
        0,
    ),
    "addbmm": (
        lambda: Net(lambda _, a, b, c: torch.addbmm(a, b, c)),
        (torch.randn(4, 5), torch.randn(3, 4, 8), torch.randn(3, 8, 5)),
        2 * 3 * 4 * 8 * 5,
        0,
    ),
    "mv": (lambda: Net(lambda n, x: torch.mv(x, n.w), w=weight(8)), (X,), 64, 8),
    "dot": (lambda: Net(lambda _, x: torch.dot(x, x)), (torch.randn(8),), 16, 0),
    "inner": (lambda: Net(lambda _, x: torch.inner(x, x)), (X,), 2 * 4 * 4 * 8, 0),
    "tensordot": (
        lambda: Net(lambda n, x: torch.tensordot(x, n.w, dims=2), w=weight(4, 8, 3)),
        (torch.randn(2, 4, 8),),
        2 * 2 * 32 * 3,
        96,
    ),
    "multi_dot takes the cheaper order": (
        lambda: Net(lambda _, a, b, c: torch.linalg.multi_dot([a, b, c])),
        (torch.randn(10, 100), torch.randn(100, 5), torch.randn(5, 50)),
        2 * (10 * 100 * 5 + 10 * 5 * 50),
        0,
    ),
    "fvcore: two matrices by einsum": (
        lambda: Net(lambda n, x: torch.einsum("bi,io->bo", x, n.w), w=weight(8, 16)),
        (X,),
        LINEAR,
        128,
    ),
    "ptflops: einsum of batches": (
        lambda: Net(lambda _, a, b: torch.einsum("bhqd,bhkd->bhqk", a, b)),
        (torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)),
        2 * 2 * 3 * 5 * 7 * 4,
        0,
    ),
    "einsum of three": (
        lambda: Net(lambda _, a, b, c: torch.einsum("ij,jk,kl->il", a, b, c)),
        (torch.randn(4, 5), torch.randn(5, 6), torch.randn(6, 7)),
        2 * (4 * 5 * 6 + 4 * 6 * 7),
        0,
    ),
    "bilinear": (
        lambda: nn.Bilinear(8, 6, 5),
        (X, torch.randn(4, 6)),
        2 * 4 * 5 * 8 * 6 + 2 * 4 * 5 * 6,
        245,
    ),
    "cdist is a product": (
        lambda: Net(lambda _, a, b: torch.cdist(a, b)),
        (torch.randn(64, 16), torch.randn(32, 16)),
        2 * 64 * 32 * 18,  # coordinates, and squares of both norms
        0,
    ),
    "unfold and a product": (
        lambda: Net(unfolded, w=weight(5, 27)),
        (IMAGE,),
        2 * 2 * 5 * 27 * 36,
        135,
    ),
    "a graph's messages": (
        lambda: Net(graph, layer=nn.Linear(16, 16)),
        (torch.randn(5, 16), EDGES),
        2 * 7 * 16 * 16,
        272,
    ),
    "every expert of a dense mixture": (Experts, (torch.randn(6, 16),), 2 * 6 * 16 * (4 + 64), 68 + 4 * 272),
    # convolutions
    "torchinfo: multiply-adds of a convolution": (
        lambda: nn.Conv2d(3, 16, 3, padding=1, bias=False),
        (IMAGE,),
        2 * 2 * 16 * 64 * 27,
        432,
    ),
    "DeepSpeed: a line counts less than nothing": (
        lambda: nn.Conv1d(1000, 1000, 3, padding=1),
        (torch.randn(1, 1000, 512),),
        2 * 512 * 1000 * 1000 * 3,
        3_001_000,
    ),
    "a volume": (
        lambda: nn.Conv3d(3, 8, 3, stride=2),
        (torch.randn(2, 3, 7, 9, 9),),
        2 * 2 * 8 * 3 * 4 * 4 * 81,
        656,
    ),
    "thop: groups": (
        lambda: nn.Conv2d(8, 16, 3, groups=4),
        (torch.randn(2, 8, 8, 8),),
        2 * 2 * 16 * 36 * 18,
        304,
    ),
    "depthwise": (
        lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1),
        (torch.randn(2, 8, 8, 8),),
        2 * 2 * 8 * 64 * 9,
        80,
    ),
    "dilation": (lambda: nn.Conv2d(3, 4, 3, dilation=2), (IMAGE,), 2 * 2 * 4 * 16 * 27, 112),
    "padding by name": (lambda: nn.Conv2d(3, 4, 3, padding="same"), (IMAGE,), 2 * 2 * 4 * 64 * 27, 112),
    "circular padding": (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        (IMAGE,),
        2 * 2 * 4 * 64 * 27,
        112,
    ),
    "kernel and stride of two sizes": (
        lambda: nn.Conv2d(3, 4, (1, 5), stride=(2, 1)),
        (IMAGE,),
        2 * 2 * 4 * 4 * 4 * 15,
        64,
    ),
    "F.conv2d": (
        lambda: Net(lambda n, x: F.conv2d(x, n.w), w=weight(4, 3, 3, 3)),
        (IMAGE,),
        2 * 2 * 4 * 36 * 27,
        108,
    ),
    "one image without a batch": (lambda: nn.Conv2d(3, 4, 3), (IMAGE[0],), 2 * 4 * 36 * 27, 112),
    "fvcore: transposed, of one pixel": (
        lambda: nn.ConvTranspose2d(32, 1, 3),
        (torch.randn(1, 32, 1, 1),),
        2 * 32 * 9,
        289,
    ),
    "ptflops: transposed, by its input's pixels": (
        lambda: nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1),
        (torch.randn(2, 4, 8, 8),),
        2 * 49152,
        390,
    ),
    "DeepSpeed: a depthwise transposed one is free": (
        lambda: nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=4),
        (torch.randn(2, 4, 8, 8),),
        2 * 4608,
        40,
    ),
    "DeepSpeed: a grouped transposed one is free": (
        lambda: nn.ConvTranspose2d(6, 6, 2, stride=2, groups=3),
        (torch.randn(2, 6, 8, 8),),
        2 * 6144,
        54,
    ),
    "FlopCounterMode: a transposed one of many maps": (
        lambda: nn.ConvTranspose2d(192, 384, 2, stride=2),
        (torch.randn(6, 192, 30, 96),),
        2 * 6 * 30 * 96 * 192 * 384 * 4,
        192 * 384 * 4 + 384,
    ),
    "a transposed line": (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2),
        (torch.randn(2, 4, 9),),
        2 * 2 * 9 * 4 * 6 * 3,
        78,
    ),
    "a transposed volume": (
        lambda: nn.ConvTranspose3d(4, 6, 2, stride=2),
        (torch.randn(2, 4, 3, 3, 3),),
        2 * 2 * 27 * 4 * 6 * 8,
        198,
    ),
    "DeepSpeed: interpolation multiplies nothing by weights": (
        lambda: nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(3, 4, 1)),
        (IMAGE,),
        2 * 2 * 4 * 256 * 3,
        16,
    ),
    "pixels are shuffled for nothing": (
        lambda: nn.Sequential(nn.Conv2d(3, 12, 1), nn.PixelShuffle(2)),
        (IMAGE,),
        2 * 2 * 12 * 64 * 3,
        48,
    ),
    "a weight of a norm and a direction": (
        lambda: frozen(parametrizations.weight_norm(nn.Conv2d(3, 4, 3))),
        (IMAGE,),
        2 * 2 * 4 * 36 * 27,
        4 + 108 + 4,
    ),
    # recurrent layers
    **{
        f"{name}: gates{' both ways' * two}": (
            functools.partial(getattr(nn, name.upper()), 8, 16, batch_first=True, bidirectional=two),
            (torch.randn(2, 5, 8),),
            2 * 2 * 5 * gates * 16 * (8 + 16) * (1 + two),
            gates * 16 * (8 + 16 + 2) * (1 + two),
        )
        for name, gates in GATES.items()
        for two in (False, True)
    },
    "lstm of two layers": (
        lambda: nn.LSTM(8, 16, num_layers=2, batch_first=True),
        (torch.randn(2, 5, 8),),
        2 * 2 * 5 * 4 * 16 * (8 + 16 + 16 + 16),
        4 * 16 * (8 + 16 + 2) + 4 * 16 * (16 + 16 + 2),
    ),
    "lstm that projects its state": (
        lambda: nn.LSTM(8, 16, proj_size=4, batch_first=True),
        (torch.randn(2, 5, 8),),
        2 * 2 * 5 * (4 * 16 * (8 + 4) + 16 * 4),
        4 * 16 * (8 + 4 + 2) + 64,
    ),
    "lstm of packed sequences has no padding": (
        lambda: Net(packed, rnn=nn.LSTM(8, 16, batch_first=True)),
        (torch.randn(2, 7, 8),),
        2 * 10 * 4 * 16 * (8 + 16),
        4 * 16 * 26,
    ),
    "cells of a loop": (
        lambda: Net(lambda n, x: n.cell(x, n.cell(x)), cell=nn.GRUCell(8, 16)),
        (X,),
        2 * 2 * 4 * 3 * 16 * (8 + 16),
        3 * 16 * 26,
    ),
    # attention
    "ptflops: attention is free": (
        lambda: Net(lambda n, x: n.mha(x, x, x)[0], mha=nn.MultiheadAttention(32, 4, batch_first=True)),
        (torch.randn(2, 10, 32),),
        2 * 2 * 10 * 32 * 128 + attention(2, 4, 10, 10, 8),
        4 * 32 * 33,
    ),
    "thop: attention without its weights' mean": (
        lambda: Net(
            lambda n, x: n.mha(x, x, x, need_weights=False)[0],
            mha=nn.MultiheadAttention(32, 4, batch_first=True),
        ),
        (torch.randn(2, 10, 32),),
        2 * 2 * 10 * 32 * 128 + attention(2, 4, 10, 10, 8),
        4 * 32 * 33,
    ),
    "fvcore: as many FLOP with 4 heads as with 8": (
        lambda: Net(lambda n, x: n.mha(x, x, x)[0], mha=nn.MultiheadAttention(32, 8, batch_first=True)),
        (torch.randn(2, 10, 32),),
        2 * 2 * 10 * 32 * 128 + attention(2, 8, 10, 10, 4),
        4 * 32 * 33,
    ),
    "thop: keys and values of other widths": (
        lambda: Net(
            lambda n, q, k, v: n.mha(q, k, v)[0],
            mha=nn.MultiheadAttention(32, 4, kdim=12, vdim=20, batch_first=True),
        ),
        (torch.randn(2, 5, 32), torch.randn(2, 7, 12), torch.randn(2, 7, 20)),
        2 * 2 * (5 * 32 * 32 + 7 * 12 * 32 + 7 * 20 * 32 + 5 * 32 * 32) + attention(2, 4, 5, 7, 8),
        32 * 32 + 32 * 12 + 32 * 20 + 96 + 32 * 33,
    ),
    "FlopCounterMode: attention on a CPU is free": (
        sdpa,
        qkv(12, 12, 64, 64, 64),
        attention(2, 12, 64, 64, 64),
        0,
    ),
    "a causal mask leaves the convention as it is": (
        lambda: sdpa(is_causal=True),
        qkv(4, 4, 16, 16, 8),
        attention(2, 4, 16, 16, 8),
        0,
    ),
    "FlopCounterMode: fewer heads of keys": (
        lambda: sdpa(enable_gqa=True),
        qkv(8, 2, 16, 16, 8),
        attention(2, 8, 16, 16, 8),
        0,
    ),
    "xformers: one head of keys": (
        lambda: sdpa(enable_gqa=True),
        qkv(8, 1, 16, 24, 8),
        attention(2, 8, 16, 24, 8),
        0,
    ),
    "FlopCounterMode: values of another size": (
        sdpa,
        (torch.randn(2, 4, 16, 8), torch.randn(2, 4, 16, 8), torch.randn(2, 4, 16, 12)),
        attention(2, 4, 16, 16, 8, 12),
        0,
    ),
    "one query of many keys": (sdpa, qkv(4, 4, 1, 100, 8), attention(2, 4, 1, 100, 8), 0),
    "fvcore: the fast path of an encoder": (
        lambda: encoder(32, 4, 64).eval(),
        (torch.randn(2, 10, 32),),
        2 * 20 * 32 * (128 + 128) + attention(2, 4, 10, 10, 8),
        4 * 32 * 33 + 32 * 64 + 64 + 64 * 32 + 32 + 128,
    ),
    "thop: a decoder has two attentions": (
        lambda: nn.TransformerDecoderLayer(32, 4, 64, batch_first=True),
        (torch.randn(2, 6, 32), torch.randn(2, 10, 32)),
        2 * 2 * (6 * 32 * 128 + 6 * 32 * 64 + 10 * 32 * 64 + 6 * 32 * 128)
        + attention(2, 4, 6, 6, 8)
        + attention(2, 4, 6, 10, 8),
        2 * 4 * 32 * 33 + 32 * 64 + 64 + 64 * 32 + 32 + 6 * 32,
    ),
    # lookups, transforms
    "an embedding multiplies nothing": (
        lambda: nn.Embedding(100, 16),
        (torch.zeros(4, 5, dtype=torch.int64),),
        0,
        1600,
    ),
    "norms and activations multiply nothing by weights": (
        lambda: nn.Sequential(nn.BatchNorm1d(8), nn.GELU(), nn.LayerNorm(8), nn.Softmax(-1)),
        (X,),
        0,
        32,
    ),
    "complex numbers take four products": (
        lambda: Net(lambda _, a, b: a @ b),
        (torch.randn(4, 8, dtype=torch.complex64), torch.randn(8, 5, dtype=torch.complex64)),
        4 * 2 * 4 * 8 * 5,
        0,
    ),
    "a mapped function": (
        lambda: Net(lambda n, x: torch.vmap(lambda row: n.w @ row)(x), w=weight(16, 8)),
        (X,),
        LINEAR,
        128,
    ),
    # further reports
    "torchinfo: rows of three dimensions count as one": (
        lambda: nn.Linear(3, 8),
        (torch.randn(5, 10, 6, 3),),
        2 * 300 * 24,
        32,
    ),
    "torchinfo: a container's own weights are left out": (
        lambda: ReZero(nn.Linear(2, 2), nn.Linear(2, 2)),
        (torch.randn(3, 2),),
        2 * 2 * 3 * 4,
        14,
    ),
    "torchinfo: layers of a layer that is called by its forward": (
        lambda: Net(through_forward, other=nn.Linear(3, 5), layer=nn.Linear(5, 5)),
        (torch.randn(32, 3),),
        2 * 32 * (15 + 25),
        50,
    ),
    "thop: a line without a batch counts 4 times": (
        lambda: nn.Conv1d(32, 32, 3, padding=4, stride=2),
        (torch.ones(32, 128),),
        2 * 205_824,
        3104,
    ),
    "thop: an activation that two convolutions share": (
        lambda: (lambda act: nn.Sequential(nn.Conv2d(3, 3, 3, 1, 1), act, nn.Conv2d(3, 3, 3, 1, 1), act))(
            nn.LeakyReLU()
        ),
        (IMAGE,),
        2 * 2 * 2 * 64 * 81,
        168,
    ),
    "FlopCounterMode: inference mode counts nothing": (
        lambda: Net(without_gradients, layer=nn.Linear(8, 16)),
        (X,),
        LINEAR,
        144,
    ),
    "a teacher without gradients counts, too": (
        lambda: Net(distilled, student=nn.Linear(8, 16), layer=nn.Linear(8, 16)),
        (X,),
        2 * LINEAR,
        288,
    ),
    "mmcv: a class of somebody's own of a transposed convolution": (
        lambda: Deconvolution(30, 30, 3, 2, 0, 1, bias=False),
        (torch.randn(1, 30, 8, 8),),
        2 * 64 * 30 * 30 * 9,
        8100,
    ),
    "ptflops: an EfficientNet's convolutions are free": (
        lambda: Padded(6, 6, 3, stride=2, groups=6),
        (torch.randn(2, 6, 8, 8),),
        2 * 2 * 6 * 16 * 9,
        60,
    ),
    "ptflops: weights that a style changes are free": (
        lambda: Net(modulated, w=weight(5, 3, 3, 3), layer=nn.Linear(7, 3)),
        (IMAGE, torch.randn(2, 7)),
        2 * 2 * 5 * 64 * 27 + 2 * 2 * 7 * 3,
        135 + 24,
    ),
    "fvcore: more FLOP than 31 bits hold": (
        lambda: nn.Conv2d(1478, 256, 1),
        (torch.zeros(1, 1478, 64, 64),),
        2 * 4096 * 1478 * 256,
        1478 * 256 + 256,
    ),
    "fvcore: steps of a state in continuous time": (
        lambda: Net(rows_of_a_state, w=weight(12, 12), layer=nn.Linear(8, 12)),
        (X,),
        10 * 2 * 4 * (144 + 96),
        144 + 108,
    ),
    "fvcore: an lstm that is given its state": (
        lambda: Net(
            lambda n, x: n.rnn(x, (torch.zeros(1, 3, 20), torch.zeros(1, 3, 20)))[0], rnn=nn.LSTM(10, 20)
        ),
        (torch.randn(5, 3, 10),),
        2 * 5 * 3 * 80 * 30,
        80 * 32,
    ),
    "fvcore: the same by cells": (
        lambda: Net(by_cells, cell=nn.LSTMCell(10, 20)),
        (torch.randn(5, 3, 10),),
        2 * 5 * 3 * 80 * 30,
        80 * 32,
    ),
    "calflops: a gru has no multiply-adds": (
        lambda: nn.GRU(128, 128, batch_first=True),
        (torch.randn(10, 32, 128),),
        2 * 320 * 384 * 256,
        384 * 258,
    ),
    "torchtnt: an lstm over 250 steps": (
        lambda: nn.LSTM(12, 128, 1, batch_first=True),
        (torch.randn(1, 250, 12),),
        2 * 250 * 512 * 140,
        512 * 142,
    ),
    "thop: windows of functions alone": (
        lambda: Net(windows, qkv=weight(48, 16), out=weight(16, 16)),
        (torch.randn(2, 8, 8, 16),),
        2 * 2 * 64 * 16 * 64 + attention(8, 2, 16, 16, 8),
        64 * 16,
    ),
    "MaxText: two of four experts": (
        lambda: Net(chosen, router=nn.Linear(8, 4, bias=False), w=weight(4, 8, 16)),
        (torch.randn(6, 8),),
        2 * 6 * (32 + 2 * 128),
        32 + 4 * 128,
    ),
    "FlopCounterMode: attention in chunks": (
        lambda: Net(in_parts),
        (torch.randn(2, 4, 20, 8),),
        attention(2, 4, 20, 20, 8),
        0,
    ),
    "FlopCounterMode: keys and values by one batch of queries' many": (
        sdpa,
        (torch.randn(3, 4, 16, 8), torch.randn(1, 4, 16, 8), torch.randn(1, 4, 16, 8)),
        attention(3, 4, 16, 16, 8),
        0,
    ),
    "linear attention has no square": (
        lambda: Net(lambda _, q, k, v: separable(q, k, v)),
        qkv(4, 4, 64, 64, 8),
        2 * 2 * 2 * 4 * 64 * 8 * 8,
        0,
    ),
    "an adapter beside its layer": (Merged, (X,), LINEAR + 2 * 4 * (8 * 2 + 2 * 16), 144 + 48),
    "a layer of another's transposed weight": (
        lambda: Net(lambda n, x: F.linear(n.layer(x), n.layer.weight.t()), layer=nn.Linear(8, 16)),
        (X,),
        2 * LINEAR,
        144,
    ),
    "a list of two scales through one head": (
        lambda: Net(lambda n, x: [n.head(x), n.head(F.avg_pool2d(x, 2))], head=nn.Conv2d(3, 6, 1)),
        (IMAGE,),
        2 * 2 * 18 * (64 + 16),
        24,
    ),
    "a convolution that replaces a linear layer": (
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 10, 1)),
        (IMAGE,),
        2 * 2 * 30,
        40,
    ),
    "a lookup by a product with one-hot rows": (
        lambda: Net(lambda n, i: F.one_hot(i, 10).float() @ n.w, w=weight(10, 6)),
        (torch.zeros(4, dtype=torch.int64),),
        2 * 4 * 60,
        60,
    ),
    "ptflops: a bag of words": (
        lambda: nn.Sequential(nn.EmbeddingBag(100, 16), nn.Linear(16, 4)),
        (torch.zeros(3, 7, dtype=torch.int64),),
        2 * 3 * 64,
        1600 + 68,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_products_and_parameters_are_those_worked_out_by_hand(name: str) -> None:
    make, inputs, flops, parameters = CASES[name]
    module = make()
    found = trace(module, inputs)
    assert sum(int(call.layer.flops()) for call in found.calls if call.layer.multiplies) == flops
    assert found.parameters == parameters == sum(p.numel() for p in module.parameters())
    assert not found.unmodelled


# Memory. thousand numbers: a layer [1000, 1000] has 1,001,000 parameters, 256 rows of activations 256,000.
SQUARE, ROWS = 1_001_000, 256_000


class Deep(nn.Module):
    """One layer, many times; `frozen` without gradients, `kept` without a memory of each."""

    def __init__(self, times: int, kept: bool = True) -> None:
        super().__init__()
        self.layer, self.times, self.kept = nn.Linear(1000, 1000), times, kept

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.layer(x) if self.kept else checkpoint(self.layer, x, use_reentrant=False)
        return x


def with_buffer(dtype: torch.dtype) -> nn.Module:
    layer = nn.Linear(1000, 1000)
    layer.register_buffer("table", torch.zeros(1000, dtype=dtype))
    return layer


# name -> (module, phase, part of the memory, its bytes: at least, at most)
MEMORY: dict[str, tuple[Callable[[], nn.Module], str, str, int, int]] = {
    "torchinfo: half of the bytes": (
        lambda: nn.Linear(1000, 1000).half(),
        "forward",
        "weights",
        2 * SQUARE,
        2 * SQUARE,
    ),
    "torchinfo: buffers count": (
        lambda: with_buffer(torch.float64),
        "forward",
        "weights",
        4 * SQUARE + 8000,
        4 * SQUARE + 8000,
    ),
    "torchinfo: a buffer of bytes": (
        lambda: with_buffer(torch.int8),
        "forward",
        "weights",
        4 * SQUARE + 1000,
        4 * SQUARE + 1000,
    ),
    "torchinfo: a shared layer once": (
        lambda: nn.Sequential(*[nn.Linear(1000, 1000)] * 3),
        "forward",
        "weights",
        4 * SQUARE,
        4 * SQUARE,
    ),
    "torchinfo: a forward pass keeps two activations, not all": (
        lambda: Deep(100),
        "forward",
        "activations",
        4 * ROWS,
        2 * 4 * ROWS,
    ),
    # outputs of 100 calls and gradients of one; gradients of the weight, so far and of one call
    "torchinfo: a step keeps what each call reads": (
        lambda: Deep(100),
        "training",
        "activations",
        99 * 4 * ROWS,
        102 * 4 * ROWS + 2 * 4 * SQUARE,
    ),
    "a step of one call": (lambda: Deep(1), "training", "activations", 4 * ROWS, 4 * 4 * ROWS),
    "checkpoints keep what goes into each": (
        lambda: Deep(50, kept=False),
        "training",
        "activations",
        49 * 4 * ROWS,
        54 * 4 * ROWS + 2 * 4 * SQUARE,
    ),
    "torchsummary: an activation in place takes nothing": (
        lambda: nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(inplace=True)),
        "forward",
        "activations",
        4 * ROWS,
        4 * ROWS,
    ),
    "the same with a place of its own": (
        lambda: nn.Sequential(nn.Linear(1000, 1000), nn.ReLU()),
        "forward",
        "activations",
        2 * 4 * ROWS,
        2 * 4 * ROWS,
    ),
    "torchinfo: bytes of layers that are called by their forward": (
        lambda: Net(through_forward, other=nn.Linear(1000, 1000), layer=nn.Linear(1000, 1000)),
        "forward",
        "weights",
        2 * 4 * SQUARE,
        2 * 4 * SQUARE,
    ),
    "a gradient is as large as its weight": (
        lambda: nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1000)),
        "training",
        "gradients",
        2 * 4 * SQUARE,
        2 * 4 * SQUARE,
    ),
    "frozen weights have none": (
        lambda: nn.Sequential(frozen(nn.Linear(1000, 1000)), nn.Linear(1000, 1000)),
        "training",
        "gradients",
        4 * SQUARE,
        4 * SQUARE,
    ),
    "adam keeps two numbers a weight": (
        lambda: nn.Linear(1000, 1000),
        "training",
        "optimizer",
        2 * 4 * SQUARE,
        2 * 4 * SQUARE + 64,
    ),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_that_worked_out_by_hand(name: str) -> None:
    make, phase, part, least, most = MEMORY[name]
    module = make()
    dtype = next(module.parameters()).dtype
    memory = (
        neuralpower.load("nvidia-t4").predict(module, torch.zeros(256, 1000, dtype=dtype), phase=phase).memory
    )
    assert memory is not None
    assert least <= memory.parts[part] <= most


LLAMA = "transformers:llama?num_hidden_layers=2&hidden_size=64&intermediate_size=96&vocab_size=100"


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ("num_attention_heads=8&num_key_value_heads=8", 8 * 8),
        ("num_attention_heads=8&num_key_value_heads=2", 2 * 8),  # LLM-Viewer: fewer heads of keys
        ("num_attention_heads=8&num_key_value_heads=1", 8),
        ("num_attention_heads=4&num_key_value_heads=2&head_dim=32", 2 * 32),  # torchtitan: a size of its own
    ],
)
def test_a_cache_has_the_heads_of_keys_and_their_size(fields: str, numbers: int) -> None:
    predictor = neuralpower.load("nvidia-t4")
    memory = predictor.predict(
        f"{LLAMA}&{fields}", batch_size=3, dtype="float32", phase=Phase("decode", context=50)
    ).memory
    assert memory is not None
    # keys and values of 2 blocks, 3 samples, 50 positions and that of the token
    assert memory.parts["cache"] in {2 * 2 * 3 * length * numbers * 4 for length in (50, 51)}


def test_a_tied_head_multiplies_as_a_head_of_its_own_does() -> None:
    """TRL, torchtitan: a head that shares the table's weights still multiplies; a table does not."""
    model = f"{LLAMA.replace(':llama', ':LlamaForCausalLM')}&num_attention_heads=8&num_key_value_heads=2"
    how: dict[str, Any] = {"device": "h100", "batch_size": 2, "seq_len": 16}
    tied, apart = (
        neuralpower.predict(f"{model}&tie_word_embeddings={tied}", **how) for tied in ("true", "false")
    )
    assert tied.flops == apart.flops
    assert apart.parameters - tied.parameters == 100 * 64
    block = 64 * (64 + 16 + 16) + 64 * 64 + 3 * 64 * 96
    products = 2 * 32 * (2 * block + 64 * 100) + 2 * attention(2, 8, 16, 16, 8)
    kinds = [row for row in tied.by_kind() if row.kind in ("linear", "attention", "matmul")]
    assert sum(row.flops for row in kinds) == products


def test_an_fp8_checkpoint_keeps_its_table_and_head_in_16_bits() -> None:
    """Accelerate: half of the 16 bits' bytes are too few for Llama-3.1-8B in fp8."""
    found = neuralpower.predict(
        "llama-3.1-8b", device="h100", weights="fp8", batch_size=1, phase=Phase("decode", context=64)
    )
    assert found.memory is not None
    block = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    rows = 3 * 4096 + 2 * 1024 + 2 * 14336  # a scale of 4 bytes each
    kept = 2 * (2 * 128_256 * 4096 + 65 * 4096)
    assert found.memory.parts["weights"] == pytest.approx(32 * (block + 4 * rows) + kept, abs=1024)


def test_a_head_s_size_of_its_own_counts() -> None:
    """torchtitan: heads of 32 in a width of 64 have products of 4 x 32."""
    found = neuralpower.load("nvidia-t4").predict(
        f"{LLAMA}&num_attention_heads=4&num_key_value_heads=2&head_dim=32", batch_size=1, seq_len=10
    )
    block = 64 * (128 + 64 + 64) + 128 * 64 + 3 * 64 * 96
    assert found.parameters == 2 * (block + 2 * 64) + 64 + 100 * 64  # without a head
    products = 2 * 10 * 2 * block + 2 * attention(1, 4, 10, 10, 32)
    kinds = [row for row in found.by_kind() if row.kind in ("linear", "attention", "matmul")]
    assert sum(row.flops for row in kinds) == products
