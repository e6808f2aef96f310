"""A pipeline as one network: each part runs once, and a `Picture` says how often it runs in one call.

text encoders    once for each prompt, and once more for the negative one
image_encoder    once for each prompt: of an IP-adapter
controlnet       with each pass of the denoiser
denoiser         steps times, twice as often where guidance takes two passes
scheduler        steps times: guidance is mixed in, and the latents take a step
vae              once, once an image, or once a tile
image_processor  once: the images as numbers from 0 to 1, for the host
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.devices.cluster import PICTURED
from neuralpower.errors import InputError
from neuralpower.networks.diffusion.arguments import Latents, inputs_of
from neuralpower.networks.diffusion.classes import (
    EMBEDDING,
    IMAGE_ENCODER,
    READ,
    add_adapter,
    network_source,
    steers_of,
)
from neuralpower.networks.diffusion.families import (
    AUDIO,
    BATCH,
    DENOISERS,
    EMBEDDED,
    PASSES,
    VIDEO,
    Pipeline,
    latent_channels,
    spatial_ratio,
    temporal_ratio,
)
from neuralpower.networks.diffusion.pictures import CONTROLNET, MOST_STEPS, OFF, ON, Picture
from neuralpower.networks.diffusion.sequence import shared_out
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.size_limits import InputRequest

VAE, SCHEDULER, PROCESSOR = "vae", "scheduler", "image_processor"
# (height, width) in pixels of a decoder's tile, and how far the next one begins, by the class of the decoder:
# the defaults of diffusers 0.42; of others an assumption.
USUAL_TILE, USUAL_STRIDE = (512, 512), (384, 384)
SMALL, LARGE = ((256, 256), (192, 192)), ((512, 512), (448, 448))
TILES: Mapping[str, tuple[tuple[int, int], tuple[int, int]]] = {
    **dict.fromkeys(("AutoencoderKLWan", "AutoencoderKLQwenImage", "AutoencoderKLMochi"), SMALL),
    **{"AutoencoderKLHunyuanVideo": SMALL, "AutoencoderKLLTXVideo": LARGE, "AutoencoderDC": LARGE},
    "AutoencoderKLCogVideoX": ((240, 360), (200, 288)),
}


class Scheduler(nn.Module):
    """A step of the sampler: guidance is mixed in, then x + (next sigma - sigma) v in float32."""

    def forward(self, latents: Tensor, noise: Tensor, guided: bool) -> Tensor:
        """Latents [batch, ...], prediction [batch, ...] -> the next latents."""
        if guided:
            noise = noise + 4.0 * (noise - noise)
        stepped = latents.to(torch.float32) + 0.02 * noise.to(torch.float32)
        return stepped.to(noise.dtype)


class ImageProcessor(nn.Module):
    """The decoder's output as numbers from 0 to 1, channels last, in float32."""

    def forward(self, images: Tensor) -> Tensor:
        """[batch, channels, ...] -> [batch, ..., channels]."""
        return (images * 0.5 + 0.5).clamp(0, 1).movedim(1, -1).to(torch.float32).contiguous()


class Composed(nn.Module):
    """All parts of a pipeline, which run one after the other."""

    def __init__(self, parts: Mapping[str, nn.Module], steers: tuple[str, ...] = ()) -> None:
        """`steers`: keywords of the denoiser that get what the ControlNet makes."""
        super().__init__()
        self.steers = steers
        for name, part in parts.items():
            self.add_module(name, part)
        self.scheduler = Scheduler()
        self.image_processor = ImageProcessor()

    def forward(self, calls: Mapping[str, Mapping[str, Any]], guided: bool = False) -> Any:
        """Role -> the keywords of its call."""
        image: Any = None
        residuals: dict[str, Any] = {}
        for role, arguments in calls.items():
            part = getattr(self, role)
            if role == VAE and "encoded" in arguments:
                part.encode(arguments["encoded"])
            if role == VAE:
                image = decoded(part, arguments["latents"])
            elif role == SCHEDULER:
                part(**arguments, guided=guided)
            elif role == CONTROLNET:
                residuals = dict(zip(self.steers, part(**arguments, return_dict=False), strict=True))
            elif role in DENOISERS:
                part(**arguments, **residuals)
            else:
                part(**arguments)
        return image if image is None or image.dim() == 3 else self.image_processor(image)


class Decoder(nn.Module):
    """An autoencoder as a pipeline uses it: latents become an image."""

    def __init__(self, vae: nn.Module) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latents: Tensor) -> Any:
        return decoded(self.vae, latents)


