"""An answer for every device with a spec sheet and each dtype that it has, by the best that is known.

Asked in this order, layer by layer: the device's own predictors, what was learnt on relatives (carried by the
sheet's bandwidth and peaks), and a roofline with a launch for each call and wide bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from neuralpower.devices.names import matching
from neuralpower.devices.spec import DeviceSpec, known_spec, labels_of_specs
from neuralpower.dtypes import floats_of, full_name
from neuralpower.layers.base import FORWARD
from neuralpower.learn.estimates import Roofline
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.predictor_lookup import known_predictors, load
from neuralpower.learn.regressor import NINETY
from neuralpower.platforms import platform_of

POOLED = "nvidia"  # the predictor of relatives: learnt on several of NVIDIA's GPUs
MAKER = "NVIDIA"
# What a device of another maker adds to log(measured / predicted), as a standard deviation: a factor of 2 at
# the 90 % bounds.
FOREIGN = float(np.log(2.0)) / NINETY
# Shares of a sheet's peak and bandwidth that a roofline takes to be reached, midway between what the kinds of
# 13 GPUs reach in large calls: 50 to 90 % of the peak, 75 to 90 % of the bandwidth. Bounds are a factor of 3.
REACHED_PEAK, REACHED_BANDWIDTH = 0.65, 0.8


def for_device(spec: DeviceSpec, dtype: str | None = None) -> Predictor:
    """The predictor of a device by its sheet, which answers for every kind of layer in the dtypes it has.

    `dtype`: one that will be asked for; None: `Predictor.check` refuses it later.

    Raises:
        PredictorError: the device lacks the dtype, and the text says as what it would run; or a predictor of
            the device cannot be read.
    """
    found = _composed(spec)
    if dtype is not None:
        found.check(full_name(dtype), FORWARD)
    return found


def _composed(spec: DeviceSpec) -> Predictor:
    """The device's own predictors, its relatives' and a roofline, as one."""
    asked = [*_own(spec), *_relatives(spec)]
    has = floats_of(spec.peak_flops)
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
        dispatch=None if launched or not hosts else hosts[0].of_another_host(),
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
    labels = labels_of_specs()
    for name in sorted(known_predictors(), key=lambda name: (len(name), name)):
        if name.startswith(f"{spec.slug}-") or matching(name, labels) == [spec.slug]:
            found = load(name)
            sheet = known_spec(found.device)
            if found.hardware is not None and sheet is not None and sheet.slug == spec.slug:
                yield found


def _relatives(spec: DeviceSpec) -> Sequence[Predictor]:
    """What was learnt on NVIDIA's GPUs, for the device, with wider bounds for another maker's."""
    known = known_predictors()
    if POOLED not in known or platform_of(spec.hardware()).family == "cpu":
        return []
    # of which kinds and dtypes it has rows of this device is not known
    there = dataclasses.replace(load(POOLED).on(spec.hardware(), spec.slug), carried=True)
    if spec.vendor == MAKER:
        return [there]
    wider = {
        key: dataclasses.replace(one, spread=one.spread.widened(FOREIGN))
        for key, one in there.regressors.items()
    }
    about = {**there.dataset, "wider_for": spec.vendor or "another maker"}
    return [dataclasses.replace(there, regressors=wider, dataset=about)]
