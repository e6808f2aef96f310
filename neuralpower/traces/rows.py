"""Layers that a trace has timed, as tables of a dataset, and what they are expected to take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.importing import write_tables
from neuralpower.devices.hardware import ASSUMED_PCIE
from neuralpower.devices.spec import known_spec
from neuralpower.errors import InputError
from neuralpower.layers import Layer
from neuralpower.layers.attention import by_torch
from neuralpower.layers.base import in_tf32
from neuralpower.layers.rows import to_row
from neuralpower.learn.estimates import BASES, ROOFLINE, ROOFLINE_FACTOR
from neuralpower.learn.network_estimates import UNMODELLED_OVERHEAD_S
from neuralpower.learn.predictor import Predictor
from neuralpower.platforms import CPU
from neuralpower.traces.calls import Replays
from neuralpower.traces.events import OF_TF32, Recording, read_recording

if TYPE_CHECKING:
    import pandas as pd

PROFILED = "profiled"  # in the column `source`
MOST_NAMES = 4  # of kernels in a row


def write_profiled(path: Path, out: Path) -> Mapping[str, int]:
    """Write the calls of one layer each into a dataset's folder; the number of rows of each kind.

    Raises InputError as `read_recording`, or no call is of a layer; DatasetError as `write_tables`.
    """
    recording = read_recording(path)
    tables = profiled_tables(recording)
    if not tables:
        raise InputError(f"{path}: no call of a layer has shapes and a time; record with record_shapes=True")
    spec = known_spec(recording.device)
    device = recording.device if spec is None else spec.slug
    if not device:
        raise InputError(
            f"{path}: does not name its device; traces of GPUs give rows, as `collect-data` a CPU's"
        )
    write_tables(out, {"device": device, "includes_launch": False}, tables)
    return {kind: len(table) for kind, table in tables.items()}


def profiled_tables(recording: Recording) -> dict[str, pd.DataFrame]:
    """A table for each kind: a row for each different layer, with the median of its calls' times."""
    import pandas as pd

    replays = Replays(recording)
    took: dict[int, float] = defaultdict(float)
    names: dict[int, dict[str, None]] = defaultdict(dict)
    for one in recording.ran:
        if one.owner >= 0 and not one.over_bus:
            took[one.owner] += one.took / 1e6
            names[one.owner][one.name] = None
    times: dict[Layer, list[float]] = defaultdict(list)
    kernels: dict[Layer, dict[str, None]] = defaultdict(dict)
    for number, seconds in took.items():
        replay = replays.of(recording.operators[number])
        if replay.why or len(replay.layers) != 1 or not seconds:
            continue
        tf32 = any(word in name for name in names[number] for word in OF_TF32)
        layer = by_torch(in_tf32(replay.layers[0]) if tf32 else replay.layers[0])
        times[layer].append(seconds)
        kernels[layer] |= names[number]
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for layer, some in times.items():
        said = " ; ".join([*kernels[layer]][:MOST_NAMES])
        measured = {"runtime_s": float(np.median(some)), "repeats": len(some), "source": PROFILED}
        rows[layer.kind].append({**to_row(layer), **measured, "kernels": said})
    return {kind: pd.DataFrame(some) for kind, some in rows.items()}


# What calls of a trace are expected to take on a device.


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
