"""Layers that a trace has timed, as tables of a dataset; rows state that they were profiled, and what ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.data.importing import write_tables
from neuralpower.devices.spec import known_spec
from neuralpower.errors import InputError
from neuralpower.layers import Layer
from neuralpower.layers.attention import by_torch
from neuralpower.layers.base import in_tf32
from neuralpower.layers.rows import to_row
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
