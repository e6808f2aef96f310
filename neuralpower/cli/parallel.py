"""`neuralpower parallel`: all ways to spread a network over a cluster, ranked; needs no device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option, Typer

from neuralpower.cli import parallel_options, parsing, shared_options
from neuralpower.cli.choices import FITTED_PHASES, RANKED, SCHEDULES, choice
from neuralpower.cli.commands import OptionGroup, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.cli.panels import INPUT, OUTPUT, SEVERAL
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.trace.recipe import Recipe

app = Typer()


class Parallel(OptionGroup):
    """A network, a cluster, and what layouts are ranked by."""

    panel = INPUT
    panels = {SEVERAL: "devices nodes sequence_parallel schedule require_plan"}

    model: shared_options.Model
    phase: Annotated[str, shared_options.phase_choice(FITTED_PHASES, "What is run")] = "forward"
    batch_size: Annotated[
        str, Option("--batch-size", "-b", help="Samples in one pass of a replica: 1, or several: 1,2,4.")
    ] = "1"
    global_batch: Annotated[
        int | None, Option(help="training: samples of a step; default: 4 for each device.")
    ] = None
    seq_len: Annotated[int | None, Option(help="Tokens per sample.")] = None
    input_shape: shared_options.InputShape = None
    dtype: shared_options.OwnDtype = None
    weights: shared_options.Weights = None
    devices: parallel_options.Devices = None
    nodes: parallel_options.Nodes = None
    predictor: shared_options.Predictor = None
    run: shared_options.Run = None
    tokens: shared_options.Tokens
    training: shared_options.Training
    sequence_parallel: Annotated[
        bool, Option("--sequence-parallel", help="Split norms along the sequence, too.")
    ] = False
    schedule: Annotated[str, choice("pipeline schedule", SCHEDULES, help="Order of pipeline stages")] = "1f1b"
    require_plan: parallel_options.RequirePlan = False
    by: Annotated[
        str, choice("ranking", RANKED, help="What ranks them; cost needs --price", rich_help_panel=OUTPUT)
    ] = "throughput"
    price: Annotated[
        float | None, Option(help="Price of a device for an hour; gives the cost.", rich_help_panel=OUTPUT)
    ] = None
    top: Annotated[int, Option(min=0, help="Rows to print; 0 for all.", rich_help_panel=OUTPUT)] = 15
    output: shared_options.Output


@app.command(
    epilog=examples(
        "neuralpower parallel llama-3.1-70b --phase decode --context 2048 --devices 8xh100-sxm",
        "neuralpower parallel llama-3.1-70b --phase training --seq-len 4096 --devices 8xh100-sxm --nodes 4",
    )
)
@with_options
def parallel(asked: Parallel) -> None:
    """Rank the layouts; exit code 1 where none fits."""
    from neuralpower.devices.cluster import cluster_of

    form = form_of(asked.output.form, asked.output.out, asked.output.as_json)
    if asked.devices is None:
        raise InputError("parallel: --devices says which devices there are; give --devices 8xh100-sxm")
    cluster = cluster_of(asked.devices, 1 if asked.nodes is None else asked.nodes)
    batches = parsing.numbers(asked.batch_size, "batch size", "1,2,4")
    for batch in batches:
        parsing.check_batch_size(batch)
    stage("importing torch and transformers")
    from neuralpower.prediction.case import Case, run_of
    from neuralpower.prediction.explore.layouts import Wanted, layouts
    from neuralpower.report.layouts import layouts_table
    from neuralpower.trace.recipe import TRAINING

    check_out(asked.output.out, form)
    phase = asked.tokens.phase(asked.phase)
    if phase.lengths is not None:
        raise InputError("--lengths: layouts are ranked for equal requests; give --context or --prompt")
    dtype = asked.dtype and parsing.dtype(asked.dtype)
    trained = parsing.predictor(asked.predictor, cluster.spec.slug, dtype)
    way = TRAINING if asked.phase == TRAINING else "forward"
    run = run_of(trained, asked.run, phase, way)
    case = Case(
        asked.model,
        1,
        asked.seq_len,
        parsing.shape(asked.input_shape),
        dtype or parsing.usual_dtype(asked.model, trained, run),
        phase,
        run=asked.run,
        weights=asked.weights,
        cluster=cluster,
        require_plan=asked.require_plan,
    )
    wanted = Wanted(
        case,
        cluster,
        way,
        _recipe(asked),
        batches,
        asked.global_batch,
        asked.sequence_parallel,
        asked.schedule,
        asked.by,
        asked.price,
    )
    found = layouts(wanted, trained)
    rows = [one.to_json() for one in found.found]
    flat = [
        {**row, "layout": one.layout.short, "runtime_s": one.runtime_s and one.runtime_s.value}
        for row, one in zip(rows, found.found, strict=True)
    ]
    answer = Answer(
        title=f"{asked.model} on {cluster}",
        table=lambda: layouts_table(found, asked.top, marked=True),
        json=found.to_json,
        rows=lambda: [[*flat[0]], *([*row.values()] for row in flat)],
        lead=lambda: layouts_table(found, asked.top).splitlines()[:2],
    )
    give(answer, form, asked.output.out)
    if not found.fitting:
        raise Exit(1)


def _recipe(asked: Parallel) -> Recipe:
    """How it is trained; raises InputError for micro-batches, which follow from the whole batch."""
    if asked.training.accumulation != 1:
        raise InputError(
            f"--accumulation {asked.training.accumulation}: micro-batches follow from --global-batch; "
            "leave it out"
        )
    return asked.training.recipe(asked.phase)
