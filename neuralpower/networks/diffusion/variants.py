"""Networks that steer a denoiser: a ControlNet next to it, and an IP-adapter with keys and values in it.

A ControlNet is made as diffusers makes one of the denoiser, with as many blocks (`from_unet`,
`from_transformer`), or is another network. An IP-adapter reads an image by CLIP ViT-H/14 as four tokens (Ye
et al., arXiv:2308.06721; h94/IP-Adapter).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from neuralpower.errors import InputError
from neuralpower.networks.diffusion.classes import CLASS, library, network_source
from neuralpower.networks.diffusion.families import Pipeline
from neuralpower.networks.diffusion.pictures import CONTROLNET

if TYPE_CHECKING:
    from neuralpower.networks.source import Source

IMAGE_ENCODER = "image_encoder"
UNET = "UNet2DConditionModel"
READ = 224  # pixels of a side of the image that an IP-adapter reads
EMBEDDING, IMAGE_TOKENS = 1024, 4  # numbers that its encoder makes of it, and tokens that these become
ENCODER: Mapping[str, Any] = {
    **{"architectures": ["CLIPVisionModelWithProjection"], "model_type": "clip_vision_model"},
    **{"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16},
    **{"image_size": READ, "patch_size": 14, "projection_dim": EMBEDDING, "hidden_act": "gelu"},
}


@dataclass(frozen=True)
class Control:
    """The ControlNets of a class of denoisers."""

    kind: str  # class
    steers: tuple[str, ...]  # keywords of the denoiser that get what it makes, in order
    fields: Mapping[str, Any] = field(default_factory=dict)  # in which diffusers lets it differ


CONTROLS: Mapping[str, Control] = {
    UNET: Control("ControlNetModel", ("down_block_additional_residuals", "mid_block_additional_residual")),
    "FluxTransformer2DModel": Control(
        "FluxControlNetModel",
        ("controlnet_block_samples", "controlnet_single_block_samples"),
        {"num_layers": 4, "num_single_layers": 10},
    ),
    "SD3Transformer2DModel": Control(
        "SD3ControlNetModel",
        ("block_controlnet_hidden_states",),
        {"num_layers": 12, "extra_conditioning_channels": 1},
    ),
}


def steered(pipeline: Pipeline, controlnet: Source | None, *, usual: bool, adapter: bool) -> Pipeline:
    """The pipeline with a ControlNet, a given or the usual one, and with an IP-adapter.

    Raises InputError for a denoiser that takes none.
    """
    role = pipeline.denoisers[0]
    config, networks, parts = pipeline.parts[role], dict(pipeline.networks), dict(pipeline.parts)
    kind = str(config.get(CLASS))
    if controlnet is not None or usual:
        if kind not in CONTROLS:
            known = ", ".join(CONTROLS)
            raise InputError(
                f"--controlnet: {pipeline.name} denoises by a {kind}, and those of {known} are known; "
                "leave it out"
            )
        control = CONTROLS[kind]
        parts[CONTROLNET] = {**config, **control.fields, CLASS: control.kind}
        networks[CONTROLNET] = controlnet or network_source(
            f"{pipeline.name}/{CONTROLNET}", parts[CONTROLNET]
        )
    if adapter:
        if kind != UNET:
            raise InputError(
                f"--ip-adapter: {pipeline.name} denoises by a {kind}, and adapters of a {UNET} are known; "
                "leave it out"
            )
        parts[IMAGE_ENCODER] = ENCODER
    return replace(pipeline, parts=parts, networks=networks)


def steers_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Keywords of the denoiser that get what the ControlNet makes; none without one."""
    if CONTROLNET not in pipeline.parts:
        return ()
    return CONTROLS[str(pipeline.parts[pipeline.denoisers[0]].get(CLASS))].steers


def add_adapter(unet: Any) -> None:
    """Let all cross attention of a UNet read an image besides the text, as `load_ip_adapter` does."""
    library()
    from diffusers.models.attention_processor import IPAdapterAttnProcessor2_0
    from diffusers.models.embeddings import ImageProjection, MultiIPAdapterImageProjection

    dtype = next(unet.parameters()).dtype
    for part in unet.modules():
        if getattr(part, "is_cross_attention", False) and hasattr(part, "set_processor"):
            width, inner = part.cross_attention_dim, part.inner_dim
            processor: Any = IPAdapterAttnProcessor2_0
            part.set_processor(processor(inner, width, (IMAGE_TOKENS,)).to(dtype))
    width = unet.config.cross_attention_dim
    projection = ImageProjection(
        image_embed_dim=EMBEDDING, cross_attention_dim=width, num_image_text_embeds=IMAGE_TOKENS
    )
    unet.encoder_hid_proj = MultiIPAdapterImageProjection([projection]).to(dtype)
    unet.config.encoder_hid_dim_type = "ip_image_proj"
