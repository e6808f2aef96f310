"""The chips of all spec sheets: peaks, bandwidth, and how each was derived."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from neuralpower.devices.spec import DeviceSpec, known_specs, read_spec
from neuralpower.dtypes import DTYPES, PEAKS
from neuralpower.report.charts import XY, Series
from neuralpower.report.page import Cell, Columns, Table
from neuralpower.suites.roofline.records import Roof

CLASS_NAMES = {"gpu": "GPU", "cpu": "CPU", "tpu": "ASIC (TPU)", "soc": "SoC"}
FILLERS = re.compile("(NVIDIA|Google Cloud|Google|AMD Instinct|AMD|Intel|AWS|GeForce|Platinum|Tesla) ")
MIXED = ("bfloat16", "float16", "float32")  # the type in which chips are compared: the first that a chip has

DATA_CENTRE = (
    *("nvidia-t4", "nvidia-v100-sxm2-32gb", "nvidia-a100-sxm4-80gb", "nvidia-h100-sxm5-80gb"),
    *("nvidia-h200-sxm-141gb", "nvidia-b200", "nvidia-l4", "amd-instinct-mi210", "amd-instinct-mi300x"),
    *(
        "google-tpu-v2",
        "google-tpu-v4",
        "google-tpu-v5e",
        "google-tpu-v6e",
        "intel-xeon-platinum-8480",
        "amd-epyc-9654",
        "aws-graviton3",
    ),
)
MOBILE = (
    *("apple-m1", "apple-m1-max", "apple-m2", "nvidia-jetson-orin-nano-8gb"),
    *(
        "nvidia-jetson-orin-nano-super-8gb",
        "nvidia-jetson-agx-orin-64gb",
        "nvidia-rtx-3090",
        "nvidia-rtx-4090",
        "nvidia-rtx-5090",
    ),
)


def sheets() -> list[DeviceSpec]:
    """All shipped ones, by class and year."""
    found = [read_spec(path) for path in known_specs().values()]
    return sorted(found, key=lambda s: (s.device_class, s.year or 0, s.name))


def best(sheet: DeviceSpec) -> tuple[str, float]:
    """The type in which a chip is compared, with its peak (FLOP/s)."""
    peaks = sheet.peak_flops
    dtype = next((d for d in MIXED if d in peaks), next(iter(peaks)))
    return dtype, peaks[dtype]


def bandwidth(sheet: DeviceSpec) -> float:
    """B/s; every sheet has it."""
    return float(sheet.get("memory_bytes_per_s") or 0.0)


def ridge(sheet: DeviceSpec) -> float:
    """FLOP per byte from which on the peak of `best` can be reached."""
    return best(sheet)[1] / bandwidth(sheet)


def _peak(dtype: str) -> Callable[[DeviceSpec], Cell]:
    return lambda chip: chip.peak_flops[dtype] / 1e12 if dtype in chip.peak_flops else None


def table(chips: Sequence[DeviceSpec]) -> Table:
    """One row per chip; FLOP/s in 1e12, B/s in 1e9."""
    dtypes = [dtype for dtype in PEAKS if any(dtype in chip.peak_flops for chip in chips)]
    names = {dtype: DTYPES[dtype].label or dtype for dtype in dtypes}
    note = (
        "Dense peaks, without sparsity; int8 in 1e12 operations/s. The ridge is that of bfloat16 or float16 "
        "where the chip has one, else of float32."
    )
    columns: Columns[DeviceSpec] = {
        "chip": lambda chip: chip.name,
        "class": lambda chip: CLASS_NAMES[chip.device_class],
        "year": lambda chip: None if chip.year is None else str(chip.year),
        **{f"{name}, TFLOP/s": _peak(dtype) for dtype, name in names.items()},
        "memory, GB/s": lambda chip: bandwidth(chip) / 1e9,
        "ridge, FLOP/B": ridge,
    }
    return Table.of("Peak FLOP/s and memory bandwidth of chips", chips, columns, note)


def sources(chips: Sequence[DeviceSpec]) -> Table:
    """Where the peak of `best` and the bandwidth stand, or how they follow."""
    columns: Columns[DeviceSpec] = {
        "chip": lambda chip: chip.name,
        "type": lambda chip: best(chip)[0],
        "peak: how derived, source": lambda chip: chip.values[f"peak_flops_{best(chip)[0]}"].source,
        "memory: how derived, source": lambda chip: chip.values["memory_bytes_per_s"].source,
    }
    return Table.of("Sources of the peaks and bandwidths", chips, columns)


def short_name(chip: DeviceSpec) -> str:
    """Without maker and fillers."""
    return FILLERS.sub("", chip.name).partition(",")[0]


def roofline(title: str, chips: Sequence[DeviceSpec], extra: Sequence[Roof] = ()) -> XY:
    """Roofs of chips over the operational intensity, named at their ridges."""
    lines = [(f"{short_name(c)} ({best(c)[0]})", short_name(c), best(c)[1], bandwidth(c)) for c in chips]
    for r in extra:
        lines.append((f"{r.device} (measured)", f"{r.device} (measured here)", r.flops_per_s, r.bytes_per_s))
    ridges = [flops / speed for _, _, flops, speed in lines]
    low, high = min(ridges) / 30, max(ridges) * 8
    series: list[Series] = []
    for name, label, flops, speed in sorted(lines, key=lambda line: -line[2]):
        bend = flops / speed
        what = f"{name}: {flops / 1e12:.4g} TFLOP/s, {speed / 1e9:.4g} GB/s, ridge {bend:.3g} FLOP/B"
        ends = [(low, low * speed, ""), (bend, flops, what), (high, flops, "")]
        dash = len(series) % 2 == 1
        series.append(Series.of(name, ends, labels=("", "", label), mode="lines", dash=dash))
    note = "Where a line bends, memory and arithmetic take equally long. "
    note += "Type of the peak: in brackets in the legend."
    axes = ("operational intensity, FLOP/B", "attainable FLOP/s")
    return XY(title, *axes, tuple(series), True, True, note=note)