def decoded(vae: nn.Module, latents: Tensor) -> Any:
    """The image [batch, channels, height, width] or the film of latents."""
    found = vae.decode(latents)  # type: ignore[operator]
    return found.sample if hasattr(found, "sample") else found[0]


def composed(pipeline: Pipeline, dtype: torch.dtype) -> nn.Module:
    """All parts of a pipeline in a dtype; raises ModelError."""
    parts = {
        role: (pipeline.networks.get(role) or network_source(f"{pipeline.name}/{role}", config)).construct(
            dtype
        )
        for role, config in pipeline.parts.items()
    }
    if IMAGE_ENCODER in parts:
        add_adapter(parts[pipeline.denoisers[0]])
    return Composed(parts, steers_of(pipeline))


def composed_inputs(pipeline: Pipeline, module: nn.Module, request: InputRequest) -> Inputs:
    """The inputs of all parts, and the picture that they make; raises InputError."""
    if request.labels:
        part = f"{pipeline.name}/{pipeline.denoisers[0]}"
        raise InputError(
            f"phase training: {pipeline.name} runs whole to make pictures alone; train its denoiser: {part} "
            "--phase training --lora 16"
        )
    picture, latents = pictured(pipeline, request)
    picture, shared = shared_out(pipeline, picture, latents)
    calls: dict[str, dict[str, Any]] = {}
    for role in pipeline.encoders:
        calls[role] = _text(pipeline, role, request)
    denoisers = [role for role in pipeline.denoisers if picture.times[role]]
    if IMAGE_ENCODER in pipeline.parts:
        image = torch.zeros(request.batch_size, 3, READ, READ, dtype=request.dtype)
        calls[IMAGE_ENCODER] = {"pixel_values": image}
    for role in (*((CONTROLNET,) if CONTROLNET in pipeline.parts else ()), *denoisers):
        calls[role] = dict(inputs_of(module.get_submodule(role), shared, request.dtype).kwargs)
    if IMAGE_ENCODER in pipeline.parts:
        call = calls[denoisers[0]]
        embedded = torch.zeros(picture.batch, 1, EMBEDDING, dtype=request.dtype)
        call["added_cond_kwargs"] = {**(call.get("added_cond_kwargs") or {}), "image_embeds": [embedded]}
    calls[SCHEDULER] = _stepped(calls[denoisers[0]], picture)
    latent = calls[SCHEDULER]["latents"].numel() * picture.batch // picture.made
    picture = replace(picture, latents=latent)
    if VAE in pipeline.parts:
        calls[VAE] = {"latents": _decodes(pipeline, picture, latents, request)}
        controls: Any = module.get_submodule(CONTROLNET) if CONTROLNET in calls else None
        reads = controls is not None and "conditioning_channels" not in controls.config
        if pipeline.family.encodes or reads:  # an image that becomes latents
            pixels = (picture.prompts, 3, picture.height, picture.width)
            calls[VAE]["encoded"] = torch.zeros(pixels, dtype=request.dtype)
    return Inputs(kwargs={"calls": calls, "guided": picture.guidance}, picture=picture)


def part_inputs(pipeline: Pipeline, role: str, module: nn.Module, request: InputRequest) -> Inputs:
    """The inputs of a denoiser alone, as the pipeline calls it; raises InputError."""
    picture, latents = pictured(pipeline, request)
    asked = request.asked_picture.asked
    for name in {"offload", *(f"{group}_degree" for group in PICTURED)}.intersection(asked):
        option = f"--{name.replace('_', '-')} {asked[name]}"
        raise InputError(f"{option}: {pipeline.name}/{role} runs alone; ask for {pipeline.name}")
    if role == VAE:
        return Inputs(kwargs={"latents": _decodes(pipeline, picture, latents, request)})
    latents = replace(latents, batch=request.batch_size)
    return inputs_of(module, latents, request.dtype, request.input_shape)


def _text(pipeline: Pipeline, role: str, request: InputRequest) -> dict[str, Any]:
    tokens = _tokens(pipeline, role, request)
    arguments: dict[str, Any] = {"input_ids": torch.ones(request.batch_size, tokens, dtype=torch.int64)}
    kind = pipeline.parts[role].get("architectures", [""])[0]
    if kind.startswith(("Llama", "Gemma", "Qwen", "Mistral", "ChatGLM", "Glm")):
        arguments["use_cache"] = False
    return arguments


def _tokens(pipeline: Pipeline, role: str, request: InputRequest) -> int:
    """Tokens that an encoder reads: a prompt that is not padded has as many as are requested."""
    stated = pipeline.defaults.get("texts", {}).get(role, pipeline.family.texts.get(role, 77))
    return int(stated if request.seq_len is None else min(stated, request.seq_len))


