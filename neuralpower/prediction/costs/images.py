"""What a pipeline's time, energy and price come to for one image, film or sound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from neuralpower.devices.hardware import ASSUMED_PCIE, Hardware
from neuralpower.files.json_files import Declared
from neuralpower.learn.estimates import ROOFLINE
from neuralpower.networks.diffusion.families import AUDIO, IMAGE, VIDEO
from neuralpower.networks.diffusion.pictures import GROUP, Picture
from neuralpower.prediction.costs.energy import awake_w
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.rows import BOUNDS, Interval, Row, with_shares
from neuralpower.trace.records import Trace

HOUR_S = 3600.0
NOUNS = ("image", "video", "sound")  # what pipelines make
OWN = "(pipeline)"  # what belongs to no part
TRANSFER = "transfer"  # kind of a row of copies from and to the host
# What copies reach of the link: no measurement; from memory that is not pinned it may be half, pinned twice.
COPIED, COPIED_WITHIN = 0.5, 2.0


@dataclass(frozen=True)
class Part(Declared):
    """One part of a pipeline in one call of it."""

    in_json = "name times runtime_s each_s energy_j share"

    name: str  # text_encoder, transformer, vae, ...
    times: int  # how often it runs
    runtime_s: float  # in all, on the device
    energy_j: float | None
    share: float  # of the time of the call

    @property
    def each_s(self) -> float:
        """Seconds of one run."""
        return self.runtime_s / max(self.times, 1)


@dataclass(frozen=True)
class Images(Declared):
    """What one call of a pipeline makes; `image` stands for a film or a sound, too."""

    in_json = """
        task width height frames steps guidance prompts images_per_prompt=images made runtime_per_image_s
        images_per_hour energy_per_image_j step_s passes parts
    """

    task: str  # image, video, audio
    width: int  # pixels; 0 of a sound
    height: int
    frames: int  # 1 of an image
    steps: int
    guidance: bool  # whether each step runs with and without the text
    prompts: int
    images: int  # of each prompt
    runtime_per_image_s: Interval
    images_per_hour: Interval
    energy_per_image_j: Interval | None
    step_s: float  # of the denoiser, all passes of a step
    passes: int  # of a step
    parts: tuple[Part, ...]

    @property
    def made(self) -> int:
        """Images of the call."""
        return self.prompts * self.images

    @property
    def noun(self) -> str:
        """What one of them is called."""
        return noun_of(self.task)


def noun_of(task: str) -> str:
    """What a pipeline of a task makes: image, video or sound."""
    return dict(zip((IMAGE, VIDEO, AUDIO), NOUNS, strict=True))[task]


def with_transfers(prediction: Prediction, trace: Trace, hardware: Hardware | None) -> Prediction:
    """The prediction with a row for each part whose weights come from the host.

    Groups are fetched while others run, and take the time that is left over.
    """
    if hardware is None or not trace.fetched:
        return prediction
    link, assumed = (
        hardware.pcie_bytes_per_s or ASSUMED_PCIE,
        "" if hardware.pcie_bytes_per_s else ", assumed",
    )
    rows = []
    for part, size in trace.fetched.items():
        seconds = size / (COPIED * link)
        if trace.offload == GROUP:
            hidden = sum(row.runtime_s for row in prediction.rows if row.path.partition(".")[0] == part)
            seconds = max(seconds - hidden, 0.0)
        if seconds:
            bounds = seconds / COPIED_WITHIN, seconds * COPIED_WITHIN
            rows.append(Row(part, TRANSFER, 1, seconds, *bounds, 0, size, "memory", ROOFLINE))
    more = Interval(*(sum(getattr(row, f"{name}_s") for row in rows) for name in ("runtime", "low", "high")))
    waits_w, energy, power = awake_w(hardware), prediction.energy_j, prediction.power_w
    if waits_w is not None:
        rows = [replace(row, power_w=Interval(waits_w, waits_w, waits_w)) for row in rows]
    runtime = _sum(prediction.runtime_s, more)
    if energy is not None and waits_w is not None:
        energy = _sum(energy, _scaled(more, waits_w))
        assert power is not None
        power = _scaled(power, energy.value / runtime.value / power.value)
    said = f"copies from the host reach {COPIED:.0%} of {link / 1e9:.3g} GB/s{assumed}, within a factor of 2"
    return replace(
        prediction,
        runtime_s=runtime,
        rows=with_shares([*prediction.rows, *rows], runtime),
        energy_j=energy,
        power_w=power,
        assumptions=(*prediction.assumptions, said),
    )


def with_images(prediction: Prediction, picture: Picture) -> Prediction:
    """The prediction of a pipeline's call, with what it says of an image."""
    made, runtime, energy = picture.made, prediction.runtime_s, prediction.energy_j
    together = picture.layout.ranks // picture.layout.data  # devices that make one of them
    parts = tuple(_parts(prediction, picture))
    denoised = sum(part.runtime_s for part in parts if part.name in picture.denoisers)
    runs = sum(picture.times[name] for name in picture.denoisers)
    images = Images(
        picture.task,
        picture.width,
        picture.height,
        picture.frames,
        picture.steps,
        picture.guidance,
        picture.prompts,
        picture.images,
        _scaled(runtime, 1 / made),
        Interval(*(HOUR_S * made / getattr(runtime, bound) for bound in ("value", "high", "low"))),
        None if energy is None else _scaled(energy, together / made),
        denoised / picture.steps,
        round(runs / picture.steps),
        parts,
    )
    return replace(prediction, images=images, batch_size=made)


def _parts(prediction: Prediction, picture: Picture) -> Iterator[Part]:
    """The parts in the order in which they first run."""
    found: dict[str, list[float]] = {}
    joules: dict[str, list[float | None]] = {}
    for row in prediction.rows:
        name = row.path.partition(".")[0] or OWN
        found.setdefault(name, []).append(row.runtime_s)
        joules.setdefault(name, []).append(row.energy_j)
    order = list(picture.times)
    for name in sorted(found, key=lambda name: order.index(name) if name in order else len(order)):
        each = joules[name]
        energy = None if any(one is None for one in each) else sum(one or 0.0 for one in each)
        seconds = sum(found[name])
        yield Part(name, picture.times.get(name, 1), seconds, energy, seconds / prediction.runtime_s.value)


def _sum(one: Interval, other: Interval) -> Interval:
    return Interval(*(getattr(one, bound) + getattr(other, bound) for bound in BOUNDS))


def _scaled(value: Interval, factor: float) -> Interval:
    return Interval(*(factor * getattr(value, bound) for bound in BOUNDS))
