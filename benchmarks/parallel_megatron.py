"""Training steps and memory of Megatron-LM on A100s, measured by its authors: neuralpower and Calculon.

PATH/calculon_dev.csv: facts of github calculon-ai/calculon (Apache-2.0), which quotes Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198): NVIDIA's Selene, nodes
of eight A100 of 80 GB, float16 with float32 masters, attention written out, dropout, blocks alone. Memory is
that of the first pipeline stage, read off a chart.

Megatron-LM runs eagerly: the host launches each kernel, and softmax, dropout, norms and sums of gradients are
kernels of their own. It joins a bias with GELU, and dropout with the sum after it. `compile` joins far more,
as TorchInductor does: softmax with dropout, and sums with the norms after them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neuralpower.devices.cluster import Cluster, Layout
from neuralpower.devices.spec import find_spec
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.networks.phases import Phase
from neuralpower.networks.source import Source, by_shape
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.request import Request
from neuralpower.trace.recipe import Recipe

GIB = 2**30
PER_NODE = 8
CHECKPOINTING = {
    "full": {"checkpointing": True},
    "attn_only": {"checkpointing": True, "selective": True},
    "none": {},
}


class Attention(nn.Module):
    """Scores of all pairs of tokens, with dropout.

    Megatron-LM scales within the product, and masks within its kernel of the softmax: neither takes time. It
    has tokens before samples, so heads are views without copies. Here, x is read as if it lay so: numbers are
    mixed up, but sizes and calls are right.
    """

    def __init__(self, hidden: int, heads: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.qkv, self.out = nn.Linear(hidden, 3 * heads * size), nn.Linear(heads * size, hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] -> the same."""
        batch, tokens, _ = x.shape
        parts = self.qkv(x).view(tokens, -1, 3 * self.size).transpose(0, 1)
        query, key, value = parts.chunk(3, -1)
        weights = self.dropout(torch.bmm(query, key.mT).softmax(-1))
        found = torch.bmm(weights, value).transpose(0, 1)
        result: Tensor = self.out(found.reshape(batch, tokens, -1))
        return result


class Mlp(nn.Module):
    """Two products with GELU between them."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] -> the same."""
        result: Tensor = self.down(nn.functional.gelu(self.up(x), approximate="tanh"))
        return result


class Block(nn.Module):
    """Attention and products, each after a norm, with dropout before the sum."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        hidden = sizes["hidden"]
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = Attention(hidden, sizes["heads"], sizes["head_dim"])
        self.mlp = Mlp(hidden, sizes["feedforward"])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] -> the same."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        result: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return result


class Megatron(nn.Module):
    """Blocks without an embedding and without a head."""

    tp_plan = {
        "blocks.*.attention.qkv": "colwise",
        "blocks.*.attention.out": "rowwise",
        "blocks.*.mlp.up": "colwise",
        "blocks.*.mlp.down": "rowwise",
    }

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(sizes) for _ in range(sizes["layers"])])
        self.again = False

    def gradient_checkpointing_enable(self) -> None:
        """Have each block run again before its backward pass."""
        self.again = True

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] -> the same."""
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


def network(sizes: dict[str, int], dtype: torch.dtype) -> nn.Module:
    """On the meta device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            return Megatron(sizes)
    finally:
        torch.set_default_dtype(before)


def predicted(row: Any, run: str) -> Prediction:
    """What is predicted of a row of the table."""
    sizes = {n: int(getattr(row, n)) for n in ("hidden", "feedforward", "seq", "heads", "head_dim", "layers")}
    pieces = int(row.pipeline_interleaving)
    layout = Layout(
        tensor=int(row.tp),
        pipeline=int(row.pp),
        data=int(row.dp),
        sequence=bool(row.sequence_parallel),
        schedule="interleaved" if pieces > 1 else "1f1b",
        interleave=pieces,
    )
    spec = find_spec("a100-sxm4-80gb")
    count = int(row.batch) // int(row.dp) // int(row.microbatch)
    recipe = Recipe("adam", "fused", count, masters=True, **CHECKPOINTING[row.activation_recompute])
    source = Source(
        row.model,
        partial(network, sizes),
        lambda model, ask: by_shape(row.model, model, ask, (sizes["seq"], sizes["hidden"])),
    )
    cluster = Cluster(spec, PER_NODE, -(-layout.ranks // PER_NODE))
    case = Request(row.model, int(row.microbatch), dtype="float16", run=run, layout=layout, cluster=cluster)
    case = replace(case, phase=Phase("training"), recipe=recipe)
    return predict_request(case, for_device(spec), source)[0]


def parallel_megatron(given: argparse.Namespace) -> None:
    """Steps and memory."""
    table = pd.read_csv(given.path / "calculon_dev.csv", keep_default_na=False, na_values=[""])
    print("\nSteps of Megatron-LM on A100s: seconds, and errors.\n")
    print("| run | measured | predicted | error | Calculon | bubble | exchanges exposed |\n|" + "---|" * 7)
    errors: list[float] = []
    steps: Iterable[Any] = table[table.kind == "step"].itertuples()
    for row in steps:
        one = predicted(row, given.run)
        error = one.runtime_s.value / row.step_s - 1
        errors.append(abs(error))
        rival, said = row.calculon_step_s / row.step_s - 1, one.parallel
        shares = f"{said.bubble_share:.1%} | {said.exposed_share:.1%}" if said else " | "
        print(
            f"| {row.model}, {row.recompute} | {row.step_s} | {one.runtime_s.value:.2f} | {error:+.1%} | "
            f"{rival:+.1%} | {shares} |",
            flush=True,
        )
    print(f"| mean | | | {np.mean(errors):.1%} | | | |")
    _memory(table[table.kind == "memory"], given.run)


def _memory(table: pd.DataFrame, run: str) -> None:
    print("\nMemory of the first stage, GiB: weights with the optimizer's states, activations, and both.\n")
    print("| run | part | measured | predicted | error | Calculon |\n|" + "---|" * 6)
    errors: list[float] = []
    rows: Iterable[Any] = table.itertuples()
    for row in rows:
        said = predicted(row, run).parallel
        memory = said.stages[0].memory if said else None
        if memory is None:
            continue
        kept = (memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes) / GIB
        active = memory.activations_bytes / GIB
        cells = {
            "weights and states": (row.weights_optimizer_gib, kept, row.calculon_weights_optimizer_gib),
            "activations": (row.activations_gib, active, row.calculon_activations_gib),
        }
        first, second = cells.values()
        cells["both"] = (first[0] + second[0], first[1] + second[1], first[2] + second[2])
        for part, (measured, value, rival) in cells.items():
            error = value / measured - 1
            print(
                f"| {row.model}, {row.recompute} | {part} | {measured:.2f} | {value:.2f} | {error:+.1%} | "
                f"{rival / measured - 1:+.1%} |",
                flush=True,
            )
        errors.append(abs(error))
    print(f"| mean | both | | | {np.mean(errors):.1%} | |")
