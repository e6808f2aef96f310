"""The prior that comes with the package, and priors as JSON."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from neuralpower.learn.unmeasured.prior import Prior

SHIPPED = Path(__file__).with_name("prior.json")


@functools.cache
def shipped_prior() -> Prior:
    """The prior of all accelerators; benchmarks/train/prior.py makes it."""
    return msgspec.json.decode(SHIPPED.read_bytes(), type=Prior)


def write_prior(prior: Prior, path: Path) -> None:
    """Write a prior, a factor a line, so that two versions can be compared."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(prior), indent=1) + b"\n")
