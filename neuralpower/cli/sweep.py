"""`neuralpower sweep`: a grid of sizes, predicted without the device."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer

from neuralpower.cli import parsing, shared_options
from neuralpower.cli.choices import PHASES, dtype_choice
from neuralpower.cli.commands import OptionGroup, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.cli.panels import INPUT, LANGUAGE, OUTPUT, TARGET
from neuralpower.cli.parallel_options import SweptParallel
from neuralpower.devices.memory_size import bytes_of
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.learn.predictor import Predictor
    from neuralpower.prediction.explore import sweep as swept

app = Typer()


class SweptTokens(OptionGroup):
    """Options: the tokens of a language model's phases, in a grid."""

    panel = LANGUAGE

    context: Annotated[
        str | None, Option(help="decode: tokens in the cache before the step, such as 512:8192.")
    ] = None
    prompt: Annotated[
        str | None, Option(help="prefill, generate: tokens of the prompt, such as 512:8192.")
    ] = None
    new_tokens: shared_options.NewTokens = None


class Sweep(OptionGroup):
    """Options: the grid of a sweep, and the output."""

    panel = INPUT

    model: shared_options.Model
    batch_size: Annotated[
        str | None,
        Option(
            "--batch-size", "-b", help="1,8,32; 1:256 doubles; 64:512:64 adds 64; default: as in predict."
        ),
    ] = None
    seq_len: Annotated[str | None, Option(help="Tokens per sample, written in the same way.")] = None
    input_shape: shared_options.InputShape = None
    dtype: Annotated[
        str | None,
        dtype_choice(
            "One or more, with commas", default="Default: as published, else float32.", several=True
        ),
    ] = None
    weights: shared_options.Weights = None
    phase: Annotated[str, shared_options.phase_choice(PHASES, "Phase to predict")] = "forward"
    device: shared_options.Devices = None
    predictor: shared_options.Predictors = None
    run: shared_options.Run = None
    memory: Annotated[
        str | None,
        Option(
            help="The device's memory: 24GiB (a 24 GB card), or 24GB (24 x 10^9 bytes); default: its own.",
            rich_help_panel=TARGET,
        ),
    ] = None
    tokens: SweptTokens
    training: shared_options.Training
    parallel: SweptParallel
    output: shared_options.Output
    csv: Annotated[
        Path | None, Option(help="Write a line per point to this file.", rich_help_panel=OUTPUT)
    ] = None
    plot: shared_options.Plot = None
    top: Annotated[int, Option(min=0, help="Rows to print; 0 for all.", rich_help_panel=OUTPUT)] = 0


@app.command(
    epilog=examples(
        "neuralpower sweep transformers:gpt2 --batch-size 1:8 --seq-len 64,128",
        "neuralpower sweep llama-3.1-8b --phase decode --context 1024:8192 --device h100",
    )
)
@with_options
def sweep(asked: Sweep) -> None:
    """Predict the points of the grid, and mark the Pareto-optimal ones."""
    form, grid = form_of(asked.output.form, asked.output.out, asked.output.as_json), _Grid.of(asked)
    stage("importing torch and transformers")
    from neuralpower.files.csv_files import write_csv
    from neuralpower.report.explored import sweep_table
    from neuralpower.report.grid import note_lines, warning_lines
    from neuralpower.report.pictures import draw, sweep_page

    parsing.check_plot(asked.plot)
    parsing.check_file(asked.csv, "points.csv")
    check_out(asked.output.out, form)
    asked.parallel.check(asked.model)
    predictors = [
        parsing.predictor(name, device)
        for name in parsing.names(asked.predictor, "predictor") or (None,)
        for device in parsing.names(asked.parallel.device(asked.device), "device") or (None,)
    ]
    found = _swept(asked, grid, predictors)
    if all(point.error for point in found.points):
        raise InputError(f"no point could be predicted: {found.points[0].error}")
    found = dataclasses.replace(found, notes=(*found.notes, *parsing.memory_notes(asked.memory)))
    rows = [vars(found.points[0]), *(vars(p).values() for p in found.points)]
    if asked.csv is not None:
        write_csv(asked.csv, rows)
    if asked.plot is not None:
        draw(sweep_page(found), asked.plot)
    answer = Answer(
        title=f"{asked.model}: {len(found.points)} points",
        table=lambda: sweep_table(found, asked.top, marked=True),
        json=found.to_json,
        rows=lambda: [[*row] for row in rows],
        lead=lambda: [*warning_lines(found.warnings), *note_lines(found.notes)],
        page=lambda: sweep_page(found),
        warnings=found.warnings,
    )
    give(answer, form, asked.output.out)


@dataclasses.dataclass(frozen=True)
class _Grid:
    """What the texts of a sweep's options say; reading them imports no torch."""

    batch_sizes: tuple[int, ...] | None  # None: the network's own
    lengths: tuple[int | None, ...]
    contexts: tuple[int | None, ...]
    prompts: tuple[int | None, ...]
    shape: tuple[int, ...] | None
    memory_bytes: float | None

    @classmethod
    def of(cls, asked: Sweep) -> _Grid:
        """The grid of the options; raises InputError."""

        def several(text: str | None, what: str) -> tuple[int | None, ...]:
            return (None,) if text is None else parsing.sizes(text, what)

        batch = asked.batch_size
        return cls(
            None if batch is None else parsing.sizes(batch, "batch size"),
            several(asked.seq_len, "seq-len"),
            several(asked.tokens.context, "context"),
            several(asked.tokens.prompt, "prompt"),
            parsing.shape(asked.input_shape),
            None if asked.memory is None else bytes_of(asked.memory),
        )


def _swept(asked: Sweep, grid: _Grid, predictors: Sequence[Predictor]) -> swept.Sweep:
    """The points: by formulas from few traces; with a phase, each point is traced."""
    from neuralpower.networks.phases import Phase
    from neuralpower.prediction.case import run_of
    from neuralpower.prediction.explore.phases import sweep_grid

    own, phases = (
        "",
        [
            Phase(asked.phase, None, context, prompt, asked.tokens.new_tokens)
            for context, prompt in itertools.product(grid.contexts, grid.prompts)
        ],
    )
    if asked.dtype is None:
        own = parsing.usual_dtype(asked.model, predictors[0], run_of(predictors[0], asked.run, phases[0]))
    return sweep_grid(
        asked.model,
        predictors,
        phases,
        recipe=asked.parallel.recipe(asked.training.recipe(asked.phase), asked.phase),
        batch_sizes=grid.batch_sizes or (parsing.batch_size(asked.model, None, grid.shape),),
        lengths=grid.lengths,
        dtypes=[parsing.dtype(name) for name in parsing.names(asked.dtype, "dtype") or (own,)],
        input_shape=grid.shape,
        memory_bytes=grid.memory_bytes,
        run=asked.run,
        weights=asked.weights,
        layouts=asked.parallel.layouts,
        cluster=asked.parallel.cluster,
        require_plan=asked.parallel.require_plan,
    )
