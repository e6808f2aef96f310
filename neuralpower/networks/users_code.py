"""Where code of a user runs: whatever it raises comes out as one `UsersError`, which is a ModelError.

An import, a constructor, a forward pass and a function of inputs may call `sys.exit`, raise an exception that is none of
`Exception`, or one whose text cannot be had. None of that may end this program, or pass for its success. Ctrl-C alone is the
person's at the keyboard.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._pytree import tree_iter

from neuralpower.errors import ModelError, NeuralPowerError, UsersError, said, shortened


@contextmanager
def users_code(what: str, way_out: str = "") -> Iterator[None]:
    """Raise UsersError, which says `what` failed, why, and a way out, for all that is raised within; our own errors stay."""
    try:
        yield
    except (NeuralPowerError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UsersError(failed(what, error) + (f"; {way_out}" if way_out else ""), error, what) from error


def raised(error: Exception) -> BaseException:
    """What the code itself raised, where `error` came from `users_code`."""
    return error.error if isinstance(error, UsersError) and error.error is not None else error


def failed(what: str, error: BaseException) -> str:
    """`what`, then the first two lines of a foreign error, and more where a colon says that more follows."""
    lines = [line.strip() for line in said(error).splitlines() if line.strip()]
    end = next((i for i, line in enumerate(lines[1:], 2) if not line.endswith(":")), len(lines))
    text = shortened(" ".join(lines[:end]))
    nested = "; modules that contain themselves, or lie too deep in one another, cannot be followed"
    return f"{what}: {type(error).__name__}{text and ': '}{text}{nested if isinstance(error, RecursionError) else ''}"


def check_plain(forward: Any, what: str) -> None:
    """Raise ModelError for a function that computes nothing when it is called: `async def`, or one with `yield`."""
    lazy = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_lazy(forward) for is_lazy in lazy):
        way = "`async def`" if inspect.iscoroutinefunction(forward) else "a generator"
        raise ModelError(
            f"{what} is {way}, and a call of it computes nothing; write a plain `def` that returns what it computes"
        )


def check_computed(output: Any, what: str) -> None:
    """Raise ModelError where `output` holds what is computed later, if ever: a coroutine or an iterator, as a generator is."""
    for value in tree_iter(output):
        if not isinstance(value, (Awaitable, AsyncIterator, Iterator)):
            continue
        if inspect.iscoroutine(value):
            value.close()  # else Python warns that nobody has waited for it
        raise ModelError(
            f"{what} gives a {type(value).__name__}, of which nothing has been computed; write a plain `def` that returns what it "
            "computes"
        )
