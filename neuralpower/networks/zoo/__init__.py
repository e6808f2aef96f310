"""Networks in plain PyTorch, by what joins their layers: `zoo:NAME`.

A file in this folder that decorates a builder with `zoo_model` is found by itself. The tests hold every
network to published counts for one example, forward, with 1 multiply-add = 2 FLOP.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from neuralpower.errors import ModelError, unknown
from neuralpower.networks.zoo.base import REGISTRY, ZooEntry, zoo_model

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

ZOO: Mapping[str, ZooEntry] = MappingProxyType(REGISTRY)


def zoo_entry(id: str) -> ZooEntry:
    """The entry of that id.

    Raises:
        ModelError: there is none; the message names the nearest ones.
    """
    try:
        return ZOO[id]
    except KeyError:
        raise unknown("zoo network", id, ZOO, ModelError) from None


__all__ = ["ZOO", "ZooEntry", "zoo_entry", "zoo_model"]
