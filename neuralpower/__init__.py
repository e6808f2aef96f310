"""Latency, power, energy and memory of neural networks on a device: predicted without it, or profiled here.

    predict     a network on a device, from its layers
    sweep       batch sizes, lengths and dtypes
    compare     two networks, or two devices
    fit         does a network fit into memory; largest batch and context
    memory      peak memory alone, of a pass or a training step
    parallel    all layouts over several devices
    rank        devices for a network, by throughput, energy, price or carbon
    score       rank thousands of candidates
    traffic     serve users at a rate: waiting times, and how many there can be
    plan        rank the devices that serve a rate and keep a promise
    load        load a predictor for many calls
    profile     measure a network on this machine
    explain     say where the time of a profiler's trace went
    evaluate    predict networks, run them here, and compare
    dataset     read measured layers
    check       say which measured rows are usable, and what is wrong with the others
    gate        refuse a model that became slower or larger than a baseline
    train       a predictor from datasets
    calibrate   adapt a predictor to this machine

Results print as the tables of the command line; names hold SI units (`runtime_s`, `memory_bytes`).
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from neuralpower import errors
from neuralpower.api.functions import (
    calibrate,
    check,
    compare,
    dataset,
    evaluate,
    explain,
    fit,
    gate,
    load,
    memory,
    parallel,
    plan,
    predict,
    profile,
    rank,
    score,
    sweep,
    traffic,
    train,
)
from neuralpower.prediction.shown import Shown
from neuralpower.version import __version__

if TYPE_CHECKING:
    from neuralpower import compat as compat
    from neuralpower.api.loaded import LoadedPredictor as LoadedPredictor
    from neuralpower.compat import Profile as Profile
    from neuralpower.devices.cluster import Layout as Layout
    from neuralpower.networks.phases import Phase as Phase
    from neuralpower.prediction.prediction import Prediction as Prediction
    from neuralpower.trace.recipe import Recipe as Recipe

__all__ = [
    "Layout",
    "LoadedPredictor",
    "Phase",
    "Prediction",
    "Profile",
    "Recipe",
    "__version__",
    "calibrate",
    "check",
    "compare",
    "compat",
    "dataset",
    "errors",
    "evaluate",
    "explain",
    "fit",
    "gate",
    "load",
    "memory",
    "parallel",
    "predict",
    "rank",
    "profile",
    "score",
    "plan",
    "sweep",
    "traffic",
    "train",
]

_HOMES = {
    "Layout": "neuralpower.devices.cluster",
    "LoadedPredictor": "neuralpower.api.loaded",
    "Phase": "neuralpower.networks.phases",
    "Prediction": "neuralpower.prediction.prediction",
    "Profile": "neuralpower.compat",
    "Recipe": "neuralpower.trace.recipe",
    "compat": "neuralpower.compat",
}


def _drawing() -> Any:
    """What shows results, imported when the first is shown."""
    from neuralpower.report import shown

    return shown


Shown.drawing = staticmethod(_drawing)


def __getattr__(name: str) -> Any:
    """Import public names whose modules need torch on demand (PEP 562)."""
    if name not in _HOMES:
        near = difflib.get_close_matches(name, __all__, n=3)
        way = f"did you mean {', '.join(near)}?" if near else "dir(neuralpower) lists what it has"
        raise AttributeError(f"module 'neuralpower' has no attribute {name!r}; {way}")
    home = importlib.import_module(_HOMES[name])
    return home if name == "compat" else getattr(home, name)


def __dir__() -> list[str]:
    """The public names alone."""
    return sorted(__all__)
