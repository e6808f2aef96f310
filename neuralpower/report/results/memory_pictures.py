"""Memory over time as a page, a picture, or a snapshot for PyTorch's own viewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from neuralpower.errors import InputError
from neuralpower.platforms import Platform
from neuralpower.prediction.memory.over_time import Lived, OverTime, fullest, lived, over_time
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.memory.snapshot import write_snapshot
from neuralpower.prediction.timeline import Omitted, Stage
from neuralpower.report.charts import PLOTS, Areas, BarSeries, check_plot
from neuralpower.report.number_format import SIZES, binary, unit_of
from neuralpower.report.page import Page, Section, Share, Table
from neuralpower.report.pictures import draw
from neuralpower.trace.lifetimes import INPUTS, OPTIMIZER, Storage

SNAPSHOT = ".pickle"
POINTS = 400  # at most, along the axis of time
LARGEST = 24  # storages in the table
HEADER = ("made by", "operator", "part", "size", "share", "from call", "to call")


def check_memory_picture(path: Path) -> None:
    """Raise InputError for an unknown ending, and for a picture without matplotlib."""
    if path.suffix not in (*PLOTS, SNAPSHOT):
        endings = ", ".join((*PLOTS, SNAPSHOT))
        raise InputError(f"memory picture {str(path)!r}: the ending must be one of {endings}; choose another")
    if path.suffix != SNAPSHOT:
        check_plot(path)


def of_stages(model: str, stages: Sequence[Stage | Omitted], platform: Platform) -> Lived:
    """The pass with the highest peak; raises InputError where it is not known what lives when."""
    known = [one for one in stages if isinstance(one, Stage) and one.has_memory]
    some = [lived(model, one.name, one.memory or one.trace, platform) for one in known]
    if not any(one.storages for one in some):
        raise InputError(
            f"{model}: no pass was followed on one device, so there is no picture; leave --memory-picture out"
        )
    return fullest([one for one in some if one.storages])


def write_memory(lived_pass: Lived, memory: Memory | None, path: Path) -> None:
    """Write a page, a picture or a snapshot, as the ending says; raises InputError."""
    check_memory_picture(path)
    if path.suffix == SNAPSHOT:
        write_snapshot(lived_pass, path)
    else:
        draw(memory_page(lived_pass, memory), path)


def memory_page(lived_pass: Lived, memory: Memory | None = None) -> Page:
    """Memory over time by part, and the largest storages at the peak.

    Args:
        lived_pass: what lives when.
        memory: the prediction's, for what is taken besides tensors.
    """
    over = over_time(lived_pass)
    lead = f"{lived_pass.name}, memory of one device, operator call by operator call. Nothing was run."
    peak = f"The peak is {binary(over.peak_bytes)}, {_where(lived_pass, over)}."
    text = (peak, *_besides(memory, over))
    sections = (
        Section("Memory over time", text, (_areas(lived_pass, over), _parts(over))),
        Section("Alive at the peak", _rest(over), (_largest(over),)),
    )
    return Page(lived_pass.model, lead, sections)


def _where(lived_pass: Lived, over: OverTime) -> str:
    return f"at call {over.at:,} of {lived_pass.calls:,} ({lived_pass.part_at(over.at)})"


def _besides(memory: Memory | None, over: OverTime) -> Iterator[str]:
    if memory is None:
        return
    if besides := memory.value_bytes - over.peak_bytes:
        whole = binary(memory.value_bytes)
        yield f"In addition, the framework and what is not drawn take {binary(besides)}: {whole} in all."


def _areas(lived_pass: Lived, over: OverTime) -> Areas:
    """The parts over the calls; of neighbouring calls, the one with the most memory is drawn."""
    places = _places(over.total)
    byte, unit = unit_of([float(over.peak_bytes)], SIZES)
    series = tuple(
        BarSeries(name, tuple(float(size) / byte for size in sizes[places]))
        for name, sizes in over.parts.items()
    )
    top = (float(over.at), f"peak {binary(over.peak_bytes)}")
    marks = tuple((float(begin), name) for begin, name in lived_pass.marks)
    x = tuple(float(place) for place in places)
    return Areas("Memory by part", "operator call", f"memory, {unit}", x, series, marks, top)


def _places(total: np.ndarray) -> list[int]:
    """The call with the most memory in each of at most POINTS stretches, and the last call."""
    stretches = np.array_split(np.arange(len(total)), min(POINTS, len(total)))
    most = [int(some[np.argmax(total[some])]) for some in stretches]
    return sorted({0, *most, len(total) - 1})


def _parts(over: OverTime) -> Table:
    whole = over.peak_bytes or 1
    sizes = {name: int(size[over.at]) for name, size in over.parts.items()}
    rows = [(name, Share(size / whole), binary(size)) for name, size in sizes.items() if size]
    rows.sort(key=lambda row: -row[1])
    return Table("Parts at the peak", ("part", "share", "bytes"), tuple(rows))


def _rest(over: OverTime) -> tuple[str, ...]:
    more = over.alive[LARGEST:]
    if not more:
        return ()
    return (f"{len(more):,} smaller ones take {binary(sum(one.bytes for one in more))} together.",)


def _largest(over: OverTime) -> Table:
    whole = over.peak_bytes or 1
    rows = tuple(
        (
            made_by(one),
            one.origin[1] or "-",
            one.part,
            binary(one.bytes),
            Share(one.bytes / whole),
            one.birth,
            "end" if one.death is None else one.death,
        )
        for one in over.alive[:LARGEST]
    )
    note = "Calls are operator calls; 0 is before the first."
    return Table("The largest at the peak", HEADER, rows, note)


def made_by(one: Storage) -> str:
    """What made a storage: a parameter's name, or a module's path."""
    others = {INPUTS: "input", OPTIMIZER: "optimizer"}
    return one.name or one.origin[0] or others.get(one.part, "outside of the modules")
