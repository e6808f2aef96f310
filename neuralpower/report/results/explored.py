"""Tables and plots of the what-if commands."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

from neuralpower.files.terminal import styled, visible
from neuralpower.networks.phases import DECODE
from neuralpower.prediction.costs.footprint import HOUR_S
from neuralpower.prediction.costs.images import NOUNS, Images
from neuralpower.prediction.explore.compare import Comparison
from neuralpower.prediction.explore.score import Score
from neuralpower.prediction.explore.sweep import Sweep, SweepPoint
from neuralpower.prediction.fits.fit import Fit
from neuralpower.prediction.fits.largest_picture import LargestPicture
from neuralpower.prediction.fits.remedies import TOGETHER, Remedy
from neuralpower.prediction.fits.verdict import DOES_NOT_FIT, FITS, TIGHT
from neuralpower.prediction.memory.engines import LONGEST, EngineMemory
from neuralpower.prediction.memory.peak import Memory, MemoryLine
from neuralpower.prediction.prediction import LAUNCHES
from neuralpower.prediction.request import Request
from neuralpower.report.glance import memory_line
from neuralpower.report.grid import (
    WIDTH,
    Cell,
    as_asked,
    grid,
    head_lines,
    listed,
    note_lines,
    percent,
)
from neuralpower.report.number_format import binary, counted, plain, probable, quantity, rate

SPARED = ("basis", "up to", "bound by", "bubble", "exposed", "samples", "memory", "dtype", "energy")
"""Columns that narrow tables do without, in this order."""
YES_NO = {True: Cell("yes", ""), False: Cell("no", "bad"), None: Cell("-", "")}
SHORT = {FITS: "yes", TIGHT: "tight", DOES_NOT_FIT: "no"}
MOST_SAID = 60  # characters of a reason in a cell


def sweep_table(result: Sweep, top: int = 0, *, marked: bool = False) -> str:
    """One line per point; a star marks the Pareto-optimal ones. `marked` with styles for `cli.output.say`.

    `top` keeps these first, then those with the most samples per second; 0 for all.
    """
    largest = sorted(result.points, key=lambda p: (not p.best, -(p.samples_per_s or 0.0)))[: top or None]
    shown = [point for point in result.points if point in largest]
    waiting = [p for p in result.points if p.host_bound]
    columns: dict[str, Callable[[SweepPoint], object]] = {**point_columns(result), "90 %": _in_short}
    devices = ", ".join(dict.fromkeys(p.device for p in result.points))
    head = visible(f"{result.points[0].model}, {result.points[0].phase}, {result.run}, on {devices}")
    more = [f"({len(result.points) - len(shown)} more)"] if len(shown) < len(result.points) else []
    notes = [*_bound(waiting, len(result.points)), *result.notes]
    foot = [*more, f"* Pareto-optimal ({result.front})", *note_lines(notes)]
    above = head_lines([*result.warnings, *_too_large(result.points)], [head])
    table = listed(shown, columns, left=[*columns].index("batch"), spared=SPARED)
    return as_asked([*above, "", table, *foot], marked)


def point_columns(result: Sweep) -> dict[str, Callable[[SweepPoint], str]]:
    """Header -> cell of a point, for every table; omits what all points share."""
    points = result.points
    columns: dict[str, Callable[[SweepPoint], str]] = {
        "": lambda p: "*" if p.best else "",
        "predictor": lambda p: p.predictor,
        "dtype": lambda p: p.dtype,
        "layout": lambda p: p.layout or "one device",
        "batch": lambda p: str(p.batch_size),
        "length": lambda p: "-" if p.seq_len is None else str(p.seq_len),
        "limit": lambda p: quantity(p.power_limit_w, "W"),
        "clock": lambda p: "-" if p.clock_hz is None else f"{p.clock_hz / 1e6:g} MHz",
        "latency": lambda p: quantity(p.runtime_s, "s"),
        "90 %": _bounds,
        "samples": lambda p: rate(p.samples_per_s),
        f"s/{points[0].unit}": lambda p: "-" if not p.units_per_s else plain(1 / p.units_per_s),
        f"{points[0].unit}s/h": lambda p: "-" if not p.units_per_s else plain(HOUR_S * p.units_per_s),
        "power": lambda p: quantity(p.power_w, "W"),
        "energy": lambda p: quantity(p.energy_j, "J"),
        f"per {points[0].unit}": lambda p: quantity(p.joules_per_unit, "J"),
        "price per 1M": lambda p: _money(p.price_per_million, p.currency),
        "carbon per 1M": lambda p: quantity(p.carbon_g_per_million, "g"),
        "memory": lambda p: binary(p.memory_bytes),
        "up to": lambda p: binary(p.memory_high_bytes),
        "fits": lambda p: YES_NO[p.fits],
        "basis": lambda p: p.basis,
        "bound by": lambda p: Cell(LAUNCHES, "weak") if p.host_bound else "-",
        "exposed": lambda p: percent(p.exposed_share),
        "bubble": lambda p: percent(p.bubble_share),
    }
    spread, pictures = any(p.layout for p in points), points[0].unit in NOUNS
    added = any(p.joules_per_unit and p.energy_j and _more_than_own(p) for p in points)
    is_set = any(p.power_limit_w or p.clock_hz for p in points)
    shown = {
        "predictor": len({p.predictor for p in points}) > 1,
        "length": any(p.seq_len is not None for p in points),
        **dict.fromkeys(("layout", "exposed", "bubble"), spread),
        "bound by": any(p.host_bound for p in points),
        "limit": any(p.power_limit_w for p in points),
        "clock": len({p.clock_hz for p in points}) > 1
        or any(p.clock_hz and not p.power_limit_w for p in points),
        "power": is_set,
        "samples": not pictures,
        **dict.fromkeys((f"s/{points[0].unit}", f"{points[0].unit}s/h"), pictures),
        f"per {points[0].unit}": pictures or added or is_set,
        "price per 1M": any(p.price_per_million for p in points),
        "carbon per 1M": any(p.carbon_g_per_million for p in points),
    }
    return {name: cell for name, cell in columns.items() if shown.get(name, True)}


def _more_than_own(point: SweepPoint) -> bool:
    """Whether node or site add to a device's joules."""
    own_w = (point.energy_j or 0.0) / (point.runtime_s or 1.0)
    return (point.joules_per_unit or 0.0) * (point.units_per_s or 0.0) > 1.0001 * own_w


