"""Versions of this package and of its libraries, from their metadata: nothing is imported."""

from __future__ import annotations

import platform

from neuralpower.version import __version__, version_of

SHOWN = ("torch", "transformers")


def versions() -> str:
    """The line that --version prints."""
    others = [f"{name} {version_of(name) or 'not installed'}" for name in SHOWN]
    return f"neuralpower {__version__} ({', '.join([*others, f'Python {platform.python_version()}'])})"
