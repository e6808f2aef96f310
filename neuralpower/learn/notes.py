"""Notes on an answer: how its times are known, what was borrowed, and why the device may differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from neuralpower.layers import KINDS, Hardware, Layer, columns_of
from neuralpower.layers.columns import take
from neuralpower.learn import keys
from neuralpower.learn.estimates import (
    BARE,
    BASES,
    BORROWED,
    BY_BYTES,
    BY_ITS_BYTES,
    BY_LAW,
    BY_NETWORKS,
    BY_PHYSICS,
    BY_ROOFLINE,
    BY_WEIGHTS,
    CARRIED_BY,
    LIKE,
    ROOFLINE_FACTOR,
    TRAINED_HERE,
    Estimates,
    by_origin,
    in_words,
)
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.keys import EXACT, NEAR, Key
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.unmeasured.weight_only import said

ONLY = ("only there", "only here")  # ends of words on vector extensions (`devices.host.unlike`)
NOISY = 0.25  # median distance of a layer's quartiles, over its lower one, from which on a device was noisy


def origins(predictor: Predictor, found: Estimates) -> Array:
    """[layers], how the device's time of each is known: one of ORIGINS, or by a named board."""
    every = (predictor, *predictor.others)
    starts = np.cumsum([0, *(len(one.regressors) for one in every)])
    owner = np.searchsorted(starts, found.regressor, side="right") - 1
    trained = np.array([*map(_trained, every)])[np.clip(owner, 0, len(predictor.others))]
    by_bytes, borrowed = np.isin(found.regressor, (BY_BYTES, BY_WEIGHTS)), BASES.index(BORROWED)
    return np.select(
        [
            found.regressor == BY_ROOFLINE,
            by_bytes,
            found.regressor == BY_LAW,
            found.basis_code == borrowed,
        ],
        [BARE, BY_ITS_BYTES, BY_NETWORKS if predictor.law and predictor.law.taught else BY_PHYSICS, LIKE],
        trained,
    )


def _trained(predictor: Predictor) -> str:
    """How the times of its own regressors are known."""
    if predictor.twin is not None:
        return predictor.twin.origin
    return CARRIED_BY if predictor.carried else TRAINED_HERE


def origin(predictor: Predictor, found: Estimates, seconds: Array) -> str:
    """How the device's times are known, as text: by shares of `seconds` [layers], of a named device."""
    if not predictor.answers:
        return ""
    label, total = origins(predictor, found), max(float(np.sum(seconds)), 1e-30)
    return in_words({name: taken / total for name, taken in by_origin(label, seconds).items()})


