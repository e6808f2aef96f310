"""`torchvision:NAME` and `timm:NAME`, where these are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    from neuralpower.networks.source import Source


@model_source("torchvision:NAME", place=21, prefix="torchvision", runs_code=False)
def torchvision(given: Given) -> Source:
    """Images of 3x224x224, for Inception 3x299x299."""
    from neuralpower.networks.vision import torchvision_source

    return torchvision_source(given.text, given.name, given.overrides)


@model_source("timm:NAME", place=22, prefix="timm", runs_code=False)
def timm(given: Given) -> Source:
    """Images of the size that timm lists for the model."""
    from neuralpower.networks.vision import timm_source

    return timm_source(given.text, given.name, given.overrides)
