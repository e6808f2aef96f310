"""What kernels take of which nobody measured any on a device: physics, with factors from whole networks.

    t = launch + ((a C)^4 + (b M)^4)^(1/4)    C: FLOP / peak, M: distinct bytes / bandwidth
    a, b = exp(sum of the factors of its kind and traits), at least 1: no kernel beats its device's sheet

The larger of compute and memory sets the pace, and near the ridge both count. Times hold the power limit of a
usual board: one that draws more of its limit takes longer (`watts.held_further`). Factors are known on three
levels: of all devices, of a family of devices, of one device. Each level holds what differs from the one
above (`prior_fit` trains them), so few rows move a factor a little and many decide it.
A factor nobody trained is 1 on top of those that its kind has.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.dtypes import DTYPES
from neuralpower.layers.base import GRADIENT, Layer
from neuralpower.layers.traits import PADDED, SIZES, steps
from neuralpower.learn.files.file_struct import Log, Part, Positive
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.unmeasured.laws import POWER, floors
from neuralpower.learn.watts import Demand, held_further, over_usual

COMPUTE, MEMORY = "compute", "memory"
STEEPEST = 0.45 * float(np.log(2))  # fall of a factor's logarithm with an octave of a size, at most
FEWEST = 50  # networks on a device whose families tell how far others lie
USUAL_BITS = 16  # of a product's numbers
Factors = Mapping[str, float]  # logarithms, by name


class Doubt(Part, frozen=True):
    """How far calls and networks lie from a prior: standard deviations of log(measured / predicted)."""

    call: Positive  # of one call, apart from what its network shares
    network: Positive  # that all calls of a network share


class Level(Part, frozen=True):
    """The factors of some devices, relative to the level above."""

    factors: dict[str, Log]
    networks: int = 0  # whole networks that they were trained on
    steps: int = 0  # steps of training that gradients were trained on
    rows: int = 0  # measured calls
    # of a family whose devices were held out, of a device whose few networks were; None: the prior's
    doubt: Doubt | None = None
    launch_s: Positive | None = None  # the least time of a family's kernels; None: the prior's


class Prior(Part, frozen=True):
    """Factors of all levels, and how far networks lie from them that were not known."""

    source: str
    launch_s: Positive  # the least time of a kernel
    everywhere: Level
    families: dict[str, Level]
    devices: dict[str, Level]
    of_device: Doubt  # networks of families that were held out, on devices that were not
    of_family: Doubt  # networks on a device that was held out, of a family that was not
    elsewhere: Doubt  # networks on devices of a family that was held out
    of_steps: Doubt  # gradients of families that were held out, on devices whose steps were not

    def on(self, hardware: Hardware, device: str, chip: str | None = None) -> Law:
        """The prior for a device, by its short name and its hardware."""
        family, own = family_of(hardware, chip), self.devices.get(device)
        levels = [self.everywhere, *(one for one in (self.families.get(family), own) if one is not None)]
        taught = own is not None and own.networks >= FEWEST
        doubt = self.of_device if taught else self.of_family if family in self.families else self.elsewhere
        unsure = self.families[family].doubt if family in self.families else None
        own_doubt = None if own is None else own.doubt
        factors: dict[str, float] = {}
        for level in levels:
            for name, factor in level.factors.items():
                factors[name] = factors.get(name, 0.0) + factor
        launch_s = next((one.launch_s for one in levels if one.launch_s is not None), self.launch_s)
        law = Law(
            device,
            hardware,
            _in_order(gentle(factors), hardware),
            launch_s,
            own_doubt or unsure or doubt,
            taught,
            unsure is not None,
        )
        trained = self.of_steps if own is not None and own.steps >= FEWEST else None
        return dataclasses.replace(law, timed=own is not None and own.networks > 0, trained=trained)


@dataclass(frozen=True)
class Law:
    """A prior on one device."""

    device: str  # its short name
    hardware: Hardware
    factors: Factors
    launch_s: float
    doubt: Doubt
    taught: bool  # whether networks on this very device trained it
    exempt: bool = False  # from `laws.most_s`, which holds for the makers that it was found on
    timed: bool = False  # whether any network ran on this very device
    trained: Doubt | None = None  # of gradients, where steps of training taught them on this very device

    def seconds(self, columns: Layer) -> Array:
        """Seconds of each call, [rows]; 0 for calls that do no work."""
        compute, memory = self.parts_s(columns)
        busy = (compute**POWER + memory**POWER) ** (1 / POWER)
        works = np.asarray(columns.flops() + sum(columns.bytes()) > 0)
        taken = busy + self.launches_s(columns)
        if over_usual(self.hardware, self.device) > 1:
            sides = Demand.sides(columns, self.hardware)
            taken = taken * held_further(sides, taken, self.hardware, self.device)
        return np.where(works, taken, 0.0)

    def parts_s(self, columns: Layer) -> list[Array]:
        """Seconds of each call's FLOP and of its bytes on a usual board, each [rows]."""
        traits, parts = columns.law.traits(columns), []
        floors_s = floors(columns, self.hardware, traits)
        for name, part_s, shares, least in zip(
            (COMPUTE, MEMORY), floors_s, traits[:2], least_factors(columns), strict=True
        ):
            log = np.zeros(len(part_s))
            for factor, share in named(columns, name, shares).items():
                if factor in self.factors:
                    log = log + self.factors[factor] * share
            parts.append(np.maximum(np.exp(log), least) * part_s)
        return parts

    def launches_s(self, columns: Layer) -> Array:
        """Seconds of each call's launches, [rows]."""
        launches = np.broadcast_to(np.asarray(columns.law.launches(columns), dtype=float), len(columns.dtype))
        return np.asarray(self.launch_s * np.maximum(launches, 1))

    def knows(self, columns: Layer) -> bool:
        name = columns.law.alike or columns.kind
        return any(f"{name} {part}" in self.factors for part in (COMPUTE, MEMORY))

    def times(self, factors: Factors) -> Law:
        """The same with further factors, as logarithms."""
        every = {
            name: self.factors.get(name, 0.0) + factors.get(name, 0.0) for name in {**self.factors, **factors}
        }
        return dataclasses.replace(self, factors=every)


