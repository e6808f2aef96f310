"""Predictions and evaluations as plain tables, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from neuralpower.files.terminal import styled, visible
from neuralpower.learn.estimates import BASES, IN_RANGE, MEASURED, ROOFLINE, TOLD
from neuralpower.learn.regressor import Regressor
from neuralpower.networks.phases import spelled
from neuralpower.prediction import rows
from neuralpower.prediction.footprint import Footprint
from neuralpower.prediction.generation import Generation, Step
from neuralpower.prediction.memory.peak import Memory
from neuralpower.prediction.prediction import HOST_BOUND, LAUNCHES, Prediction, Training
from neuralpower.prediction.rows import Column, Interval, Row
from neuralpower.prediction.several_devices import Parallel
from neuralpower.report.grid import Cell, Share, as_asked, grid, note_lines, warning_lines
from neuralpower.report.number_format import binary, bounded, counted, many, plain, quantity, share
from neuralpower.trace.recipe import TRAINING

FLOP_CONVENTION = "all-ops"  # 2 per multiply-add, and every other operation: as `profile` counts by default
# How a terminal shows each way to know a time.
STYLE_OF_BASIS = {basis: "weak" for basis in BASES} | {MEASURED: "good", IN_RANGE: "good", ROOFLINE: "bad"}
PARTS = 6  # names of a joined call that are shown
SUMS = ("calls", "latency", "share")  # columns that say something of all further rows together
READABLE_DEPTH = 3  # of modules in Markdown
Value = str | Share
MOSTLY = 0.995  # share of the time that counts as all of it


def score_cells(regressor: Regressor) -> list[str]:
    """Held out: MAPE, RMSPE, medians of base and of base + residual, bias, error beyond, share inside."""
    s = regressor.scores
    shares = [f"{one:.1%}" for one in (s.mape, s.rmspe, s.median_base)]
    shares += [f"{s.median:.1%}" if regressor.trees else "-", f"{s.bias:+.1%}", f"{s.beyond:.1%}"]
    return ["-" if "nan" in one else one for one in (*shares, f"{s.inside:.0%}")]


@dataclass(frozen=True)
class Figure:
    """One headline number."""

    name: str
    value: str
    about: str = ""  # its bounds

    def __str__(self) -> str:
        """The number with its bounds."""
        return f"{self.value} ({self.about})" if self.about else self.value


def bounds(name: str, value: Interval, unit: str) -> Figure:
    """A number with its bounds."""
    low, high = quantity(value.low, unit), quantity(value.high, unit)
    return Figure(name, quantity(value.value, unit), f"{low} to {high}")


def figures(p: Prediction) -> list[Figure]:
    """The headline numbers of a prediction, as far as they are known."""
    known = (("latency", p.runtime_s, "s"), ("energy", p.energy_j, "J"), ("power", p.power_w, "W"))
    found = [bounds(name, value, unit) for name, value, unit in known if value is not None]
    if p.memory is not None:
        m = p.memory
        span = f"{binary(m.low_bytes)} to {binary(m.high_bytes)}"
        found.append(Figure("memory", binary(m.value_bytes), span))
    return [
        *found,
        Figure("work", quantity(p.flops, "FLOP"), many(p.parameters, "parameters")),
        Figure("coverage", f"{p.coverage:.1%}", f"extrapolated {p.extrapolated:.1%}"),
    ]


def prediction_table(prediction: Prediction, by: str, depth: int, top: int, *, marked: bool = False) -> str:
    """Warnings, totals, rows, and notes of a prediction; `marked` with styles for `cli.output.say`.

    `by`: "kind", "layer", "module", or "tree", which is drawn as a whole, down to `depth`.
    """
    if by == "tree":
        return str(prediction.tree(depth))
    p, columns = prediction, row_columns(prediction, by)
    every = rows_by(p, by, depth)
    shown, rest = (every[:top], every[top:]) if top else (every, [])
    cells = [[cell(row) for cell in columns.values()] for row in shown]
    if rest:
        whole = replace(rest[0], **{name: sum(getattr(row, name) for row in rest) for name in rows.SUMMED})
        more = [cell(whole) if name in SUMS else "" for name, cell in columns.items()]
        cells.append([f"({len(rest)} more)", *more[1:]])
    head = [*warning_lines(p.warnings), *_head(p)]
    table = grid([*columns], cells, left=2)
    return as_asked([*head, "", table, *map(visible, _foot(p)), *note_lines(_notes(p))], marked)


def rows_by(prediction: Prediction, by: str, depth: int) -> Sequence[Row]:
    """The rows of a view: kinds and layers, the slowest first, or modules as they first run."""
    if by == "layer":
        return sorted(prediction.with_launches, key=lambda row: -row.runtime_s)
    return prediction.by_kind() if by == "kind" else prediction.by_module(depth)


def row_columns(prediction: Prediction, by: str = "kind") -> dict[str, Callable[[Row], Value]]:
    """Header -> cell of a row, for every table of a view; no power if none is known."""
    shown = sorted((column for column in rows.COLUMNS if column.header), key=lambda column: column.seat)
    powered = any(row.power_w is not None for row in prediction.rows)
    return {
        by: lambda row: row_name(row, by),
        "kind" if by == "layer" else "": _kind if by == "layer" else lambda row: "",
        **{c.header: partial(_cell, c) for c in shown if powered or c.unit not in ("W", "J")},
    }


def row_name(row: Row, by: str) -> str:
    """What a row stands for in a view: a kind, or modules and layers by their path."""
    return row.kind if by == "kind" or row.kind == LAUNCHES else row.path or "(model)"


def _kind(row: Row) -> str:
    """The kind of a layer, with the parts of a joined call."""
    if row.kind == LAUNCHES:
        return ""
    return f"{row.kind} ({joined_parts(row.parts)})" if row.parts else row.kind


def _cell(column: Column, row: Row) -> Value:
    value = column.value(row)
    if column.unit == "%":
        return Share(value)
    if column.unit:
        work = column.unit in ("FLOP", "B")
        return quantity(value or None if work else value, column.unit)
    if column.name == "basis":
        return "" if row.kind == LAUNCHES else Cell(value, STYLE_OF_BASIS.get(value, ""))
    return str(value)


def readable(prediction: Prediction, by: str) -> list[list[Value]]:
    """A header and all rows of a view, for Markdown."""
    view = "module" if by == "tree" else by
    columns = {name: cell for name, cell in row_columns(prediction, view).items() if name}
    records = rows_by(prediction, view, READABLE_DEPTH)
    return [[*columns], *([cell(row) for cell in columns.values()] for row in records)]


def _head(p: Prediction) -> Iterator[str]:
    t = p.runtime_s
    known = p.origin or p.predictor
    yield visible(f"{p.model}, batch {p.batch_size}, {p.dtype}, {p.phase}, {p.run}, on {p.device} ({known})")
    if p.weights is not None:
        yield visible(p.weights.line)
    time, low, high = (quantity(seconds, "s") for seconds in (t.value, t.low, t.high))
    yield styled(f"latency {time} ({low} to {high}, 90 %){_throughput(p)}", "bold")
    if p.energy_j is not None and p.power_w is not None:
        joules, watts = bounded(p.energy_j, "J"), bounded(p.power_w, "W")
        yield styled(f"energy {joules}, power {watts}", "bold") + _trained(p)
    elif any(row.power_w is not None for row in p.rows):
        yield f"energy unknown: {p.power_reason}"
    yield from (styled(line, "bold") if "tokens/s" in line else line for line in tokens(p))
    yield from parallel_lines(p)
    yield from footprint_lines(p)
    if p.memory is not None:
        yield memory_line(p.memory, "memory of a device" if p.parallel else "memory")
    borrowed = f", borrowed {share(p.borrowed)}" if p.borrowed >= TOLD else ""
    covered = (
        f"coverage {share(p.coverage)}{_by_relatives(p)}{borrowed}, extrapolated {share(p.extrapolated)}"
    )
    parameters = many(p.parameters, "parameters") + _of_a_rank(p)
    yield f"{quantity(p.flops, 'FLOP')}{_of_a_rank(p)} ({FLOP_CONVENTION}), {parameters}, {covered}"
    if p.savings is not None:
        yield str(p.savings)


def _of_a_rank(p: Prediction) -> str:
    """Whose numbers the rows, FLOP and parameters are, where ranks share the network."""
    shared = p.parallel is not None and (p.parallel.layout.tensor > 1 or p.parallel.layout.expert > 1)
    return " of a rank" if shared else ""


def _by_relatives(p: Prediction) -> str:
    """The covered share that was trained on related devices alone; "" for none."""
    related = 0.0 if p.trained_here is None else p.coverage - p.trained_here
    return "" if related < TOLD else f" ({share(related)} trained on related devices)"


def _throughput(p: Prediction) -> str:
    """Samples per second; "" for a language model's phases, which show tokens."""
    if p.generation is not None or p.runtime_s.value <= 0:
        return ""
    if p.parallel is not None:  # said of all devices
        return ""
    samples = p.batch_size if p.training is None else p.training.samples
    return f", {plain(samples / p.runtime_s.value)} samples/s"


