"""A predictor that remembers its layers' times: for many layouts of one network, which share most layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from neuralpower.layers import Layer
from neuralpower.learn.estimates import Estimates
from neuralpower.learn.predictor import Predictor


@dataclass
class _Memory:
    """Estimates of all layers so far, by their places."""

    places: dict[Layer, int] = field(default_factory=dict)
    found: Estimates | None = None


@dataclass(frozen=True)
class RememberingPredictor(Predictor):
    """The same predictor; it estimates no layer twice, and keeps all that it has estimated."""

    memory: _Memory = field(default_factory=_Memory, compare=False, repr=False)

    def estimate(self, layers: Sequence[Layer]) -> Estimates:
        places, before = self.memory.places, self.memory.found
        new = [layer for layer in dict.fromkeys(layers) if layer not in places]
        if new or before is None:
            found = super().estimate(new)
            self.memory.found = found if before is None else before.followed_by(found)
            places.update({layer: len(places) + i for i, layer in enumerate(new)})
        assert self.memory.found is not None  # it is set above
        return self.memory.found.at(np.array([places[layer] for layer in layers], dtype=int))


def remembering(predictor: Predictor) -> RememberingPredictor:
    """The predictor with a memory of its own."""
    return RememberingPredictor(**{one.name: getattr(predictor, one.name) for one in fields(Predictor)})
