"""The weights of a network without values, and the patterns by which checkpoints name their modules."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from neuralpower.errors import ModelError

LINEAR, EXPERTS, HEAD, EMBEDDING, OTHER = "linear", "experts", "head", "embedding", "other"
"""Roles of weights.

    linear     of a fully connected layer, [outputs, inputs]
    experts    of all experts of a mixture, stacked in one tensor of three axes
    head       of the layer that gives a language model's logits, unless it is the embedding's own
    embedding  a table of rows that are looked up
    other      norms, biases, convolutions, routers, buffers
"""


@dataclass(frozen=True)
class Weight:
    """One parameter or buffer, shared ones once."""

    name: str  # as in `named_parameters`
    sort: str  # one of the sorts above
    shape: tuple[int, ...]
    dtype: str  # of the network before it is quantised
    bytes: int
    tied: bool = False  # an embedding that is the head, too
    turned: bool = False  # a matrix that lies as [inputs, outputs], as GPT-2's

    @property
    def module(self) -> str:
        """Path of the module that holds it."""
        return self.name.rpartition(".")[0]

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def matrices(self) -> tuple[int, int, int]:
        """(matrices, outputs of each, inputs of each), as its shape alone says."""
        *most, outputs, inputs = (1, 1, *self.shape)
        if self.turned:
            outputs, inputs = inputs, outputs
        return math.prod(most), outputs, inputs


Matrices = tuple[int, int, int]  # (matrices, outputs of each, inputs of each)


# Patterns by which checkpoints name modules, each as its library matches them.
#
# A network of transformers may name a module otherwise than the checkpoint: the prefix of a text model
# differs, and experts lie stacked in one tensor. So each weight has several names, and a pattern may match
# any of them.

PARTS, REGEX, GLOB, EXACT, CLASS = "parts", "regex", "glob", "exact", "class"
# A stacked tensor of experts and what a checkpoint calls its parts.
STACKED = {"gate_up_proj": ("gate_proj", "up_proj", "w1", "w3"), "down_proj": ("down_proj", "w2")}
# Prefixes of text models: those that transformers has since version 4.52, and those in older checkpoints.
PREFIXES = (
    ("model.language_model.", "language_model.model."),
    ("model.language_model.", "model."),
    ("model.language_model.", "language_model."),
    ("model.visual.", "visual."),
    ("model.vision_tower.", "vision_tower."),
    ("model.vision_model.", "vision_model."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("lm_head", "language_model.lm_head"),
)


@dataclass(frozen=True)
class Pattern:
    """A text that names modules, and how it does.

    parts   from the start of the path to the end of one of its names, as a regular expression, or its end
    regex   from the start, as a regular expression
    glob    * stands for any letters; what lies below the module is meant, too
    exact   this module alone, or what lies below it
    class   the class of a module: Linear is every fully connected layer's
    """

    text: str
    way: str = PARTS

    def matches(self, weight: Weight) -> bool:
        """Whether it names the module of a weight, or one of the experts stacked in it."""
        return any(self._matches(name) for name in names_of(weight))

    def _matches(self, name: str) -> bool:
        if self.way == CLASS:
            return True  # all that is covered at all is a Linear in the checkpoint
        if self.way == GLOB:
            return fnmatch.fnmatchcase(name, self.text) or fnmatch.fnmatchcase(name, f"{self.text}.*")
        if self.way == EXACT:
            return name == self.text or name.startswith(f"{self.text}.")
        try:
            if self.way == REGEX:
                return re.match(self.text, name) is not None
            end = r"(?:(?<=\.)|(?=\.|$))"
            return re.match(rf"(?:{self.text}){end}", name) is not None or name.endswith(self.text)
        except re.error as error:
            raise ModelError(
                f"quantization_config names modules by {self.text!r:.80}, which is not a regular expression "
                f"({error}); correct it"
            ) from None


def names_of(weight: Weight) -> Iterator[str]:
    """Paths that a checkpoint may have for the module of a weight."""
    module, _, name = weight.name.rpartition(".")
    paths = [module]
    if weight.sort == EXPERTS:
        paths += [f"{module}.0.{part}" for part in STACKED.get(name, (name,))]
        paths += [f"{module}.{name}"]
    for path in paths:
        yield path
        yield from (old + path.removeprefix(new) for new, old in PREFIXES if path.startswith(new))
