"""Breaches of a law by predictions of layers, over all accelerators, kinds and types.

python -m benchmarks.laws [--draws N] [--first SEED] [--devices NAME ...] [--listed N] [--engines]

A seeded sweep of each kind in each type is predicted on each device with a sheet, and held to

    its sheet         no faster than it allows, not many times slower (neuralpower/learn/unmeasured/laws.py)
    larger calls      in a tile, of the same alignment: no faster; one number more changes less than 2 %
    more bits         16 are not slower than 32, nor 8 than 16 where no row tells
    its twins         boards that differ in links alone take as long
    the whole         no part of a network takes longer than all of it

`before`: without the clamps. Calls that were measured on the device are exempt; so are those of a table too
large to be listed, of its sheet.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from neuralpower.devices.spec import DeviceSpec, find_spec, known_specs
from neuralpower.dtypes import DTYPES, FLOATING, floats_of
from neuralpower.layers import KINDS, Draw, Layer, attention, columns_of, latent_attention, matmul
from neuralpower.layers.columns import HALF, TILE, WHOLE, least_tile
from neuralpower.layers.rows import field_names, plain_dimensions
from neuralpower.learn import pricing
from neuralpower.learn.estimates import (
    BY_LAW,
    BY_NETWORKS,
    BY_PHYSICS,
    CARRIED,
    CARRIED_BY,
    IN_RANGE,
    MEASURED,
)
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.network_estimates import predict_many
from neuralpower.learn.notes import origins
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.unmeasured import laws
from neuralpower.learn.unmeasured.any_device import for_device
from neuralpower.learn.unmeasured.choosing import Choice
from neuralpower.learn.unmeasured.laws import least_s, most_s
from neuralpower.learn.unmeasured.twins import ROUNDED, octaves_apart
from neuralpower.platforms import platform_of

FASTER, SLOWER, FALLS, JUMPS, NARROW, APART, PART = (
    "faster than its sheet",
    "many times slower than its sheet",
    "falls as it grows in its tile",
    "jumps from a neighbour",
    "slower in fewer bits",
    "apart from its twin",
    "longer than the whole",
)
RULES = (FASTER, SLOWER, FALLS, JUMPS, NARROW, APART, PART)
ROUNDING = 1e-6  # of a time
NEIGHBOUR = 0.02  # by which one more number along a side may change a time, in one class of alignment
LIES = ("odd sides", "sides in pairs")  # traits by which neighbours are not of one class
CARRIED_ORIGINS = (CARRIED_BY, BY_NETWORKS, BY_PHYSICS)
Breach = tuple[str, Layer]


def accelerators(names: list[str] | None = None) -> list[DeviceSpec]:
    """The sheets of devices that run kernels."""
    specs = map(find_spec, names or known_specs())
    return [spec for spec in specs if platform_of(spec.hardware()).family != "cpu"]


def drawn(kind: type[Layer], dtype: str, seeds: range) -> list[Layer]:
    """Forward calls of a kind in a type."""
    layers = (dataclasses.replace(kind.sample(Draw(seed)), dtype=dtype) for seed in seeds)
    return [
        layer
        for layer in layers
        if layer.phase == "forward" and not layer.recurs and not layer.operand_types.quantised
    ]


def breaches(predictor: Predictor, layers: list[Layer]) -> Iterator[Breach]:
    """(Rule, layer) of each breach; layers are of one kind and type."""
    hardware = predictor.hardware
    if not layers or hardware is None:
        return
    columns = columns_of(type(layers[0]), layers)
    found = predictor.estimate(layers)
    t, basis = found.runtime_s, np.array(found.basis)
    free = (basis == MEASURED) | (t == 0)
    known = origins(predictor, found)  # what was measured on a twin counts as measured
    held = predictor.law is None or not predictor.law.exempt  # families whose calls are slower
    measured_here = [  # by a table that lists none of its calls
        regressor.unlisted and (one.twin is None or one.twin.differs_in_links(hardware))
        for one in (predictor, *predictor.others)
        for regressor in one.regressors.values()
    ]
    cached = "key_length" in field_names(type(columns))  # read once in each step: no table beats its memory
    table = np.array([number >= 0 and measured_here[number] and not cached for number in found.regressor])
    sheets = [
        one.hardware or hardware for one in (predictor, *predictor.others)
    ]  # each rounds a chip's numbers
    least = np.min([least_s(columns, sheet) for sheet in sheets], axis=0)
    rules = {
        FASTER: ~(table & np.isin(basis, (IN_RANGE, CARRIED))) & (t < least * (1 - ROUNDING)),
        SLOWER: held & np.isin(known, CARRIED_ORIGINS) & (t > most_s(columns, hardware) * (1 + ROUNDING)),
    }
    for rule, broken in rules.items():
        yield from ((rule, layers[i]) for i in np.flatnonzero(broken & ~free))
    yield from _beside(predictor, [layer for layer, out in zip(layers, free, strict=True) if not out])
    by_law = ~free & (found.regressor == BY_LAW)
    yield from _in_more_bits(predictor, layers, t, ~free, by_law)


def _beside(predictor: Predictor, layers: list[Layer]) -> Iterator[Breach]:
    """Breaches against the same layer with a larger size: the last of its tile and alignment, or the next."""
    pairs: list[tuple[str, Layer, Layer]] = []
    for layer in layers:
        for side in set(layer.dimensions) & set(plain_dimensions(type(layer))):
            size = getattr(layer, side)
            left = -size % int(least_tile(layer, size)) if size > TILE else 0
            for rule, larger in ((FALLS, size + left // WHOLE * WHOLE), (JUMPS, size + (left > 0))):
                grown = dataclasses.replace(layer, **{side: larger})
                alike = rule == FALLS or (size % HALF and larger % HALF)
                if larger > size and alike and grown.possible() and _grows(layer, grown):
                    pairs.append((rule, layer, grown))
    if not pairs:
        return
    every = [layer for _, *both in pairs for layer in both]
    lies = _lies(columns_of(type(every[0]), every)).reshape(len(pairs), 2, -1)
    apart = (lies[:, 0] != lies[:, 1]).any(axis=1) & np.array([rule == JUMPS for rule, *_ in pairs])
    found = predictor.estimate(every)
    times, measured = found.runtime_s.reshape(-1, 2), np.array(found.basis).reshape(-1, 2) == MEASURED
    free = apart | measured.any(axis=1)
    for (rule, layer, _), (t, other), exempt in zip(pairs, times, free, strict=True):
        broken = other < t * (1 - ROUNDING) if rule == FALLS else abs(other / t - 1) > NEIGHBOUR
        if broken and not exempt:
            yield rule, layer


def _grows(layer: Layer, larger: Layer) -> bool:
    """Whether it neither computes nor moves less."""
    return bool(larger.flops() >= layer.flops() and sum(larger.bytes()) >= sum(layer.bytes()))


def _lies(columns: Layer) -> Array:
    """How the sides of each lie in memory, [rows, LIES]."""
    traits, rows = columns.law.traits(columns), len(columns.dtype)
    every = {**traits.compute, **traits.memory}
    return np.stack([np.broadcast_to(np.asarray(every.get(name, 0.0)), (rows,)) for name in LIES], axis=1)


def _in_more_bits(
    predictor: Predictor, layers: list[Layer], t: Array, told: Array, by_law: Array
) -> Iterator[Breach]:
    """Breaches against the same layer in float32, and of 8 bits, where no row tells, in bfloat16."""
    dtype = layers[0].dtype
    bits = DTYPES[dtype].bits if dtype in FLOATING else 0
    for wide in laws.BOUNDED_BY.get(bits, ()) if bits < DTYPES["float32"].bits else ():
        if wide in predictor.dtypes:
            other = predictor.estimate([dataclasses.replace(layer, dtype=wide) for layer in layers])
            slower = (t > other.runtime_s * (1 + ROUNDING)) & (np.array(other.basis) != MEASURED)
            asked = by_law if bits < laws.HALF else told
            yield from ((NARROW, layers[i]) for i in np.flatnonzero(slower & asked))


@functools.lru_cache(maxsize=16)  # of a chip's boards
def _predictor(slug: str) -> Predictor:
    return for_device(find_spec(slug))


def apart(spec: DeviceSpec, layers: list[Layer]) -> Iterator[Breach]:
    """Breaches against a board of the same chip that differs in its links alone.

    Times that include the launches of one board's host are not compared.
    """
    sheets = (find_spec(slug) for slug in known_specs() if slug != spec.slug)
    alike = (one for one in sheets if spec.chip and one.chip == spec.chip)
    for twin in alike:
        if octaves_apart(spec.hardware(), twin.hardware()) < ROUNDED:
            some = [layer for layer in layers if _same_units(layer, spec, twin)]
            mine, other = (_predictor(one.slug).estimate(some) for one in (spec, twin))
            differs = abs(mine.runtime_s - other.runtime_s) > ROUNDED * mine.runtime_s
            launched = (mine.hidden_s > 0) | (other.hidden_s > 0)
            yield from ((APART, some[i]) for i in np.flatnonzero(differs & ~launched))


def _same_units(layer: Layer, spec: DeviceSpec, twin: DeviceSpec) -> bool:
    """Whether memory and the units that do the layer are the same: export rules cut FP64 and links."""
    peaks = (one.peak_flops.get(layer.dtype) for one in (spec, twin))
    return layer.law.bound_s(layer, spec.hardware()) is None and len(set(peaks)) == 1


def longer(predictor: Predictor, layers: list[Layer]) -> Iterator[Breach]:
    """Breaches of a network, of all these layers, by its first ones."""
    starts = [layers[:end] for end in range(1, len(layers) + 1)]
    totals = predict_many(predictor, starts).value
    yield from ((PART, layers[i + 1]) for i in np.flatnonzero(np.diff(totals) < -ROUNDING * totals[1:]))


@contextlib.contextmanager
def without_clamps(*, tiles: bool = True) -> Iterator[None]:
    """Predictions without what holds them; `tiles`: nor what makes sizes of a tile stand together."""

    def nowhere(columns: Layer, kept: object = ()) -> tuple[Layer, Array]:
        return columns, np.zeros(len(columns.dtype), dtype=bool)

    def free(value: float) -> object:
        return lambda columns, hardware: np.full(len(columns.dtype), value)

    instead: list[tuple[Any, str, Any]] = [
        (laws, "least_s", free(0.0)),
        (laws, "most_s", free(np.inf)),
        (Choice, "_by_bits", lambda self, columns, found: found),
        (laws, "in_more_bits", lambda *_: []),
    ]
    if tiles:
        instead += [
            (pricing, "in_tiles", nowhere),
            (attention, "between_powers", lambda *_: None),
            (latent_attention, "between_powers", lambda *_: None),
            (matmul, "between_tiles", lambda *_: None),
        ]
    with contextlib.ExitStack() as stack:
        for module, name, other in instead:
            stack.enter_context(mock.patch.object(module, name, other))
        yield


def of_device(spec: DeviceSpec, seeds: range, engines: bool) -> tuple[int, list[Breach]]:
    """(Layers that were asked, breaches) on a device."""
    predictor = _predictor(spec.slug) if engines else _predictor(spec.slug).of_torch()
    asked, found = 0, list[Breach]()
    for dtype in floats_of(spec.peak_flops):
        network: list[Layer] = []
        for kind in KINDS.values():
            layers = drawn(kind, dtype, seeds) if kind.by_default or engines else []
            asked, network = asked + len(layers), network + layers[:1]
            found += breaches(predictor, layers)
        found += [*longer(predictor, network), *apart(spec, network)]
    return asked, found


def main() -> None:
    """Print breaches by rule and by device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=40, help="layers of each kind and type on each device")
    parser.add_argument("--first", type=int, default=0, help="the first draw's seed")
    parser.add_argument("--devices", nargs="+", help="short names of devices; default: all with sheets")
    parser.add_argument("--listed", type=int, default=3, help="breaches to list of each device")
    parser.add_argument("--after", action="store_true", help="leave out the count without the clamps")
    parser.add_argument("--engines", action="store_true", help="engines' kernels, not torch's")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.draws)
    after, before, everything = Counter[str](), Counter[str](), 0
    for spec in accelerators(given.devices):
        freely: list[Breach] = []
        if not given.after:
            with without_clamps():
                _, freely = of_device(spec, seeds, given.engines)
        asked, found = of_device(spec, seeds, given.engines)
        before.update(rule for rule, _ in freely)
        after.update(rule for rule, _ in found)
        everything += asked
        print(f"{spec.slug}: {asked} layers, {len(freely)} breaches before the clamps, {len(found)} after")
        for name, some in (("before", freely), ("after", found)):
            for rule, layer in some[: given.listed]:
                print(f"  {name}: {rule}: {layer}", flush=True)
    print(f"\n{everything} layers\n\n| law | before the clamps | after |\n| --- | --- | --- |")
    for rule in RULES:
        print(f"| {rule} | {before[rule]} | {after[rule]} |")


if __name__ == "__main__":
    main()