def _money(value: float | None, currency: str | None) -> str:
    return "-" if value is None else f"{plain(value)} {currency}"


def _bound(waiting: Sequence[SweepPoint], points: int) -> Iterator[str]:
    """A warning that points are bound by launch overhead, whatever their size."""
    if waiting:
        most = max(point.launch_share or 0.0 for point in waiting)
        yield (
            f"{len(waiting)} of {counted(points, 'point')} bound by launch overhead, up to {most:.0%} of the "
            "time: a larger batch or a faster device hardly changes the latency"
        )


def _too_large(points: Sequence[SweepPoint]) -> Iterator[str]:
    """A warning that points exceed the device's memory."""
    if large := [point for point in points if point.fits is False]:
        yield f"out of memory at {len(large)} of {counted(len(points), 'point')}: see column fits"


def _bounds(one: SweepPoint | Score) -> str:
    """The bounds of the time, or why they are unknown."""
    return one.error or f"{quantity(one.low_s, 's')} to {quantity(one.high_s, 's')}"


def _in_short(one: SweepPoint | Score) -> str:
    """The bounds of the time, or the beginning of the reason why they are unknown."""
    return textwrap.shorten(_bounds(one), MOST_SAID, placeholder=" ...")


def comparison_table(comparison: Comparison, *, marked: bool = False) -> str:
    """Both times, their ratio and which one is faster."""
    sides = ((f"A  {comparison.a}", comparison.a_s), (f"B  {comparison.b}", comparison.b_s))
    rows = [[name, *(quantity(seconds, "s") for seconds in (t.value, t.low, t.high))] for name, t in sides]
    r = comparison.ratio
    faster, chance = comparison.faster
    ratio = f"A takes {r.value:.3g} times B's time ({r.low:.3g} to {r.high:.3g}, 90 %)"
    verdict = styled(f"{ratio}; {faster} is faster with probability {chance:.1%}", "bold")
    table = grid(["", "latency", "low", "high"], rows)
    names, cells = footprint_columns(comparison)
    if names:
        marks = [f"{value:.4g}" if isinstance(value, float) else "-" for side in cells for value in side]
        pairs = zip(names, marks[: len(names)], marks[len(names) :], strict=True)
        table += "\n\n" + grid(["", "A", "B"], [list(row) for row in pairs])
    about = [visible(f"A against B: {comparison.about}")] if comparison.about else []
    head = head_lines(comparison.warnings, about)
    return as_asked([*head, *([""] if head else []), table, verdict], marked)


def footprint_columns(comparison: Comparison) -> tuple[list[str], list[list[float | None]]]:
    """(Names with units of what an image takes and of both footprints, the values of A and of B)."""
    sides = [
        {
            **({} if images is None else _of_an_image(images)),
            **({} if one is None else {f"{line.name}, {line.unit}": line.value.value for line in one.lines}),
        }
        for one, images in (
            (comparison.a_footprint, comparison.a_images),
            (comparison.b_footprint, comparison.b_images),
        )
    ]
    names = [*dict.fromkeys(name for side in sides for name in side)]
    return names, [[side.get(name) for name in names] for side in sides]


