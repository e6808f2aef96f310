"""A predictor adapted to another machine of its class, by factors from a few dozen layers measured there."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import torch

from neuralpower.data.schema import COPIED, FRESH, PRODUCTS
from neuralpower.devices.host import Cpu
from neuralpower.errors import DeviceError, InputError
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.base import FORWARD
from neuralpower.learn.keys import Key
from neuralpower.learn.networks.pace import NetworkSpeed
from neuralpower.learn.networks.whole_networks import fit_factors
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import Regressor
from neuralpower.measure import ROUNDS
from neuralpower.measure.collect import PRESETS
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.cpu.timer import Sentinel, Timing, time_calls

FEWEST_SAMPLES = 10
BATCH = 25  # layers that are timed in turn
ROUNDING = 1e-9  # of an error: no gain


@dataclass(frozen=True)
class Calibration:
    """The adapted predictor, and geometric mean errors of the measured layers, each held out.

    An error is how many times too high or too low a layer is, minus 1: a few far off do not dominate the
    mean.
    """

    predictor: Predictor
    rows: int
    before: float
    after: float  # as before where factors gain nothing

    @property
    def gained(self) -> bool:
        """Whether the factors lower the held-out error."""
        return self.after < self.before


def check(predictor: Predictor, samples: int) -> None:
    """Raise InputError for too few samples, a predictor of another class, or one that is calibrated already.

    Raises PredictorError where it was trained on no floats, or serves several devices and none is chosen.
    """
    if samples < FEWEST_SAMPLES:
        raise InputError(f"samples {samples}: must be {FEWEST_SAMPLES} or more; the default is 50")
    if "calibrated_from" in predictor.dataset:
        known = f"predictor {predictor.name!r} is a calibrated one"
        raise InputError(f"{known}, from {predictor.dataset['calibrated_from']!r}; calibrate that one")
    if predictor.platform.family != "cpu":
        raise InputError(
            f"predictor {predictor.name!r} was trained on {predictor.device}, {predictor.platform.called}, "
            "but this machine is a CPU: calibration needs the same class of device; choose a predictor "
            "of a CPU"
        )
    predictor.check(next(iter(predictor.dtypes), "float32"), FORWARD)


def calibration_layers(predictor: Predictor, samples: int, seed: int = 0) -> list[Layer]:
    """Layers of its kinds in its dtype, in a sweep's shares; at least one of each kind, up to `samples`."""
    kinds = [KINDS[name] for name in predictor.kinds if KINDS[name].by_itself]
    shares = sum(kind.sweep_share for kind in kinds)
    layers: list[Layer] = []
    for kind in sorted(kinds, key=lambda kind: -kind.sweep_share):
        for layer in draw(kind, max(round(samples * kind.sweep_share / shares), 1), seed, PRESETS["quick"]):
            if layer.dtype in (*predictor.dtypes, "float32"):
                layers.append(replace(layer, dtype=predictor.dtypes[0]))
    return layers[:samples]


def measure_layers(
    layers: Sequence[Layer], seed: int = 0, show: Callable[[str], None] = lambda text: None
) -> tuple[list[Layer], list[Timing]]:
    """The layers that could be timed on this CPU, with their times; the process must be prepared."""
    generator, sentinel = random.Random(seed), Sentinel().settle()
    torch.manual_seed(seed)
    kept: list[Layer] = []
    timings: list[Timing] = []
    shuffled = generator.sample(list(layers), len(layers))
    for start in range(0, len(shuffled), BATCH):
        batch = shuffled[start : start + BATCH]
        show(f"measuring layers {start + 1} to {start + len(batch)} of {len(layers)}")
        calls = [layer.build(torch.device("cpu")) for layer in batch]
        for layer, timing in zip(batch, time_calls(calls, sentinel, generator, rounds=ROUNDS), strict=True):
            if isinstance(timing, Timing):
                kept.append(layer)
                timings.append(timing)
    return kept, timings


