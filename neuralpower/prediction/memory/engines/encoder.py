"""The encoder of images in a profile run: what it makes of the most images that one step may bring.

    images    min(encoder's budget // tokens of an image, sequences x images that a sequence holds)
    held      pixels and embeddings of all of them, until the run of the text model ends
    run       the widest block's products and the hidden state three times, of every patch

The budget is the tokens of a step, and at least one image. Source: vllm/v1/worker/gpu_model_runner.py
(`profile_run`) and vllm/multimodal/encoder_budget.py of version 0.19.0. With what is held, the profile runs
of Gemma 3 (4B, 12B, 27B) and Llama 4 Scout are within 0.01 GiB of the logged ones on an H100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuralpower.quantisation.weights import LINEAR, Weight

NAMES = ("vision", "visual")  # parts of a path that name the encoder
LARGEST = 16_384  # tokens of the largest image of encoders that take any size (Qwen2-VL, 2.5-VL, 3-VL)
TILES = 17  # of the largest image of Llama 4: 16 and the whole one
CHANNELS = 3


@dataclass(frozen=True)
class ImageEncoder:
    """The encoder of a model, by the largest image that it takes."""

    modules: tuple[str, ...]  # prefixes of its weights' names
    tokens: int  # of an image, that the text model reads
    patches: int  # that the encoder reads
    pixels: int  # numbers of an image
    width: int  # numbers that its widest block makes of a patch, and the hidden state three times
    hidden: int  # of the text model

    def images(self, batched: int, seqs: int, length: int) -> int:
        """How many a profile run has: of steps of `batched` tokens, and sequences of `length`."""
        budget = max(batched, self.tokens)
        each = max(length // self.tokens, 1)
        return max(min(budget // self.tokens, seqs * each), 1)

    def held_bytes(self, images: int, itemsize: int) -> int:
        """Pixels and embeddings."""
        return images * (self.pixels + self.tokens * self.hidden) * itemsize

    def run_bytes(self, images: int, itemsize: int) -> int:
        """The encoder's own peak, with the pixels."""
        return images * (self.pixels + self.patches * self.width) * itemsize


def image_encoder(config: Any, weights: Sequence[Weight], hidden: int) -> ImageEncoder | None:
    """The encoder of images; None for a model without one, or one whose sizes are not known."""
    vision = getattr(config, "vision_config", None)
    modules = tuple(dict.fromkeys(filter(None, (_prefix(weight.name) for weight in weights))))
    patch = getattr(vision, "patch_size", None)
    if vision is None or not modules or not isinstance(patch, int):
        return None
    patches, tokens, numbers = _largest(config, vision, patch)
    own = _number(vision, "embed_dim", "hidden_size") or 0
    inside = [weight for weight in weights if weight.name.startswith(modules)]
    return ImageEncoder(modules, tokens, patches, numbers, _widest(inside) + 3 * own, hidden)


def _prefix(name: str) -> str:
    """The path of the encoder that a weight belongs to; "" for those of the text model."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if any(word in part for word in NAMES):
            return ".".join(parts[: place + 1]) + "."
    return ""


def _largest(config: Any, vision: Any, patch: int) -> tuple[int, int, int]:
    """(patches, tokens, numbers of the pixels) of the largest image."""
    merged = (_number(vision, "spatial_merge_size") or _number(config, "spatial_merge_size") or 1) ** 2
    size = _number(vision, "image_size")
    if size is None:
        patches = LARGEST * merged
        frames = _number(vision, "temporal_patch_size") or 1
        return patches, LARGEST, patches * CHANNELS * frames * patch**2
    shuffle = getattr(vision, "pixel_shuffle_ratio", None)
    tiles = _number(vision, "max_num_tiles") or (TILES if shuffle else 1)
    patches = tiles * (size // patch) ** 2
    tokens = _number(config, "mm_tokens_per_image") or int(patches // merged * (shuffle or 1) ** 2)
    return patches, max(tokens, 1), tiles * CHANNELS * size**2


def _widest(weights: Sequence[Weight]) -> int:
    """The largest sum of what a module's products make and read: they are not fused."""
    sums: dict[str, int] = {}
    for weight in weights:
        if weight.sort == LINEAR:
            _, outputs, inputs = weight.matrices
            parent = weight.module.rpartition(".")[0]
            sums[parent] = sums.get(parent, 0) + max(outputs, inputs)
    return max(sums.values(), default=0)


def _number(config: Any, *names: str) -> int | None:
    """The first whole number among fields of a configuration."""
    return next((n for name in names if isinstance(n := getattr(config, name, None), int)), None)
