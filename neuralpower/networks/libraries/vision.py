"""Networks of torchvision and timm."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from neuralpower.errors import ModelError, unknown
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.names.hub import offline
from neuralpower.networks.source import Source, by_shape, checked_module

FETCHED = frozenset(
    "weights weights_backbone pretrained pretrained_backbone pretrained_cfg pretrained_cfg_overlay".split()
)
READ = ("checkpoint_path", "cache_dir", "hf_hub_id")  # timm's files and places that weights come from


def _library(package: str, text: str, name: str, overrides: Mapping[str, Any]) -> Any:
    """The part of a library that makes the model of that name.

    Raises:
        ModelError: no such library or model, or an override that has weights loaded (maybe a pickle) or
            fetched.
    """
    try:
        library: Any = importlib.import_module(package)
    except ImportError as error:
        raise ModelError(f"{package} is not installed; pip install timm torchvision") from error
    library = library.models if package == "torchvision" else library
    if name not in library.list_models():
        raise unknown(f"{package} model", name, library.list_models(), ModelError)
    for key, value in overrides.items():
        if key in FETCHED or key in READ:
            raise ModelError(
                f"{key} {str(value)!r:.60} of {text!r:.100}: weights are never loaded; leave it out"
            )
    return library


def torchvision_source(text: str, name: str, overrides: dict[str, Any]) -> Source:
    """`torchvision:NAME`: images of 3x224x224, for Inception 3x299x299."""
    models = _library("torchvision", text, name, overrides)
    natural = (3, 299, 299) if name == "inception_v3" else (3, 224, 224)

    def construct(dtype: torch.dtype) -> nn.Module:
        backbone = "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters
        weightless = {"weights": None, **({"weights_backbone": None} if backbone else {})}
        with offline(text):
            return checked_module(models.get_model(name, **weightless, **overrides), text, dtype)

    return Source(text, construct, lambda model, request: by_shape(text, model, request, natural))


def timm_source(text: str, name: str, overrides: dict[str, Any]) -> Source:
    """`timm:NAME`: the input size is the one that timm lists for the model."""
    timm = _library("timm", text, name, overrides)

    def construct(dtype: torch.dtype) -> nn.Module:
        with offline(text):
            return checked_module(timm.create_model(name, pretrained=False, **overrides), text, dtype)

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        listed: Any = getattr(model, "pretrained_cfg", None) or {}
        return by_shape(text, model, request, tuple(listed.get("input_size", (3, 224, 224))))

    return Source(text, construct, examples)
