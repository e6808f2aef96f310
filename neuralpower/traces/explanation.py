"""Where a trace's time went: calls against what they should take, causes, gaps, and unpriced kernels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralpower.errors import InputError
from neuralpower.files.json_files import Declared
from neuralpower.layers import Layer
from neuralpower.layers.attention import by_torch
from neuralpower.layers.base import in_tf32
from neuralpower.learn.files.predictor_lookup import chosen
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.rows import Column
from neuralpower.prediction.shown import Shown
from neuralpower.traces.calls import DTYPES, Replay, Replays
from neuralpower.traces.causes import CAUSES, PRODUCTS, Cause, Seen
from neuralpower.traces.events import ATEN, BEFORE, GRAPHED, OF_TF32, Operator, Ran, Recording, read_recording
from neuralpower.traces.likeness import (
    COMMUNICATION,
    DATA,
    HOST,
    SHORT_US,
    SYNC,
    Timeline,
    kernel_kind,
    timeline,
    with_owners,
)
from neuralpower.traces.rows import Price, Prices

if TYPE_CHECKING:
    import pandas as pd

BESIDE = 8  # calls before and after one that its causes look at: scale, bias, mask stand before a softmax
BINS = 160  # parts of the span in a drawing
# share of the span below which a gap is not named; to fetch data from memory takes a few percent, too
LEAST_GAP = {DATA: 0.1, SYNC: 0.05, HOST: 0.05}
GAP_FIXES = {
    DATA: "more workers of the loader, pin_memory=True, or data that is prepared once",
    SYNC: "read numbers of tensors (.item(), print) once a step at most, and copy with non_blocking=True",
    HOST: "launch them together: a CUDA graph, torch.compile, or larger batches",
}
COLUMNS = (
    Column("operator", "operator"),
    Column("path", "module"),
    Column("shapes", "shapes"),
    Column("dtype", "dtype"),
    Column("calls", "calls"),
    Column("kernels"),
    Column("measured_s", "measured", "s"),
    Column("expected_s", "expected", "s"),
    Column("low_s", "low", "s"),
    Column("high_s", "high", "s"),
    Column("basis", "basis"),
    Column("saving_s", "saves", "s"),
    Column("cause", "cause"),
    Column("reason"),
    Column("other_s", "other", "s"),
)
"""Columns of the calls, in CSV, JSON and tables."""


@dataclass(frozen=True)
class CallRow(Declared):
    """Equal calls together: what their kernels took, and what they are expected to take."""

    in_json = " ".join(column.name for column in COLUMNS)

    operator: str
    path: str
    shapes: str
    dtype: str
    calls: int
    kernels: int
    measured_s: float
    expected_s: float | None = None  # None: it cannot be priced
    low_s: float | None = None  # 90 % bounds
    high_s: float | None = None
    basis: str = ""
    saving_s: float = 0.0
    cause: str = ""
    reason: str = ""  # why it has no layers, or not for all of its work
    other_s: float | None = None  # what the same calls took in the other trace, for as many calls


@dataclass(frozen=True)
class Finding(Declared):
    """A cause, what it costs in all, and what to do."""

    in_json = "cause saving_s calls where fix"

    cause: str
    saving_s: float
    calls: int
    where: str
    fix: str


@dataclass(frozen=True)
class Part(Declared):
    """Time by a name: of kernels without a price, or in which nothing ran."""

    in_json = "name count seconds"

    name: str
    count: int
    seconds: float


@dataclass(frozen=True)
class Explanation(Declared, Shown):
    """Where a trace's time went; priced_s + unpriced_s + idle_s is span_s."""

    in_json = (
        "schema trace device predictor span_s priced_s unpriced_s idle_s expected_s before_s exposed_s "
        "overlapped_s findings rows unpriced gaps notes other"
    )

    trace: str
    device: str
    predictor: str
    span_s: float
    priced_s: float
    unpriced_s: float
    idle_s: float
    expected_s: float  # of all that is priced
    before_s: float  # of kernels that were launched before the trace
    exposed_s: float  # communication while nothing else ran
    overlapped_s: float  # communication while something else ran
    findings: tuple[Finding, ...]  # the largest first
    rows: tuple[CallRow, ...]  # by saving, then by time
    unpriced: tuple[Part, ...]
    gaps: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    other: str = ""  # the trace that it is compared with
    lanes: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)
    """Priced, unpriced, and communication -> share of each of BINS parts of the span that it takes."""

    @property
    def priced_share(self) -> float:
        """The share of the busy time that is priced."""
        return self.priced_s / max(self.priced_s + self.unpriced_s, 1e-30)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each different call; the columns are those of CSV."""
        import pandas as pd

        names = [column.name for column in COLUMNS]
        return pd.DataFrame([[column.value(row) for column in COLUMNS] for row in self.rows], columns=names)


@dataclass
class _Group:
    operator: Operator
    layers: tuple[Layer, ...]
    size: int
    reason: str
    first: int  # position of the first among the operators
    calls: int = 0
    kernels: int = 0
    took_us: float = 0.0
    owned_us: float = 0.0
    names: frozenset[str] = frozenset()
    bus: bool = False


def predictor_for(recording: Recording, device: Any = None, predictor: Any = None) -> Predictor:
    """The named predictor, or that of the named device, else of the trace's; raises InputError for none."""
    if device is not None or predictor is not None or recording.on_cpu:
        return chosen(predictor, device)
    if not recording.device:
        raise InputError("the trace does not name its device; add --device, such as --device h100")
    try:
        return chosen(None, recording.device)
    except InputError as error:
        text = f"{error}; say the nearest with --device"
        raise InputError(f"the trace is of {recording.device}, which has no spec sheet: {text}") from None


