"""Sizes of memory as people write them: 24GB, 80GiB."""

from __future__ import annotations

import math
import re
from numbers import Real

from neuralpower.errors import InputError

UNITS = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
UNITS |= {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}


def bytes_of(text: str | float) -> float:
    """24e9 for "24GB", 24 * 2**30 for "24GiB", a number as it is; raises InputError, also without a unit."""
    given = f"{text:f} b" if isinstance(text, Real) else str(text)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", given.lower())
    if not match or match.group(2) not in UNITS or not 0 < float(match.group(1)) < math.inf:
        inputs = "" if isinstance(text, (str, Real)) else "; inputs are given by name: inputs=..."
        shown = " ".join(f"{text!r:.40}".split())
        raise InputError(
            f"memory {shown}: write a positive number with a unit, such as 24GB or 80GiB{inputs}"
        )
    return float(match.group(1)) * UNITS[match.group(2)]


def is_size(text: object) -> bool:
    """Whether a text is a size with a unit, such as 24GB, and no device's name."""
    try:
        return isinstance(text, str) and bytes_of(text) > 0
    except InputError:
        return False


def reading(text: str | float) -> str:
    """A note on how a memory with a decimal unit is read; "" for any other."""
    given = str(text).strip().lower()
    if not isinstance(text, str) or not re.search(r"[kmgt]b$", given):
        return ""
    as_binary = re.sub(r"\s*([kmgt])b$", lambda found: f"{found.group(1).upper()}iB", given)
    size = bytes_of(text) / 2**30
    return f"{text} is read in powers of 1000: {size:.3g} GiB. A card sold as {text} may have {as_binary}"


def gib(size: float) -> str:
    """Bytes in GiB: binary, as drivers and data sheets count memory."""
    return f"{size / 2**30:.3g} GiB" if size < 999.5 * 2**30 else f"{size / 2**30:.0f} GiB"
