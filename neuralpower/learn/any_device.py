"""A predictor for every device with a spec sheet, in each dtype that it has, from the best data there is.

Each layer uses the first of these that knows it: the device's own predictors, predictors trained on related
devices (scaled by the sheet's bandwidth and peaks), and a roofline with launch overhead and wide bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from neuralpower.devices.names import matching
from neuralpower.devices.spec import DeviceSpec, known_spec, labels_of_specs
from neuralpower.dtypes import floats_of, full_name
from neuralpower.layers.base import FORWARD
from neuralpower.learn.estimates import Roofline
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.predictor_files import known_predictors, read_predictor, readable
from neuralpower.learn.regressor import NINETY
from neuralpower.platforms import platform_of

POOLED = "nvidia"  # the predictor of related devices, trained on several of NVIDIA's GPUs
MAKER = "NVIDIA"
# Standard deviation that a device of another maker adds to log(measured / predicted): a factor of 2 at the
# 90 % bounds.
FOREIGN = float(np.log(2.0)) / NINETY
# Shares of a sheet's peak and bandwidth that a roofline takes to be reached: passes over memory reach 73 to
# 92 % on NVIDIA's GPUs of 2016 to 2020; that of the peak is assumed. Bounds are a factor of 3.
REACHED_PEAK, REACHED_BANDWIDTH = 0.65, 0.8


def for_device(spec: DeviceSpec, dtype: str | None = None) -> Predictor:
    """The predictor of a device by its sheet, which answers for every kind of layer in the dtypes it has.

    `dtype`: the one to predict; None: `Predictor.check` refuses it later.

    Raises:
        PredictorError: the device lacks the dtype; the text names the dtype that it would run as.
    """
    found = _composed(spec)
    if dtype is not None:
        found.check(full_name(dtype), FORWARD)
    return found


def _composed(spec: DeviceSpec) -> Predictor:
    """One predictor from the device's own, those of related devices and a roofline."""
    own, refused = _own(spec)
    asked = [*own, *_relatives(spec)]
    has = floats_of(spec.peak_flops)
    bare = roofline_of(spec)
    first = asked[0] if asked else bare
    hosts = [one.dispatch for one in asked if one.dispatch is not None]
    launched = any(regressor.launch_s for regressor in first.regressors.values())
    return dataclasses.replace(
        first,
        name=spec.slug,
        device=spec.slug,
        others=tuple(asked[1:]),
        answers=has,
        dataset={**first.dataset, "left_out": refused},
        rooflines={**bare.rooflines, **first.rooflines},
        dispatch=None if launched or not hosts else hosts[0].of_another_host(),
    )


def roofline_of(spec: DeviceSpec) -> Predictor:
    """A predictor without trained data: the shares of the sheet's peaks that large calls reach."""
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


def _own(spec: DeviceSpec) -> tuple[list[Predictor], list[str]]:
    """(Predictors that were trained on the device, why others of it cannot be read).

    The one with its name first, then others whose names begin with it.
    """
    labels = labels_of_specs()
    named = [
        name
        for name in known_predictors()
        if name.startswith(f"{spec.slug}-") or matching(name, labels) == [spec.slug]
    ]
    found, refused = readable(sorted(named, key=lambda name: (len(name), name)))
    sheets = {name: known_spec(one.device) for name, one in found.items() if one.hardware is not None}
    own = [found[name] for name, sheet in sheets.items() if sheet is not None and sheet.slug == spec.slug]
    return own, [str(error) for error in refused]


def _relatives(spec: DeviceSpec) -> Sequence[Predictor]:
    """The predictor trained on NVIDIA's GPUs, for the device; wider bounds for another maker's."""
    known = known_predictors()
    if POOLED not in known or platform_of(spec.hardware()).family == "cpu":
        return []
    # the kinds and dtypes with rows of this device are not known
    there = dataclasses.replace(read_predictor(known[POOLED]).on(spec.hardware(), spec.slug), carried=True)
    if spec.vendor == MAKER:
        return [there]
    wider = {
        key: dataclasses.replace(one, spread=one.spread.widened(FOREIGN))
        for key, one in there.regressors.items()
    }
    about = {**there.dataset, "wider_for": spec.vendor or "another maker"}
    return [dataclasses.replace(there, regressors=wider, dataset=about)]
