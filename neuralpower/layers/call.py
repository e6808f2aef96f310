"""A call that is ready to be timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from neuralpower.late import Tensor


@dataclass(frozen=True)
class Call:
    """One call to time: `function(*args, **kwargs)`; the tensors in `warm` are written afresh just before it.

    With `recurs` it is timed just after an untimed run of its own, as a network is, or what a loop repeats.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    warm: tuple[Tensor, ...] = ()
    recurs: bool = False

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)
