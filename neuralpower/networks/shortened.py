"""A network with fewer of its repeated blocks: equal blocks take equal times, so that a few say all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from neuralpower.networks.source import Source

DEPTH = "num_hidden_layers"


def blocks_in(module: nn.Module) -> tuple[str, int]:
    """(path, length) of the only list of equal blocks in a network; ("", 0) where there is none."""
    lists = {path: part for path, part in module.named_modules() if isinstance(part, nn.ModuleList)}
    outer = {
        path: part for path, part in lists.items() if not any(path.startswith(f"{other}.") for other in lists)
    }
    most = max((len(part) for part in outer.values()), default=0)
    found = [path for path, part in outer.items() if 2 * len(part) > most]
    if len(found) != 1 or not _alike(module, outer[found[0]]):
        return "", 0
    return found[0], most


def _alike(module: nn.Module, blocks: nn.ModuleList) -> bool:
    """Whether all blocks have the same parts, by their classes, shapes and configured sorts."""
    first, *others = (_signature(block) for block in blocks)
    sorts = {str(one) for config in _configs(module) for one in getattr(config, "layer_types", None) or ()}
    return len(sorts) <= 1 and all(one == first for one in others)


def _signature(block: nn.Module) -> tuple[object, ...]:
    parts = tuple((path, type(part).__name__) for path, part in block.named_modules())
    return parts, tuple((name, tuple(value.shape)) for name, value in block.named_parameters())


def _configs(module: nn.Module) -> Iterator[Any]:
    """The configurations of its parts, each once."""
    seen: set[int] = set()
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and id(config) not in seen:
            seen.add(id(config))
            yield config


def shortened(source: Source, count: int) -> Source:
    """The same network with `count` blocks; its list of equal blocks has more (`blocks_in`)."""

    def construct(dtype: torch.dtype) -> nn.Module:
        module = source.construct(dtype)
        path, length = blocks_in(module)
        owner_path, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner_path), name, module.get_submodule(path)[:count])  # type: ignore[index]
        for config in _configs(module):
            if getattr(config, DEPTH, None) == length:
                setattr(config, DEPTH, count)
                if getattr(config, "layer_types", None):
                    config.layer_types = list(config.layer_types)[:count]
        return module

    return replace(source, construct=construct)