def assumed(predictor: Predictor, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Notes on what was borrowed for calls without data, and on what is not known of the device."""
    different = list(dict.fromkeys(layers))
    texts = []
    for key, near in dict.fromkeys(_near(predictor, different)):
        borrowed = f"borrowed from {keys.named(near)}, within a factor of {ROOFLINE_FACTOR:g}"
        texts.append(said(key) or f"{keys.named(key)} was not measured: time {borrowed}")
    hardware = predictor.known_hardware()
    texts += _bounded(predictor, different, hardware)
    if any(layer.multiplies for layer in different):
        unknown = list(predictor.view.unknown(hardware))
        if unknown:
            texts.append(
                f"{predictor.device} states no {' and no '.join(unknown)}: "
                "matrix products are assumed to reach the peak"
            )
    wider = next((one.dataset["wider_for"] for one in predictor.others if "wider_for" in one.dataset), None)
    if wider := predictor.dataset.get("wider_for", wider):
        texts.append(f"no device by {wider} was measured: times are scaled from others, with wider bounds")
    told = ("name ", "cores ")  # by the warning
    unlike = [text for text in predictor.dataset.get("unlike") or () if not text.startswith(told)]
    if apart := [text for text in unlike if not text.endswith(ONLY)]:
        texts.append(f"the predictor's machine differs from this one: {'; '.join(apart)}")
    return tuple(texts)


def _bounded(predictor: Predictor, layers: Sequence[Layer], hardware: Hardware) -> Iterator[str]:
    """As text, the formulas for calls without data that neither memory nor FLOP bounds."""
    said: dict[str, list[str]] = {}
    for layer in layers:
        by = layer.law.bound_by(layer, hardware)
        if not by:
            continue
        ways = (layer, layer.law.instead(layer))
        columns = [columns_of(type(layer), [one]) for one in ways if one is not None]
        if all(predictor.choice.first(one)[1].max() < EXACT for one in columns):
            said.setdefault(by, []).append(f"{layer.kind} {layer.views.cpu.group(layer)}")
    for by, names in said.items():
        missing = ", ".join(dict.fromkeys(names))
        yield f"{missing} was not measured: time from {by}, within a factor of {ROOFLINE_FACTOR:g}"


def foreign(predictor: Predictor) -> tuple[str, ...]:
    """Warnings: why the device may differ from all training devices; bounds do not include that."""
    texts = []
    if unlike := predictor.dataset.get("unlike"):
        cores = predictor.hardware.cores if predictor.hardware is not None else 0
        said = f"no predictor for this machine ({predictor.dataset.get('here') or 'another CPU'})"
        if not any(text.startswith(("name ", "cores ")) for text in unlike):
            flags = all(text.endswith(ONLY) for text in unlike)
            said = f"this machine has other {'vector extensions' if flags else 'caches'}"
        way = f"Fix: neuralpower calibrate --from {predictor.name}"
        texts.append(f"{said}; values are for {predictor.device}, {cores:g} cores. {way}")
    texts += [f"skipped: {reason}" for reason in predictor.dataset.get("left_out") or ()]
    vendor = predictor.dataset.get("unknown_vendor")
    if vendor:
        texts.append(f"no device by {vendor} was measured; bounds may be too narrow")
    spread = predictor.dataset.get("spread") or 0.0
    if spread > NOISY:
        texts.append(f"the measuring machine was noisy: half of a layer's runs lie {spread:.0%} apart")
    return tuple(texts)


def _near(predictor: Predictor, layers: Sequence[Layer]) -> Iterator[tuple[Key, Key]]:
    """(A key without trained data, the key that stands in for it), for the layers with such a key."""
    asked = (predictor, *predictor.others)
    for kind in dict.fromkeys(layer.kind for layer in layers):
        columns = columns_of(KINDS[kind], [layer for layer in layers if layer.kind == kind])
        first, known = predictor.choice.first(columns)
        for i, one in enumerate(asked):
            index = np.flatnonzero((first == i) & (known == NEAR))
            for key, _ in one.own.lookup.by_key(take(columns, index)) if len(index) else ():
                near = one.own.lookup.of(key)[0]
                if near is not None:
                    yield key, near


def formula(predictor: Predictor, key: Key) -> str:
    """The base of one regressor in plain text; dimensions are the kind's fields."""
    r = predictor.regressors[key]
    parts = [
        f"{weight * r.factor:.4g}" + ("" if str(term) == "1" else f" {term}")
        for term, weight in zip(r.terms, r.weights, strict=True)
    ]
    kind, dtype, phase, group = key
    text = f"{kind}[{group}, {dtype}, {phase}] seconds = " + " + ".join(parts)
    if r.alignment:
        saved = " + ".join(f"{slope:.4g} {name}" for name, slope in r.alignment.slopes.items())
        text += f", times exp(-(1 - ({r.alignment.floor * r.factor:.4g} / seconds)^4) ({saved}))"
    if r.least > sum(weight for term, weight in zip(r.terms, r.weights, strict=True) if str(term) == "1"):
        text += f", at least {r.least * r.factor:.4g}"
    if r.short:
        text += f", {'plus' if r.short > 0 else 'less'} {abs(r.short) / r.factor:.4g} of their first "
        text += f"{r.factor * r.short_s * 1e6:.4g} us"
    return text