def explained(
    path: Path,
    price: Callable[[Recording], Predictor],
    against: Path | None = None,
    capture: Path | None = None,
) -> Explanation:
    """Where the time of a trace went, priced by the predictor that `price` gives.

    `against`: another trace, whose times of the same calls have a column; `capture`: the trace of the capture
    of its graphs, which has the operators of their kernels.

    Raises InputError as `read_recording`, or no shapes were recorded.
    """
    recording = read_recording(path)
    _check_shapes(path, recording)
    recording = with_owners(recording, None if capture is None else read_recording(capture))
    other = None if against is None else with_owners(read_recording(against))
    found = explain_recording(recording, price(recording), path.name)
    if other is None or against is None:
        return found
    return compared(found, explain_recording(other, None, against.name))


def _check_shapes(path: Path, recording: Recording) -> None:
    if recording.operators and not any(one.inputs.get("Input Dims") for one in recording.operators):
        raise InputError(
            f"{path}: no shapes were recorded, so that nothing can be priced; record with "
            "torch.profiler.profile(record_shapes=True)"
        )


def explain_recording(recording: Recording, predictor: Predictor | None, name: str) -> Explanation:
    """Where the time of a recording went; without a predictor nothing is priced."""
    line = timeline(recording)
    prices = None if predictor is None else Prices(predictor)
    groups, at = _grouped(recording, line)
    if prices is not None:
        prices.learn([layer for group in groups.values() for layer in group.layers])
    priced = {key: _price_of(prices, group) for key, group in groups.items()}
    span = (line.end - line.start) / 1e6
    saved = {} if prices is None else _saved(_all_seen(recording, groups, at, prices), span)
    rows = [_row(key, group, priced[key], saved.get(key)) for key, group in groups.items()]
    totals, unpriced = _shared_out(recording, line, at, priced)
    gaps = _gaps(line)
    findings = [*_findings(saved, groups), *_gap_findings(recording, line, span)]
    exposed, overlapped = _communication(recording, line)
    expected = sum(price.seconds * groups[key].calls for key, price in priced.items() if price)
    return Explanation(
        trace=name,
        device=recording.device or ("this CPU" if recording.on_cpu else ""),
        predictor="" if predictor is None else predictor.name,
        span_s=span,
        priced_s=totals / 1e6,
        unpriced_s=(sum(line.owned) - totals) / 1e6,
        idle_s=sum(gap.took for gap in line.gaps) / 1e6,
        expected_s=expected,
        before_s=sum(one.took for one in recording.ran if one.library == BEFORE) / 1e6,
        exposed_s=exposed,
        overlapped_s=overlapped,
        findings=tuple(sorted(findings, key=lambda one: -one.saving_s)),
        rows=tuple(sorted(rows, key=lambda row: (-row.saving_s, -row.measured_s))),
        unpriced=unpriced,
        gaps=gaps,
        notes=(*recording.notes, *_notes(recording, rows)),
        lanes=_lanes(recording, line, at, priced),
    )


