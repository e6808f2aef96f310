"""Joules, money and carbon of a pass for each token, sample or step: of the device, its node and its site."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neuralpower.errors import InputError
from neuralpower.files.json_files import Declared
from neuralpower.networks.phases import DECODE, PREFILL
from neuralpower.prediction.costs.carbon import Intensity, countries, given, of_region
from neuralpower.prediction.costs.images import Images
from neuralpower.prediction.costs.prices import Price, price_of
from neuralpower.prediction.generation import Generation, Step
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.rows import BOUNDS, Interval

HOUR_S, KWH_J, MILLION = 3600.0, 3.6e6, 1e6
ASKED = "node_overhead pue price currency region carbon_intensity tokens samples".split()
OF_ENERGY = (
    "node_overhead pue region carbon_intensity tokens samples".split()
)  # of these, what needs the energy


@dataclass(frozen=True)
class Line(Declared):
    """One number of a footprint."""

    in_json = "name value unit about"

    name: str
    value: Interval
    unit: str  # J, kWh, W, g or a currency
    about: str = ""  # where it is from


@dataclass(frozen=True)
class Footprint(Declared):
    """What a pass uses and costs, line by line; a line is there where options request it and it is known."""

    in_json = "lines warnings"

    lines: tuple[Line, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Terms:
    """What options say of a device's node, its site, its electricity and its price."""

    overhead_w: float = 0.0  # of the node besides its devices, for each of them
    pue: float = 1.0
    intensity: Intensity | None = None
    price: Any = None  # as `price_of` reads it
    currency: str | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is doubtful of them."""
        return (self.intensity.warning,) if self.intensity is not None and self.intensity.warning else ()

    def with_node(self, made: Made, joules: Interval) -> Interval:
        """Joules with those of the node."""
        watts = self.overhead_w * made.devices
        return Interval(*(getattr(joules, b) + watts * getattr(made.taken_s, b) for b in BOUNDS))


@dataclass(frozen=True)
class Made:
    """What a pass makes on its devices, in which time and with which energy."""

    device: str
    unit: str  # token or sample
    count: float
    taken_s: Interval
    energy_j: Interval | None  # of all devices
    devices: int = 1
    reason: str = ""  # why the energy is not known


@dataclass(frozen=True)
class Each(Declared):
    """Throughput, and what a token or a sample takes; None where it is not known or not requested."""

    in_json = "unit per_s energy_j price_per_million=price currency carbon_g_per_million=carbon_g"

    unit: str
    per_s: Interval
    energy_j: Interval | None  # with node and site
    price: Interval | None = None  # of a million
    currency: str | None = None
    carbon_g: Interval | None = None  # of a million


def terms_in(options: Mapping[str, Any]) -> Terms:
    """The terms of options; raises InputError for an impossible value and for two that contradict."""
    asked: dict[str, Any] = {name: options.get(name) for name in ASKED if options.get(name) is not None}
    overhead_w, pue = _overhead_w(asked.get("node_overhead", 0.0)), float(asked.get("pue", 1.0))
    if not 1 <= pue < 10:
        raise InputError(f"PUE {pue:g}: must be 1 or more: energy of the site over that of its computers")
    if "currency" in asked and "price" not in asked:
        raise InputError(f"--currency {asked['currency']}: no --price is given; add --price 2.49/h")
    return Terms(overhead_w, pue, _intensity(asked), asked.get("price"), asked.get("currency"))


def _overhead_w(given: float | str) -> float:
    """Watts, as a number or with their unit; raises InputError."""
    text = str(given).strip()
    with contextlib.suppress(ValueError):
        watts = float(text.removesuffix("W").removesuffix("w"))
        if 0 <= watts < math.inf:
            return watts
    raise InputError(f"node overhead {text}: must be 0 W or more, as 400W")


def each_of(made: Made, terms: Terms) -> Each:
    """Throughput, joules, money and carbon of what a pass makes; raises InputError for a price not given."""
    count, taken = made.count, made.taken_s
    rate = Interval(count / taken.value, count / taken.high, count / taken.low)
    joules = None if made.energy_j is None else times(terms.with_node(made, made.energy_j), terms.pue / count)
    price = None if terms.price is None else price_of(terms.price, terms.currency, made.device)
    paid = None if price is None else times(taken, price.per_hour * made.devices / HOUR_S * MILLION / count)
    grams = None
    if terms.intensity is not None and joules is not None:
        grams = times(joules, terms.intensity.grams_per_kwh / KWH_J * MILLION)
    return Each(made.unit, rate, joules, paid, None if price is None else price.currency, grams)


def made_by(prediction: Prediction) -> Made:
    """What a predicted pass makes: tokens of a language model's phase, else samples."""
    step, several = prediction.generation, prediction.parallel
    samples, taken = float(prediction.batch_size), prediction.runtime_s
    energy, devices = prediction.energy_j, 1
    if several is not None:
        rate = several.samples_per_s
        samples, energy, devices = several.samples, several.energy_j, several.layout.ranks
        taken = Interval(samples / rate.value, samples / rate.high, samples / rate.low)
    elif prediction.training is not None:
        samples = prediction.training.samples
    unit, each = "sample", 1
    if isinstance(step, Generation):
        unit, each = "token", step.new_tokens
    elif isinstance(step, Step):
        unit, each = "token", max(step.tokens, 1)
    elif isinstance(prediction.images, Images):
        unit = prediction.images.noun
        each = 1 if several is None else prediction.images.images  # replicas count prompts
    reason = prediction.power_reason or "it is not known"
    return Made(prediction.device, unit, samples * each, taken, energy, devices, reason)


