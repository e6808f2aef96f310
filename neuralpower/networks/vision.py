"""Networks of torchvision and timm."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from neuralpower.errors import ModelError, unknown
from neuralpower.networks.inputs import (
    InputRequest,
    Inputs,
)
from neuralpower.networks.offline import offline
from neuralpower.networks.source import Source, by_shape, checked_module

FETCHED = (
    "weights",
    "weights_backbone",
    "pretrained",
    "pretrained_backbone",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
)
READ = ("checkpoint_path", "cache_dir", "hf_hub_id")  # of timm: files and places that weights come from


def _vision_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ModelError(f'{name} is not installed; pip install "neuralpower[vision]"') from error


def _check_weightless(text: str, overrides: Mapping[str, Any]) -> None:
    """Raise ModelError for an override that has weights loaded, which may be a pickle, or fetched."""
    for key, value in overrides.items():
        if key in (*FETCHED, *READ):
            raise ModelError(
                f"{key} {str(value)!r:.60} of {text!r:.100}: weights are never loaded; leave it out"
            )


def torchvision_source(text: str, name: str, overrides: dict[str, Any]) -> Source:
    """`torchvision:NAME`: images of 3x224x224, for Inception 3x299x299."""
    models = _vision_package("torchvision").models
    if name not in models.list_models():
        raise unknown("torchvision model", name, models.list_models(), ModelError)
    natural = (3, 299, 299) if name == "inception_v3" else (3, 224, 224)
    _check_weightless(text, overrides)

    def construct(dtype: torch.dtype) -> nn.Module:
        backbone = "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters
        weightless = {"weights_backbone": None} if backbone else {}
        with offline(text):
            return checked_module(
                models.get_model(name, weights=None, **weightless, **overrides), text, dtype
            )

    return Source(text, construct, lambda model, request: by_shape(text, model, request, natural))


def timm_source(text: str, name: str, overrides: dict[str, Any]) -> Source:
    """`timm:NAME`: the input size is the one that timm lists for the model."""
    timm = _vision_package("timm")
    if name not in timm.list_models():
        raise unknown("timm model", name, timm.list_models(), ModelError)
    _check_weightless(text, overrides)

    def construct(dtype: torch.dtype) -> nn.Module:
        with offline(text):
            return checked_module(timm.create_model(name, pretrained=False, **overrides), text, dtype)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        listed: Any = getattr(model, "pretrained_cfg", None) or {}
        return by_shape(text, model, request, tuple(listed.get("input_size", (3, 224, 224))))

    return Source(text, construct, examples)
