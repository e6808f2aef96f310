"""An answer depends on the question alone: not on what the caller has set in torch, nor on other threads."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from neuralpower.processes.alone import alone

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def apart(asked: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Make a function independent of the caller's default device, modes and casts, and of other threads.

    A mode that sees each operator, such as one that counts FLOP, does not see those of following a network.
    """

    @functools.wraps(asked)
    def answered(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        with alone(), _as_torch_begins():
            return asked(*args, **kwargs)

    return answered


@contextlib.contextmanager
def _as_torch_begins() -> Iterator[None]:
    """No modes of dispatch, no automatic casts, and the CPU as default device, all of this thread."""
    with contextlib.ExitStack() as stack:
        if _get_current_dispatch_mode() is not None:
            stack.enter_context(_disable_current_modes())
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.get_default_device().type != "cpu":  # setting a device slows every call down
            stack.enter_context(torch.device("cpu"))
        yield
