"""Layers for tests."""

from __future__ import annotations

from typing import Any

from neuralpower.layers.convolution import Conv2d


def conv3x3(
    inner: int, outer: int, *, batch: int = 1, size: int = 14, groups: int = 1, **fields: Any
) -> Conv2d:
    """A 3x3 convolution without bias over maps of `size` x `size`, padded by 1."""
    sides = {"in": size, "kernel": 3, "stride": 1, "padding": 1, "dilation": 1}
    along = Conv2d.fields_of({name: (value, value) for name, value in sides.items()})
    given = {"batch": batch, "in_channels": inner, "out_channels": outer, "groups": groups, "bias": False}
    return Conv2d(**given, **along, **fields)
