"""One network on many devices: which is the fastest, and which takes least energy, money or carbon.

A network is followed once for all devices that run it alike (same dtype, way to run and platform) and priced
for each. The first is first by chance, too: errors of all devices are drawn together from their bounds,

    log(true_i / predicted_i) = s_i (sqrt(c_i) z + sqrt(1 - c_i) z_i)

    c_i = launched_i + (1 - launched_i) COMMON (1 - trained_i)

s_i is the standard deviation that device i's bounds say, trained_i the share of its time that was measured on
the device itself, launched_i the share in which it waits for the host. What was carried to several devices
errs alike on them, and their host is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuralpower.errors import InputError, NeuralPowerError, one_line, unknown
from neuralpower.files.json_files import Declared
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import NINETY
from neuralpower.prediction.case import Recordings
from neuralpower.prediction.costs.footprint import Each, Terms, each_of, made_by
from neuralpower.prediction.costs.images import NOUNS
from neuralpower.prediction.explore.phases import memory_figures
from neuralpower.prediction.prediction import HOST_BOUND, Prediction
from neuralpower.prediction.request import Request
from neuralpower.prediction.rows import Interval
from neuralpower.prediction.shown import Shown

RATE, ENERGY, PRICE, CARBON = BY = ("tokens/s", "energy", "price", "carbon")
NEEDS = {PRICE: "--price 2.49/h, or a file of prices", CARBON: "--region DE or --carbon-intensity 350"}
DRAWS = 20_000  # of all devices' errors
COMMON = 0.5  # of the variance of carried times: what errors on two devices share
MOST_SURE = 0.999


@dataclass(frozen=True)
class Ranked(Declared):
    """One device's answer; `rank` is None where the network does not fit."""

    in_json = """
        rank device predictor dtype run runtime_s each power_w first memory_bytes memory_high_bytes fits
        trained_here power_measured launched
    """

    device: str
    predictor: str
    dtype: str
    run: str
    runtime_s: Interval
    each: Each
    power_w: Interval | None
    memory_bytes: float | None
    memory_high_bytes: float | None
    fits: bool | None  # None: the memory of one of both is not known
    trained_here: float | None  # share of the time
    power_measured: float | None  # share of the time whose watts were measured, on the device or its chip
    launched: float  # share of the time in which it waits for the host
    rank: int | None = None
    first: float | None = None  # the probability that no other is better


