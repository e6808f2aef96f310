"""Analyse the data: rank correlations, verdicts, gaps, pairs that FLOP order correctly or wrongly."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from neuralpower.suites.roofline.records import (
    OK,
    Data,
    Device,
    Network,
    Point,
    Work,
)
from neuralpower.suites.roofs import Roof

Method = Literal["Spearman", "Kendall"]
FEWEST = 5  # fewest networks for a rank correlation: with fewer, any order is likely by chance
NEAR = 1.5  # factor of a ratio of FLOP within which a ratio of times is near it
COVERED = 0.5  # least share of a predicted time that must be trained for an example
FLOP, PARAMETERS = "FLOP", "parameters"


@dataclass(frozen=True)
class Correlation:
    """Rank correlations of times, FLOP and parameters; `values` [names][names], None for too few networks."""

    batch_size: int
    method: Method
    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    networks: int

    def of(self, a: str, b: str) -> float | None:
        return self.values[self.names.index(a)][self.names.index(b)]


@dataclass(frozen=True)
class Placement:
    """A batch of a network under a roof of a device, with its time if requested."""

    network: Network
    device: Device
    roof: Roof
    work: Work
    runtime_s: float = math.nan

    @property
    def intensity(self) -> float:
        return self.work.intensity or 0.0

    @property
    def bound(self) -> str:
        """Either "memory" or "compute": the side of the ridge on which the network lies."""
        return "memory" if self.intensity < self.roof.ridge else "compute"

    @property
    def memory_share(self) -> float:
        """Share of the time on the roof that calls below the ridge take."""
        return self.work.memory_share(self.roof)

    @property
    def flops_per_s(self) -> float:
        return self.work.flops / self.runtime_s

    @property
    def of_peak(self) -> float:
        """Share of the peak, 1 at the most."""
        return min(1.0, self.flops_per_s / self.roof.flops_per_s)

    @property
    def of_attainable(self) -> float:
        """Share of the roof above its intensity, 1 at the most."""
        return min(1.0, self.flops_per_s / self.roof.attainable(self.intensity))

    @property
    def clipped(self) -> bool:
        """Whether it would lie above the roof: `of_attainable` is cut off at 1."""
        return self.flops_per_s > self.roof.attainable(self.intensity)


@dataclass(frozen=True)
class Pair:
    """Two networks at one batch size on one device: ratios of first over second."""

    first: Network
    second: Network
    flops: float
    runtime: float

    @property
    def error(self) -> float:
        """Factor between the ratio of times and the ratio of FLOP, 1 or more."""
        return math.exp(abs(math.log(self.flops / self.runtime)))

    @property
    def parameters(self) -> float:
        return self.first.parameters / max(self.second.parameters, 1)

    @property
    def misleads(self) -> float:
        """Factor by which parameters get the order of the times wrong; 0 if they do not."""
        wrong = (self.parameters - 1) * (self.runtime - 1) < 0 and self.parameters
        return max(self.runtime / self.parameters, self.parameters / self.runtime) if wrong else 0.0


@dataclass(frozen=True)
class View:
    """The data of the networks and batch sizes that a report is about."""

    data: Data
    models: tuple[str, ...]
    batch_sizes: tuple[int, ...]

    @property
    def networks(self) -> list[Network]:
        return [n for m in self.models if (n := self.data.find(Network, m)) is not None]

    def work(self, network: Network, batch_size: int) -> Work:
        return self.data.get(Work, network.model, batch_size)

    def point(self, network: Network, device: Device, batch_size: int) -> Point | None:
        """Point of a network at a batch size on a device."""
        return self.data.find(Point, network.model, device.name, batch_size)

    def runtime_s(self, network: Network, device: Device, batch_size: int) -> float | None:
        """Time of a forward pass; None if unknown."""
        point = self.point(network, device, batch_size)
        return point.runtime_s if point is not None and point.status == OK and point.runtime_s else None

    def bounds_s(self, network: Network, device: Device, batch_size: int) -> tuple[float, ...]:
        """Both bounds of a predicted time; none of a measured one."""
        point = self.point(network, device, batch_size)
        return () if point is None else point.bounds_s

    def roofs(self, device: Device) -> list[Roof]:
        """Roofs of a device: the measured one first, then its data sheet's."""
        return sorted((r for r in self.data.roofs if r.device == device.name), key=lambda r: -r.samples)

    def roof(self, device: Device) -> Roof | None:
        """The roof for verdicts: the measured one, if there is one."""
        return next(iter(self.roofs(device)), None)


