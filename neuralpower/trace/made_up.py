"""Values that are made up, and what a forward pass decides by them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.networks.call_cache import tensors_in
from neuralpower.networks.promised_values import made_up, tensors_within
from neuralpower.networks.running import ASKING

# operators that decide by numbers
DEPENDING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class MadeUp:
    """Follows the tensors that made-up values go into."""

    def __init__(self) -> None:
        self._sources = WeakIdKeyDictionary()  # tensors that follow from made-up values -> these, as text
        self._decided_by: dict[str, None] = {}  # made-up values that a number or a shape was asked of

    def begins(self, model: nn.Module, state: Mapping[str, Tensor], inputs: Any) -> None:
        """Note the inputs and weights whose values are nobody's."""
        args, kwargs = inputs
        try:
            names = [*inspect.signature(model.forward).parameters]
        except ValueError:  # of what is not written in Python
            names = []
        called = {names[i] if i < len(names) else f"input {i + 1}": value for i, value in enumerate(args)}
        for name, value in (called | dict(kwargs)).items():
            self._note(name, tensors_within(value))
        self._note("weights", state.values())

    def _note(self, name: str, tensors: Iterable[Tensor]) -> None:
        self._sources.update({t: (f"{name} ({why})",) for t in tensors if (why := made_up(t))})

    def asked(self, name: str, tags: Iterable[Any], args: Any) -> None:
        """Note where an operator is about to decide by made-up values."""
        if self._sources and (name in ASKING or DEPENDING.intersection(tags) or _selects(name, args)):
            self._decided_by |= self._behind(args[1] if name == "index" else args)

    def called(self, given: Any, output: Any) -> None:
        """What a call returns follows from what it was given."""
        if self._sources and (sources := self._behind(given)):
            self._sources.update(dict.fromkeys(tensors_in(output), tuple(sources)))

    def _behind(self, values: Any) -> dict[str, None]:
        """The made-up values that tensors follow from, as text."""
        known = (self._sources[t] for t in tensors_in(values) if t in self._sources)
        return {text: None for texts in known for text in texts}

    def notes(self) -> Iterator[str]:
        """A note on made-up values that the calls depend on."""
        if named := "; ".join(self._decided_by):
            said = f"its forward pass depends on values that are made up: {named}"
            yield f"{said}; other values may lead to other calls"


def _selects(name: str, args: Any) -> bool:
    """Whether a call takes what a mask says: as many numbers as there are true ones."""
    masks = args[1] if name == "index" else ()
    return any(isinstance(mask, Tensor) and mask.dtype in (torch.bool, torch.uint8) for mask in masks)
