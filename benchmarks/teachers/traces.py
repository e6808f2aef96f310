"""Eager forward passes in profiler traces (PATH/traces, MIT), operator by operator."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from neuralpower.devices.spec import find_spec
from neuralpower.learn.unmeasured.prior_fit import CALL_NOISE, Observation
from neuralpower.traces.calls import TracedCall, read_calls

NAMES = (
    *("h100_bert_small", "h100_qwen1.5_0.5b", "mi300_bert_small", "mi300_qwen1.5_0.5b"),
    *("mi300_flux", "mi300_norms"),
)
DEVICES = {"h100": "nvidia-h100-sxm5-80gb", "mi300": "amd-mi300x"}
WEIGHT = 1.0  # each is the median of its repeats in a network
SHORTEST_S = 6e-6  # below, launches of 2 us (NVIDIA) to 5 us (AMD) are most of a call


def observations(root: Path) -> list[Observation]:
    """One for each distinct call of one layer, of the median time of its repeats; `root` holds traces/."""
    found = []
    for name in NAMES:
        spec = find_spec(DEVICES[name.split("_")[0]])
        repeats: dict[object, list[TracedCall]] = {}
        for one in read_calls(root / "traces" / f"{name}.json.gz").calls:
            if not one.why and len(one.layers) == 1 and sum(one.layers[0].bytes()) > 0:
                repeats.setdefault(one.layers, []).append(one)
        for some in repeats.values():
            took, layers = float(np.median([one.device_s for one in some])), some[0].layers
            if took >= SHORTEST_S:
                found.append(
                    Observation(
                        spec.slug, spec.hardware(), layers, np.ones(1), took, WEIGHT, CALL_NOISE, spec.chip
                    )
                )
    return found
