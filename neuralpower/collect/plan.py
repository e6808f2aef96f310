"""What to measure: a seeded sweep of every kind, and the distinct layers of real networks, as they are and jittered."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from neuralpower.collect.networks import NETWORKS, QUICK, Network, jittered
from neuralpower.collect.presets import BLOCK, PRESETS, Preset
from neuralpower.dataset import config_id
from neuralpower.errors import InputError, NeuralPowerError, unknown
from neuralpower.layers import KINDS, Draw, Layer
from neuralpower.sources import InputRequest, resolve
from neuralpower.trace import trace


def kinds_named(names: Sequence[str] | None) -> list[type[Layer]]:
    """The kinds; all that a forward pass makes where none is named. Raises InputError for an unknown name."""
    for name in names or ():
        if name not in KINDS:
            raise unknown("layer kind", name, KINDS)
    return [kind for name, kind in KINDS.items() if (name in names if names else kind.defaults()["phase"] == "forward")]


def make_plan(
    preset: Preset, kinds: Sequence[type[Layer]], models: Sequence[str] | None, dtypes: Sequence[str], seed: int
) -> list[dict[str, Any]]:
    """Configurations in the order to measure them: `{"kind", "config_id", "source", "flops", "bytes", "row"}`, each once.

    They come in blocks of BLOCK that are measured in turn: the layers of one network together, so that they meet the caches
    as that network's do, and layers of the sweep, mixed. Blocks are shuffled: a collection that is cut off is a smaller one
    of the same make-up.
    """
    generator = random.Random(seed)
    sweep = list(_sweep(preset, kinds, seed))
    generator.shuffle(sweep)
    seen: set[str] = set()
    blocks: list[list[dict[str, Any]]] = []
    for source, layers in (("sweep", sweep), *_networks(preset, kinds, models, seed)):
        items = []
        for layer in layers:
            for dtype in dtypes:
                typed = dataclasses.replace(layer, dtype=dtype) if layer.dtype == "float32" else layer
                item = _item(typed, source)
                if item["config_id"] not in seen:
                    seen.add(item["config_id"])
                    items.append(item)
        blocks += [items[i : i + BLOCK] for i in range(0, len(items), BLOCK)]
    generator.shuffle(blocks)
    return [item for block in blocks for item in block]


def _item(layer: Layer, source: str) -> dict[str, Any]:
    row = layer.to_row()
    size = int(sum(layer.bytes()) + layer.parameters() * layer.itemsize)
    name = config_id({"kind": layer.kind, **row})
    flops = int(layer.flops())
    return {"kind": layer.kind, "config_id": name, "source": source, "flops": flops, "bytes": size, "row": row}


def affordable(layer: Layer, preset: Preset) -> bool:
    """Whether one call stays inside the preset's bounds of work and memory."""
    return layer.flops() * 4 / layer.itemsize <= preset.most_flops and (
        sum(layer.bytes()) + layer.parameters() * layer.itemsize <= preset.most_bytes
    )


def draw(kind: type[Layer], count: int, seed: int, preset: Preset = PRESETS["standard"]) -> Iterator[Layer]:
    """`count` distinct layers of a kind's sweep, inside the preset's bounds; fewer where the sweep has no more."""
    source = Draw(f"{kind.kind} {seed}")
    seen: set[Layer] = set()
    for _ in range(50 * count):
        if len(seen) == count:
            return
        layer = kind.sample(source)
        if layer not in seen and affordable(layer, preset):
            seen.add(layer)
            yield layer


def _sweep(preset: Preset, kinds: Sequence[type[Layer]], seed: int) -> Iterator[Layer]:
    shares = sum(kind.sweep_share for kind in KINDS.values())
    for kind in kinds:
        yield from draw(kind, max(round(preset.sweep * kind.sweep_share / shares), 10), seed, preset)


def _networks(
    preset: Preset, kinds: Sequence[type[Layer]], models: Sequence[str] | None, seed: int
) -> Iterator[tuple[str, list[Layer]]]:
    """(MODEL, distinct layers) of every network, variant, batch size and length."""
    generator = random.Random(seed)
    if models is not None:
        chosen = [next((n for n in NETWORKS if n.model == m), Network(m, (1, 4))) for m in models if m != "none"]
    else:
        chosen = [n for n in NETWORKS if preset.jitters or n.model in QUICK]
    wanted = {kind.kind for kind in kinds}
    for network in chosen:
        for variant in (network, *(jittered(network, generator) for _ in range(preset.jitters))):
            for batch_size in variant.batch_sizes:
                for seq_len in variant.seq_lens:
                    layers = _distinct(variant.model, batch_size, seq_len, named=models is not None)
                    yield variant.model, [la for la in layers if la.kind in wanted and affordable(la, preset)]


def _distinct(model: str, batch_size: int, seq_len: int | None, named: bool) -> Iterator[Layer]:
    try:
        source = resolve(model)
        module = source.build("meta")
        inputs = source.inputs(module, InputRequest(batch_size=batch_size, seq_len=seq_len))
        traced = trace(module, inputs.args, inputs.kwargs)
    except NeuralPowerError:
        if (
            named
        ):  # by the user; of our own list, a network that this version of a library no longer builds is passed over
            raise
        return
    yield from dict.fromkeys(traced.layers)


def check_dtypes(dtypes: Sequence[str]) -> None:
    """Raise InputError unless every one is a floating type that torch's CPU code takes."""
    from neuralpower.layers.base import FLOATING

    for dtype in dtypes:
        if dtype not in FLOATING:
            raise unknown("dtype", dtype, FLOATING)
        try:
            torch.nn.functional.linear(*(torch.ones(2, 2, dtype=getattr(torch, dtype)) for _ in range(2)))
        except RuntimeError as error:
            raise InputError(
                f"dtype {dtype}: this CPU build of torch cannot use it ({error}); choose float32"
            ) from None