def calibrate(
    predictor: Predictor,
    layers: Sequence[Layer],
    timings: Sequence[Timing],
    cpu: Cpu,
    reached: Mapping[str, Any] = MappingProxyType({}),
) -> Calibration:
    """Factors per regressor, drawn to a common one; intervals widen by the error that factors leave.

    Layers are compared with their times in isolation; how much longer they take in networks was trained on
    networks, and stays. Factors that do not lower the held-out error are dropped. What copies, products and
    fresh memory take on the other machine does not hold here: `reached` has this one's, if it was measured.

    Raises:
        DeviceError: fewer than FEWEST_SAMPLES layers were measured.
    """
    if len(layers) < FEWEST_SAMPLES:
        raise DeviceError(f"{len(layers)} layers could be measured here, {FEWEST_SAMPLES} are needed")
    alone = {key: replace(r, factor=1.0, short=0.0) for key, r in predictor.regressors.items()}
    estimates = replace(predictor, regressors=alone).estimate(layers)
    sentinel_s = float(np.median([timing.sentinel_s for timing in timings]))
    slow = np.array([timing.sentinel_s / sentinel_s for timing in timings]) ** estimates.exponent
    measured = np.array([timing.runtime_s for timing in timings]) / slow
    keys = list(predictor.regressors)
    known = estimates.regressor >= 0
    of_key = np.equal.outer(estimates.regressor[known], np.arange(len(keys)))
    shares = of_key * (estimates.runtime_s / measured)[known, None]
    factors, held_out = fit_factors(shares, common=True)
    relative = shares.sum(axis=1)
    errors = [np.log(np.maximum(r, 1e-12)) for r in (relative, held_out)]
    before, after = (float(np.expm1(np.mean(np.abs(error)))) for error in errors)
    if after > before - ROUNDING:
        factors, errors[1], after = np.ones(len(keys)), errors[0], before
    excess = np.median(errors[1] ** 2) / 0.455 - np.median(estimates.deviation[known]) ** 2  # median of chi^2
    wider = float(np.sqrt(max(excess, 0.0)))
    about = {**predictor.dataset, "calibrated_from": predictor.name, "calibrated_with": int(known.sum())}
    rates = {COPIED: None, FRESH: None, PRODUCTS: {}, **reached}
    about["hardware"] = {**(about.get("hardware") or {}), **cpu.to_json(), **rates}
    adapted = replace(
        predictor,
        device=cpu.name,
        regressors=_scaled(predictor, factors, wider),
        sentinel_s=sentinel_s,
        speed=_speed(predictor, timings, sentinel_s),
        dataset=about,
        power=None,  # times give no information on this machine's power
        hardware=predictor.hardware and replace(predictor.hardware, idle_w=None, limit_w=None, **rates),
    )
    return Calibration(adapted, int(known.sum()), before, after)


def _scaled(predictor: Predictor, factors: np.ndarray, wider: float) -> dict[Key, Regressor]:
    """The regressors times `factors`, [regressors], with bounds wider by the deviation `wider` (a log)."""
    return {
        key: replace(
            r,
            factor=r.factor * factor,
            short=r.short * factor,
            measured=None,
            spread=r.spread.widened(wider),
        )
        for (key, r), factor in zip(predictor.regressors.items(), factors.tolist(), strict=True)
    }


def _speed(predictor: Predictor, timings: Sequence[Timing], sentinel_s: float) -> NetworkSpeed | None:
    """The predictor's speeds with the sentinel of this machine."""
    speed = predictor.speed
    if not speed or not predictor.sentinel_s:
        return speed
    usual_s = speed.sentinel_s * sentinel_s / predictor.sentinel_s
    ratios = [t.sentinel_again_s / t.sentinel_s for t in timings if t.sentinel_again_s]
    again_s = usual_s * float(np.median(ratios)) if ratios else None
    return msgspec.structs.replace(speed, sentinel_s=usual_s, again_s=again_s)