Key = tuple[str, int, bool, str]  # path, number of name and inputs, whether TF32, step of an engine


def _grouped(recording: Recording, line: Timeline) -> tuple[dict[Key, _Group], list[Key]]:
    """(equal calls together, [operators] which of these each is)."""
    kernels: dict[int, list[int]] = defaultdict(list)
    for i, one in enumerate(recording.ran):
        if one.owner >= 0:
            kernels[one.owner].append(i)
    replays = Replays(recording)
    groups: dict[Key, _Group] = {}
    at: list[Key] = []
    for number, operator in enumerate(recording.operators):
        some = [recording.ran[i] for i in kernels[number]]
        tf32 = any(word in one.name for one in some for word in OF_TF32)
        key = _place(operator.path), operator.key, tf32, operator.step
        at.append(key)
        if key not in groups:
            replay = replays.of(operator, some)
            if some and any(one.over_bus for one in some):
                replay = Replay((), replays.size(operator), "copies between host and device")
            layers = tuple(in_tf32(layer) for layer in replay.layers) if tf32 else replay.layers
            if operator.of_aten and not recording.on_cpu:
                layers = tuple(by_torch(layer) for layer in layers)
            groups[key] = _Group(operator, layers, replay.bytes, replay.why, number)
        group = groups[key]
        group.calls += bool(some)
        group.kernels += len(some)
        group.took_us += sum(one.took for one in some)
        group.owned_us += sum(line.owned[i] for i in kernels[number])
        group.names |= {one.name for one in some}
        group.bus |= any(one.over_bus for one in some)
    return {key: group for key, group in groups.items() if group.calls}, at


def _place(path: str) -> str:
    """A module's path with a star for the numbers of repeated blocks."""
    return re.sub(r"_\d+(?=\.|$)", "_*", path)


def _price_of(prices: Prices | None, group: _Group) -> Price | None:
    if prices is None or not (group.layers or group.size or not group.reason):
        return None
    if group.bus:
        return prices.over_bus(group.size)
    price = prices.of(group.layers, group.size)
    return price if price is not None and (price.seconds > 0 or not group.reason) else None


Saved = Mapping[Key, tuple[Cause, float]]


def _saved(seen: Mapping[Key, Seen], span_s: float) -> Saved:
    """The first cause of each call that has one, and what it would save; causes that save little are none."""
    found: dict[Key, tuple[Cause, float]] = {}
    whole: Counter[str] = Counter()
    for key, one in seen.items():
        for cause in CAUSES:
            if (saving := cause.saves(one)) > 0:
                found[key] = cause, saving
                whole[cause.name] += saving  # type: ignore[assignment]  # counts may be floats
                break
    return {key: held for key, held in found.items() if whole[held[0].name] > held[0].least * span_s}


def _row(key: Key, group: _Group, price: Price | None, held: tuple[Cause, float] | None) -> CallRow:
    """The row of equal calls; without a cause they save what they take above their upper bound."""
    n, took_s = group.calls, group.took_us / 1e6
    over_s = 0.0 if price is None else max(took_s - n * price.high, 0.0)
    return CallRow(
        operator=group.operator.name,
        path=key[0],
        shapes=_shapes(group.operator),
        dtype=said_type(_dtype(group.operator)),
        calls=n,
        kernels=group.kernels,
        measured_s=took_s,
        expected_s=None if price is None else n * price.seconds,
        low_s=None if price is None else n * price.low,
        high_s=None if price is None else n * price.high,
        basis="" if price is None else price.basis,
        saving_s=over_s if held is None else held[1],
        cause="" if held is None else held[0].name,
        reason=group.reason,
    )