def tokens(prediction: Prediction) -> Iterator[str]:
    """Lines on a prefill, a decoding step or a generation; none for any other pass."""
    about = prediction.generation
    if isinstance(about, Generation):
        first = bounded(about.time_to_first_token_s, "s")
        prompt = f"prompts {spelled(about.lengths)}" if about.lengths else f"prompt {about.prompt}"
        yield f"{prompt}, {about.new_tokens} new tokens: first after {first}"
        if about.time_per_output_token_s is not None and about.first_step_s and about.last_step_s:
            ends = (quantity(step.value, "s") for step in (about.first_step_s, about.last_step_s))
            each = bounded(about.time_per_output_token_s, "s")
            yield f"then {each} per token, the first {', the last '.join(ends)}"
        if about.prefill_energy_j is not None and about.decode_energy_j is not None:
            apart = (bounded(joules, "J") for joules in (about.prefill_energy_j, about.decode_energy_j))
            yield "energy of the prompt {}, of the steps {}".format(*apart)
    elif isinstance(about, Step) and about.lengths:
        what = "contexts" if about.context else "prompts"
        yield f"{what} {spelled(about.lengths)} of {counted(len(about.lengths), 'request')}"
    elif isinstance(about, Step):
        yield f"context {about.context}, {counted(about.tokens, 'token')} of each sample"
    if isinstance(about, (Generation, Step)):
        energy = about.energy_per_token_j
        joules = "" if energy is None else f", {bounded(energy, 'J')} per token"
        held = f", cache {binary(about.cache_bytes)}" if about.cache_bytes else ""
        yield f"{plain(about.tokens_per_s.value)} tokens/s{joules}{held}"


