"""The rank that is followed: its groups, and what hooks of its modules share."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from neuralpower.devices.layout import Layout
from neuralpower.networks.sharding.exchanges import BETWEEN, PARTIAL, WHOLE, Group, Placement, turned

SEQUENCE = -2  # the axis of tokens, in [batch, tokens, width] and in [tokens, width]


@dataclass
class Rank:
    """One rank of a layout. The one with the largest part of uneven splits is followed."""

    layout: Layout
    tensor: Group
    expert: Group
    config: Any = None  # of the network, where it has one
    sequence: bool = False  # whether tokens are split now, between products: a step of one token is not
    _last: tuple[Any, Any, Tensor] | None = field(default=None, repr=False)

    @property
    def between(self) -> Placement:
        """The placement of tensors between pairs of products."""
        return SEQUENCE if self.sequence else WHOLE

    def laid(self, placement: Placement) -> Placement:
        """The placement that a style names."""
        return self.between if placement == BETWEEN else placement

    def configured(self, name: str) -> Any:
        """A number of the configuration, or of that of its text model."""
        text = getattr(self.config, "text_config", None)
        return getattr(self.config, name, getattr(text, name, None))

    def shared(self, x: Tensor, before: Placement, after: Placement, partial: bool) -> Tensor:
        """`x` in another placement; modules that read the same tensor share one exchange, as q, k, v do."""
        if before == after and not partial:
            return x
        how = before, after, partial
        if self._last is not None and self._last[0]() is x and self._last[1] == how:
            return self._last[2]
        found = turned(x, before, after, self.tensor, partial=partial)
        self._last = (weakref.ref(x, self._forget), how, found)
        return found

    def slice_of(self, x: Tensor) -> Tensor | None:
        """What the rank has of a tensor that was gathered last; None of other tensors."""
        if self._last is None or self._last[1][0] != SEQUENCE or self._last[2].numel() != x.numel():
            return None
        same = self._last[2].untyped_storage()._cdata == x.untyped_storage()._cdata
        found: Tensor | None = self._last[0]() if same else None
        return found

    def _forget(self, dead: Any) -> None:
        if self._last is not None and self._last[0] is dead:
            self._last = None

    def ends(self) -> None:
        """Keep nothing after a pass."""
        self._last = None

    def whole(self, x: Tensor, *, partial: bool) -> Tensor:
        """A tensor between products, made whole; `partial`: each rank makes a part of its gradient."""
        return self.shared(x, self.between, WHOLE, partial)

    def from_partial(self, x: Tensor) -> Tensor:
        """A partial tensor as it is between products."""
        return turned(x, PARTIAL, self.between, self.tensor)

    @staticmethod
    def first(args: Any, kwargs: Any, change: Callable[[Tensor], Tensor], *, floating: bool = True) -> Any:
        """The arguments of a call with the first tensor changed."""
        for place, value in enumerate(args):
            if isinstance(value, Tensor) and value.is_floating_point() == floating:
                return (*args[:place], change(value), *args[place + 1 :]), kwargs
        for name, value in kwargs.items():
            if isinstance(value, Tensor) and value.is_floating_point() == floating:
                return args, {**kwargs, name: change(value)}
        return args, kwargs

    @staticmethod
    def outputs(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
        """The output of a call with its first tensor changed."""
        if isinstance(output, Tensor):
            return change(output)
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            return (change(output[0]), *output[1:])
        return output
