"""`neuralpower predict`: trace a model and predict its layers; needs no device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, Typer

from neuralpower.cli import parsing, shared_options
from neuralpower.cli.answers import answered
from neuralpower.cli.choices import PHASES, VIEWS, choice
from neuralpower.cli.commands import OptionGroup, examples, with_options
from neuralpower.cli.engine_options import NAMES as ENGINES
from neuralpower.cli.formats import HTML, TABLE, Answer, check_out, form_of, give
from neuralpower.cli.known_names import checked_device
from neuralpower.cli.panels import INPUT, LANGUAGE, OUTPUT
from neuralpower.cli.parallel_options import Parallel
from neuralpower.errors import InputError, check_share
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    import torch

    from neuralpower.learn.predictor import Predictor
    from neuralpower.prediction.prediction import Prediction
    from neuralpower.prediction.timeline import Omitted, Stage

app = Typer()


class View(OptionGroup):
    """Options: the rows of the table."""

    panel = OUTPUT

    by: Annotated[str, choice("view", VIEWS, help="Rows of the table; tree: all modules.")] = "kind"
    depth: shared_options.Depth = 3
    top: Annotated[int, Option(help="Rows to print; 0 for all.")] = 15


class Predict(OptionGroup):
    """Options: the prediction of a network, and its tables and files."""

    panel = INPUT

    phase: Annotated[
        str,
        shared_options.phase_choice(PHASES, "Phase: one pass, a training step, or a language model's phase"),
    ] = "forward"
    sizes: shared_options.Sizes
    device: shared_options.Device = None
    device_spec: Annotated[str | None, Option(callback=checked_device, hidden=True)] = None
    predictor: shared_options.Predictor = None
    run: shared_options.Run = None
    engine: Annotated[
        str | None,
        choice("engine", ENGINES, help="For run engine: it says the type of a checkpoint; default: vllm"),
    ] = None
    tokens: shared_options.Tokens
    routing: Annotated[
        str,
        Option(
            help="Tokens of a mixture's experts: uniform, worst, or one number for each expert.",
            rich_help_panel=LANGUAGE,
        ),
    ] = "uniform"
    training: shared_options.Training
    autocast: shared_options.Autocast = None
    lora: shared_options.Lora = None
    parallel: Parallel
    view: View
    min_coverage: Annotated[
        float | None,
        Option(
            "--min-coverage",
            "--strict",
            help="Exit 3 if coverage is below this share, 0 to 1.",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    output: shared_options.Output
    csv: Annotated[
        Path | None, Option(help="Write a line per layer to this file.", rich_help_panel=OUTPUT)
    ] = None
    trace_file: Annotated[
        Path | None,
        Option(help="Write the timeline for ui.perfetto.dev to this file.", rich_help_panel=OUTPUT),
    ] = None
    plot: shared_options.Plot = None
    memory_picture: shared_options.MemoryPicture = None
    no_cache: shared_options.NoCache = False


@app.command(
    epilog=examples(
        "neuralpower predict llama-3.1-8b --phase decode --context 4096 --device h100",
        "neuralpower predict zoo:resnet50 -b 8 --phase training --by layer",
    )
)
@with_options
def predict(model: shared_options.Model, asked: Predict) -> None:
    """Predict the network, print the result, and write the requested files."""
    form = _check(model, asked)
    files = (asked.output.out, asked.csv, asked.trace_file, asked.plot, asked.memory_picture)
    if asked.no_cache or any(file is not None for file in files):
        _predict(model, asked, form)
    else:
        answered(model, vars(asked), lambda: _predict(model, asked, form))


def _predict(model: str, asked: Predict, form: str) -> None:
    """Predict and print; raises NeuralPowerError."""
    stage("importing torch and transformers")
    sizes, shape = asked.sizes, asked.sizes.shape
    phase = asked.tokens.phase(asked.phase)
    asked.tokens.check_batch(sizes.batch_size)

    from neuralpower.files.atomic import check_place
    from neuralpower.layers.base import torch_dtype
    from neuralpower.networks.adapters import with_lora
    from neuralpower.networks.inputs import InputRequest
    from neuralpower.networks.requests import asked_of
    from neuralpower.networks.sources import resolve
    from neuralpower.prediction import case
    from neuralpower.prediction.compose import question_of
    from neuralpower.prediction.served_type import check_served_by, served_type
    from neuralpower.prediction.weights import scheme_asked
    from neuralpower.trace.master_weights import check_masters
    from neuralpower.trace.recipe import TRAINING
    from neuralpower.trace.routing import Routing

    parsing.check_plot(asked.plot)
    parsing.check_memory_picture(asked.memory_picture, asked.parallel.layout.alone)
    parsing.check_file(asked.csv, "rows.csv")
    check_out(asked.output.out, form)
    if asked.trace_file is not None:
        check_place(asked.trace_file, "trace.json")
    stage("loading the predictor")
    own_type = sizes.dtype is None
    trained = _predictor(model, asked)
    trained_phase = "forward" if asked.phase in (TRAINING, phase.name) else asked.phase
    trained.check(sizes.full_dtype, trained_phase)
    recipe = asked.parallel.recipe(asked.training.recipe(asked.phase), asked.phase)
    cast = _cast(asked.autocast, trained)
    way = TRAINING if asked.phase == TRAINING else trained_phase
    check_masters(recipe.masters, sizes.full_dtype, autocast=cast, lora=asked.lora)
    routing = Routing.parsed(asked.routing)
    run = case.run_of(trained, asked.run, phase, way)
    served: tuple[str, ...] = ()
    check_served_by(asked.engine, run)
    if own_type:
        vars(sizes)["dtype"], served = served_type(model, sizes.full_dtype, run, trained, asked.engine)
    how: dict[str, Any] = {"autocast": cast, "routing": routing, "run": run}
    how["weights"] = scheme_asked(sizes.weights)
    spread = asked.parallel
    how |= {"layout": spread.layout, "cluster": spread.cluster}
    question = question_of(trained, phase=way, dtype=sizes.full_dtype, recipe=recipe, **how)
    dtype = torch_dtype(sizes.full_dtype)
    request = InputRequest(sizes.batch_size or 1, sizes.seq_len, shape, dtype, labels=way == TRAINING)
    needs = spread.require_plan
    sharding = case.sharding_of(spread.layout, spread.cluster, how["run"], way, require_plan=needs)
    source = with_lora(resolve(model), asked.lora, asked.phase, spread.layout)
    runs = asked_of(source, request, phase, own_batch=sizes.batch_size is None, sharding=sharding)
    stages: list[Stage | Omitted] = []
    drawn = (asked.plot, asked.trace_file, asked.memory_picture) != (None, None, None) or form == HTML
    seen = stages.append if drawn else None
    stage(f"tracing {model}")
    prediction, _ = case.predict(runs, trained, question, model=model, seen=seen)
    prediction = replace(prediction, assumptions=(*served, *prediction.assumptions))
    _give(asked, form, prediction, stages, trained)
    from neuralpower.prediction.prediction import check_coverage

    check_coverage(prediction, asked.min_coverage, "--strict")


def _give(
    asked: Predict, form: str, prediction: Prediction, stages: Sequence[Stage | Omitted], trained: Predictor
) -> None:
    """Print the prediction, and write the requested files."""
    from neuralpower.files.csv_files import write_csv
    from neuralpower.report.perfetto import about, document, predicted, write
    from neuralpower.report.pictures import draw, prediction_page
    from neuralpower.report.tables import prediction_cells

    table = _table(prediction, asked.view) if form == TABLE else ""
    rows = [] if asked.csv is None else prediction_cells(prediction)
    if asked.trace_file is not None:
        parts = document([predicted(prediction, stages, trained)], {"predicted": [about(prediction, stages)]})
        write(asked.trace_file, parts)
    if asked.plot is not None:
        draw(prediction_page(prediction, stages, trained), asked.plot)
    if asked.memory_picture is not None:
        from neuralpower.report.memory_pictures import of_stages, write_memory

        one = of_stages(prediction.model, stages, trained.platform)
        write_memory(one, prediction.memory, asked.memory_picture)
    if asked.csv is not None:
        write_csv(asked.csv, rows)
    answer = prediction_answer(prediction, lambda: table or _table(prediction, asked.view), asked.view.by)
    answer = replace(answer, page=lambda: prediction_page(prediction, stages, trained))
    give(answer, form, asked.output.out)


def _table(prediction: Prediction, view: View) -> str:
    from neuralpower.report.tables import prediction_table

    return prediction_table(prediction, view.by, view.depth, view.top, marked=True)


def prediction_answer(prediction: Prediction, table: Callable[[], str], by: str = "kind") -> Answer:
    """A prediction in all forms; the function makes its table."""
    from neuralpower.report.tables import prediction_cells, readable

    return Answer(
        title=f"{prediction.model} on {prediction.device}",
        table=table,
        json=prediction.to_json,
        rows=lambda: prediction_cells(prediction),
        shown=lambda: readable(prediction, by),
        lead=lambda: table().partition("\n\n")[0].splitlines(),
        warnings=prediction.warnings,
    )


def _check(model: str, asked: Predict) -> str:
    """The form of the answer; raises InputError for an impossible value of an option. Imports no torch."""
    parsing.check_batch_size(asked.sizes.batch_size)
    asked.parallel.check(model)
    check_share("strict", asked.min_coverage, "--strict 0.95")
    top, depth = asked.view.top, asked.view.depth
    if top < 0 or depth < 1:
        text = "top must be 0 (all rows) or more, depth 1 or more"
        raise InputError(f"top {top}, depth {depth}: {text}")
    return form_of(asked.output.form, asked.output.out, asked.output.as_json)


def _predictor(model: str, asked: Predict) -> Predictor:
    """The predictor for the named device and the model's dtype; raises InputError."""
    device, sheet = asked.parallel.device(asked.device), asked.device_spec
    if device is not None and sheet is not None:
        raise InputError(f"--device {device} and --device-spec {sheet} both name a device; leave one out")
    dtype = asked.sizes.dtype
    trained = parsing.predictor(asked.predictor, device or sheet, dtype and parsing.dtype(dtype))
    asked.sizes.settle(model, trained)
    return trained


def _cast(text: str | None, trained: Predictor) -> torch.dtype | None:
    """The dtype of an autocast; raises InputError, and PredictorError if it was not trained."""
    from neuralpower.trace.casts import cast_dtype

    if text is None:
        return None
    cast = cast_dtype(text)
    trained.check(parsing.dtype(text), "forward")
    return cast
