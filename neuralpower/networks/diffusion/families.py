"""How each class of pipelines of diffusers runs: its defaults, its texts, its guidance and its sizes.

The numbers are the defaults of each pipeline's `__call__` in diffusers; where a published model is run with
others, its entry in the catalogue says them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from neuralpower.errors import ModelError, unknown

if TYPE_CHECKING:
    from neuralpower.networks.source import Source

# What guidance does: both predictions in one batch, in two passes, or as an input of a distilled network.
BATCH, PASSES, EMBEDDED = "batch", "passes", "embedded"
IMAGE, VIDEO, AUDIO = "image", "video", "audio"
UNIFIED = "encoder_hidden_states"
PROMPT = 128  # tokens of a prompt that its pipeline does not pad
DENOISERS = ("transformer", "transformer_2", "unet", "prior")
TEXT = {UNIFIED: ("text_encoder",)}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One class of pipelines."""

    task: str = IMAGE
    steps: int
    guided: str = BATCH
    guidance: bool = True  # whether the pipeline guides by default
    texts: Mapping[str, int]  # encoder -> tokens that it reads
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: TEXT)  # input -> encoders behind it
    size: tuple[int, int] | None = None  # (width, height); None: by the denoiser's sample_size
    frames: int | None = None
    patch: int = 1  # latents along a side of a token, to which sizes must round
    conditions: int = 0  # further images of as many tokens, which the denoiser reads besides
    encodes: bool = False  # whether the autoencoder encodes a given image first
    ratio: int | None = None  # pixels of the result along a side of a latent, where not the decoder's
    latent_length: int | None = None  # of a sound
    cropped: Mapping[str, int] = field(default_factory=dict)  # encoder -> tokens of a template that it drops
    joint: bool = False  # whether the text's tokens follow those of the image, and attend as they do


SD = Family(steps=50, texts={"text_encoder": 77})
FLUX = Family(
    joint=True,
    steps=28,
    guided=EMBEDDED,
    texts={"text_encoder": 77, "text_encoder_2": 512},
    reads={UNIFIED: ("text_encoder_2",)},
    size=(1024, 1024),
    patch=2,
)
FAMILIES: Mapping[str, Family] = {
    "StableDiffusionPipeline": SD,
    "StableDiffusionXLPipeline": Family(
        steps=50, texts={"text_encoder": 77, "text_encoder_2": 77}, reads={UNIFIED: ("text_encoder",)}
    ),
    "StableDiffusionUpscalePipeline": Family(steps=75, texts={"text_encoder": 77}, size=(2048, 2048)),
    "StableDiffusion3Pipeline": Family(
        joint=True,
        steps=28,
        texts={"text_encoder": 77, "text_encoder_2": 77, "text_encoder_3": 256},
        reads={UNIFIED: ("text_encoder", "text_encoder_3")},
        patch=2,
    ),
    "FluxPipeline": FLUX,
    "FluxKontextPipeline": replace(FLUX, conditions=1, encodes=True),
    "ChromaPipeline": Family(
        joint=True, steps=35, guided=PASSES, texts={"text_encoder": 512}, size=(1024, 1024), patch=2
    ),
    "PixArtAlphaPipeline": Family(steps=20, texts={"text_encoder": 120}, patch=2),
    "PixArtSigmaPipeline": Family(steps=20, texts={"text_encoder": 300}, patch=2),
    "SanaPipeline": Family(steps=20, texts={"text_encoder": 300}, size=(1024, 1024)),
    "HunyuanDiTPipeline": Family(
        steps=50,
        texts={"text_encoder": 77, "text_encoder_2": 256},
        reads={UNIFIED: ("text_encoder",), "encoder_hidden_states_t5": ("text_encoder_2",)},
        size=(1024, 1024),
        patch=2,
    ),
    "QwenImagePipeline": Family(
        joint=True, steps=50, guided=PASSES, texts={"text_encoder": PROMPT}, size=(1024, 1024), patch=2
    ),
    "Lumina2Pipeline": Family(
        joint=True, steps=30, guided=PASSES, texts={"text_encoder": 256}, size=(1024, 1024), patch=2
    ),
    "AuraFlowPipeline": Family(joint=True, steps=50, texts={"text_encoder": 256}, size=(1024, 1024), patch=2),
    "KolorsPipeline": Family(steps=50, texts={"text_encoder": 256}),
    "CogView4Pipeline": Family(
        joint=True, steps=50, guided=PASSES, texts={"text_encoder": PROMPT}, size=(1024, 1024), patch=2
    ),
    "WanPipeline": Family(
        task=VIDEO,
        steps=50,
        guided=PASSES,
        texts={"text_encoder": 512},
        size=(832, 480),
        frames=81,
        patch=2,
    ),
    "HunyuanVideoPipeline": Family(
        joint=True,
        task=VIDEO,
        steps=50,
        guided=EMBEDDED,
        texts={"text_encoder": 351, "text_encoder_2": 77},
        cropped={"text_encoder": 95},
        size=(1280, 720),
        frames=129,
        patch=2,
    ),
    "CogVideoXPipeline": Family(task=VIDEO, steps=50, texts={"text_encoder": 226}, patch=2),
    "LTXPipeline": Family(task=VIDEO, steps=50, texts={"text_encoder": 128}, size=(704, 512), frames=161),
    "MochiPipeline": Family(
        joint=True, task=VIDEO, steps=64, texts={"text_encoder": 256}, size=(848, 480), frames=19, patch=2
    ),
    "StableAudioPipeline": Family(task=AUDIO, steps=100, texts={"text_encoder": 128}, latent_length=1024),
}