def _stepped(call: Mapping[str, Any], picture: Picture) -> dict[str, Tensor]:
    """What the scheduler takes: the latents that the denoiser reads, all of them, and as many predictions."""
    value = next(one for name, one in call.items() if name in ("sample", "hidden_states", "x"))
    tensor: Tensor = torch.stack(value) if isinstance(value, list) else value
    tensor = tensor[: max(picture.made, 1)].repeat_interleave(picture.layout.sequences, 1)
    return {"latents": torch.zeros_like(tensor), "noise": torch.zeros_like(tensor)}


def _decodes(pipeline: Pipeline, picture: Picture, latents: Latents, request: InputRequest) -> Tensor:
    """The latents of one call of the decoder."""
    config = pipeline.parts[VAE]
    channels = latent_channels(config)
    batch = 1 if _sliced(picture, request) else picture.made
    if picture.task == AUDIO:
        return torch.zeros(batch, channels, latents.length or 1, dtype=request.dtype)
    height, width = latents.height or 1, latents.width or 1
    if request.asked_picture.tiling:
        tile, _ = _tile_of(config)
        ratio = spatial_ratio(config)
        height, width = min(height, tile[0] // ratio), min(width, tile[1] // ratio)
    if picture.task == VIDEO or config.get("_class_name") == "AutoencoderKLQwenImage":
        return torch.zeros(batch, channels, latents.frames or 1, height, width, dtype=request.dtype)
    return torch.zeros(batch, channels, height, width, dtype=request.dtype)


def pictured(pipeline: Pipeline, request: InputRequest) -> tuple[Picture, Latents]:
    """What is made, and the latents of a pass of the denoiser; raises InputError for what cannot be made."""
    family, asked, notes = pipeline.family, request.asked_picture, list[str]()
    steps = pipeline.defaults.get("steps", family.steps) if asked.steps is None else asked.steps
    if not 1 <= steps <= MOST_STEPS:
        raise InputError(f"--steps {steps}: from 1 to {MOST_STEPS:,}; write --steps {family.steps}")
    guidance = _guidance(pipeline, asked.guidance, notes)
    latents = _latents(pipeline, request)
    apart = asked.layout.guidance
    if apart > 1 and not guidance:
        raise InputError(
            f"--guidance-degree {apart}: a step of {pipeline.name} has one pass, which no two ranks share; "
            "leave it out, or write --guidance on where the model is not distilled"
        )
    doubles = guidance and family.guided == BATCH and apart == 1
    prompts, images = request.batch_size, asked.images or 1
    ratio, config = _ratio(pipeline), pipeline.parts.get(VAE, {})
    picture = Picture(
        family.task,
        steps,
        guidance,
        prompts,
        images,
        (latents.width or 0) * ratio,
        (latents.height or 0) * ratio,
        ((latents.frames or 1) - 1) * temporal_ratio(config) + 1,
        multiple=ratio * family.patch,
        cut=temporal_ratio(config),
        denoisers=pipeline.denoisers,
        batch=prompts * images * (1 + doubles),
        offload=asked.offload or "",
        layout=asked.layout,
        notes=tuple(notes),
    )
    passes = 2 if guidance and family.guided == PASSES and apart == 1 else 1
    times = _times(
        pipeline, steps, passes, asked.reuse_steps or 0.0, guidance=guidance and family.guided != EMBEDDED
    )
    times[VAE] = picture.made if _sliced(picture, request) else 1
    if asked.tiling:
        tile, stride = _tile_of(config)
        times[VAE] *= _tiles(picture.height, tile[0], stride[0]) * _tiles(picture.width, tile[1], stride[1])
    return replace(picture, times=times), replace(latents, batch=picture.batch)


def _ratio(pipeline: Pipeline) -> int:
    """Pixels of the result along a side of a latent."""
    return pipeline.family.ratio or spatial_ratio(pipeline.parts.get(VAE, {}))


def _latents(pipeline: Pipeline, request: InputRequest) -> Latents:
    """The latents of one sample; raises InputError for sizes that cannot be made."""
    family, asked, config = pipeline.family, request.asked_picture, pipeline.parts.get(VAE, {})
    tokens = {
        name: sum(_tokens(pipeline, role, request) - family.cropped.get(role, 0) for role in roles)
        for name, roles in family.reads.items()
    }
    found = Latents(tokens=tokens, conditions=family.conditions)
    if family.task == VIDEO:
        frames = _frames(pipeline, asked.frames, temporal_ratio(config))
        found = replace(found, frames=(frames - 1) // temporal_ratio(config) + 1)
    else:
        _refuse(asked.frames, f"--frames {asked.frames}: {pipeline.name} makes no films; leave it out")
    if family.task == AUDIO:
        _refuse(asked.resolution, f"--resolution: {pipeline.name} makes sounds; leave it out")
        return replace(found, length=family.latent_length)
    ratio = _ratio(pipeline)
    width, height = _size(pipeline, asked.resolution, ratio)
    return replace(found, height=height // ratio, width=width // ratio)


def _sliced(picture: Picture, request: InputRequest) -> bool:
    """Whether the decoder gets one image at a time; films of several prompts fit into no memory at once."""
    return request.asked_picture.slicing or picture.task == VIDEO


def _tile_of(config: Mapping[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    """A decoder's tile, and the distance to the next one."""
    return TILES.get(str(config.get("_class_name")), (USUAL_TILE, USUAL_STRIDE))


def _tiles(pixels: int, tile: int, stride: int) -> int:
    """Tiles along a side."""
    return 1 if pixels <= tile else ceil((pixels - tile + stride) / stride)


def _times(pipeline: Pipeline, steps: int, passes: int, reused: float, guidance: bool) -> dict[str, int]:
    """Part -> how often it runs; two denoisers share the steps, of which each leaves out `reused`."""
    roles = pipeline.denoisers
    late = 0
    if len(roles) > 1:
        late = round(steps * (1 - pipeline.defaults.get("boundary_ratio", 0.5)))
    shares = [steps - late, late] if len(roles) > 1 else [steps]
    run = [share and max(round(share * (1 - reused)), 1) for share in shares]  # nothing precedes the first
    times = {role: share * passes for role, share in zip(roles, run, strict=False)}
    steering = {CONTROLNET: times[roles[0]]} if CONTROLNET in pipeline.parts else {}
    return {
        **dict.fromkeys(pipeline.encoders, 1 + guidance),
        **steering,
        **times,
        SCHEDULER: steps,
    }


def _guidance(pipeline: Pipeline, asked: str | None, notes: list[str]) -> bool:
    """Whether each step runs with and without the text; raises InputError for another word."""
    family = pipeline.family
    if asked not in (None, ON, OFF):
        raise InputError(f"--guidance {asked}: on or off; write --guidance {ON}")
    if family.guided == EMBEDDED:
        if asked == ON:
            notes.append(
                f"{pipeline.name} is distilled: guidance is an input of each step and takes no second pass"
            )
        return False
    if asked is None:
        return bool(pipeline.defaults.get("guidance", family.guidance))
    if asked == ON and pipeline.defaults.get("guidance") is False:
        notes.append(f"{pipeline.name} is distilled and runs without guidance; with it each step runs twice")
    return asked == ON


def _size(pipeline: Pipeline, asked: tuple[int, int] | None, ratio: int) -> tuple[int, int]:
    """(width, height) in pixels; raises InputError for one that the pipeline cannot make."""
    family = pipeline.family
    if asked is None:
        stated = pipeline.defaults.get("size") or family.size
        if stated is not None:
            return int(stated[0]), int(stated[1])
        config = pipeline.parts[pipeline.denoisers[0]]
        if "sample_width" in config:
            return config["sample_width"] * ratio, config["sample_height"] * ratio
        side = config.get("sample_size") or 64
        return side * ratio, side * ratio
    multiple = ratio * family.patch
    if any(side < multiple or side % multiple for side in asked):
        nearest = "x".join(str(max(round(side / multiple), 1) * multiple) for side in asked)
        raise InputError(
            f"--resolution {asked[0]}x{asked[1]}: {pipeline.name} makes multiples of {multiple} pixels; "
            f"the nearest is {nearest}"
        )
    return asked


def _frames(pipeline: Pipeline, asked: int | None, ratio: int) -> int:
    """Frames of a film; raises InputError for a number that its decoder cannot cut."""
    family = pipeline.family
    if asked is None:
        config = pipeline.parts[pipeline.denoisers[0]]
        return int(pipeline.defaults.get("frames") or family.frames or config.get("sample_frames") or 49)
    if asked < 1 or (asked - 1) % ratio:
        nearest = max(round((asked - 1) / ratio), 0) * ratio + 1
        raise InputError(
            f"--frames {asked}: the decoder of {pipeline.name} cuts films of {ratio}k + 1 frames; "
            f"the nearest is {nearest}"
        )
    return asked


def _refuse(value: object, said: str) -> None:
    if value is not None:
        raise InputError(said)