@dataclass(frozen=True, repr=False)
class Ranking(Declared, Shown):
    """Devices, the best first, then those that are too small. `print` gives the command's table."""

    in_json = "schema model by=standing unit first_probability devices skipped notes warnings"

    model: str
    by: str
    devices: tuple[Ranked, ...]
    skipped: Mapping[str, str]  # device -> why
    traces: int
    about: str = ""  # phase, batch and lengths
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What is made: token, sample, or image, video and sound."""
        return self.devices[0].each.unit

    @property
    def standing(self) -> str:
        """What ranks them, in the unit that is made."""
        per = "h" if self.unit in NOUNS else "s"
        return f"{self.unit}s/{per}" if self.by == RATE else self.by

    @property
    def ranked(self) -> tuple[Ranked, ...]:
        """Those that are not too small."""
        return tuple(one for one in self.devices if one.rank is not None)

    @property
    def first_probability(self) -> float | None:
        """How likely the first is the best of all; None where none fits."""
        return self.ranked[0].first if self.ranked else None


Device = Callable[[], Predictor]
Requests = Callable[[Predictor], Request]


def rank(model: str, devices: Mapping[str, Device], request_of: Requests, by: str, terms: Terms) -> Ranking:
    """Ask each device, and rank the answers.

    Args:
        model: its name.
        devices: name -> a function that makes the predictor.
        request_of: makes the request of a predictor, in the dtype that it answers in.
        by: one of BY.
        terms: of a device, as options say them.

    Raises:
        InputError: an unknown `by`, or a price or an intensity that it needs.
        NeuralPowerError: no device answers; the reason that most of them have.
    """
    if by not in BY:
        raise unknown("ranking", by, BY)
    if (by == PRICE and terms.price is None) or (by == CARBON and terms.intensity is None):
        raise InputError(f"by {by}: add {NEEDS[by]}")
    recordings: dict[str, Recordings] = {}  # dtype -> those of its request
    ranked: list[Ranked] = []
    skipped: dict[str, str] = {}
    errors: list[NeuralPowerError] = []
    about = ""
    for name, device in devices.items():
        try:
            predictor = device()
            request = request_of(predictor)
            request.check(predictor)
            about = request.label.removeprefix(request.called).strip()
            prediction = recordings.setdefault(request.dtype, Recordings(request)).predict(predictor)
            one = _answer(prediction, predictor, request, terms)
            if _value(one, by) is None:
                why = prediction.power_reason or "its energy is not known"
                raise InputError(f"by {by}: {why}")
            ranked.append(one)
        except NeuralPowerError as error:
            skipped[name] = one_line(error)
            errors.append(error)
    if not ranked and errors:
        said = [str(error) for error in errors]
        raise max(errors, key=lambda error: said.count(str(error)))
    if not ranked:
        raise InputError("no device is known; name one: --device h100")
    traces = sum(some.traces for some in recordings.values())
    ordered = tuple(_ordered(ranked, by))
    return Ranking(model, by, ordered, skipped, traces, about, tuple(_notes(ordered)))


def _notes(devices: Sequence[Ranked]) -> Iterator[str]:
    """What several devices have in common that decides their order."""
    waiting = [one for one in devices if one.launched > 1 - 1 / HOST_BOUND]
    if waiting:
        yield f"launches of the host set the pace on {len(waiting)} of {len(devices)} devices"
    if len(dtypes := dict.fromkeys(one.dtype for one in devices)) > 1:
        yield f"a device without the dtype has the nearest one: {', '.join(dtypes)}; --dtype fixes it"


def _answer(prediction: Prediction, predictor: Predictor, request: Request, terms: Terms) -> Ranked:
    memory = dict(memory_figures(prediction, predictor, None, request.margin))
    return Ranked(
        device=predictor.device,
        predictor=predictor.name,
        dtype=prediction.dtype,
        run=prediction.run,
        runtime_s=prediction.runtime_s,
        each=each_of(made_by(prediction), terms),
        power_w=prediction.power_w,
        trained_here=prediction.trained_here,
        power_measured=prediction.power_share_trained,
        launched=0.0 if prediction.launch_row is None else prediction.launch_row.share,
        **memory,
    )


def _value(one: Ranked, by: str) -> Interval | None:
    return {RATE: one.each.per_s, ENERGY: one.each.energy_j, PRICE: one.each.price}.get(by, one.each.carbon_g)


def _ordered(ranked: Sequence[Ranked], by: str) -> Iterator[Ranked]:
    """The devices in their order; those that are too small come last."""
    sign = -1.0 if by == RATE else 1.0
    values = {id(one): sign * getattr(_value(one, by), "value", math.inf) for one in ranked}
    fitting = sorted((one for one in ranked if one.fits is not False), key=lambda one: values[id(one)])
    common = [one.launched + (1 - one.launched) * COMMON * (1 - (one.trained_here or 0.0)) for one in fitting]
    chances = chance_of_first([_value(one, by) for one in fitting], common, by)
    for number, (one, chance) in enumerate(zip(fitting, chances, strict=True), 1):
        yield replace(one, rank=number, first=chance)
    yield from sorted((one for one in ranked if one.fits is False), key=lambda one: values[id(one)])


def chance_of_first(values: Sequence[Interval | None], common: Sequence[float], by: str) -> list[float]:
    """How often each value is the best of all, in DRAWS draws of their errors.

    `common`: the part of the variance of each that all draws of a round share.
    """
    if len(values) < 2:
        return [MOST_SURE] * len(values)
    known = [value or Interval(1.0, 1.0, 1.0) for value in values]
    logs = np.log([max(one.value, 1e-300) for one in known])
    spread = np.array([math.log(max(one.high / max(one.low, 1e-300), 1.0)) / 2 / NINETY for one in known])
    part, generator = np.clip(common, 0.0, 1.0), np.random.default_rng(0)
    shared = generator.standard_normal((DRAWS, 1)) * np.sqrt(part)
    alone = generator.standard_normal((DRAWS, len(known))) * np.sqrt(1 - part)
    drawn = logs + spread * (shared + alone)
    best = (drawn.argmax if by == RATE else drawn.argmin)(axis=1)
    shares = np.bincount(best, minlength=len(known)) / DRAWS
    return [min(float(share), MOST_SURE) for share in shares]