def _of_an_image(found: Images) -> dict[str, float]:
    joules = found.energy_per_image_j
    return {
        f"s/{found.noun}": found.runtime_per_image_s.value,
        f"{found.noun}s/h": found.images_per_hour.value,
        **({} if joules is None else {f"J/{found.noun}": joules.value}),
    }


def score_table(scores: Sequence[Score], top: int, about: str = "") -> str:
    """The request, `about` how and on what; candidates with the best first, those without a rank last."""
    ordered = sorted(scores, key=lambda s: (s.rank is None, s.rank or 0, s.line))
    shown = ordered[: top or None]
    columns: dict[str, Callable[[Score], str]] = {
        "rank": lambda s: "-" if s.rank is None else str(s.rank),
        "candidate": lambda s: s.name,
        "latency": lambda s: quantity(s.runtime_s, "s"),
        "90 %": _in_short,
        "energy": lambda s: quantity(s.energy_j, "J"),
        "memory": lambda s: binary(s.memory_bytes),
        "parameters": lambda s: quantity(s.parameters, ""),
        "basis": lambda s: s.basis or "-",
    }
    head = [visible(f"{counted(len(scores), 'candidate')}, {about}"), ""] if about else []
    more = [f"({len(ordered) - top} more)"] if len(shown) < len(ordered) else []
    return "\n".join([*head, listed(shown, columns, left=2), *more])


def _of_stages(stages: Sequence[Memory]) -> str:
    """The memory of a device of each stage, where there are several."""
    return f"; stages {', '.join(binary(one.value_bytes) for one in stages)}" if len(stages) > 1 else ""


def _sure(size: int | None, likely: int | None) -> str:
    """A size that fits for sure, and a larger one that fits where the peak is as expected."""
    if likely is None or size is None or likely <= size:
        return str(size)
    return f"{size} for sure, {likely} if the peak stays below its upper bound"


def _whole(fit: Fit) -> str:
    """The batch of all replicas, behind that of one."""
    return f" in one pass of a replica, {fit.largest_whole_batch} over all"


def fit_table(
    fit: Fit, request: Request, device: str, *, marked: bool = False, detailed: bool = False
) -> str:
    """Whether the model fits, what takes the memory, and the largest sizes that fit.

    `detailed` adds what is taken besides tensors, line by line with its source.
    """
    if fit.engine is not None:
        return as_asked(engine_lines(fit, fit.engine, fit.request or request), marked)
    what = "context" if request.phase.name == DECODE else "length"
    length = f", {what} {request.length}" if request.length else ""
    optimizer = f" with {request.recipe.word}" if request.trains else ""
    kept = f" with {fit.margin:.0%} of it kept free (--margin)" if fit.margin else ""
    sizes = f"batch {request.batch_size}{length}, {request.dtype}"
    asked = f"{request.called}, {sizes}, {request.phase.name}{optimizer}"
    several = not request.layout.alone
    on = f"{device}, {request.layout} ({counted(request.layout.ranks, 'device')})" if several else device
    head = [
        visible(f"{asked}, {request.run}, on {on}"),
        *([] if fit.weights is None else [fit.weights.line]),
        _verdict(fit, kept),
        memory_line(fit.memory) + _of_stages(fit.stages),
    ]
    lines = [
        *(_besides_tensors(fit.memory) if detailed else []),
        *_remedy_lines(fit.remedies),
        f"largest batch size: {_sure(fit.largest_batch, fit.likely_batch)}"
        + (_whole(fit) if several else ""),
    ]
    if fit.longest is not None:
        longest = _sure(fit.longest, fit.likely_longest)
        lines.append(f"longest context: {longest} (limit: {fit.longest_reason})")
    lines += picture_lines(fit.picture)
    if fit.sequences is not None:
        each = f"{binary(fit.sequence_bytes)} of cache each" if fit.sequence_bytes else "no cache"
        likely = None if fit.likely_batch is None else fit.likely_batch * request.replicas
        lines.append(f"concurrent sequences: {_sure(fit.sequences, likely)} ({each})")
    process = f" plus {binary(fit.process_bytes)} of the process" if fit.process_bytes else ""
    end = "high estimate" if fit.memory.assumed else "upper bound"
    if detailed:
        lines.append(f"{counted(fit.traces, 'trace')}, checked against the memory's {end}{process}")
    return as_asked([*head_lines((), head), *lines, *note_lines(fit.notes)], marked)


