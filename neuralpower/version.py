"""The version of neuralpower, which the files that it writes carry, and those of its libraries."""

from __future__ import annotations

import importlib.metadata
import platform
import re

__version__ = "0.2.0"


def version_of(package: str) -> str:
    """A package's version, "" if it is missing; `importlib.metadata.version` would parse all metadata."""
    try:
        text = importlib.metadata.distribution(package).read_text("METADATA") or ""
    except importlib.metadata.PackageNotFoundError:
        return ""
    found = re.search(r"^Version: (.+)$", text, re.M)
    return found.group(1) if found else text


SHOWN = ("torch", "transformers")
METHOD = "Cai et al., NeuralPower, ACML 2017, arxiv.org/abs/1710.05420"


def versions() -> str:
    """What --version prints: versions, and how to cite them."""
    others = [f"{name} {version_of(name) or 'not installed'}" for name in SHOWN]
    others.append(f"Python {platform.python_version()}")
    return (
        f"neuralpower {__version__} ({', '.join(others)})\nTo cite: neuralpower {__version__}, and {METHOD}"
    )
