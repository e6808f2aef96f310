"""Paths of modules: prefixes, patterns of blocks that repeat, owners of parameters."""

from __future__ import annotations

import re

from neuralpower.networks.running import META as META


def prefixes(name: str) -> list[str]:
    """Of `a.b.c`: a, a.b."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def pattern(path: str) -> str:
    """The path with a star for each number, so that repeated blocks are told to be alike."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def module_of(parameter: str) -> str:
    """The path of the module that holds a parameter; "" for the model itself."""
    return parameter.rpartition(".")[0]
