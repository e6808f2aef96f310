"""An answer for every device with a spec sheet and each dtype that it has, by the best that is known.

Asked in this order, layer by layer: the device's own predictors, what was learnt on relatives (carried by the
sheet's bandwidth and peaks), and a roofline with a launch for each call and wide bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from neuralpower.devices.spec import DeviceSpec, known_spec
from neuralpower.dtypes import DTYPES, HALF_BITS, NETWORK_DTYPES, full_name, peaks_of
from neuralpower.errors import InputError, unknown
from neuralpower.learn.estimates import Roofline
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.predictor_lookup import known_predictors, load, on
from neuralpower.platforms import platform_of

POOLED = "nvidia"  # the predictor of relatives: learnt on several of NVIDIA's GPUs
# Shares of a sheet's peak and bandwidth that a roofline takes to be reached, midway between what the kinds of
# 13 GPUs reach in large calls: 50 to 90 % of the peak, 75 to 90 % of the bandwidth. Bounds are a factor of 3.
REACHED_PEAK, REACHED_BANDWIDTH = 0.65, 0.8


def for_device(spec: DeviceSpec, dtype: str) -> Predictor:
    """The predictor of a device by its sheet, which answers for every kind of layer in that dtype.

    Raises:
        InputError: the device lacks the dtype; the text says what it would run as.
        PredictorError: a predictor of the device cannot be read.
    """
    check_dtype(spec, dtype)
    asked = [*_own(spec), *_relatives(spec)]
    has = tuple(name for name in DTYPES if peaks_of(spec.peak_flops, name) is not None)
    bare = roofline_of(spec)
    if not asked:
        return dataclasses.replace(bare, answers=has)
    first = asked[0]
    hosts = [one.dispatch for one in asked if one.dispatch is not None]
    launched = any(regressor.launch_s for regressor in first.regressors.values())
    return dataclasses.replace(
        first,
        name=spec.slug,
        device=spec.slug,
        others=tuple(asked[1:]),
        answers=has,
        rooflines={**bare.rooflines, **first.rooflines},
        dispatch=None if launched or not hosts else hosts[0],
    )


def check_dtype(spec: DeviceSpec, dtype: str) -> None:
    """Raise InputError where a device has no units for a dtype; the text says what it would run as."""
    name = full_name(dtype)
    entry = DTYPES.get(name)
    if entry is None:
        raise unknown("dtype", dtype, DTYPES)
    if peaks_of(spec.peak_flops, name) is not None:
        return
    has = [one for one in NETWORK_DTYPES if peaks_of(spec.peak_flops, one) is not None]
    wide = next((one for one in has if DTYPES[one].bits == HALF_BITS), (has or ["float32"])[0])
    if entry.bits < HALF_BITS:
        instead = f"such weights would be unpacked and multiplied in {wide} (weight-only)"
    else:
        instead = f"it would run as {'float32' if 'float32' in has else wide}"
    raise InputError(
        f"{spec.slug} has no {name}: {instead}; choose {', '.join(DTYPES[one].short for one in has)}"
    )


def roofline_of(spec: DeviceSpec) -> Predictor:
    """A predictor that has learnt nothing: the shares of the sheet's peaks that large calls reach."""
    hardware = spec.hardware()
    memory = REACHED_BANDWIDTH * hardware.memory_bytes_per_s
    peaks = {dtype: REACHED_PEAK * peak for dtype, peak in hardware.peak_flops_per_s.items()}
    return Predictor(
        device=spec.slug,
        hardware=hardware,
        regressors={},
        rooflines={dtype: Roofline(peak, memory, peak) for dtype, peak in peaks.items()},
        dataset={},
        learner="roofline",
        name=spec.slug,
    )


def _own(spec: DeviceSpec) -> Iterator[Predictor]:
    """Predictors that were learnt on the device: that of its name first, then others that begin with it."""
    for name in sorted(known_predictors(), key=lambda name: (len(name), name)):
        if name == spec.slug or name.startswith(f"{spec.slug}-"):
            found = load(name)
            sheet = known_spec(found.device)
            if found.hardware is not None and sheet is not None and sheet.slug == spec.slug:
                yield found


def _relatives(spec: DeviceSpec) -> Sequence[Predictor]:
    """What was learnt on NVIDIA's GPUs, for the device; none for a CPU."""
    known = known_predictors()
    hardware = spec.hardware()
    if POOLED not in known or platform_of(hardware).family == "cpu":
        return []
    return [on(load(POOLED), spec.slug)[0]]
