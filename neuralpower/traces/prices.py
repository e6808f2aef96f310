"""What calls of a trace are expected to take on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuralpower.devices.hardware import ASSUMED_PCIE
from neuralpower.layers import Layer
from neuralpower.learn.estimates import BASES, ROOFLINE, ROOFLINE_FACTOR
from neuralpower.learn.network_estimates import UNMODELLED_OVERHEAD_S
from neuralpower.learn.predictor import Predictor
from neuralpower.platforms import CPU


@dataclass(frozen=True)
class Price:
    """What a call is expected to take."""

    seconds: float
    low: float
    high: float
    basis: str


class Prices:
    """Prices of calls on a device, by its predictor."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor.of_torch()
        self.on_cpu = predictor.platform.family == CPU.family
        self.roof = self.predictor.own.roofline("float32")
        self._known: dict[Layer, Price] = {}

    def learn(self, layers: Sequence[Layer]) -> None:
        """Price these together, which is much faster than one by one."""
        new = [layer for layer in dict.fromkeys(layers) if layer not in self._known]
        if not new:
            return
        try:
            found = self.predictor.estimate(new)
        except Exception:  # one layer that cannot be priced must not lose the others
            for layer in new if len(new) > 1 else ():
                self.learn([layer])
            return
        hidden = found.hidden_s if self.predictor.dispatch is None else np.zeros(len(new))
        kept = 1 - hidden / np.maximum(found.runtime_s, 1e-30)
        basis = found.basis
        for i, layer in enumerate(new):
            value, low, high = (float(kept[i] * t[i]) for t in (found.runtime_s, found.low_s, found.high_s))
            self._known[layer] = Price(value, low, high, basis[i])

    def of(self, layers: Sequence[Layer], size: int = 0) -> Price | None:
        """The price of layers, and of `size` bytes by the roofline; None where one of them has none."""
        self.learn(layers)
        parts = [self._known[layer] for layer in layers if layer in self._known]
        if len(parts) < len(layers):
            return None
        if size:
            t = size / self.roof.bytes_per_s + UNMODELLED_OVERHEAD_S
            parts.append(Price(t, t / ROOFLINE_FACTOR, t * ROOFLINE_FACTOR, ROOFLINE))
        if not parts:
            return Price(0.0, 0.0, 0.0, BASES[0])
        value, low, high = (sum(getattr(part, name) for part in parts) for name in ("seconds", "low", "high"))
        return Price(value, low, high, max((part.basis for part in parts), key=BASES.index))

    def over_bus(self, size: int) -> Price:
        """The price of bytes that are copied between host and device."""
        t = size / (self.predictor.known_hardware().pcie_bytes_per_s or ASSUMED_PCIE) + UNMODELLED_OVERHEAD_S
        return Price(t, t / ROOFLINE_FACTOR, t * ROOFLINE_FACTOR, ROOFLINE)

    def seconds(self, layers: Sequence[Layer]) -> float:
        """Their time; infinite where it is not known, so that nothing is saved by them."""
        price = self.of(layers)
        return float("inf") if price is None else price.seconds
