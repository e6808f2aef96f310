"""What follows from the figures: rank correlations, verdicts, gaps, pairs that FLOP order rightly or wrongly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from neuralpower.suites.roofline.records import OK, Data, Device, Network, Point, Roof, Work

Method = Literal["Spearman", "Kendall"]
FEWEST = 3  # networks for a rank correlation
NEAR = 1.5  # times a ratio of FLOP: within it a ratio of times is near
COVERED = (
    0.5  # share of a predicted time that regressors must account for, before it is an example of anything
)
FLOP, PARAMETERS = "FLOP", "parameters"


@dataclass(frozen=True)
class Correlation:
    """Rank correlations of what networks take and what they are; `values` [names][names], None for too few networks."""

    batch_size: int
    method: Method
    names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    networks: int

    def of(self, a: str, b: str) -> float | None:
        """Of two names."""
        return self.values[self.names.index(a)][self.names.index(b)]


@dataclass(frozen=True)
class Verdict:
    """On which side of a device's ridge a network lies."""

    network: Network
    device: Device
    batch_size: int
    intensity: float
    ridge: float
    memory_share: float  # of the time on the roof, that calls below the ridge take

    @property
    def bound(self) -> str:
        """Memory or compute."""
        return "memory" if self.intensity < self.ridge else "compute"

    @property
    def mixture(self) -> float:
        """Share of the time of layers that are bound by what fewer are."""
        return min(self.memory_share, 1 - self.memory_share)


@dataclass(frozen=True)
class Gap:
    """What a network reaches of a roof."""

    network: Network
    device: Device
    batch_size: int
    roof: Roof
    intensity: float
    flops_per_s: float

    @property
    def of_peak(self) -> float:
        """Share of the peak."""
        return self.flops_per_s / self.roof.flops_per_s

    @property
    def of_attainable(self) -> float:
        """Share of the roof above its intensity."""
        return self.flops_per_s / self.roof.attainable(self.intensity)


@dataclass(frozen=True)
class Pair:
    """Two networks at one batch size on one device: ratios of first over second."""

    first: Network
    second: Network
    flops: float
    runtime: float

    @property
    def error(self) -> float:
        """Factor by which the times differ from what the FLOP say, above or below."""
        return math.exp(abs(math.log(self.flops / self.runtime)))

    @property
    def parameters(self) -> float:
        """Ratio of parameters."""
        return self.first.parameters / max(self.second.parameters, 1)


@dataclass(frozen=True)
class View:
    """The data of the networks and batch sizes that a report is about."""

    data: Data
    models: tuple[str, ...]
    batch_sizes: tuple[int, ...]

    @property
    def networks(self) -> list[Network]:
        """In the report's order."""
        return [n for m in self.models if (n := self.data.network(m)) is not None]

    def work(self, network: Network, batch_size: int) -> Work | None:
        """Of a network and batch."""
        return self.data.work(network.model, batch_size)

    def point(self, network: Network, device: Device, batch_size: int) -> Point | None:
        """A point with a time; None without."""
        point = self.data.point(network.model, device.name, batch_size)
        return point if point is not None and point.status == OK and point.runtime_s else None

    def runtime_s(self, network: Network, device: Device, batch_size: int) -> float | None:
        """Of a forward pass."""
        point = self.point(network, device, batch_size)
        return point.runtime_s if point else None

    def roofs(self, device: Device) -> list[Roof]:
        """Of a device: the measured one first, then its data sheet's."""
        return sorted((r for r in self.data.roofs if r.device == device.name), key=lambda r: -r.samples)

    def roof(self, device: Device) -> Roof | None:
        """The roof that verdicts are made by: the measured one where there is one."""
        return next(iter(self.roofs(device)), None)


def correlation(view: View, batch_size: int, method: Method) -> Correlation:
    """Over the networks that have a time on every device at that batch size."""
    import pandas as pd

    rows = []
    for network in view.networks:
        times = [view.runtime_s(network, device, batch_size) for device in view.data.devices]
        work = view.work(network, batch_size)
        if work is not None and None not in times:
            rows.append([*times, work.flops, network.parameters])
    names = [*(device.label for device in view.data.devices), FLOP, PARAMETERS]
    table = pd.DataFrame(rows, columns=names, dtype=float)
    ranks = table.loc[:, table.nunique() > 1].corr("spearman" if method == "Spearman" else "kendall", FEWEST)
    values = ranks.reindex(index=names, columns=names).to_numpy(float)
    known = tuple(tuple(None if math.isnan(v) else float(v) for v in row) for row in values)
    return Correlation(batch_size, method, tuple(names), known, len(rows))


