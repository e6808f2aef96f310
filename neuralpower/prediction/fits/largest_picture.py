"""The largest resolution of an image, and the most frames of a film, whose pipeline fits into a memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from neuralpower.files.json_files import Declared
from neuralpower.networks.diffusion.families import VIDEO
from neuralpower.networks.diffusion.pictures import Picture
from neuralpower.prediction.fits.largest import largest
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.request import Request

STEP = 64  # pixels: resolutions are sought among its multiples
MOST_PIXELS, MOST_FRAMES = 8192, 2049  # of a side and of a film: pipelines are not trained beyond


@dataclass(frozen=True)
class LargestPicture(Declared):
    """The largest sizes that fit for sure, each with the other as requested; 0: none."""

    in_json = "options width height frames"

    options: str  # of the command, which make it fit; "": as it is requested
    width: int  # pixels, in the proportions of the request
    height: int
    frames: int | None  # of a film at the requested resolution; None: no film


def largest_picture(
    request: Request,
    picture: Picture,
    room_bytes: float,
    memory_of: Callable[[Request], Memory],
    options: str,
) -> LargestPicture:
    """The largest picture of a request, which `options` have changed, by the memory's upper bound."""

    def bytes_of(**changes: object) -> float:
        changed = replace(request, picture=replace(request.picture, **changes))  # type: ignore[arg-type]
        return memory_of(changed).high_bytes

    def size(steps: int) -> tuple[int, int]:
        shorter = steps * unit
        long = round(max(picture.width, picture.height) * shorter / least / picture.multiple)
        sides = shorter, max(long * picture.multiple, shorter)
        return sides if picture.width <= picture.height else (sides[1], sides[0])

    def at_size(steps: int) -> float:
        width, height = size(steps)
        return float("inf") if max(width, height) > MOST_PIXELS else bytes_of(resolution=(width, height))

    def at_cut(cuts: int) -> float:
        frames = (cuts - 1) * picture.cut + 1
        return float("inf") if frames > MOST_FRAMES else bytes_of(frames=frames)

    least = min(picture.width, picture.height)
    unit = ceil(STEP / picture.multiple) * picture.multiple
    steps = largest(at_size, room_bytes, max(least // unit, 1), power=2)  # by pixels
    width, height = size(steps) if steps else (0, 0)
    frames = None
    if picture.task == VIDEO:
        cuts = largest(at_cut, room_bytes, (picture.frames - 1) // picture.cut + 1)
        frames = (cuts - 1) * picture.cut + 1 if cuts else 0
    return LargestPicture(options, width, height, frames)
