"""A predictor adapted to a machine, by factors from layers measured there, or from networks timed there."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import torch

from neuralpower.data.networks import read_own_networks, reasons
from neuralpower.data.schema import COPIED, FRESH, PRODUCTS, named
from neuralpower.data.screening import Rejected
from neuralpower.devices.host import Cpu
from neuralpower.devices.spec import DeviceSpec
from neuralpower.errors import DeviceError, InputError
from neuralpower.layers import KINDS, Layer
from neuralpower.layers.base import FORWARD
from neuralpower.learn.keys import Key
from neuralpower.learn.networks.network_rows import Total, read_totals
from neuralpower.learn.networks.own_level import FEWEST, Taught, check_unit, in_words, taught_by, teach
from neuralpower.learn.networks.pace import NetworkSpeed
from neuralpower.learn.networks.whole_networks import fit_factors
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import Regressor
from neuralpower.learn.unmeasured.any_device import before_networks
from neuralpower.measure import ROUNDS
from neuralpower.measure.collect import PRESETS
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.cpu.timer import Sentinel, Timing, time_calls
from neuralpower.platforms import hardware_to_json

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


# ---- By whole networks: 5 to 100 that were timed on the device ----

SHOWN = 3  # reasons that a refusal names


@dataclass(frozen=True)
class ByNetworks:
    """The moved predictor, what moved it, and the rows that could not."""

    predictor: Predictor  # the law alone; `any_device.with_the_rest` adds what else is known of the device
    taught: Taught
    rejected: tuple[Rejected, ...]

    @property
    def moved(self) -> list[str]:
        """A line for each factor that moved far, with the networks that moved it."""
        return in_words(self.taught.moved)


def calibrate_by_networks(
    spec: DeviceSpec, file: Path, columns: Mapping[str, str] | None = None, *, trust_code: bool = False
) -> ByNetworks:
    """Move the factors of a device's law by the networks of a CSV file.

    Args:
        spec: the device that they were timed on.
        file: model, batch, runtime_s, and where known dtype, input or image, layout, run and device; or what
            timm's benchmark.py writes.
        columns: ours by expression of the file's, such as {"runtime_s": "latency_ms/1000"}.
        trust_code: whether to trace models that run their own code.

    Raises:
        InputError: a device that runs no kernels, a file that cannot be read, or too few usable networks.
        DatasetError: times in another unit, or networks whose layers were measured on the device.
    """
    import pandas as pd

    start = before_networks(spec)
    if start.law is None:
        raise InputError(
            f"--networks moves predictors of accelerators, and {spec.name} is a CPU; leave it out to measure "
            "layers here, or run collect-data"
        )
    rows, rejected = read_own_networks(file, columns or {}, spec.slug)
    totals: list[Total] = []
    if rows:
        totals, refused = read_totals(pd.DataFrame(rows), start.law.hardware, trust_code=trust_code)
        totals = [replace(total, line=rows[total.line - 2]["line"]) for total in totals]
        rejected += [replace(row, line=rows[row.line - 2]["line"]) for row in refused]
    with named(file):
        totals, waiting = _on_the_device(start, totals)
        rejected += waiting
        _check_enough(totals, rejected, file)
        taught = teach(start, totals)
    found = taught_by(start, taught)
    about = {
        **found.dataset,
        "name": file.stem,
        "rows": 0,
        "trained": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "rejected": len(rejected),
        "accelerator": True,
        "platform": start.platform.name,
        "hardware": {"name": spec.name, **hardware_to_json(taught.law.hardware)},
        "calibrated_from": spec.slug,
        "calibrated_with": taught.networks,
    }
    return ByNetworks(replace(found, dataset=about), taught, tuple(rejected))


def _check_enough(totals: Sequence[Total], rejected: Sequence[Rejected], file: Path) -> None:
    """Raise InputError, with the reasons of rejected rows, for fewer than FEWEST networks."""
    count = len({total.model for total in totals})
    if count < FEWEST:
        every = [*reasons(rejected)]
        why = "".join(f"; {line}" for line in every[:SHOWN])
        why += f"; {len(every) - SHOWN} more reasons" if len(every) > SHOWN else ""
        text = f"{count} usable network{'' if count == 1 else 's'}, {FEWEST} of different names needed"
        raise InputError(f"{file}: {text}; time others{why}")


def _on_the_device(start: Predictor, totals: Sequence[Total]) -> tuple[list[Total], list[Rejected]]:
    """(Networks that the device sets the pace of, those that wait for the host).

    Raises DatasetError: times of another unit, which would put the host in the wrong.
    """
    if start.dispatch is None or not totals:
        return list(totals), []
    found = start.of_torch().estimate_each([total.layers for total in totals])
    device_s = np.array([float(t.calls @ one.runtime_s) for t, one in zip(totals, found, strict=True)])
    host_s = np.array([float(t.calls @ start.dispatch.seconds(t.layers)) for t in totals])
    check_unit(np.maximum(device_s, host_s) / np.array([total.runtime_s for total in totals]))
    kept = [total for total, waits in zip(totals, host_s > device_s, strict=True) if not waits]
    why = "the host sets its pace, and says nothing of the device; take a larger batch"
    waiting = [t for t, waits in zip(totals, host_s > device_s, strict=True) if waits]
    return kept, [Rejected("network", total.line, why) for total in waiting]
