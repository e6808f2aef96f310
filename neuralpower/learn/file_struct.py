"""The base class of all objects of a predictor's file, and the ranges of their numbers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from neuralpower.layers.base import LARGEST

# No trained number comes near these (the largest in the package's files is 2e15), and their products with
# what a layer can ask for (up to 2^53 along each axis) are finite.
LEAST_NUMBER, MOST_NUMBER = 1e-30, 1e30
MOST_LOG = 100.0  # of a factor: e^100 more or less than predicted is meaningless

Positive = Annotated[float, Meta(ge=LEAST_NUMBER, le=MOST_NUMBER)]
NotNegative = Annotated[float, Meta(ge=0, le=MOST_NUMBER)]
Log = Annotated[float, Meta(ge=-MOST_LOG, le=MOST_LOG)]  # of a factor
Exponent = Annotated[float, Meta(ge=0, le=MOST_LOG)]
Number = Annotated[float, Meta(ge=-MOST_NUMBER, le=MOST_NUMBER)]
Deviation = Annotated[float, Meta(ge=0, le=MOST_LOG)]
Octaves = Annotated[float, Meta(ge=-1100.0, le=1100.0)]  # those of double precision
Count = Annotated[int, Meta(ge=0, le=LARGEST)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One object of the file: frozen, of strict types, without unknown fields."""
