"""Sweeps too long for every run: some cases always run, `make test-full` runs the rest, marked `full`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def some_always(cases: Iterable[T], always: Callable[[T], bool]) -> list[Any]:
    """Parameters: cases, or tuples of several, of which those run always that `always` is true for."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if always(case) else [pytest.mark.full],
        )
        for case in cases
    ]


def one_of_each(cases: Iterable[T], sort: Callable[[T], Hashable]) -> list[Any]:
    """Parameters: cases of which the first of each sort runs always."""
    first: dict[Hashable, T] = {}
    return some_always(cases, lambda case: first.setdefault(sort(case), case) is case)
