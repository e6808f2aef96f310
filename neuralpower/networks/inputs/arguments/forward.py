"""What makers of arguments share: a model's forward, its configuration, the requested sizes, and labels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.networks.inputs.known_values import RANDOM, say_made_up
from neuralpower.networks.inputs.size_limits import TOKENS, InputRequest

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


# Labels of a training step: with them a network of transformers gives its own loss.

NOTE = "the loss is the network's own, with made-up labels"
USUAL_CLASSES = 2  # of transformers' configurations

Given = Mapping[str, Tensor]
Labels = dict[str, Tensor]


def labels_of(forward: Forward, made: Given) -> Labels:
    """The labels for inputs that were made; none where the class takes none, or is of no known task."""
    make = next((make for ending, make in TASKS.items() if ending in forward.name), None)
    found = {} if make is None else make(forward, made)
    return found if found.keys() <= forward.parameters.keys() else {}


def _next_tokens(forward: Forward, made: Given) -> Labels:
    """The tokens [batch, tokens] that a language model has to predict."""
    text = made.get("decoder_input_ids", made.get("input_ids"))
    vocabulary = getattr(forward.text, "vocab_size", None) or forward.integer("vocab_size")
    if text is None or text.dim() != 2 or vocabulary is None:  # images alone, or several texts a sample
        return {}
    return {"labels": forward.below(vocabulary, text.shape[1])}


def _classes(forward: Forward, made: Given) -> Labels:
    """The class [batch] of each sample, or its value where there is one class."""
    classes = _count(forward)
    return {"labels": forward.below(classes) if classes > 1 else forward.floats()}


def _classes_of_tokens(forward: Forward, made: Given) -> Labels:
    """The class [batch, tokens] of each token."""
    text = made.get("input_ids")
    return {} if text is None else {"labels": forward.below(_count(forward), text.shape[1])}


def _choice(forward: Forward, made: Given) -> Labels:
    """The right one [batch] of the choices."""
    return {"labels": forward.below(CHOICES)}


def _span(forward: Forward, made: Given) -> Labels:
    """The first and last token [batch] of the answer."""
    text = made.get("input_ids")
    if text is None:
        return {}
    return {name: forward.below(text.shape[1]) for name in ("start_positions", "end_positions")}


def _classes_of_pixels(forward: Forward, made: Given) -> Labels:
    """The class [batch, height, width] of each pixel."""
    image = made.get("pixel_values")
    return {} if image is None else {"labels": forward.below(_count(forward), *image.shape[-2:])}


def _count(forward: Forward) -> int:
    return int(getattr(forward.config, "num_labels", None) or USUAL_CLASSES)


# what is in the name of a class -> what makes its labels
TASKS: Mapping[str, Callable[[Forward, Given], Labels]] = {
    "ForCausalLM": _next_tokens,
    "LMHeadModel": _next_tokens,
    "ForMaskedLM": _next_tokens,
    "ForConditionalGeneration": _next_tokens,
    "ForSequenceClassification": _classes,
    "ForImageClassification": _classes,
    "ForTokenClassification": _classes_of_tokens,
    "ForMultipleChoice": _choice,
    "ForNextSentencePrediction": _choice,
    "ForQuestionAnswering": _span,
    "ForSemanticSegmentation": _classes_of_pixels,
}
