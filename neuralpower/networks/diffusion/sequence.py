"""Ranks that share the tokens of a picture: what one of them has.

All sequence ranks have the whole denoiser, and a part of the tokens (Jacobs et al., "DeepSpeed Ulysses",
arXiv:2309.14509; Liu et al., "Ring Attention", arXiv:2310.01889; Fang et al., "xDiT", arXiv:2411.01738). A
rank's part is laid out as a smaller picture of as many tokens.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, isqrt

from neuralpower.errors import InputError
from neuralpower.networks.diffusion.arguments import Latents
from neuralpower.networks.diffusion.families import Pipeline
from neuralpower.networks.diffusion.pictures import Picture


def shared_out(pipeline: Pipeline, picture: Picture, latents: Latents) -> tuple[Picture, Latents]:
    """What of a pass one rank has: the picture with its tokens, and their latents.

    Raises InputError for ranks that do not divide the tokens, and for a network that has none.
    """
    layout = picture.layout
    if layout.sequences == 1:
        return picture, latents
    asked = " ".join(
        f"--{name}-degree {size}" for name in ("ulysses", "ring") if (size := layout.size(name)) > 1
    )
    if "unet" in pipeline.denoisers:
        raise InputError(
            f"{asked}: {pipeline.name} denoises by a UNet, whose convolutions have no tokens to share; write "
            f"--data-parallel {layout.sequences} for replicas"
        )
    tokens = _tokens(pipeline, latents)
    if tokens % layout.sequences:
        raise InputError(
            f"{asked}: {layout.sequences} ranks do not divide the {tokens:,} tokens of {pipeline.name} at "
            f"this size; choose {gcd(tokens, layout.sequences)}, or another resolution"
        )
    own = tokens // layout.sequences
    shared = _laid(latents, pipeline.family.patch, layout.sequences)
    joint = pipeline.family.joint and not any(size % layout.sequences for size in latents.tokens.values())
    if joint:  # else each rank has the whole text: a part of it would not be as long on each
        texts = {name: size // layout.sequences for name, size in latents.tokens.items()}
        own, shared = own + sum(texts.values()), replace(shared, tokens=texts)
    return replace(picture, tokens=own), shared


def _tokens(pipeline: Pipeline, latents: Latents) -> int:
    """Tokens of a sample, of the pictures that it reads besides, too."""
    if latents.length is not None:
        return latents.length
    return (latents.frames or 1) * _area(latents, pipeline.family.patch) * (1 + latents.conditions)


def _area(latents: Latents, patch: int) -> int:
    """Tokens of a picture, or of a frame."""
    return (latents.height or patch) // patch * ((latents.width or patch) // patch)


def _laid(latents: Latents, patch: int, ranks: int) -> Latents:
    """Latents of as many tokens as one rank has: a part of each frame, and of the frames what is left."""
    if latents.length is not None:
        return replace(latents, length=latents.length // ranks)
    area = _area(latents, patch)
    within = gcd(area, ranks)
    area //= within
    height = next(side for side in range(isqrt(area), 0, -1) if area % side == 0)
    frames = None if latents.frames is None else latents.frames * within // ranks
    return replace(latents, height=height * patch, width=area // height * patch, frames=frames)
