"""Folders in which predictors are found by name."""

from __future__ import annotations

import importlib.resources
from pathlib import Path


def predictor_folders() -> list[Path]:
    """./models, the package's own, the source tree's."""
    package = Path(str(importlib.resources.files("neuralpower")))
    return [Path("models"), package / "models", package.parent / "models"]
