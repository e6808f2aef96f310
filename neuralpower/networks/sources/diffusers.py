"""`diffusers:CLASS`: a network of diffusers by the defaults of its configuration, with overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuralpower.networks.diffusion.classes import check_installed, component_source
from neuralpower.networks.sources.base import Given, model_source

if TYPE_CHECKING:
    from neuralpower.networks.source import Source


@model_source(
    "diffusers:CLASS",
    place=15,
    prefix="diffusers",
    runs_code=False,
    check=lambda given: check_installed(),
)
def diffusers(given: Given) -> Source:
    """A transformer, a UNet, an autoencoder or a ControlNet, alone."""
    return component_source(given.text, given.name, {}, given.overrides)
