"""Breaches of a law by predictions of layers, over all accelerators, kinds and types.

python -m benchmarks.laws [--draws N] [--devices NAME ...] [--listed N]

A seeded sweep of each kind in each type is predicted on each device with a sheet. Each answer is held to what
its sheet allows (neuralpower/learn/laws.py), to the same layer with one number more along a side, and to the
same layer in more bits. `before`: without the clamps. Calls that were measured on the device are exempt.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np

from neuralpower.devices.spec import DeviceSpec, find_spec, known_specs
from neuralpower.dtypes import DTYPES, FLOATING, floats_of
from neuralpower.layers import KINDS, Draw, Layer, columns_of
from neuralpower.learn import laws
from neuralpower.learn.any_device import for_device
from neuralpower.learn.estimates import CARRIED, IN_RANGE, MEASURED, NETWORKS, Estimates
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.problem import Array
from neuralpower.platforms import platform_of

FASTER, SLOWER, FALLS, JUMPS, NARROW = (
    "faster than its sheet",
    "many times slower than its sheet",
    "falls as it grows",
    "jumps from a neighbour",
    "slower in fewer bits",
)
RULES = (FASTER, SLOWER, FALLS, JUMPS, NARROW)
ROUNDING = 1e-6  # of a time
NEIGHBOUR = 0.02  # by which one more number along a side may change a time, in one class of alignment
SMALL = 64  # sides below change by more than that in themselves
STEP = 32  # a side and its neighbour of the same alignment lie so far apart
SAME_CHIP = "the same chip"  # what was measured on a twin counts as measured
CARRIED_BASES = (CARRIED, NETWORKS)


def accelerators(names: list[str] | None = None) -> list[DeviceSpec]:
    """The sheets of devices that run kernels."""
    specs = map(find_spec, names or known_specs())
    return [spec for spec in specs if platform_of(spec.hardware()).family != "cpu"]


def drawn(kind: type[Layer], dtype: str, draws: int) -> list[Layer]:
    """Forward calls of a kind in a type."""
    layers = (dataclasses.replace(kind.sample(Draw(seed)), dtype=dtype) for seed in range(draws))
    return [
        layer for layer in layers if layer.phase == "forward" and not layer.recurs and not layer.quantised()
    ]


def breaches(
    predictor: Predictor, layers: list[Layer], *, clamped: bool = True
) -> Iterator[tuple[str, Layer]]:
    """(rule, layer) of each breach; layers are of one kind and type."""
    hardware = predictor.hardware
    if not layers or hardware is None:
        return
    columns = columns_of(type(layers[0]), layers)
    found = predictor.estimate(layers)
    t = found.runtime_s if clamped else _unclamped(predictor, columns, found)
    basis = np.array(found.basis)
    free = (basis == MEASURED) | (t == 0)
    twins = np.array([SAME_CHIP in origin for origin in predictor.origins(found)])
    held = predictor.law is None or not predictor.law.exempt  # families whose calls are slower
    rules = {
        FASTER: t < laws.least_s(columns, hardware) * (1 - ROUNDING),
        SLOWER: held
        & np.isin(basis, CARRIED_BASES)
        & ~twins
        & (t > laws.most_s(columns, hardware) * (1 + ROUNDING)),
    }
    for rule, broken in rules.items():
        yield from ((rule, layers[i]) for i in np.flatnonzero(broken & ~free))
    if not clamped:
        return
    for side in type(layers[0]).dimensions:
        yield from _beside(predictor, layers, t, free, side)
    yield from _in_more_bits(predictor, layers, t, free)


def _unclamped(predictor: Predictor, columns: Layer, found: Estimates) -> Array:
    """What the law says itself where it answers; the clamped answer elsewhere."""
    if predictor.law is None:
        return found.runtime_s
    by_law = np.isin(np.array(found.basis), (NETWORKS,)) | (found.regressor == -4)
    return np.where(by_law, predictor.law.seconds(columns), found.runtime_s)


def _beside(
    predictor: Predictor, layers: list[Layer], t: Array, free: Array, side: str
) -> Iterator[tuple[str, Layer]]:
    """Breaches against the same layer with STEP numbers more along a side, of the same alignment."""
    if side not in type(layers[0]).plain_dimensions():
        return
    at, larger = [], []
    for i, layer in enumerate(layers):
        size = getattr(layer, side)
        try:
            grown = dataclasses.replace(layer, **{side: size + STEP})
            fits = size >= SMALL and bool(grown.possible())
        except (ValueError, ZeroDivisionError):
            fits = False
        if fits and not free[i] and grown.flops() + sum(grown.bytes()) >= layer.flops() + sum(layer.bytes()):
            at.append(i)
            larger.append(grown)
    if not at:
        return
    other = predictor.estimate(larger)
    here = np.array(predictor.estimate([layers[i] for i in at]).basis)
    alike = (np.array(other.basis) == here) & (here != MEASURED)
    ratio = other.runtime_s / t[at]
    yield from ((FALLS, layers[at[j]]) for j in np.flatnonzero(alike & (ratio < 1 - ROUNDING)))


def _in_more_bits(
    predictor: Predictor, layers: list[Layer], t: Array, free: Array
) -> Iterator[tuple[str, Layer]]:
    """Breaches against the same layer in float32."""
    dtype = layers[0].dtype
    if dtype not in FLOATING or DTYPES[dtype].bits != 16 or "float32" not in predictor.dtypes:
        return
    wide = predictor.estimate([dataclasses.replace(layer, dtype="float32") for layer in layers])
    slower = (t > wide.runtime_s * (1 + ROUNDING)) & ~free & (np.array(wide.basis) != MEASURED)
    yield from ((NARROW, layers[i]) for i in np.flatnonzero(slower & (np.array(wide.basis) != IN_RANGE)))


def main() -> None:
    """Print breaches by rule and by kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=40, help="layers of each kind and type on each device")
    parser.add_argument("--devices", nargs="+", help="short names of devices; default: all with sheets")
    parser.add_argument("--listed", type=int, default=10, help="breaches to list")
    given = parser.parse_args()
    after, before, asked, listed = Counter[str](), Counter[str](), 0, 0
    for spec in accelerators(given.devices):
        predictor, so_far = for_device(spec).of_torch(), (asked, after.total())
        for dtype in floats_of(spec.peak_flops):
            for kind in KINDS.values():
                layers = drawn(kind, dtype, given.draws) if kind.by_default else []
                asked += len(layers)
                before.update(rule for rule, _ in breaches(predictor, layers, clamped=False))
                for rule, layer in breaches(predictor, layers):
                    after[rule] += 1
                    if listed < given.listed:
                        print(f"{spec.slug}: {rule}: {layer}", flush=True)
                        listed += 1
        layers_here, found_here = asked - so_far[0], after.total() - so_far[1]
        print(f"{spec.slug}: {layers_here} layers, {found_here} breaches", flush=True)
    print(f"\n{asked} layers\n\n| law | before the clamps | after |\n| --- | --- | --- |")
    for rule in RULES:
        print(f"| {rule} | {before[rule]} | {after[rule]} |")


if __name__ == "__main__":
    main()