def _findings(saved: Saved, groups: Mapping[Key, _Group]) -> list[Finding]:
    found = []
    for cause in CAUSES:
        mine = {key: saving for key, (one, saving) in saved.items() if one is cause}
        if mine:
            operator = groups[max(mine, key=lambda key: mine[key])].operator
            where = " ".join(filter(None, (operator.path, operator.name, _shapes(operator))))
            calls = sum(groups[key].calls for key in mine)
            found.append(Finding(cause.name, sum(mine.values()), calls, where, cause.fix))
    return found


def _all_seen(
    recording: Recording, groups: Mapping[Key, _Group], at: Sequence[Key], prices: Prices
) -> dict[Key, Seen]:
    """Each group with the calls around its first."""
    took: Counter[str] = Counter()
    for group in groups.values():
        if group.operator.name in PRODUCTS or not group.layers:
            took[_dtype(group.operator)] += group.took_us  # type: ignore[assignment]
    usual = took.most_common(1)[0][0] if took else ""
    trains = any(one.backward or "backward" in one.name for one in recording.operators)

    def seen(key: Key) -> Seen:
        group = groups[key]
        return Seen(
            operator=group.operator,
            layers=group.layers,
            kernels=group.names,
            measured_s=group.took_us / 1e6,
            calls=group.calls,
            before=(),
            after=(),
            usual=usual,
            trains=trains,
            on_cpu=recording.on_cpu,
            price=prices.seconds,
        )

    bare = {key: seen(key) for key in groups}
    working = [i for i, key in enumerate(at) if key in groups and (groups[key].layers or groups[key].size)]
    places = {number: place for place, number in enumerate(working)}

    def beside(first: int) -> tuple[tuple[Seen, ...], tuple[Seen, ...]]:
        place = places.get(first)
        if place is None:
            return (), ()
        before = working[max(place - BESIDE, 0) : place]
        after = working[place + 1 : place + 1 + BESIDE]
        return tuple(bare[at[i]] for i in before), tuple(bare[at[i]] for i in after)

    found = {}
    for key, one in bare.items():
        before, after = beside(groups[key].first)
        found[key] = replace(one, before=before, after=after)
    return found


def _shapes(operator: Operator) -> str:
    sizes = operator.inputs.get("Input Dims", ())
    tensors = [part for one in sizes if isinstance(one, list) and one for part in _each(one)]
    shown = ["x".join(map(str, one)) for one in tensors]
    return ", ".join(shown)[:80]


def _each(sizes: list[Any]) -> list[list[Any]]:
    """The sizes of a tensor, or of each tensor in a list."""
    return [one for one in sizes if one] if isinstance(sizes[0], list) else [sizes]


def said_type(name: str) -> str:
    """Torch's name of a type that the profiler names."""
    return str(DTYPES[name]).removeprefix("torch.") if name in DTYPES else name


def _dtype(operator: Operator) -> str:
    """The type of its first tensor of floating numbers, else of the first tensor, as the profiler says it."""
    types = [str(one) for one in operator.inputs.get("Input type", ()) if one in DTYPES]
    return next((one for one in types if DTYPES[one].is_floating_point), types[0] if types else "")


def _shared_out(
    recording: Recording,
    line: Timeline,
    at: Sequence[Key],
    priced: Mapping[Key, Price | None],
) -> tuple[float, tuple[Part, ...]]:
    """(us that are priced, what ran besides by name)."""
    total = 0.0
    times: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for one, owned in zip(recording.ran, line.owned, strict=True):
        if one.owner >= 0 and priced[at[one.owner]] is not None:
            total += owned
            continue
        name = _named(one, recording)
        times[name] += owned / 1e6  # type: ignore[assignment]
        count[name] += 1
    return total, tuple(Part(name, count[name], seconds) for name, seconds in times.most_common())


def _named(ran: Ran, recording: Recording) -> str:
    """The library or the kind of what has no price."""
    if ran.owner >= 0:
        owner = recording.operators[ran.owner]
        return kernel_kind(ran.name) if ran.over_bus else f"{ATEN if owner.of_aten else ''}{owner.name}"
    kind = kernel_kind(ran.name)
    if ran.library in (BEFORE, GRAPHED):
        return f"{ran.library}: {kind}"
    space, _, name = ran.library.partition("::")
    return f"{space}::{name.split()[0]}" if name and " " not in space else kind