def family_of(name: str, kind: str) -> Family:
    """The family of a class of pipelines; raises ModelError for one whose way to run is not known."""
    found = FAMILIES.get(kind)
    if found is None:
        known = ", ".join(sorted(FAMILIES))
        raise ModelError(
            f"{name}: how a {kind} runs is not known (known: {known}); ask for its parts alone, "
            f"such as {name}/transformer"
        )
    return found


@dataclass(frozen=True)
class Pipeline:
    """A published pipeline."""

    name: str  # as it was requested
    kind: str  # class of the pipeline
    parts: Mapping[str, Mapping[str, Any]]  # role -> fields of its config.json, its class among them
    defaults: Mapping[str, Any] = field(default_factory=dict)  # that differ from the class's
    networks: Mapping[str, Source] = field(default_factory=dict)  # role -> of parts that come from elsewhere

    @property
    def family(self) -> Family:
        return family_of(self.name, self.kind)

    @property
    def denoisers(self) -> tuple[str, ...]:
        """Roles of the networks that denoise."""
        return tuple(role for role in DENOISERS if role in self.parts)

    @property
    def encoders(self) -> tuple[str, ...]:
        """Roles of the networks that read text."""
        return tuple(role for role in self.parts if role.startswith("text_encoder"))

    def part(self, role: str) -> Mapping[str, Any]:
        """The configuration of a part; raises ModelError where the pipeline has none of that name."""
        if role not in self.parts:
            raise unknown(f"part of {self.name}", role, self.parts, ModelError)
        return self.parts[role]


def spatial_ratio(config: Mapping[str, Any]) -> int:
    """Pixels along a side of a latent, by the configuration of an autoencoder."""
    name = str(config.get("_class_name"))
    if name == "AutoencoderDC":
        return int(2 ** (len(config["decoder_block_out_channels"]) - 1))
    if name in ("AutoencoderKLWan", "AutoencoderKLQwenImage"):
        patch = config.get("patch_size") or 1
        return int(
            config.get("scale_factor_spatial") or patch * 2 ** (len(config.get("dim_mult", [1] * 4)) - 1)
        )
    if name == "AutoencoderKLLTXVideo":
        patch = int(config.get("patch_size") or 4)
        return int(patch * 2 ** sum(config.get("spatio_temporal_scaling", (True, True, True, False))))
    if name == "AutoencoderKLHunyuanVideo":
        return int(config.get("spatial_compression_ratio") or 8)
    if name == "AutoencoderKLMochi":
        return 8
    return int(2 ** (len(config.get("block_out_channels", [1] * 4)) - 1))


def temporal_ratio(config: Mapping[str, Any]) -> int:
    """Frames of a latent frame, by the configuration of an autoencoder of films."""
    name = str(config.get("_class_name"))
    if name in ("AutoencoderKLWan", "AutoencoderKLQwenImage"):
        return int(2 ** sum(config.get("temperal_downsample", (False, True, True))))
    if name == "AutoencoderKLLTXVideo":
        patch = int(config.get("patch_size_t") or 1)
        return int(patch * 2 ** sum(config.get("spatio_temporal_scaling", (True, True, True, False))))
    if name == "AutoencoderKLMochi":
        return 6
    return int(config.get("temporal_compression_ratio") or 4)


def latent_channels(config: Mapping[str, Any]) -> int:
    """Channels that an autoencoder decodes."""
    found = config.get("z_dim") or config.get("latent_channels") or config.get("decoder_input_channels")
    return int(found or (64 if config.get("_class_name") == "AutoencoderOobleck" else 16))
