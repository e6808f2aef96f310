"""torch and its parts, imported once something of them is used: pricing a kept trace needs none of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

_waiting: list[Callable[[], None]] = []


def once_imported(define: Callable[[], None]) -> None:
    """Run a definition that torch keeps: now, or before something of torch is first used."""
    if sys.modules.get("torch") is not None:
        define()
    else:
        _waiting.append(define)


if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
else:

    class _Late(ModuleType):
        """A module that is imported when a name of it is first read."""

        def __getattr__(self, name: str) -> Any:
            module = sys.modules.get(self.__name__) or importlib.import_module(self.__name__)
            while _waiting:
                _waiting.pop(0)()
            return getattr(module, name)

    class _LateTensor:
        """`torch.Tensor` in `isinstance`: without torch, nothing is one."""

        def __instancecheck__(self, value: object) -> bool:
            module = sys.modules.get("torch")
            return module is not None and isinstance(value, module.Tensor)

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("torch").Tensor, name)

    torch, nn, F, Tensor = _Late("torch"), _Late("torch.nn"), _Late("torch.nn.functional"), _LateTensor()

__all__ = ["F", "Tensor", "nn", "once_imported", "torch"]
