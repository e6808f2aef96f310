"""Versions of this package and of its libraries, from their metadata: nothing is imported."""

from __future__ import annotations

import platform

from neuralpower.version import __version__, version_of

SHOWN = ("torch", "transformers")
METHOD = "Cai et al., NeuralPower, ACML 2017, arxiv.org/abs/1710.05420"


def versions() -> str:
    """What --version prints: versions, and how to cite them."""
    others = [f"{name} {version_of(name) or 'not installed'}" for name in SHOWN]
    others.append(f"Python {platform.python_version()}")
    return (
        f"neuralpower {__version__} ({', '.join(others)})\nTo cite: neuralpower {__version__}, and {METHOD}"
    )
