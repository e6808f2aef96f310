"""The version of neuralpower, which the files that it writes carry, and those of its libraries."""

from __future__ import annotations

import importlib.metadata
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
