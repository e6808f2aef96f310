"""Track the running module while a network is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from neuralpower.trace.records import ModuleCall, shapes_of


class ModuleStack:
    """The stack of running modules, by hooks on every module of the process, removed at the end."""

    def __init__(self, model: nn.Module) -> None:
        self._paths: dict[int, list[str]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            self._paths.setdefault(id(module), []).append(name)
        self._stack: list[tuple[int, str]] = []

    @property
    def path(self) -> str:
        """Path of the innermost module that is running."""
        return self._stack[-1][1] if self._stack else ""

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        before = nn.modules.module.register_module_forward_pre_hook(self._enter)
        after = nn.modules.module.register_module_forward_hook(self._leave, always_call=True)
        with before, after:  # a handle takes itself off
            yield

    def entered(self, path: str) -> None:
        """A module's forward begins: nothing to do here."""

    def left(self, path: str, args: Any, output: Any) -> None:
        """A module's forward has returned: nothing to do here."""

    def _enter(self, module: nn.Module, args: Any) -> None:
        names = self._paths.get(id(module))
        path = self.path  # of a module that the forward has made, without a name of its own
        if names is not None:
            inside = path + "." if path else ""
            path = next((name for name in names if name.startswith(inside)), names[0])
        self._stack.append((id(module), path))
        if names is not None:
            self.entered(path)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        while self._stack:  # a forward that raised below leaves its entries behind
            identity, path = self._stack.pop()
            if identity == id(module):
                if identity in self._paths:
                    self.left(path, args, output)
                break


class Modules(ModuleStack):
    """Keeps the shapes of every module call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.seen: list[ModuleCall] = []

    def left(self, path: str, args: Any, output: Any) -> None:
        """Note the shapes of a call that has ended."""
        self.seen.append(ModuleCall(path, shapes_of(args), shapes_of(output)))


class With(nn.Module):
    """A function that runs while a model has other weights."""

    def __init__(self, model: nn.Module, action: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self.action = model, action

    def forward(self) -> Any:
        return self.action()
