"""Arguments that hold images and video: pixels, patches and their layout, and regions next to a text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from neuralpower.errors import InputError
from neuralpower.networks.inputs.arguments.forward import Forward, Makers

SIDE = 224  # pixels, where the configuration names none
FRAMES = 8
IN_A_ROW = "xclip_vision_model"  # reads the frames of all videos as a batch of images


def image_shape(forward: Forward) -> tuple[int, ...]:
    """([frames or images,] channels, height, width); raises InputError for a shape the model cannot read."""
    channels = forward.integer("num_channels", "in_channels", "in_chans") or 3
    natural = next(filter(None, map(_size, forward.fields("image_size", "max_img_size"))), None)
    ratios = getattr(forward.config, "scaled_images_ratios", None)
    if ratios:  # at the smallest the image is one patch, as in DepthPro
        natural = _size(round(_patch(forward) / min(ratios)))
    several, shape = _several(forward), forward.request.input_shape
    usual = (*several.values(), channels, *(natural or (SIDE, SIDE)))
    if shape is None:
        return usual
    if len(shape) != len(several) + 3 or shape[-3] != channels:
        raise InputError(
            f"input_shape is {_by(shape)}, but {forward.name} reads "
            f"{' x '.join([*several, 'channels', 'height', 'width'])} with {channels} channels; "
            f"give for example {_by(usual)}"
        )
    absolute = getattr(forward.config, "use_absolute_embeddings", True)
    fixed = "interpolate_pos_encoding" in forward.parameters and absolute
    if fixed and natural and tuple(shape[-2:]) != natural:
        raise InputError(
            f"input_shape is {_by(shape)}, but {forward.name} is made for images of "
            f"{_by(natural)}; override image_size (MODEL?image_size={shape[-2]})"
        )
    return tuple(shape)


def _by(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes))


def _size(value: Any) -> tuple[int, int] | None:
    """(height, width) from the ways in which configurations write an image size."""
    if isinstance(value, Mapping):
        value = (value.get("height"), value.get("width"))
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(v, int) for v in value):
        return (value[0], value[1])
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _several(forward: Forward) -> dict[str, int]:
    """Sides before an image's shape, by name: a video's frames, matched images, or none."""
    from transformers.models.auto import modeling_auto

    frames, kind = forward.integer("num_frames", "frames_per_clip"), forward.config.model_type
    if frames is not None or ("video" in kind and "vision" not in kind):  # whose towers read one frame
        return {"frames": frames or FRAMES}
    return {"images": 2} if kind in modeling_auto.MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES else {}


def _patch(forward: Forward) -> int:
    return forward.integer("patch_size") or 14


def _patches(forward: Forward) -> int:
    return forward.integer("num_patches") or 256


def _side(forward: Forward) -> int:
    """Patches along a side of an image of 224 x 224: a multiple of the number that is merged."""
    merged = forward.integer("spatial_merge_size") or 1
    return SIDE // _patch(forward) // merged * merged


def pixel_values(forward: Forward) -> Tensor:
    """Images [batch, (frames,) channels, height, width], or patches [batch, patches, pixels]."""
    if forward.tiled:
        return hidden_states(forward)
    if not forward.patched:
        images = forward.floats(*image_shape(forward))
        return images.flatten(0, 1) if forward.config.model_type == IN_A_ROW else images
    pixels = (forward.integer("num_channels") or 3) * (forward.integer("patch_size") or 16) ** 2
    usual = (_patches(forward), pixels)
    shape = forward.request.input_shape or usual
    if shape != usual:
        raise InputError(
            f"input_shape is {_by(shape)}, but {forward.name} reads {usual[0]} patches of {pixels} numbers; "
            "leave it out, or override vision_config.num_patches or patch_size"
        )
    return forward.floats(*shape)


def hidden_states(forward: Forward) -> Tensor:
    """Patches [batch * height * width, pixels] of images of 224 x 224, as `grid_thw` says."""
    pixels = (forward.integer("num_channels", "in_channels") or 3) * _patch(forward) ** 2
    frames = forward.integer("temporal_patch_size") or 1
    return forward.floats(_side(forward) ** 2, pixels * frames).flatten(0, 1)


def bool_masked_pos(forward: Forward) -> Tensor:
    """Hidden patches [batch, patches] of a video: nine in ten (VideoMAE, arXiv 2203.12602, section 3.3)."""
    frames, _, height, width = image_shape(forward)
    patch = _patch(forward)
    patches = frames // (forward.integer("tubelet_size") or 1) * (height // patch) * (width // patch)
    return (torch.arange(patches) < int(0.9 * patches)).repeat(forward.batch, 1)


def flattened_patches(forward: Forward) -> Tensor:
    """Pix2Struct's patches [batch, patches, 2 + pixels], the first two being row and column."""
    patch, channels = forward.integer("patch_size") or 16, forward.integer("num_channels") or 3
    patches = forward.shaped(1024, 2 + channels * patch**2)
    places = torch.arange(patches.shape[1])
    patches[..., 0], patches[..., 1] = places // 32 + 1, places % 32 + 1
    return patches


def grid_thw(forward: Forward) -> Tensor:
    """(frames, height, width) of each image in patches [batch, 3]."""
    side = _side(forward)
    return torch.tensor([[1, side, side]] * forward.batch)


def merge_sizes(forward: Forward) -> Tensor:
    """Patches along a side that become one token, for each image [batch]."""
    return torch.ones(forward.batch, dtype=torch.long)


def pixel_attention_mask(forward: Forward) -> Tensor:
    """All patches [batch, patches] are of the image."""
    return torch.ones(forward.batch, _patches(forward), dtype=torch.long)


def spatial_shapes(forward: Forward) -> Tensor:
    """(height, width) of each image in patches [batch, 2]: squares, like the trained positions."""
    return torch.full((forward.batch, 2), math.isqrt(_patches(forward)))


# ---- Arguments that hold regions of an image, which a detector found, next to a text ----


REGIONS = 36  # detected regions that LXMERT and VisualBERT read next to the text


def visual_feats(forward: Forward) -> Tensor:
    """LXMERT's region features [batch, regions, width]."""
    return forward.floats(REGIONS, forward.integer("visual_feat_dim") or 2048)


def visual_pos(forward: Forward) -> Tensor:
    """LXMERT's boxes of the regions [batch, regions, 4]."""
    return forward.floats(REGIONS, forward.integer("visual_pos_dim") or 4)


def visual_embeds(forward: Forward) -> Tensor:
    """VisualBERT's region embeddings [batch, (choices,) regions, width]."""
    return forward.floats(*forward.choices, REGIONS, forward.integer("visual_embedding_dim") or 512)


MAKERS: Makers = {
    "pixel_values": pixel_values,
    "pixel_values_videos": pixel_values,
    "hidden_states": hidden_states,
    "bool_masked_pos": bool_masked_pos,
    "flattened_patches": flattened_patches,
    "grid_thw": grid_thw,
    "merge_sizes": merge_sizes,
    "pixel_attention_mask": pixel_attention_mask,
    "spatial_shapes": spatial_shapes,
    "visual_feats": visual_feats,
    "visual_pos": visual_pos,
    "visual_embeds": visual_embeds,
}