def footprint_lines(prediction: Prediction) -> Iterator[str]:
    """Energy, money and carbon, where options request them, a line each."""
    found = prediction.footprint
    for line in found.lines if isinstance(found, Footprint) else ():
        about = f" ({line.about})" if line.about else ""
        yield visible(f"{line.name} {bounded(line.value, line.unit)}{about}")


def joined_parts(parts: Sequence[str]) -> str:
    """The parts of one call: "add to pow mean and 5 more"."""
    shown = " ".join(parts[:PARTS])
    return shown if len(parts) <= PARTS else f"{shown} and {len(parts) - PARTS} more"


def _trained(p: Prediction) -> str:
    """The share of the time that power data cover; "" for all of it."""
    trained = p.power_share_trained or 0.0
    if trained > MOSTLY:
        return ""
    return f", watts {share(trained)} trained, else by kind of work" if trained else ", watts by kind of work"


def _foot(p: Prediction) -> Iterator[str]:
    """The parts of a training step, and calls that no layer kind describes."""
    if p.training is not None:
        yield _training_line(p.training, p)
    for u in p.unmodelled:
        yield f"unmodelled: {u.operator} x{u.count}, {u.share:.1%} by roofline ({u.reason})"


def _notes(p: Prediction) -> Iterator[str]:
    launches = p.launch_row
    if launches is not None and launches.share > 1 - 1 / HOST_BOUND:
        yield f"bound by launch overhead: the device waits for its host {launches.share:.0%} of the time"
    if p.training is not None and p.training.derived:
        yield f"no backward data for {', '.join(p.training.derived)}; estimated from their forward products"
    if p.method != "meta":
        why = f" ({'; '.join(p.notes)})" if p.notes else ""
        yield f"traced on {p.method} tensors{why}"
    yield from p.remarks


