"""Run a user's code: whatever it raises comes out as one `UsersError`, which is a ModelError.

An import, a constructor, a forward pass and a function of inputs may call `sys.exit`, or raise an exception
that does not derive from `Exception` or whose text raises. None of that may end this program or look like
success. Only Ctrl-C ends it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._pytree import tree_iter

from neuralpower.errors import ModelError, NeuralPowerError, UsersError, said, shortened

WAY_OUT = "write a plain `def` that returns what it computes"


@contextmanager
def users_code(what: str, way_out: str = "") -> Iterator[None]:
    """Raise UsersError, which says `what` failed, why, and a way out, for foreign errors within."""
    try:
        yield
    except (NeuralPowerError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UsersError(failed(what, error) + (f"; {way_out}" if way_out else ""), error, what) from error


def raised(error: Exception) -> BaseException:
    """The exception of the code itself, where `error` came from `users_code`."""
    return error.error if isinstance(error, UsersError) and error.error is not None else error


def failed(what: str, error: BaseException) -> str:
    """`what`, then the first two lines of a foreign error, and more where a colon says that more follows."""
    lines = [line.strip() for line in said(error).splitlines() if line.strip()]
    end = next((i for i, line in enumerate(lines[1:], 2) if not line.endswith(":")), len(lines))
    text = shortened(" ".join(lines[:end]))
    nested = "; modules that contain themselves, or lie too deep in one another, cannot be followed"
    nested = nested if isinstance(error, RecursionError) else ""
    return f"{what}: {type(error).__name__}{text and ': '}{text}{nested}"


def check_plain(forward: Any, what: str) -> None:
    """Raise ModelError for a function whose call computes nothing: `async def`, or one with `yield`."""
    lazy = inspect.iscoroutinefunction(forward)
    if lazy or inspect.isgeneratorfunction(forward) or inspect.isasyncgenfunction(forward):
        way = "`async def`" if lazy else "a generator"
        raise ModelError(f"{what} is {way}, and a call of it computes nothing; {WAY_OUT}")


def check_computed(output: Any, what: str) -> None:
    """Raise ModelError where `output` holds what is computed later: a coroutine, generator or iterator."""
    for value in tree_iter(output):
        if not isinstance(value, (Awaitable, AsyncIterator, Iterator)):
            continue
        if inspect.iscoroutine(value):
            value.close()  # else Python warns that nobody has waited for it
        kind = type(value).__name__
        raise ModelError(f"{what} gives a {kind}, with nothing computed; {WAY_OUT}")
