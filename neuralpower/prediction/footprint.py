"""Joules, money and carbon of a pass for each token, sample or step: of the device, its node and its site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neuralpower.errors import InputError
from neuralpower.files.json_files import Declared
from neuralpower.networks.phases import DECODE, GENERATE, PREFILL
from neuralpower.prediction.carbon import Intensity, given, of_region
from neuralpower.prediction.generation import Generation, Step
from neuralpower.prediction.images import Images
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.prices import price_of
from neuralpower.prediction.rows import BOUNDS, Interval

HOUR_S, KWH_J, MILLION = 3600.0, 3.6e6, 1e6
ASKED = "node_overhead pue price currency region carbon_intensity tokens".split()


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


def footprint_of(prediction: Prediction, options: Mapping[str, Any]) -> Footprint | None:
    """The footprint that options ask for; None where they ask for none.

    Raises InputError: an impossible value, or energy that is needed and not known.
    """
    asked: dict[str, Any] = {name: options.get(name) for name in ASKED if options.get(name) is not None}
    if not asked:
        return None
    overhead_w, pue = float(asked.get("node_overhead", 0.0)), float(asked.get("pue", 1.0))
    if overhead_w < 0:
        raise InputError(f"node overhead {overhead_w:g} W: must be 0 or more")
    if not 1 <= pue < 10:
        raise InputError(f"PUE {pue:g}: must be 1 or more: energy of the site over that of its computers")
    intensity = _intensity(asked)
    lines = [*_energy(prediction, overhead_w, pue, asked.get("tokens"), options, intensity)]
    if "price" in asked:
        lines += _money(prediction, asked)
    elif "currency" in asked:
        raise InputError(f"--currency {asked['currency']}: no --price is given; add --price 2.49/h")
    warnings = (intensity.warning,) if intensity is not None and intensity.warning else ()
    return Footprint(tuple(lines), warnings)


def _intensity(asked: Mapping[str, Any]) -> Intensity | None:
    region, number = asked.get("region"), asked.get("carbon_intensity")
    if region is not None and number is not None:
        raise InputError(f"--region {region} and --carbon-intensity {number} both say it; leave one out")
    if region is not None:
        return of_region(str(region))
    return None if number is None else given(number)


def _energy(
    prediction: Prediction,
    overhead_w: float,
    pue: float,
    tokens: float | None,
    options: Mapping[str, Any],
    intensity: Intensity | None,
) -> Iterator[Line]:
    """Joules of a pass for each unit, then what the node and the site add, and the carbon of all."""
    several, runtime = prediction.parallel, prediction.runtime_s
    joules = prediction.energy_j if several is None else several.energy_j
    if joules is None:
        raise InputError(f"no energy of {prediction.device}: {prediction.power_reason or 'it is not known'}")
    unit, count = unit_of(prediction)
    yield Line(f"energy per {unit}", _times(joules, 1 / count), "J")
    total = joules
    if overhead_w:
        total = Interval(*(getattr(total, b) + overhead_w * getattr(runtime, b) for b in BOUNDS))
        yield Line(f"with the node per {unit}", _times(total, 1 / count), "J", f"{overhead_w:g} W more")
    if pue != 1:
        total = _times(total, pue)
        yield Line(f"with the site per {unit}", _times(total, 1 / count), "J", f"PUE {pue:g}")
    if intensity is not None:
        grams = _times(total, intensity.grams_per_kwh / KWH_J * MILLION / count)
        about = f"{intensity.grams_per_kwh:.4g} g CO2e per kWh: {intensity.source}"
        yield Line(f"carbon per million {unit}s", grams, "g", about)
    if tokens is not None:
        steps = _steps(prediction, tokens, options)
        yield Line(f"training on {float(tokens):g} tokens", _times(total, steps / KWH_J), "kWh")
        if intensity is not None:
            grams = _times(total, steps / KWH_J * intensity.grams_per_kwh)
            yield Line("carbon of the training", grams, "g")


def unit_of(prediction: Prediction) -> tuple[str, float]:
    """What a pass makes, and how many: tokens of a language model's phase, else samples."""
    step = prediction.generation
    if isinstance(step, Generation):
        return "token", prediction.batch_size * step.new_tokens
    if isinstance(step, Step):
        return "token", prediction.batch_size * max(step.tokens, 1)
    if isinstance(prediction.images, Images):
        return prediction.images.noun, prediction.images.made
    samples = prediction.batch_size if prediction.training is None else prediction.training.samples
    several = prediction.parallel
    return "sample", samples if several is None else several.samples


def _steps(prediction: Prediction, tokens: float, options: Mapping[str, Any]) -> float:
    """Steps of a training run."""
    length = options.get("seq_len")
    if prediction.training is None or not length:
        raise InputError(f"--tokens {tokens}: is of a training run; add --phase training and --seq-len")
    if not tokens > 0:
        raise InputError(f"--tokens {tokens}: must be more than 0")
    return float(tokens) / (unit_of(prediction)[1] * float(length))


def _money(prediction: Prediction, asked: Mapping[str, Any]) -> Iterator[Line]:
    """Prices of a million tokens in and out, or of a million samples."""
    price = price_of(asked["price"], asked.get("currency"), prediction.device)
    several, made = prediction.parallel, prediction.generation
    devices = 1 if several is None else several.layout.ranks
    second = price.per_hour * devices / HOUR_S * MILLION
    about = f"{price.per_hour:g} {price.currency}/h for each of {devices}" if devices > 1 else ""
    about = about or f"{price.per_hour:g} {price.currency}/h"
    if isinstance(made, Generation):
        first, whole = made.time_to_first_token_s, prediction.runtime_s
        read, later = prediction.batch_size * made.prompt, prediction.batch_size * (made.new_tokens - 1)
        yield Line("price per million tokens in", _times(first, second / max(read, 1)), price.currency, about)
        if later:
            rest = Interval(*(max(getattr(whole, b) - getattr(first, b), 0.0) for b in BOUNDS))
            yield Line("price per million tokens out", _times(rest, second / later), price.currency, about)
        return
    unit, count = unit_of(prediction)
    if isinstance(prediction.images, Images):  # one of them costs enough to be said alone
        yield Line(
            f"price per {unit}", _times(prediction.runtime_s, second / MILLION / count), price.currency, about
        )
        return
    side = {PREFILL: " in", DECODE: " out", GENERATE: " out"}.get(prediction.phase, "")
    cost = _times(prediction.runtime_s, second / count)
    yield Line(f"price per million {unit}s{side}", cost, price.currency, about)


def _times(value: Interval, factor: float) -> Interval:
    return Interval(*(getattr(value, bound) * factor for bound in BOUNDS))
