"""A request to a pipeline of diffusion: sizes, steps, guidance, images; and what that comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuralpower.devices.cluster import ONE, PICTURED, Layout

ON, OFF = "on", "off"
MODEL, SEQUENTIAL, GROUP = "model", "sequential", "group"  # what of a pipeline is on the device at a time
OFFLOADS = (MODEL, SEQUENTIAL, GROUP)
MOST_STEPS = 10_000
CONTROLNET = "controlnet"  # the part that runs with each pass of the denoiser


@dataclass(frozen=True)
class PictureRequest:
    """The requested sizes; None leaves one to the pipeline."""

    resolution: tuple[int, int] | None = None  # (width, height) in pixels
    frames: int | None = None  # of a film
    steps: int | None = None
    guidance: str | None = None  # on, off
    images: int | None = None  # of each prompt
    tiling: bool = False  # the decoder works on tiles
    slicing: bool = False  # the decoder works on one image at a time
    reuse_steps: float | None = None  # share of the steps that take the prediction of the step before
    offload: str | None = None  # model, sequential, group
    controlnet: str | None = None  # on: as diffusers makes one of the denoiser; else a network's name
    ip_adapter: bool = False
    layout: Layout = ONE  # whose ranks share the tokens and the passes of a guided step

    @property
    def asked(self) -> dict[str, object]:
        """The options that are given, by name."""
        degrees = {f"{name}_degree": getattr(self.layout, name) for name in PICTURED}
        given = {name: value for name, value in self._sizes.items() if value}
        return given | {name: ranks for name, ranks in degrees.items() if ranks > 1}

    @property
    def options(self) -> dict[str, object]:
        """The options as the command line has them, but for those of the layout."""
        size = self.resolution and "x".join(map(str, self.resolution))
        return {**self._sizes, "resolution": size}

    @property
    def _sizes(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "layout"}


NOTHING = PictureRequest()


@dataclass(frozen=True)
class Picture:
    """What one call of a pipeline makes, and how often each of its parts runs for that."""

    task: str  # image, video, audio
    steps: int
    guidance: bool  # whether each step runs with and without the text
    prompts: int
    images: int  # of each prompt: images, films or sounds
    width: int = 0  # pixels
    height: int = 0
    frames: int = 1
    multiple: int = 0  # pixels that both sides round to; 0: of a sound
    cut: int = 1  # frames that one of the decoder's latents stands for
    seconds: float = 0.0  # of a sound
    times: Mapping[str, int] = field(default_factory=dict)  # part -> how often it runs
    denoisers: tuple[str, ...] = ()
    batch: int = 1  # samples of a pass of the denoiser
    offload: str = ""  # model, sequential, group; "": all parts stay on the device
    layout: Layout = ONE  # whose ranks share the tokens and the passes of a guided step
    tokens: int = 0  # of a pass of the denoiser that one of the ranks has, where they share them
    latents: int = 0  # numbers that the denoiser makes of all samples of a pass, on all ranks together
    notes: tuple[str, ...] = ()

    @property
    def made(self) -> int:
        """Images, films or sounds in all."""
        return self.prompts * self.images
