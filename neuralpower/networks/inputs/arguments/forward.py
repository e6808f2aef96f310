"""The base of argument makers: a model's forward, its configuration, and the requested sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.networks.inputs.input_request import TOKENS, InputRequest
from neuralpower.networks.inputs.promised_values import RANDOM, say_made_up

CHOICES = 2  # of multiple choice and double heads


class Forward:
    """One model's forward, whose arguments are made for one request."""

    def __init__(self, model: nn.Module, request: InputRequest) -> None:
        self.model, self.request, self.batch = model, request, request.batch_size
        self.config: Any = model.config
        self.name = type(model).__name__
        self.text: Any = _text_config(self.config)
        self.tokens = request.seq_len or TOKENS
        self.generator = torch.Generator().manual_seed(0)
        self.parameters = inspect.signature(model.forward).parameters
        # images as patches: one row per image, or all in one row, as vision towers read them
        self.patched = str(getattr(self.config, "model_type", "")).startswith("siglip2")
        self.tiled = "grid_thw" in self.parameters
        self.choices = (CHOICES,) if "MultipleChoice" in self.name or "DoubleHeads" in self.name else ()

    def integer(self, *names: str) -> int | None:
        """The first of `names` that the configuration or a nested one sets to a whole number."""
        values = self.fields(*names)
        return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)

    def fields(self, *names: str) -> Iterator[Any]:
        """Values of `names` in the configuration and those inside it."""
        return (getattr(config, name, None) for config in nested(self.config) for name in names)

    def floats(self, *shape: int) -> Tensor:
        """Normal numbers [batch, *shape]."""
        drawn = torch.randn((self.batch, *shape), generator=self.generator).to(self.request.dtype)
        return say_made_up(drawn, RANDOM)

    def shaped(self, *usual: int) -> Tensor:
        """Normal numbers of the requested shape, or of the `usual` one."""
        return self.floats(*(self.request.input_shape or usual))

    def below(self, bound: int, *shape: int) -> Tensor:
        """Whole numbers [batch, *shape] from 0 to `bound` - 1."""
        return torch.randint(0, bound, (self.batch, *shape), generator=self.generator)


Makers = Mapping[str, Callable[[Forward], Tensor]]
"""Argument name -> what makes it."""


def nested(config: Any, depth: int = 2) -> Iterator[Any]:
    """The configuration, then the ones inside it (vision before the others, text last)."""
    yield config
    if depth == 0:
        return
    names = [name for name in getattr(config, "sub_configs", {}) if getattr(config, name, None) is not None]
    names = list(dict.fromkeys((*names, "vision_config", "encoder", "backbone_config", "text_config")))
    for name in sorted(names, key=lambda name: ("vision" not in name, "encoder" not in name, "text" in name)):
        inner = getattr(config, name, None)
        if hasattr(inner, "to_dict"):
            yield from nested(inner, depth - 1)


def _text_config(config: Any) -> Any:
    """The part of a configuration that describes the text, or the configuration itself."""
    try:
        return config.get_text_config()
    except (AttributeError, ValueError):
        return getattr(config, "text_config", None) or config
