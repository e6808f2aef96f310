"""The chips of all spec sheets: peaks, bandwidth, and their derivations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from neuralpower.devices.spec import DeviceSpec, known_specs, read_spec
from neuralpower.dtypes import DTYPES, PEAK, PEAKS
from neuralpower.report.charts import XY, Series
from neuralpower.report.page import Cell, Columns, Table
from neuralpower.suites.roofs import BANDWIDTH, Roof, sheet_roof

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