def verdicts(view: View, batch_size: int) -> list[Verdict]:
    """Of every network on every device that has a roof."""
    found = []
    for network, device in itertools.product(view.networks, view.data.devices):
        work, roof = view.work(network, batch_size), view.roof(device)
        if work is not None and roof is not None and work.intensity is not None:
            share = memory_share(work, roof)
            found.append(Verdict(network, device, batch_size, work.intensity, roof.ridge, share))
    return found


def memory_share(work: Work, roof: Roof) -> float:
    """Share of the least time on the roof that goes to calls below the ridge: sum over calls of max(FLOP/F, B/B)."""
    seconds = [max(c.flops / roof.flops_per_s, c.bytes / roof.bytes_per_s) for c in work.calls]
    memory = sum(s for s, c in zip(seconds, work.calls, strict=True) if c.flops < c.bytes * roof.ridge)
    return memory / sum(seconds) if sum(seconds) else 0.0


def gaps(view: View, device: Device, batch_size: int, roof: Roof) -> list[Gap]:
    """Of the networks that have a time."""
    found = []
    for network in view.networks:
        seconds, work = view.runtime_s(network, device, batch_size), view.work(network, batch_size)
        if seconds and work is not None and work.intensity:
            found.append(Gap(network, device, batch_size, roof, work.intensity, work.flops / seconds))
    return found


def pairs(view: View, device: Device, batch_size: int) -> list[Pair]:
    """Every two networks whose times are known well, the one with more FLOP first."""
    known = [
        (network, work.flops, point.runtime_s)
        for network in view.networks
        if (work := view.work(network, batch_size))
        and (point := view.point(network, device, batch_size))
        and point.runtime_s
        and (point.coverage is None or point.coverage >= COVERED)
    ]
    ordered = sorted(known, key=lambda item: -item[1])
    return [Pair(a[0], b[0], a[1] / b[1], a[2] / b[2]) for a, b in itertools.combinations(ordered, 2) if b[1]]


def is_guess(view: View, device: Device, batch_size: int, *networks: Network) -> bool:
    """Whether most FLOP of one of the networks lie in kinds that the device's predictor never saw."""
    works = [work for network in networks if (work := view.work(network, batch_size))]
    unknown = [sum(c.flops for c in work.calls if c.kind in device.unknown_kinds) for work in works]
    return any(2 * flops > work.flops for flops, work in zip(unknown, works, strict=True))


def inverted(found: Sequence[Pair]) -> Pair | None:
    """The pair whose order FLOP get wrong by the largest factor; None where the order is right throughout."""
    wrong = [pair for pair in found if pair.runtime < 1 < pair.flops]
    return max(wrong, key=lambda pair: pair.error, default=None)


def proportional(found: Sequence[Pair]) -> Pair | None:
    """The pair that differs at least threefold in FLOP and comes nearest to the same ratio in time; None if none does."""
    far = [pair for pair in found if pair.flops >= 3 and pair.error <= NEAR]
    return min(far, key=lambda pair: pair.error, default=None)


def misled(found: Sequence[Pair]) -> Pair | None:
    """The pair whose order parameters get wrong by the largest factor; None where none is wrong."""
    wrong = [pair for pair in found if (pair.parameters - 1) * (pair.runtime - 1) < 0 and pair.parameters]
    return max(wrong, key=_parameter_error, default=None)


def _parameter_error(pair: Pair) -> float:
    return max(pair.runtime / pair.parameters, pair.parameters / pair.runtime)


def examples(view: View, device: Device) -> dict[str, Any]:
    """The `good` and `bad` example of FLOP that say the time, as (pair, batch size); what parameters `misled` in.

    The last is of the batch size of the one before. Empty where no two networks can be compared.
    """
    known = [(found, batch) for batch in view.batch_sizes if (found := pairs(view, device, batch))]
    if not known:
        return {}
    alike = [(pair, batch) for found, batch in known if (pair := proportional(found))]
    wrong = [(pair, batch) for found, batch in known if (pair := inverted(found))]
    good = min(alike, key=lambda item: item[0].error, default=None)
    bad = max(wrong, key=lambda item: item[0].error, default=None)
    batch = (bad or good or known[-1])[1]
    return {"good": good, "bad": bad, "misled": misled(pairs(view, device, batch))}


def gains(view: View, device: Device) -> list[tuple[str, float]]:
    """By which factor each network's throughput grows from the smallest batch to the largest."""
    first, last = view.batch_sizes[0], view.batch_sizes[-1]
    found = []
    for network in view.networks:
        small, large = (view.runtime_s(network, device, batch) for batch in (first, last))
        if small and large and last > first:
            found.append((network.label, (last / large) / (first / small)))
    return found
