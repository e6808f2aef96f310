"""Versions of this package and of its libraries, from their metadata: nothing is imported."""

from __future__ import annotations

import importlib.metadata
import platform
import re

from neuralpower.version import __version__

SHOWN = ("torch", "transformers")


def version_of(package: str) -> str:
    """A package's version, "" if it is missing; `importlib.metadata.version` would parse all metadata."""
    try:
        text = importlib.metadata.distribution(package).read_text("METADATA") or ""
    except importlib.metadata.PackageNotFoundError:
        return ""
    found = re.search(r"^Version: (.+)$", text, re.M)
    return found.group(1) if found else text


def versions() -> str:
    """The line that --version prints."""
    others = [f"{name} {version_of(name) or 'not installed'}" for name in SHOWN]
    return f"neuralpower {__version__} ({', '.join([*others, f'Python {platform.python_version()}'])})"