def correlation(view: View, batch_size: int, method: Method) -> Correlation:
    """Rank correlations over the networks that have a time on every device at that batch size."""
    import pandas as pd

    rows = []
    for network in view.networks:
        times = [view.runtime_s(network, device, batch_size) for device in view.data.devices]
        if None not in times:
            rows.append([*times, view.work(network, batch_size).flops, network.parameters])
    names = [*(f"runtime, {device.name}" for device in view.data.devices), FLOP, PARAMETERS]
    table = pd.DataFrame(rows, columns=names, dtype=float)
    ranks = table.loc[:, table.nunique() > 1].corr("spearman" if method == "Spearman" else "kendall", FEWEST)
    values = ranks.reindex(index=names, columns=names).to_numpy(float)
    known = tuple(tuple(None if math.isnan(v) else float(v) for v in row) for row in values)
    return Correlation(batch_size, method, tuple(names), known, len(rows))


def verdicts(view: View, batch_size: int) -> list[Placement]:
    """Every network under the roof of every device that has one."""
    found = []
    for network, device in itertools.product(view.networks, view.data.devices):
        roof, work = view.roof(device), view.work(network, batch_size)
        if roof is not None and work.intensity is not None:
            found.append(Placement(network, device, roof, work))
    return found


def gaps(view: View, device: Device, batch_size: int, roof: Roof) -> list[Placement]:
    """The networks that have a time on the device, under one of its roofs."""
    found = []
    for network in view.networks:
        seconds, work = view.runtime_s(network, device, batch_size), view.work(network, batch_size)
        if seconds and work.intensity:
            found.append(Placement(network, device, roof, work, seconds))
    return found


def pairs(view: View, device: Device, batch_size: int) -> list[Pair]:
    """Every pair of networks whose times are known well, the one with more FLOP first."""
    known = [
        (network, view.work(network, batch_size).flops, seconds)
        for network in view.networks
        if (seconds := view.runtime_s(network, device, batch_size))
        and (point := view.point(network, device, batch_size))
        and (point.coverage is None or point.coverage >= COVERED)
    ]
    ordered = sorted(known, key=lambda item: -item[1])
    return [Pair(a[0], b[0], a[1] / b[1], a[2] / b[2]) for a, b in itertools.combinations(ordered, 2) if b[1]]


def examples(view: View, device: Device) -> list[tuple[str, Pair, int]]:
    """(lesson, pair, batch size) of the pairs that show how times follow FLOP and parameters.

    First the pair of at least threefold FLOP whose ratio of times is nearest to that of FLOP, then that whose
    order FLOP get wrong by the largest factor, and, of its batch size, that whose order parameters do.
    """
    known = [(pair, batch) for batch in view.batch_sizes for pair in pairs(view, device, batch)]
    alike = [item for item in known if item[0].flops >= 3 and item[0].error <= NEAR]
    wrong = [item for item in known if item[0].runtime < 1 < item[0].flops]
    good = sorted(alike, key=lambda item: item[0].error)[:1]
    bad = sorted(wrong, key=lambda item: -item[0].error)[:1]
    if not known:
        return []
    batch = (bad or good or known[-1:])[0][1]
    misled = [item for item in known if item[1] == batch and item[0].misleads]
    misled = sorted(misled, key=lambda item: -item[0].misleads)[:1]
    shown = {"time follows FLOP": good, "FLOP mislead": bad, "parameters mislead": misled}
    return [(what, *item) for what, items in shown.items() for item in items]