def gentle(factors: Factors) -> dict[str, float]:
    """The factors where no size's steps fall so steeply that a larger call would take less time.

    Two sizes that grow together, as a product's columns and its tiles, may both fall by STEEPEST an octave.
    """
    series: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for name in factors:
        trait, _, size = name.rpartition(" ")
        if ": " in trait and size.isdigit():
            series[trait].append((float(np.log2(max(float(size), 1))), name))
    found = {name: min(log, STEEPEST) if name.endswith(PADDED) else log for name, log in factors.items()}
    for steps_of_one in series.values():
        ordered = sorted(steps_of_one)
        for (below, lower), (above, upper) in itertools.pairwise(ordered):
            found[upper] = max(found[upper], found[lower] - STEEPEST * (above - below))
    return found


def _in_order(factors: Factors, hardware: Hardware) -> dict[str, float]:
    """The factors by which products in 32 bits take no less time than in the usual 16."""
    peaks = hardware.peak_flops_per_s
    usual = max((peaks[name] for name in ("float16", "bfloat16") if name in peaks), default=None)
    if usual is None or "float32" not in peaks:
        return dict(factors)
    least = float(np.log(peaks["float32"] / usual))
    return {name: max(log, least) if name.endswith(": in float32") else log for name, log in factors.items()}


def named(columns: Layer, part: str, traits: Mapping[str, Any]) -> dict[str, Array]:
    """The factors of a part's time, by name, with each call's share of it, [rows].

    Calls that make gradients have further ones, of their kind and of its traits but for sizes.
    """
    rows, kind = len(columns.dtype), f"{columns.law.alike or columns.kind} {part}"
    every = {**traits, **(steps("bytes", sum(columns.bytes()), SIZES) if part == MEMORY else _types(columns))}
    shares = {part: 1.0, kind: 1.0, **{f"{kind}: {trait}": share for trait, share in every.items()}}
    back = np.asarray(columns.phase) == GRADIENT
    if np.any(back):
        sorts = {trait: share * back for trait, share in traits.items() if not trait[-1].isdigit()}
        back_kind = f"{kind} {GRADIENT}"
        shares |= {back_kind: 1.0 * back, **{f"{back_kind}: {name}": share for name, share in sorts.items()}}
    return {name: np.broadcast_to(np.asarray(share, dtype=float), (rows,)) for name, share in shares.items()}


def _types(columns: Layer) -> dict[str, Any]:
    """The types of products that are not the usual 16 bits: each has units of its own, but on lanes."""
    names: list[str] = np.unique(np.asarray(columns.dtype, dtype=str)).tolist() if columns.multiplies else []
    units = 1.0 - np.asarray(columns.law.traits(columns).lanes)
    return {
        f"in {name}": units * (columns.dtype == name)
        for name in names
        if DTYPES[str(name)].bits != USUAL_BITS
    }


def least_factors(columns: Layer) -> tuple[Any, Any]:
    """The least factors of compute and memory: 1, but for FLOP that are counted and not needed."""
    flops = np.maximum(columns.flops(), 1)
    return np.minimum(columns.law.needed_flops(columns) / flops, 1.0), 1.0


def family_of(hardware: Hardware, chip: str | None = None) -> str:
    """The generation of a device's chip, by how its name begins ("AD102": AD1); else its maker.

    Apple's chips have no such names, and all run the same kernels of torch, on cores of as many lanes.
    """
    generation = re.match("[A-Z]{2}[0-9]", chip or "")
    return generation.group(0) if generation else hardware.platform