def _besides_tensors(memory: Memory) -> list[str]:
    """What libraries, the driver and the allocator take, one in a row; nothing where it is not known."""
    if not memory.lines:
        return []
    columns: dict[str, Callable[[MemoryLine], str]] = {
        "besides tensors": lambda line: line.name,
        "source": lambda line: line.source,
        "memory": lambda line: binary(line.value_bytes),
        "up to": lambda line: binary(line.high_bytes),
    }
    return ["", listed(memory.lines, columns, left=2), ""]


def _verdict(fit: Fit, kept: str) -> str:
    style = {FITS: "bold", TIGHT: "weak"}.get(fit.verdict, "bad")
    into = f"{fit.verdict} into {binary(fit.room_bytes)}{kept}"
    if fit.verdict == TIGHT:
        into = f"tight: fits into {binary(fit.room_bytes)}{kept} if the peak stays below its upper bound"
    return styled(f"{into} (probability {probable(fit.probability)})", style)


def picture_lines(picture: LargestPicture | None) -> list[str]:
    """The largest picture that fits; nothing of a network that makes none."""
    if picture is None:
        return []
    options = f" with {picture.options}" if picture.options else ""
    size = f"{picture.width}x{picture.height}" if picture.width else "none"
    lines = [f"largest resolution{options}: {size}"]
    return lines if picture.frames is None else [*lines, f"most frames{options}: {picture.frames or 'none'}"]


def _remedy_lines(remedies: Sequence[Remedy]) -> list[str]:
    """Changes that would make it fit, one in a row, then several together."""
    alone = [one for one in remedies if TOGETHER not in one.change]
    if not alone:
        return []
    columns: dict[str, Callable[[Remedy], str]] = {
        "the cheapest change first": lambda one: one.options or one.change,
        "costs": lambda one: one.cost,
        "up to": lambda one: binary(one.memory.high_bytes),
        "fits": lambda one: Cell(SHORT[one.verdict], "" if one.fits else "weak"),
    }
    lines = ["", listed(alone, columns, left=2)]
    for one in remedies:
        if TOGETHER in one.change:
            needs = f"up to {binary(one.memory.high_bytes)}, {one.verdict}"
            lines += textwrap.wrap(f"together, {needs}: {one.options}", WIDTH, break_on_hyphens=False)
    return [*lines, ""]


def engine_lines(fit: Fit, engine: EngineMemory, request: Request) -> list[str]:
    """Whether the engine starts, what its pool is left, and what that holds."""
    several = "" if request.layout.alone else f", {request.layout}"
    verdict = "fits" if engine.fits else f"does not fit: {engine.reason}"
    parts = [f"{part.name} {binary(part.value_bytes)}" for part in engine.parts]
    budget = f"{binary(engine.budget_bytes)} of {binary(engine.total_bytes)} that the driver gives"
    stages = request.layout.pipeline
    stage = f", on stage {engine.stage} of {stages}, which has the fewest blocks" if stages > 1 else ""
    lines = [
        visible(f"{request.called}, {request.dtype}, under {engine.follows}, on {engine.device}{several}"),
        *([] if fit.weights is None else [fit.weights.line]),
        styled(verdict, "bold" if engine.fits else "bad"),
        f"budget {budget}{stage}: {', '.join(parts)}",
    ]
    if engine.pool_bytes > 0:
        lines += _pool_lines(engine)
    return [*lines, *note_lines(fit.notes)]


def _pool_lines(engine: EngineMemory) -> list[str]:
    pool = engine.pool
    each = " on each device" if engine.devices * engine.replicas > 1 else ""
    low = binary(max(engine.pool_low_bytes, 0))
    blocks = f"{counted(pool.blocks, 'block')} of {pool.block_size}" if pool.block_size > 1 else ""
    held = f"{blocks}: {pool.tokens:,} tokens" if blocks else f"{pool.tokens:,} tokens"
    most = None if engine.most_sequences is None else engine.most_sequences * engine.replicas
    replicas = f" in {engine.replicas} replicas" if engine.replicas > 1 else ""
    capped = f" (runs at most {most} at once)" if most is not None and engine.sequences > most else ""
    limit = " (limit: the model's positions)" if engine.longest == engine.positions else ""
    longest = f"longest sequence: {engine.longest:,} tokens{limit}"
    one = binary(pool.sequence_bytes(engine.length))
    return [
        f"pool {binary(engine.pool_bytes)} ({low} at least){each}, cache {engine.cache_dtype}: {held}",
        f"sequences of {engine.length:,} tokens, {one} each: {engine.sequences}{replicas}{capped}",
        "longest sequence: any length" if engine.longest >= LONGEST else longest,
    ]
