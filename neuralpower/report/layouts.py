"""The table of `neuralpower parallel`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from neuralpower.files.terminal import styled, visible
from neuralpower.prediction.explore.layouts import Laid, Layouts
from neuralpower.report.grid import as_asked, listed, note_lines, percent
from neuralpower.report.number_format import binary, counted, plain, quantity, rate
from neuralpower.trace.recipe import RECIPE, TRAINING, Recipe

OPTIONS = {
    "tensor": "--tensor-parallel",
    "pipeline": "--pipeline-parallel",
    "expert": "--expert-parallel",
    "data": "--data-parallel",
}


def layouts_table(ranked: Layouts, top: int = 0, *, marked: bool = False) -> str:
    """The best, the command that says more of it, the others, and why some do not fit."""
    fitting = ranked.fitting
    shown = fitting[: top or None]
    columns: dict[str, Callable[[Laid], str]] = {
        "layout": lambda one: one.layout.short,
        "batch": lambda one: str(one.batch_size),
        "micro-batches": lambda one: str(one.micro_batches),
        "latency": lambda one: quantity(one.runtime_s.value if one.runtime_s else None, "s"),
        "90 %": _bounds,
        "samples": lambda one: rate(one.samples_per_s),
        "tokens": lambda one: rate(one.tokens_per_s),
        "exposed": lambda one: percent(one.exposed_share),
        "bubble": lambda one: percent(one.bubble_share),
        "memory": lambda one: binary(one.memory_bytes),
        "up to": lambda one: binary(one.memory_high_bytes),
    }
    if ranked.wanted.price is not None:
        columns["cost of 1M"] = lambda one: "-" if one.cost is None else plain(one.cost)
    table = ["", listed(shown, columns), *_foot(ranked, len(shown))] if shown else ["", *_foot(ranked, 0)]
    return as_asked([*_head(ranked), *table, *note_lines(ranked.notes)], marked)


def _head(ranked: Layouts) -> Iterator[str]:
    """The request; the best layout, and its command."""
    wanted = ranked.wanted
    trains = wanted.way == TRAINING
    phase = f"{TRAINING}, {wanted.samples} samples a step" if trains else wanted.case.phase.label
    asked = f"{wanted.case.model}, {wanted.case.dtype}, {phase}, {ranked.run}, on {wanted.cluster}"
    if not ranked.fitting:
        yield styled("no layout fits", "bad")
    else:
        best = ranked.fitting[0]
        rate = best.tokens_per_s or best.samples_per_s or 0.0
        time = quantity(best.runtime_s.value if best.runtime_s else None, "s")
        unit = "tokens/s" if best.tokens_per_s else "samples/s"
        yield styled(
            f"best by {wanted.by}: {best.layout}, {time}, {plain(rate)} {unit}",
            "bold",
        )
        yield visible(f"more of it: {command(ranked, best)}")
    yield visible(asked)


def command(ranked: Layouts, laid: Laid) -> str:
    """The command that predicts a layout."""
    wanted, case = ranked.wanted, ranked.wanted.case
    phase = TRAINING if wanted.way == TRAINING else case.phase.name
    cluster = wanted.cluster
    words = [
        "neuralpower predict",
        shlex.quote(str(case.model)),
        f"--phase {phase}",
        f"--batch-size {laid.batch_size}",
        f"--dtype {case.dtype}",
    ]
    sizes = {
        "--seq-len": case.seq_len,
        "--context": case.phase.context,
        "--prompt": case.phase.prompt,
        "--new-tokens": case.phase.new_tokens,
    }
    words += [f"{name} {value}" for name, value in sizes.items() if value is not None]
    degrees = {option: getattr(laid.layout, name) for name, option in OPTIONS.items()}
    words += [f"{option} {size}" for option, size in degrees.items() if size > 1]
    words += [f"--zero {laid.layout.shard[-1]}"] if laid.layout.shard else []
    words += [f"--schedule {laid.layout.schedule}"] if laid.layout.schedule != "1f1b" else []
    words += [f"--interleave {laid.layout.interleave}"] if laid.layout.interleave > 1 else []
    words += ["--sequence-parallel"] if laid.layout.sequence else []
    words += [f"--micro-batches {laid.micro_batches}"] if laid.micro_batches > 1 else []
    words += _training(wanted.recipe)
    words += [f"--weights {shlex.quote(str(case.weights))}"] if case.weights else []
    words += [f"--run {case.run}"] if case.run else []
    words.append(f"--devices {cluster.per_node}x{cluster.spec.slug}")
    words += [f"--nodes {cluster.nodes}"] if cluster.nodes > 1 else []
    return " ".join(words)


def _training(recipe: Recipe) -> Iterator[str]:
    """Options of a recipe that is not the usual one; micro-batches are the layout's."""
    way = f":{recipe.implementation}" if recipe.implementation else ""
    if (recipe.optimizer, recipe.implementation) != (RECIPE.optimizer, RECIPE.implementation):
        yield f"--optimizer {recipe.optimizer}{way}"
    if recipe.states is not None:
        yield f"--optimizer-states {recipe.states}"
    if recipe.checkpointing:
        yield "--checkpointing"
    if recipe.masters:
        yield "--master-weights"


def _foot(ranked: Layouts, shown: int) -> Iterator[str]:
    """How many there are, and why others do not fit."""
    fitting = len(ranked.fitting)
    more = f" ({fitting - shown} not shown: --top 0)" if shown < fitting else ""
    every = counted(len(ranked.found), "layout")
    yield f"{fitting} of {every} fit{more}, from {counted(ranked.traces, 'trace')}"
    for sort, count in ranked.reasons.items():
        first = next(one for one in ranked.found if one.sort == sort)
        example = f", as {first.layout.short} {first.reason}" if first.reason != sort else ""
        yield visible(f"{counted(count, 'layout')} skipped: {sort}{example}")


def _bounds(laid: Laid) -> str:
    time = laid.runtime_s
    return "-" if time is None else f"{quantity(time.low, 's')} to {quantity(time.high, 's')}"