def footprint_of(prediction: Prediction, options: Mapping[str, Any]) -> Footprint | None:
    """The footprint that options ask for; None where they ask for none.

    Raises InputError: an impossible value, or energy that is needed and not known.
    """
    if all(options.get(name) is None for name in ASKED):
        return None
    terms, made = terms_in(options), made_by(prediction)
    lines = [*_energy(prediction, made, terms, options)]
    if terms.price is not None:
        lines += _money(prediction, made, price_of(terms.price, terms.currency, prediction.device))
    return Footprint(tuple(lines), terms.warnings)


def regions() -> dict[str, str]:
    """Names of the countries whose carbon is known, by code."""
    return countries()


def _intensity(asked: Mapping[str, Any]) -> Intensity | None:
    region, number = asked.get("region"), asked.get("carbon_intensity")
    if region is not None and number is not None:
        raise InputError(f"--region {region} and --carbon-intensity {number} both say it; leave one out")
    if region is not None:
        return of_region(str(region))
    return None if number is None else given(number)


def _energy(prediction: Prediction, made: Made, terms: Terms, options: Mapping[str, Any]) -> Iterator[Line]:
    """Joules, their carbon, and those of a training run."""
    if made.energy_j is None and any(options.get(name) is not None for name in OF_ENERGY):
        raise InputError(f"no energy of {made.device}: {made.reason}")
    if made.energy_j is None:
        return
    yield from energy_lines(made, terms)
    for name in ("tokens", "samples"):
        if (count := options.get(name)) is None:
            continue
        steps = _steps(prediction, made, name, count, options)
        total = times(terms.with_node(made, made.energy_j), terms.pue * steps / KWH_J)
        yield Line(f"training on {float(count):g} {name}", total, "kWh")
        if terms.intensity is not None:
            yield Line("carbon of the training", times(total, terms.intensity.grams_per_kwh), "g")


def energy_lines(made: Made, terms: Terms) -> Iterator[Line]:
    """Joules for each unit, then what the node and the site add, and the carbon of all.

    Raises InputError where energy is needed and not known.
    """
    unit, count, intensity = made.unit, made.count, terms.intensity
    if made.energy_j is None:
        if terms.overhead_w or terms.pue != 1 or intensity is not None:
            raise InputError(f"no energy of {made.device}: {made.reason}")
        return
    yield Line(f"energy per {unit}", times(made.energy_j, 1 / count), "J")
    total = terms.with_node(made, made.energy_j)
    if terms.overhead_w:
        about = f"{terms.overhead_w:g} W more" + (" for each device" if made.devices > 1 else "")
        yield Line(f"with the node per {unit}", times(total, 1 / count), "J", about)
    if terms.pue != 1:
        total = times(total, terms.pue)
        yield Line(f"with the site per {unit}", times(total, 1 / count), "J", f"PUE {terms.pue:g}")
    if intensity is not None:
        grams = times(total, intensity.grams_per_kwh / KWH_J * MILLION / count)
        about = f"{intensity.grams_per_kwh:.4g} g CO2e per kWh: {intensity.source}"
        yield Line(f"carbon per million {unit}s", grams, "g", about)


def _steps(prediction: Prediction, made: Made, name: str, count: float, options: Mapping[str, Any]) -> float:
    """Steps of a training run of `count` tokens or samples."""
    length = options.get("seq_len") if name == "tokens" else 1
    if prediction.training is None or not length:
        more = " and --seq-len" if name == "tokens" else ""
        raise InputError(f"--{name} {count:g}: is of a training run; add --phase training{more}")
    if not count > 0:
        raise InputError(f"--{name} {count:g}: must be more than 0")
    return float(count) / (made.count * float(length))


def _money(prediction: Prediction, made: Made, price: Price) -> Iterator[Line]:
    """Prices of a million tokens in and out, or of a million samples."""
    step = prediction.generation
    second = price.per_hour * made.devices / HOUR_S * MILLION
    about = f"{price.per_hour:g} {price.currency}/h" + (
        f" for each of {made.devices}" if made.devices > 1 else ""
    )
    if isinstance(step, Generation):
        first, whole = step.time_to_first_token_s, made.taken_s
        samples = made.count / step.new_tokens
        read, later = samples * step.prompt, samples * (step.new_tokens - 1)
        yield Line("price per million tokens in", times(first, second / max(read, 1)), price.currency, about)
        if later:
            rest = Interval(*(max(getattr(whole, b) - getattr(first, b), 0.0) for b in BOUNDS))
            yield Line("price per million tokens out", times(rest, second / later), price.currency, about)
        return
    if isinstance(prediction.images, Images):  # one of them costs enough to be said alone
        cost = times(made.taken_s, second / MILLION / made.count)
        yield Line(f"price per {made.unit}", cost, price.currency, about)
        return
    side = {PREFILL: " in", DECODE: " out"}.get(prediction.phase, "")
    cost = times(made.taken_s, second / made.count)
    yield Line(f"price per million {made.unit}s{side}", cost, price.currency, about)


def times(value: Interval, factor: float) -> Interval:
    """A value and its bounds, each times a factor."""
    return Interval(*(getattr(value, bound) * factor for bound in BOUNDS))
