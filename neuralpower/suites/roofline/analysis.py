"""Analyse the data: chips, rank correlations, verdicts, gaps, pairs that FLOP order correctly or wrongly."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from neuralpower.devices.spec import DeviceSpec, known_specs, read_spec
from neuralpower.dtypes import DTYPES, PEAK, PEAKS
from neuralpower.report.charts import XY, Series
from neuralpower.report.page import Cell, Columns, Table
from neuralpower.suites.roofline.records import (
    OK,
    Data,
    Device,
    Network,
    Point,
    Work,
)
from neuralpower.suites.roofs import BANDWIDTH, Roof, sheet_roof

# The chips of all spec sheets: peaks, bandwidth, and their derivations.

CLASS_NAMES = {"gpu": "GPU", "cpu": "CPU", "tpu": "ASIC (TPU)", "soc": "SoC"}
FILLERS = re.compile("(NVIDIA|Google Cloud|Google|AMD Instinct|AMD|Intel|AWS|GeForce|Platinum|Tesla) ")
MIXED = ("bfloat16", "float16", "float32")  # the dtype in which chips are compared: the first that a chip has

DATA_CENTRE = """
    nvidia-t4 nvidia-v100-sxm2-32gb nvidia-a100-sxm4-80gb nvidia-h100-sxm5-80gb
    nvidia-h200-sxm-141gb nvidia-b200 nvidia-l4 amd-instinct-mi210 amd-instinct-mi300x
    google-tpu-v2 google-tpu-v4 google-tpu-v5e google-tpu-v6e
    intel-xeon-platinum-8480 amd-epyc-9654 aws-graviton3
""".split()
MOBILE = """
    apple-m1 apple-m1-max apple-m2 nvidia-jetson-orin-nano-8gb
    nvidia-jetson-orin-nano-super-8gb nvidia-jetson-agx-orin-64gb
    nvidia-rtx-3090 nvidia-rtx-4090 nvidia-rtx-5090
""".split()


def chip_sheets() -> list[DeviceSpec]:
    """All shipped ones, by class and year."""
    found = [read_spec(path) for path in known_specs().values()]
    return sorted(found, key=lambda s: (s.device_class, s.year or 0, s.name))


def compared_roof(sheet: DeviceSpec) -> Roof:
    """The roof of a chip, with its short name, in the dtype of comparison; that dtype is its `origin`."""
    peaks = sheet.peak_flops
    dtype = next((dtype for dtype in MIXED if dtype in peaks), next(iter(peaks)))
    found = sheet_roof(sheet, dtype, short_name(sheet), dtype)
    assert found is not None  # every sheet has a peak and a bandwidth
    return found


def short_name(chip: DeviceSpec) -> str:
    """The name without its maker and fillers."""
    return FILLERS.sub("", chip.name).partition(",")[0]


def _peak(dtype: str) -> Callable[[DeviceSpec], Cell]:
    return lambda chip: chip.peak_flops[dtype] / 1e12 if dtype in chip.peak_flops else None


def chip_table(chips: Sequence[DeviceSpec]) -> Table:
    """One row per chip; FLOP/s in 1e12, B/s in 1e9."""
    dtypes = [dtype for dtype in PEAKS if any(dtype in chip.peak_flops for chip in chips)]
    note = (
        "Dense peaks, without sparsity; int8 in 1e12 operations/s. "
        "The ridge uses bfloat16 or float16 if the chip has it, else float32."
    )
    columns: Columns[DeviceSpec] = {
        "chip": lambda chip: chip.name,
        "class": lambda chip: CLASS_NAMES[chip.device_class],
        "year": lambda chip: None if chip.year is None else str(chip.year),
        **{f"{DTYPES[dtype].label or dtype}, TFLOP/s": _peak(dtype) for dtype in dtypes},
        "memory, GB/s": lambda chip: chip.values[BANDWIDTH].value / 1e9,
        "ridge, FLOP/B": lambda chip: compared_roof(chip).ridge,
    }
    return Table.of("Peak FLOP/s and memory bandwidth of chips", chips, columns, note)


def chip_sources(chips: Sequence[DeviceSpec]) -> Table:
    """Sources or derivations of the compared peak and the bandwidth."""
    columns: Columns[DeviceSpec] = {
        "chip": lambda chip: chip.name,
        "type": lambda chip: compared_roof(chip).origin,
        "peak: how derived, source": lambda chip: chip.values[PEAK + compared_roof(chip).origin].source,
        "memory: how derived, source": lambda chip: chip.values[BANDWIDTH].source,
    }
    return Table.of("Sources of the peaks and bandwidths", chips, columns)


def chip_roofline(title: str, chips: Sequence[DeviceSpec], measured: Sequence[Roof] = ()) -> XY:
    """Roofs of chips, and measured ones, over the operational intensity, with names at their ridges."""
    roofs = [*map(compared_roof, chips), *measured]
    ridges = [roof.ridge for roof in roofs]
    low, high = min(ridges) / 30, max(ridges) * 8
    series: list[Series] = []
    for roof in sorted(roofs, key=lambda roof: -roof.flops_per_s):
        name = f"{roof.device} ({'measured' if roof.samples else roof.origin})"
        figures = f"{roof.flops_per_s / 1e12:.4g} TFLOP/s, {roof.bytes_per_s / 1e9:.4g} GB/s"
        bend = (roof.ridge, roof.flops_per_s, f"{name}: {figures}, ridge {roof.ridge:.3g} FLOP/B")
        ends = [(low, low * roof.bytes_per_s, ""), bend, (high, roof.flops_per_s, "")]
        labels = ("", "", f"{roof.device} (measured here)" if roof.samples else roof.device)
        series.append(Series.of(name, ends, labels=labels, mode="lines", dash=len(series) % 2 == 1))
    note = "At a line's bend, memory and arithmetic take equally long. "
    note += "The legend has the dtype of the peak in brackets."
    axes = ("operational intensity, FLOP/B", "attainable FLOP/s")
    return XY(title, *axes, tuple(series), True, True, note=note)


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
