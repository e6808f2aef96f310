"""A device's power limit and clock, as people write them: 300W, 80%, 60%..100%, 1410MHz."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from neuralpower.errors import InputError
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.watts import Setting, at_full_pace
from neuralpower.platforms import platform_of

NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
HERTZ = {"mhz": 1e6, "ghz": 1e9}
CLOCK_STEP_HZ = 15e6  # between the clocks that `nvidia-smi -q -d SUPPORTED_CLOCKS` lists, since Pascal
LOWEST_SHARE = 0.3  # of a board's limit: no maker's tool accepts less
RANGE_STEP = 0.05  # of the limit between the points of 60%..100%


def set_to(predictor: Predictor, power_limit: Any = None, clock: Any = None) -> Predictor:
    """The predictor of the device at a power limit ("300W", "80%") and a clock ("1410MHz").

    Raises InputError for a value without a unit, one that the device has not, several, or a contradiction.
    """
    if power_limit is None and clock is None:
        return predictor
    for flag, value in (("--power-limit", power_limit), ("--clock", clock)):
        if value is not None and len(_parts(value)) != 1:
            raise InputError(
                f"{flag} {value}: one is predicted at a time; neuralpower sweep compares several"
            )
    (found,) = all_set(predictor, power_limit, clock)
    return found


def all_set(predictor: Predictor, power_limits: Any = None, clocks: Any = None) -> list[Predictor]:
    """The same for each of several: lists with commas, or shares as a range; raises InputError."""
    if power_limits is None and clocks is None:
        return [predictor]
    hardware = predictor.hardware
    limit = None if hardware is None else hardware.board_w
    if hardware is None or limit is None or platform_of(hardware).family == "cpu":
        said = f"--power-limit {power_limits}" if power_limits is not None else f"--clock {clocks}"
        raise InputError(f"{said}: no power limit is known for {predictor.device}; choose a GPU with a sheet")
    asked = [None] if power_limits is None else [_watts(one, limit) for one in _parts(power_limits)]
    shares = [1.0] if clocks is None else [_clock(one, predictor) for one in _parts(clocks)]
    found = []
    for limit_w, share in itertools.product(asked, shares):
        if limit_w is not None and not LOWEST_SHARE * limit <= limit_w <= limit:
            raise InputError(
                f"power limit {limit_w:g}W: {predictor.device} takes {LOWEST_SHARE * limit:g}W to "
                f"{limit:g}W; choose one of these"
            )
        if limit_w is not None and clocks is not None and len(asked) == len(shares) == 1:
            _check_both(predictor, limit_w, share)
        found.append(replace(predictor, setting=Setting(limit_w, share)))
    return found


def _check_both(predictor: Predictor, limit_w: float, share: float) -> None:
    """Raise InputError for a limit below what kernels draw at the clock, whatever their work."""
    hardware = predictor.known_hardware()
    clock, drawn = at_full_pace(hardware, predictor.device, share, limit_w)
    if drawn > limit_w:
        highest = hardware.clock()
        asked, steps = share * highest / 1e6, math.ceil((1 - clock) * highest / CLOCK_STEP_HZ)
        held = (highest - steps * CLOCK_STEP_HZ) / 1e6
        raise InputError(
            f"power limit {limit_w:g}W and clock {asked:g}MHz contradict: no kernel at full pace draws less "
            f"than {drawn:.0f} W then; leave one out, or give --clock of {held:g}MHz at most"
        )


def _parts(given: Any) -> Sequence[str]:
    """Each value of a text with commas, of a range of shares, or of a list."""
    if not isinstance(given, str):
        return [str(one) for one in given] if isinstance(given, (list, tuple)) else [str(given)]
    ends = re.fullmatch(rf"\s*{NUMBER}%\s*\.\.\s*{NUMBER}%\s*", given)
    if ends is None:
        return given.split(",")
    low, high = (float(end) / 100 for end in ends.groups())
    if not low < high:
        raise InputError(f"power limit {given!r}: the end must be above the start; write 60%..100%")
    steps = round((high - low) / RANGE_STEP)
    return [f"{100 * (low + (high - low) * i / max(steps, 1)):.6g}%" for i in range(max(steps, 1) + 1)]


def _watts(text: str, limit: float) -> float:
    match = re.fullmatch(rf"\s*{NUMBER}\s*(w|%)\s*", text.lower())
    if match is None or not float(match.group(1)):
        raise InputError(f"power limit {text!r}: write watts or a share of the board's limit: 300W, 80%")
    number = float(match.group(1))
    return number if match.group(2) == "w" else number / 100 * limit


def _clock(text: str, predictor: Predictor) -> float:
    """Share of the highest clock; raises InputError, with the two nearest clocks that the device has."""
    match = re.fullmatch(rf"\s*{NUMBER}\s*(mhz|ghz)\s*", text.lower())
    if match is None or not float(match.group(1)):
        raise InputError(f"clock {text!r}: write a number with its unit: 1410MHz")
    hardware = predictor.hardware
    highest = None if hardware is None else hardware.clock_hz
    if highest is None:
        raise InputError(f"clock {text!r}: the sheet of {predictor.device} states no clock; leave it out")
    hertz = float(match.group(1)) * HERTZ[match.group(2)]
    steps = (highest - hertz) / CLOCK_STEP_HZ
    if hertz > highest or abs(steps - round(steps)) > 0.03:
        below = highest - CLOCK_STEP_HZ * max(int(-(-steps // 1)), 1 if hertz > highest else 0)
        near = " and ".join(f"{(below + more) / 1e6:g}MHz" for more in (0.0, CLOCK_STEP_HZ))
        raise InputError(
            f"clock {text.strip()}: {predictor.device} has clocks in steps of 15 MHz, {near} nearest"
        )
    return hertz / highest
