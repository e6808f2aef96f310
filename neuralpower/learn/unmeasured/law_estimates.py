"""Estimates of calls by a law: where no regressor knows them, or where one is far from its rows."""

from __future__ import annotations

import dataclasses

import numpy as np

from neuralpower.layers import KINDS, columns_of
from neuralpower.layers.base import BACKWARD, GRADIENT, Layer
from neuralpower.layers.rows import field_names, from_row
from neuralpower.layers.training import backward_of
from neuralpower.learn.estimates import BASES, BY_LAW, CARRIED, HELD, NETWORKS, Estimates, Powers
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.regressor import NINETY
from neuralpower.learn.unmeasured import laws
from neuralpower.learn.unmeasured.prior import Law


def by_law(columns: Layer, law: Law, held_bytes: Array, power: Powers, seconds: Array) -> Estimates:
    """Estimates of calls, [rows]; `seconds` as `seconds_by_law` gives them."""
    basis = np.full(len(seconds), BASES.index(NETWORKS if law.taught else CARRIED))
    freely_s = seconds
    if not np.all(np.asarray(columns.phase) == BACKWARD):
        freely_s = law.seconds(columns)
        basis[(seconds > 0) & (seconds != freely_s)] = BASES.index(HELD)
    trained = law.trained or law.doubt
    gradients = np.broadcast_to(np.asarray(columns.phase) == GRADIENT, (len(seconds),))
    shared = np.where(gradients, trained.network, law.doubt.network)
    deviation = np.hypot(np.where(gradients, trained.call, law.doubt.call), shared)
    least = laws.least_s(columns, law.hardware)
    return Estimates(
        runtime_s=seconds,
        low_s=np.where(
            seconds > 0, np.maximum(seconds * np.exp(-NINETY * deviation), np.minimum(least, seconds)), 0
        ),
        high_s=seconds * np.exp(NINETY * deviation),
        shared=shared,
        hidden_s=np.zeros(len(seconds)),
        held_bytes=held_bytes,
        regressor=np.full(len(seconds), BY_LAW),
        exponent=np.zeros(len(seconds)),
        basis_code=basis,
        power_w=power[0],
        power_low_w=power[1],
        power_high_w=power[2],
        power_trained=power[3],
        withheld_s=np.maximum(freely_s - np.maximum(laws.most_s(columns, law.hardware), seconds), 0),
    )


def seconds_by_law(columns: Layer, law: Law) -> Array:
    """Seconds of calls, no less and no more than the laws allow, [rows]; 0 for calls that do no work.

    A backward pass takes as long as the forward passes that do its work.
    """
    if np.all(np.asarray(columns.phase) == BACKWARD):
        return _backward_s(columns, law)
    seconds = law.seconds(columns)
    for wider in laws.in_more_bits(columns, law.hardware):  # the same units do them, or more of them
        seconds = np.minimum(seconds, law.seconds(wider))
    return held(seconds, columns, law)


def held(seconds: Array, columns: Layer, law: Law) -> Array:
    """The seconds of calls within what the laws allow, [rows]; 0 stays for calls that do no work."""
    return np.where(seconds > 0, np.clip(seconds, *bounds_s(columns, law)), 0.0)


def bounds_s(columns: Layer, law: Law) -> tuple[Array, Array]:
    """(The least, the most) seconds that the laws allow, each [rows]."""
    least = laws.least_s(columns, law.hardware)
    none = np.full(len(least), np.inf)
    return least, none if law.exempt else np.maximum(laws.most_s(columns, law.hardware), least)


def _backward_s(columns: Layer, law: Law) -> Array:
    names, found = field_names(type(columns)), np.zeros(len(columns.dtype))
    parts: dict[str, list[tuple[int, Layer]]] = {}
    for i in range(len(found)):
        whole = from_row(type(columns), {name: getattr(columns, name)[i] for name in names})
        for part in backward_of(whole):
            parts.setdefault(part.kind, []).append((i, dataclasses.replace(part, phase=GRADIENT)))
    for kind, some in parts.items():
        places, layers = zip(*some, strict=True)
        np.add.at(found, list(places), seconds_by_law(columns_of(KINDS[kind], layers), law))
    return found


def faded(seconds: Array, by_law_s: Array, outside: Array) -> Array:
    """What a carried regressor says, which fades into the law with the octaves beyond its rows, [rows].

    An octave away both count alike, in logarithms.
    """
    own = 1 / (1 + outside**2)
    return np.asarray(np.maximum(seconds, 1e-12) ** own * np.maximum(by_law_s, 1e-12) ** (1 - own))