def _gaps(line: Timeline) -> tuple[Part, ...]:
    times: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for gap in line.gaps:
        times[gap.cause] += gap.took / 1e6  # type: ignore[assignment]
        count[gap.cause] += 1
    return tuple(Part(name, count[name], seconds) for name, seconds in times.most_common())


def _gap_findings(recording: Recording, line: Timeline, span: float) -> list[Finding]:
    """Gaps that have a cause, and are a part of the span worth naming."""
    found = []
    short = float(np.median([one.took for one in recording.ran])) < SHORT_US
    for part in _gaps(line):
        if part.name not in GAP_FIXES or part.seconds < LEAST_GAP[part.name] * span:
            continue
        name = "small kernels launched one by one" if part.name == HOST and short else part.name
        name = "host-bound" if part.name == HOST and not short else name
        found.append(Finding(name, part.seconds, part.count, "between kernels", GAP_FIXES[part.name]))
    return found


def _communication(recording: Recording, line: Timeline) -> tuple[float, float]:
    """(seconds of communication while nothing else ran, while something did)."""
    exposed = whole = 0.0
    for one, owned in zip(recording.ran, line.owned, strict=True):
        if kernel_kind(one.name) == COMMUNICATION:
            exposed += owned / 1e6
            whole += one.took / 1e6
    return exposed, max(whole - exposed, 0.0)


def _notes(recording: Recording, rows: Sequence[CallRow]) -> list[str]:
    notes = []
    for library, said in (
        (BEFORE, "the window is cut in mid-pass: {} ms belong to launches before the trace"),
        (GRAPHED, "{} ms ran in graphs, whose kernels have no operators in a trace"),
    ):
        took = sum(one.took for one in recording.ran if one.library == library) / 1e3
        known = sum(one.took for one in recording.ran if one.library == library and one.owner >= 0) / 1e3
        if took:
            notes.append(f"{said.format(f'{took:.3g}')}; {known:.3g} ms of them are calls' by like kernels")
    if not recording.has_operators:
        notes.append("no operators were recorded, so that nothing is priced; add ProfilerActivity.CPU")
    if refused := [row for row in rows if row.reason and row.expected_s is None and row.measured_s]:
        took = sum(row.measured_s for row in refused) * 1e3
        first = max(refused, key=lambda row: row.measured_s)
        notes.append(f"{took:.3g} ms of operators have no price, such as {first.operator}: {first.reason}")
    if any(word in one.name for one in recording.ran for word in OF_TF32):
        notes.append("TF32 is on: some products of float32 use it, by their kernels' names")
    return notes


def _lanes(
    recording: Recording, line: Timeline, at: Sequence[Key], priced: Mapping[Key, Price | None]
) -> dict[str, tuple[float, ...]]:
    """The shares of equal parts of the span that each lane takes; the device idles in what remains."""
    wide = max(line.end - line.start, 1e-9) / BINS
    found = {name: np.zeros(BINS) for name in ("priced", "unpriced", COMMUNICATION)}
    for one, owned in zip(recording.ran, line.owned, strict=True):
        known = one.owner >= 0 and priced[at[one.owner]] is not None
        name = "priced" if known else COMMUNICATION if kernel_kind(one.name) == COMMUNICATION else "unpriced"
        start = (one.start - line.start) / wide
        end = start + owned / wide
        for place in range(int(start), min(int(end) + 1, BINS)):
            found[name][place] += max(min(end, place + 1) - max(start, place), 0.0)
    return {name: tuple(float(share) for share in np.minimum(shares, 1.0)) for name, shares in found.items()}


def compared(explanation: Explanation, other: Explanation) -> Explanation:
    """The first with what the same calls took in the other: those of the same operator and sizes."""
    times: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in other.rows:
        held = times[row.operator, row.shapes]
        held[0] += row.measured_s
        held[1] += row.calls
    rows = []
    for row in explanation.rows:
        took, calls = times.get((row.operator, row.shapes), (0.0, 0.0))
        rows.append(replace(row, other_s=took / calls * row.calls) if calls else row)
    return replace(explanation, rows=tuple(rows), other=f"{other.trace} on {other.device}")
