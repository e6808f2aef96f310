"""Runtime, power, energy and memory of neural networks, layer by layer: predicted or profiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuralpower.version import __version__

if TYPE_CHECKING:
    from neuralpower import compat as compat
    from neuralpower.api import LoadedPredictor as LoadedPredictor
    from neuralpower.api import load as load
    from neuralpower.compat import Profile as Profile
    from neuralpower.networks.phases import Phase as Phase
    from neuralpower.profiling import profile as profile
    from neuralpower.trace.recipe import Recipe as Recipe

__all__ = ["LoadedPredictor", "Phase", "Profile", "Recipe", "__version__", "compat", "load", "profile"]

_HOMES = {
    "LoadedPredictor": "neuralpower.api",
    "Phase": "neuralpower.networks.phases",
    "Profile": "neuralpower.compat",
    "Recipe": "neuralpower.trace.recipe",
    "compat": "neuralpower.compat",
    "load": "neuralpower.api",
    "profile": "neuralpower.profiling",
}


def __getattr__(name: str) -> Any:
    """Public names whose modules need torch are imported when they are first asked for (PEP 562)."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'neuralpower' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    return home if name == "compat" else getattr(home, name)
