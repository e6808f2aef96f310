"""Paths of modules: prefixes, patterns of repeated blocks, owners of parameters."""

from __future__ import annotations

import re


def prefixes(path: str) -> list[str]:
    """The modules above one: of `a.b.c`, a and a.b."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def pattern(path: str) -> str:
    """The path with a star for each number, so that repeated blocks look alike."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def block_of(path: str) -> str:
    """The outermost repeated block that a module lies in, or is; "" where it lies in none."""
    return next((above for above in (*prefixes(path), path) if pattern(above) != above), "")


def module_of(parameter: str) -> str:
    """The path of the module that holds a parameter; "" for the model itself."""
    return parameter.rpartition(".")[0]