def _training_line(training: Training, p: Prediction) -> str:
    """The parts of a step, which add up to it, and the share of the peak that it uses."""
    times = {step: time.value for step, time in training.steps.items()}
    times |= {row.kind: row.runtime_s for row in (p.bubble_row, p.launch_row) if row is not None}
    parts = ", ".join(f"{name} {quantity(seconds, 's')}" for name, seconds in times.items())
    used = training.utilisation(p.runtime_s.value)
    of_peak = "" if used is None else f", {used:.1%} of the dense peak"
    return f"step: {parts}{of_peak} ({training.recipe})"


def memory_line(memory: Memory, name: str = "memory") -> str:
    """The peak with its bounds and its parts, the largest part first."""
    m = memory
    value, low, high = (binary(size) for size in (m.value_bytes, m.low_bytes, m.high_bytes))
    made_of = ", ".join(f"{name} {binary(size)}" for name, size in m.shown_parts.items())
    assumed = ", assumed, not an upper bound" if m.assumed else ""
    return f"{name} {value} ({low} to {high}{assumed}): {made_of}"


def prediction_cells(prediction: Prediction) -> list[Sequence[Any]]:
    """The lines of a CSV file: a header, then a row per folded layer, in SI units."""
    cells = [row.cells().values() for row in prediction.with_launches]
    return [[column.name for column in rows.COLUMNS], *map(list, cells)]


def parallel_lines(prediction: Prediction) -> Iterator[str]:
    """The layout and the whole batch, exchanges and waits, then all devices together; none for one device."""
    p = prediction.parallel
    if p is None:
        return
    yield visible(f"{placed(p)}: {_batch(p, prediction)}")
    yield f"exchanges {quantity(p.communication_s, 's')}, {share(p.exposed_share)} of the time{_waits(p)}"
    yield styled(f"all devices: {', '.join(_rates(p))}", "bold")
    if len(p.stages) > 1:
        yield _stages(p)


def placed(p: Parallel) -> str:
    """The layout, and the devices that it takes: `tensor 8 on 8 of 16 devices`."""
    if p.cluster is None or p.cluster.devices == p.ranks:
        return f"{p.layout} on {counted(p.ranks, 'device')}"
    return f"{p.layout} on {p.ranks} of {p.cluster.devices} devices"


def _batch(p: Parallel, prediction: Prediction) -> str:
    factors = [str(prediction.batch_size)]
    if p.micro_batches > 1:
        what = "micro-batches" if prediction.phase == TRAINING else "batches in flight"
        factors.append(f"{p.micro_batches} {what}")
    if p.layout.data > 1:
        factors.append(f"{p.layout.data} replicas")
    made = f" ({' x '.join(factors)})" if len(factors) > 1 else ""
    return f"whole batch {p.samples}{made}"


def _waits(p: Parallel) -> str:
    return f"; pipeline bubble {share(p.bubble_share)}" if p.layout.pipeline > 1 else ""


def _rates(p: Parallel) -> Iterator[str]:
    if p.tokens_per_s is not None and p.tokens != p.samples:
        yield f"{plain(p.tokens_per_s.value)} tokens/s"
    yield f"{plain(p.samples_per_s.value)} samples/s"
    if p.energy_j is not None:
        yield f"energy {bounded(p.energy_j, 'J')}"
    if p.utilisation is not None:
        yield f"{p.utilisation:.1%} of the dense peak (MFU)"


def _stages(p: Parallel) -> str:
    """Work and memory of a device of each stage."""
    blocks = ", ".join(str(len(stage.blocks)) for stage in p.stages)
    times = ", ".join(quantity(stage.busy_s, "s") for stage in p.stages)
    text = f"stages of {blocks} blocks: {times}"
    known = [stage.memory for stage in p.stages if stage.memory is not None]
    if len(known) < len(p.stages):
        return text
    return f"{text}; memory of a device {', '.join(binary(one.value_bytes) for one in known)}"
