"""Classes of diffusers and the fields of a config.json -> modules, those that steer a denoiser among them."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from neuralpower.errors import InputError, ModelError, unknown
from neuralpower.networks.diffusion.families import Pipeline
from neuralpower.networks.diffusion.pictures import CONTROLNET

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neuralpower.networks.source import Source

INSTALL = "diffusers is not installed; pip install diffusers"
CLASS = "_class_name"  # the field of a config.json of diffusers that names its class
FLAX = "Flax"  # the same networks in JAX: their configurations are read as torch's
FORMER = {"HunyuanDiT2DModel": {"conditioning_dim": None}}  # fields that a class no longer has


def check_installed() -> None:
    """Raise ModelError where diffusers is not installed; imports nothing."""
    if importlib.util.find_spec("diffusers") is None:
        raise ModelError(INSTALL)


def library() -> Any:
    """The library; raises ModelError with the command that installs it."""
    check_installed()
    return importlib.import_module("diffusers")


def class_names() -> list[str]:
    """Names of all model classes of the installed diffusers."""
    return sorted(library()._import_structure["models"])


def model_class(name: str) -> type[nn.Module]:
    """The model class of that name; raises ModelError where diffusers has none."""
    from torch import nn

    diffusers = library()
    name = name.removeprefix(FLAX)
    found = getattr(diffusers, name, None) if name in diffusers._import_structure["models"] else None
    if not (isinstance(found, type) and issubclass(found, nn.Module) and hasattr(found, "from_config")):
        raise unknown(f"model class of diffusers {diffusers.__version__}", name, class_names(), ModelError)
    return found


def fields_of(cls: type[nn.Module]) -> dict[str, Any]:
    """The fields of a class's configuration with their defaults."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = (one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    return {one.name: None if one.default is one.empty else one.default for one in named}


def configured(
    text: str, name: str, values: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a class: those of a config.json, as far as the class has them, then the overrides.

    Raises ModelError for an override of no field, and for values that no class takes.
    """
    cls = model_class(name)
    known = fields_of(cls)
    fields = {key: value for key, value in values.items() if key in known}
    for key, value in overrides.items():
        if key not in known:
            raise unknown(f"field of {cls.__name__} in the overrides of {text}", key, known, ModelError)
        fields[key] = value
    return fields


def component_source(
    text: str, name: str, values: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> Source:
    """A network of diffusers by its class and the fields of its config.json; raises ModelError."""
    from neuralpower.networks.diffusion.arguments import example_inputs
    from neuralpower.networks.inputs.size_limits import check_counts
    from neuralpower.networks.source import Source

    cls = model_class(name)
    fields = configured(text, name, values, overrides or {})
    check_counts(text, fields)
    return Source(text, partial(built, cls, fields), example_inputs)


def built(cls: type[nn.Module], fields: Mapping[str, Any], dtype: torch.dtype) -> nn.Module:
    """The module with its floating weights in a dtype."""
    from torch import nn

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the library about itself
        return nn.Module.to(cls(**fields), dtype)  # the own `to` of diffusers only warns


def network_source(
    text: str, config: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> Source:
    """A network by its configuration, of diffusers or of transformers; raises ModelError."""
    from neuralpower.networks.libraries.transformers import described_source

    if CLASS in config:
        return component_source(text, config[CLASS], config, overrides)
    return described_source(text, dict(config), dict(overrides or {}), text)


# Networks that steer a denoiser: a ControlNet next to it, and an IP-adapter with keys and values in it.
#
# A ControlNet is made as diffusers makes one of the denoiser, with as many blocks (`from_unet`,
# `from_transformer`), or is another network. An IP-adapter reads an image by CLIP ViT-H/14 as four tokens
# (Ye et al., arXiv:2308.06721; h94/IP-Adapter).

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
