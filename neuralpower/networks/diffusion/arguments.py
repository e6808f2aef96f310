"""The inputs of diffusers' networks: each parameter of a forward pass by its name and the configuration.

A network that stands alone gets latents of the size that its configuration states, else those of an image of
1024 x 1024 or of a short film; a pipeline says all sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import ModelError
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.size_limits import InputRequest

SIDE, FILM = 128, (16, 60, 90)  # of latents whose configuration states no size
LENGTH, TOKENS = 1024, 77  # samples of sound; tokens of a text
PIXELS = 256  # of a side of an image that an encoder of images reads
TEXT_WIDTH = """
    joint_attention_dim caption_channels cross_attention_dim text_dim text_embed_dim caption_dim cap_feat_dim
    text_states_dim in_channels_text encoder_hid_dim text_embed_dim context_in_dim cross_attention_input_dim
    condition_dim text_hidden_dim encoder_hidden_states_dim llm_hidden_size
""".split()
CHANNELS = "in_channels latent_channels out_channels in_visual_dim input_channels".split()
MIDDLE = ("CogVideoX", "ConsisID", "UNetSpatioTemporal", "EasyAnimateControl")  # frames before channels
FREE = "return_dict attention_kwargs cross_attention_kwargs joint_attention_kwargs".split()


@dataclass(frozen=True)
class Latents:
    """The sizes of what a network denoises; None leaves one to its configuration."""

    batch: int = 1
    height: int | None = None  # in latents, before patches
    width: int | None = None
    frames: int | None = None  # of a film, in latents
    length: int | None = None  # of a sound, in latents
    tokens: Mapping[str, int] = field(default_factory=dict)  # of texts, by the parameter that gets them
    pixels: tuple[int, int] | None = None  # (height, width) of the image
    conditions: int = 0  # further images that are read besides, of as many tokens


def example_inputs(module: nn.Module, request: InputRequest) -> Inputs:
    """Inputs of a network that stands alone; `seq_len` counts tokens of its text.

    `input_shape` is the shape of its first input, without the batch.
    """
    tokens = {} if request.seq_len is None else {"encoder_hidden_states": request.seq_len}
    latents = Latents(request.batch_size, tokens=tokens)
    return inputs_of(module, latents, request.dtype, request.input_shape)


def inputs_of(
    module: nn.Module, latents: Latents, dtype: torch.dtype, shape: tuple[int, ...] | None = None
) -> Inputs:
    """The arguments that a forward pass needs, by name; raises ModelError for one that no rule makes."""
    example = Example(module, latents, dtype)
    made: dict[str, Any] = {}
    for name, parameter in inspect.signature(module.forward).parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if name in FREE or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        rule = RULES.get(name)
        value = None if rule is None else rule(example)
        if value is None and needed:
            raise ModelError(
                f"{type(module).__name__}: what its input {name!r} holds is not known; give it in Python: "
                "neuralpower.predict(module, inputs)"
            )
        if value is not None:
            made[name] = value
    if shape is not None and made:
        first = next(iter(made))
        made[first] = example.random(*shape)
    return Inputs(kwargs=made)


class Example:
    """The sizes of one network's inputs."""

    def __init__(self, module: nn.Module, latents: Latents, dtype: torch.dtype) -> None:
        self.module, self.latents, self.dtype = module, latents, dtype
        self.name = type(module).__name__
        self.config: Mapping[str, Any] = dict(getattr(module, "config", {}))
        self.takes = set(inspect.signature(module.forward).parameters)
        self.batch = latents.batch

    def random(self, *shape: int, batch: int | None = None) -> Tensor:
        """Normal numbers [batch, *shape]."""
        return torch.randn(self.batch if batch is None else batch, *shape, dtype=self.dtype)

    def first(self, *names: str) -> Any:
        """The first field that the configuration has, and that is not None."""
        return next((self.config[name] for name in names if self.config.get(name) is not None), None)

    @property
    def channels(self) -> int:
        found = self.first(*CHANNELS)
        return int(found[0] if isinstance(found, (list, tuple)) else found or 4)

    @property
    def filmed(self) -> bool:
        """Whether it makes films."""
        marks = ("3D", "Video", "Motion", "SpatioTemporal", "I2VGen")
        return any(mark in self.name for mark in marks) or self.latents.frames is not None

    @property
    def sounds(self) -> bool:
        return any(mark in self.name for mark in ("Audio", "1D", "Oobleck", "Music", "Sound"))

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in latents."""
        height, width = self.latents.height, self.latents.width
        if height is not None and width is not None:
            return height, width
        size = self.first("sample_size")
        if isinstance(size, (list, tuple)) and len(size) > 1:
            return int(size[-2]), int(size[-1])
        if isinstance(size, (list, tuple)):
            size = size[0]
        if self.filmed and size is None:
            return self.first("sample_height") or FILM[1], self.first("sample_width") or FILM[2]
        side = int(size or SIDE)
        return side, side

    @property
    def frames(self) -> int:
        """Frames of a film, in latents."""
        if self.latents.frames is not None:
            return self.latents.frames
        frames = self.first("sample_frames", "num_frames")
        ratio = self.first("temporal_compression_ratio") or 1
        return (int(frames) - 1) // ratio + 1 if frames else FILM[0]

    @property
    def packed(self) -> bool:
        """Whether tokens come in, and not an image or a film."""
        if self.sounds:
            return False
        embeds = ("img_ids", "img_shapes", "video_coords", "num_frames")
        return any(name in self.takes for name in embeds) and "sample" not in self.takes

    @property
    def packs(self) -> int:
        """Latents along each side of a token that are packed before the network sees them."""
        return 1 if self.name.startswith("LTX") else 2

    @property
    def positions(self) -> int:
        """Tokens of the image or the film."""
        height, width = self.size
        frames = self.frames if self.filmed else 1
        return frames * (height // self.packs) * (width // self.packs) * (1 + self.latents.conditions)

    def tokens(self, name: str) -> int:
        """Tokens of a text."""
        given = self.latents.tokens
        return given.get(name) or given.get("encoder_hidden_states") or self.stated_tokens

    @property
    def stated_tokens(self) -> int:
        """Tokens that the configuration states."""
        stated = self.first("max_text_seq_length", "text_len", "max_sequence_length", "caption_length")
        return int(stated) if isinstance(stated, int) else TOKENS

    @property
    def width(self) -> int:
        """Numbers of a token of text."""
        found = self.first(*TEXT_WIDTH)
        if found is None:
            raise ModelError(f"{self.name}: its configuration states no width of text")
        return int(found[0] if isinstance(found, (list, tuple)) else found)


def _latents(example: Example) -> Any:
    """What is denoised."""
    height, width = example.size
    if example.name.startswith("Autoencoder") or example.name in ("VQModel", "ConsistencyDecoderVAE"):
        return _pixels(example)
    if example.sounds:
        return _sound(example)
    if example.packed:
        return example.random(example.positions, example.channels)
    if example.filmed and example.name.startswith(MIDDLE):
        return example.random(example.frames, example.channels, height, width)
    if example.filmed:
        return example.random(example.channels, example.frames, height, width)
    return example.random(example.channels, height, width)


def _sound(one: Example) -> Tensor:
    length = one.latents.length or one.first("sample_size") or LENGTH
    length = int(length[0] if isinstance(length, (list, tuple)) else length)
    if one.name == "AutoencoderOobleck":
        return one.random(one.first("audio_channels") or 2, length * 512)
    return one.random(one.channels, length)


def _pixels(example: Example) -> Tensor:
    """What an autoencoder encodes: an image, or a film of a few frames."""
    height, width = example.latents.pixels or (PIXELS, PIXELS)
    channels = example.first("in_channels") or 3
    if example.sounds:
        return _sound(example)
    film = "video" in example.name.lower() or example.name.endswith(
        ("Wan", "Mochi", "LTX", "CogVideoX", "Allegro", "Cosmos", "QwenImage", "Magvit", "TemporalDecoder")
    )
    if film and not example.name.endswith("TemporalDecoder"):
        return example.random(channels, 1 if "Image" in example.name else 9, height, width)
    return example.random(channels, height, width)


def _times(one: Example) -> Tensor:
    return torch.full((one.batch,), 500, dtype=torch.int64 if _whole(one) else one.dtype)


def _whole(one: Example) -> bool:
    return one.name.startswith(("UNet", "ControlNet", "CogVideo", "Allegro", "Pix", "DiT", "Latte", "Wan"))


def _text(name: str) -> Callable[[Example], Tensor | None]:
    return lambda one: one.random(one.tokens(name), one.width)


def _mask(name: str) -> Callable[[Example], Tensor]:
    return lambda one: torch.ones(one.batch, one.tokens(name), dtype=torch.int64)


def _states_mask(one: Example) -> Tensor | None:
    """Which tokens of the text count; sounds have all of them."""
    return None if one.sounds else _mask("encoder_hidden_states")(one)


def _pooled(one: Example) -> Tensor | None:
    found = one.first(
        "pooled_projection_dim", "in_pooled_dim", "in_text_dim2", "pooled_dim", "text_embed_2_dim"
    )
    return None if found is None else one.random(int(found))


def _guidance(one: Example) -> Tensor | None:
    return torch.full((one.batch,), 3.5, dtype=one.dtype) if one.first("guidance_embeds") else None


def _axes(one: Example) -> int:
    found = one.first("axes_dims_rope", "axes_dim", "axes_dims")
    return len(found) if isinstance(found, (list, tuple)) else 3


def _image_ids(one: Example) -> Tensor:
    return torch.zeros(one.positions, _axes(one))


def _text_ids(one: Example) -> Tensor:
    return torch.zeros(one.tokens("encoder_hidden_states"), _axes(one))


def _image_shapes(one: Example) -> list[list[tuple[int, int, int]]]:
    height, width = one.size
    return [[(1, height // one.packs, width // one.packs)]] * one.batch


def _added(example: Example) -> dict[str, Tensor | None] | None:
    """What a network takes besides the text: sizes, and one vector for the whole text."""
    kind = example.first("addition_embed_type")
    if kind == "text_time":
        times = example.first("addition_time_embed_dim") or 256
        whole = example.first("projection_class_embeddings_input_dim") or 0
        return {"text_embeds": example.random(whole - 6 * times), "time_ids": example.random(6)}
    if kind is not None and "image" in kind:
        return {"image_embeds": example.random(example.first("encoder_hid_dim", "cross_attention_dim") or 1)}
    if example.name.startswith("PixArt"):
        if example.first("use_additional_conditions") is False or example.first("sample_size") != 128:
            return {"resolution": None, "aspect_ratio": None}
        return {"resolution": example.random(2), "aspect_ratio": example.random(1)}
    return None


def _labels(example: Example) -> Tensor | None:
    classes = (
        example.first("num_class_embeds", "num_embeds_ada_norm")
        if "encoder_hidden_states" not in example.takes
        or (example.first("num_class_embeds") or example.first("class_embed_type"))
        else None
    )
    if example.first("class_embed_type") == "projection":
        return example.random(example.first("projection_class_embeddings_input_dim") or 1)
    return None if classes is None else torch.zeros(example.batch, dtype=torch.int64)


def _rotations(example: Example) -> Any:
    """(cosines, sines) of the positions, as the pipeline makes them."""
    if example.name.startswith(("CogVideoX", "ConsisID")):
        if not example.first("use_rotary_positional_embeddings"):
            return None
        patch, time = example.first("patch_size") or 2, example.first("patch_size_t") or 1
        height, width = example.size
        rows = -(-example.frames // time) * (height // patch) * (width // patch)
        return tuple(torch.zeros(2, rows, example.first("attention_head_dim")).unbind(0))
    if example.name.startswith(("HunyuanDiT",)):
        patch = example.first("patch_size") or 2
        height, width = example.size
        rows = (height // patch) * (width // patch)
        return tuple(torch.zeros(2, rows, example.first("attention_head_dim")).unbind(0))
    return None


def _condition(example: Example) -> Tensor:
    """The image that a ControlNet reads: pixels, or latents where these networks encode it before."""
    height, width = example.size
    if example.packed:
        return example.random(example.positions, example.channels)
    if "conditioning_channels" in example.config:
        return example.random(example.first("conditioning_channels") or 3, 8 * height, 8 * width)
    return example.random(
        example.channels + (example.first("extra_conditioning_channels") or 0), height, width
    )


def _sizes(one: Example) -> Tensor:
    height, width = one.size
    return torch.tensor([[8.0 * height, 8.0 * width]] * one.batch, dtype=one.dtype)


RULES: Mapping[str, Callable[[Example], Any]] = {
    **dict.fromkeys(("sample", "hidden_states", "latents"), _latents),
    **dict.fromkeys(("timestep", "timesteps", "r_timestep"), _times),
    "encoder_hidden_states": _text("encoder_hidden_states"),
    "encoder_hidden_states_t5": lambda one: (
        one.random(
            one.tokens("encoder_hidden_states_t5"),
            one.first("cross_attention_dim_t5", "text_embed_dim_t5", *TEXT_WIDTH),
        )
        if one.first("cross_attention_dim_t5", "text_embed_dim_t5")
        else None
    ),
    "text_embedding_mask": _mask("encoder_hidden_states"),
    "text_embedding_mask_t5": _mask("encoder_hidden_states_t5"),
    "encoder_attention_mask": _states_mask,
    "encoder_mask": _mask("encoder_hidden_states"),
    "encoder_hidden_states_mask": _mask("encoder_hidden_states"),
    "pooled_projections": _pooled,
    "guidance": _guidance,
    "img_ids": _image_ids,
    "txt_ids": _text_ids,
    "img_shapes": _image_shapes,
    "added_cond_kwargs": _added,
    "class_labels": _labels,
    "image_rotary_emb": _rotations,
    "controlnet_cond": _condition,
    **dict.fromkeys(("original_size", "target_size"), _sizes),
    "crop_coords": lambda one: torch.zeros(one.batch, 2, dtype=one.dtype),
    "num_frames": lambda one: one.frames if one.packed else None,
    "height": lambda one: one.size[0] if one.packed else None,
    "width": lambda one: one.size[1] if one.packed else None,
    "image_meta_size": lambda one: torch.ones(one.batch, 6, dtype=one.dtype),
    "style": lambda one: torch.zeros(one.batch, dtype=torch.int64),
    "global_hidden_states": lambda one: one.random(1, one.first("global_states_input_dim") or 1),
    "rotary_embedding": lambda one: _sound_rotations(one),
    "added_time_ids": lambda one: one.random(3),
    "fps": lambda one: torch.full((one.batch,), 16) if one.name == "I2VGenXLUNet" else None,
    "x": lambda one: [one.random(1, *one.size, batch=one.channels) for _ in range(one.batch)],
    "t": _times,
    "cap_feats": lambda one: [one.random(one.width, batch=one.tokens("cap_feats")) for _ in range(one.batch)],
}
"""Parameter of a forward pass -> its value; None leaves it out."""


def _sound_rotations(one: Example) -> tuple[Tensor, ...]:
    """(cosines, sines) of the positions of a sound and of the token before it."""
    length = _sound(one).shape[-1] + 1
    return tuple(torch.zeros(2, length, (one.first("attention_head_dim") or 2) // 2).unbind(0))
