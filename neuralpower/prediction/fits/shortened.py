"""A network with fewer of its repeated blocks: equal blocks take equal times, so that a few say all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import nn

from neuralpower.networks.source import Source

DEPTH = "num_hidden_layers"
MOST_EACH, MOST_LEAD = 8, 4  # blocks of a group, as Jamba has, and before the groups


class Repeated(NamedTuple):
    """A list of blocks: some of their own, then groups that are alike, the last perhaps not whole."""

    path: str = ""  # of the list; "" where there is none
    blocks: int = 0  # all of them
    lead: int = 0  # that come before the groups
    each: int = 1  # blocks of a group

    @property
    def groups(self) -> int:
        """How many there are, whole ones alone."""
        return (self.blocks - self.lead) // self.each

    def with_groups(self, groups: int) -> int:
        """The blocks of a network with that number of groups."""
        return self.blocks - (self.groups - groups) * self.each


def repeated(module: nn.Module) -> Repeated:
    """The list with most blocks, if they repeat in groups of at most MOST_EACH."""
    lists = {path: part for path, part in module.named_modules() if isinstance(part, nn.ModuleList)}
    outer = {
        path: part for path, part in lists.items() if not any(path.startswith(f"{other}.") for other in lists)
    }
    most = max((len(part) for part in outer.values()), default=0)
    paths = [path for path, part in outer.items() if 2 * len(part) > most]
    if len(paths) != 1:
        return Repeated()
    sorts = _sorts(module, outer[paths[0]])
    for each, lead in product(range(1, MOST_EACH + 1), range(MOST_LEAD + 1)):
        if lead + 2 * each <= most and sorts[lead : most - each] == sorts[lead + each :]:
            return Repeated(paths[0], most, lead, each)
    return Repeated(blocks=most) if most == 1 else Repeated()


def blocks_in(module: nn.Module) -> tuple[str, int]:
    """(path, length) of the only list of equal blocks in a network; ("", 0) where there is none."""
    found = repeated(module)
    return (found.path, found.blocks) if (found.lead, found.each) == (0, 1) else ("", 0)


def _sorts(module: nn.Module, blocks: nn.ModuleList) -> list[object]:
    """[blocks] what each is: its parts' classes, shapes and settings, and its configured sort."""
    configured = [types for c in _configs(module) if (types := getattr(c, "layer_types", None))]
    named = next((list(types) for types in configured if len(types) == len(blocks)), [""] * len(blocks))
    settings = [_settings(block) for block in blocks]
    for name in set().union(*settings):  # a block's own number
        if all(own.get(name, place) == place for place, own in enumerate(settings)):
            for own in settings:
                own.pop(name, None)
    return [(_parts(block), own, str(sort)) for block, own, sort in zip(blocks, settings, named, strict=True)]


def _parts(block: nn.Module) -> tuple[object, ...]:
    parts = tuple((path, type(part).__name__) for path, part in block.named_modules())
    return parts, tuple((name, tuple(value.shape)) for name, value in block.named_parameters())


def _settings(block: nn.Module) -> dict[tuple[str, str], Any]:
    """(path, name) -> switches, counts, sizes and words; shares such as dropout's change no shape."""
    return {
        (path, name): value
        for path, part in block.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, (bool, int, str))
        or (isinstance(value, tuple) and all(isinstance(one, int) for one in value))
    }


def _configs(module: nn.Module) -> Iterator[Any]:
    """The configurations of its parts, each once."""
    seen: set[int] = set()
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and id(config) not in seen:
            seen.add(id(config))
            yield config


def shortened(source: Source, count: int) -> Source:
    """The same network with the first `count` of its blocks; its list has more (`repeated`)."""

    def construct(dtype: torch.dtype) -> nn.Module:
        module = source.construct(dtype)
        path, length, *_ = repeated(module)
        owner_path, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner_path), name, module.get_submodule(path)[:count])  # type: ignore[index]
        for config in _configs(module):
            if getattr(config, DEPTH, None) == length:
                setattr(config, DEPTH, count)
                if vars(config).get("layer_types"):  # others derive them from the number of layers
                    config.layer_types = list(config.layer_types)[:count]
        return module

    return replace(source, construct=construct)
