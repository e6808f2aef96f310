"""`neuralpower predict`: model -> trace -> layers -> regressors -> report; needs no device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option, Typer

from neuralpower.cli import parsing, shared_options
from neuralpower.cli.answers import answered
from neuralpower.cli.commands import OptionGroup, with_options
from neuralpower.cli.output import say
from neuralpower.dtypes import AUTOCAST_DTYPES
from neuralpower.errors import CoverageError, InputError, unknown
from neuralpower.files.json_files import json_text

if TYPE_CHECKING:
    import torch

    from neuralpower.learn.predictor import Predictor

app = Typer()
VIEWS = ("layer", "kind", "module", "tree")


class Predict(OptionGroup):
    """The prediction of a network, and its tables and files."""

    predictor: Annotated[
        str | None,
        Option(help="Name or file, NAME@DEVICE of one of several devices; this machine's by default."),
    ] = None
    sizes: shared_options.Sizes
    device: shared_options.Device = None
    device_spec: Annotated[str | None, Option(help="As --device.")] = None
    phase: Annotated[
        str,
        Option(
            help="forward, training; prefill, decode or generate of a language model; backward where it was "
            "learnt."
        ),
    ] = "forward"
    tokens: shared_options.Tokens
    run: shared_options.Run = None
    routing: Annotated[
        str, Option(help="Tokens over a mixture's experts: uniform, worst, or how many each gets.")
    ] = "uniform"
    training: shared_options.Training
    checkpointing: Annotated[
        bool, Option(help="Run repeated blocks again in training instead of keeping activations.")
    ] = False
    autocast: Annotated[
        str | None, Option(help="Cast products to this dtype, as torch.autocast: bfloat16 or float16.")
    ] = None
    by: Annotated[str, Option(help="Rows of the table: layer, kind or module; tree: all modules.")] = "kind"
    depth: shared_options.Depth = 3
    top: Annotated[int, Option(help="Rows to print; 0 for all.")] = 15
    strict: Annotated[
        float | None, Option(help="End with code 3 where the coverage is below this share.")
    ] = None
    as_json: Annotated[bool, Option("--json", help="Print the whole prediction as JSON.")] = False
    csv: Annotated[Path | None, Option(help="Write one line per layer to this file.")] = None
    trace_file: Annotated[
        Path | None, Option(help="Write the timeline for ui.perfetto.dev or chrome://tracing to this file.")
    ] = None
    no_cache: Annotated[
        bool, Option("--no-cache", help="Compute, even where the same question was answered before.")
    ] = False


@app.command()
@with_options
def predict(model: shared_options.Model, asked: Predict) -> None:
    """Predict the network, print it, and write the files that are asked for."""
    _check(asked)
    if asked.no_cache or asked.csv is not None or asked.trace_file is not None:
        _predict(model, asked)
    else:
        answered(model, vars(asked), lambda: _predict(model, asked))


def _predict(model: str, asked: Predict) -> None:
    sizes, shape = asked.sizes, asked.sizes.shape
    phase = asked.tokens.phase(asked.phase)
    asked.tokens.check_batch(sizes.batch_size)

    from neuralpower.files.atomic import check_place
    from neuralpower.files.csv_files import write_csv
    from neuralpower.layers.base import torch_dtype
    from neuralpower.networks.inputs import InputRequest
    from neuralpower.networks.requests import asked_of
    from neuralpower.predict import case
    from neuralpower.predict.compose import question_of
    from neuralpower.predict.timeline import Omitted, Stage
    from neuralpower.predict.weights import scheme_asked
    from neuralpower.report.chrome import document, write
    from neuralpower.report.perfetto import about, predicted
    from neuralpower.report.tables import prediction_cells, prediction_table
    from neuralpower.trace.recipe import TRAINING
    from neuralpower.trace.routing import Routing

    parsing.check_file(asked.csv, "rows.csv")
    if asked.trace_file is not None:
        check_place(asked.trace_file, "trace.json")
    learnt = _learnt(model, asked)
    learnt_phase = "forward" if asked.phase in (TRAINING, phase.name) else asked.phase
    learnt.check(sizes.full_dtype, learnt_phase)
    recipe = asked.training.recipe(asked.checkpointing, asked.phase)
    cast = _cast(asked.autocast, learnt)
    way = TRAINING if asked.phase == TRAINING else learnt_phase
    routing = Routing.parsed(asked.routing)
    how: dict[str, Any] = {
        "autocast": cast,
        "routing": routing,
        "run": case.run_of(learnt, asked.run, phase, way),
    }
    how["weights"] = scheme_asked(sizes.weights)
    question = question_of(learnt, phase=way, dtype=sizes.full_dtype, recipe=recipe, **how)
    request = InputRequest(sizes.batch_size or 1, sizes.seq_len, shape, torch_dtype(sizes.full_dtype))
    runs = asked_of(model, request, phase, own_batch=sizes.batch_size is None)
    stages: list[Stage | Omitted] = []
    seen = None if asked.trace_file is None else stages.append
    prediction, _ = case.predict(runs, learnt, question, model=model, seen=seen)
    table = (
        None if asked.as_json else prediction_table(prediction, asked.by, asked.depth, asked.top, marked=True)
    )
    rows = [] if asked.csv is None else prediction_cells(prediction)
    if asked.trace_file is not None:
        parts = document([predicted(prediction, stages, learnt)], {"predicted": [about(prediction, stages)]})
        write(asked.trace_file, parts)
    if asked.csv is not None:
        write_csv(asked.csv, rows)
    say(json_text(prediction.to_json()) if table is None else table)
    if asked.strict is not None and prediction.coverage < asked.strict:
        lost = ", ".join(prediction.uncovered[:5])
        text = f"coverage {prediction.coverage:.1%} is below {asked.strict:.1%}: {lost}"
        raise CoverageError(f"{text}; lower --strict, or collect the kinds")


def _check(asked: Predict) -> None:
    """Raise InputError for an impossible value of an option."""
    if asked.by not in VIEWS:
        raise unknown("view", asked.by, VIEWS)
    parsing.check_batch_size(asked.sizes.batch_size)
    if asked.strict is not None and not 0 <= asked.strict <= 1:
        text = "a share must lie between 0 and 1; choose --strict 0.95 for 95 %"
        raise InputError(f"strict {asked.strict:g}: {text}")
    if asked.top < 0 or asked.depth < 1:
        text = "top must be 0 (all rows) or more, depth 1 or more"
        raise InputError(f"top {asked.top}, depth {asked.depth}: {text}")


def _learnt(model: str, asked: Predict) -> Predictor:
    """The predictor, of the device that was named and for the model's dtype; raises InputError."""
    device, sheet = asked.device, asked.device_spec
    if device is not None and sheet is not None:
        raise InputError(f"--device {device} and --device-spec {sheet} both name a device; leave one out")
    dtype = asked.sizes.dtype
    learnt = parsing.predictor(asked.predictor, device or sheet, dtype and parsing.dtype(dtype))
    asked.sizes.settle(model, learnt)
    return learnt


def _cast(text: str | None, learnt: Predictor) -> torch.dtype | None:
    """The dtype of an autocast; raises InputError, and PredictorError where it was not learnt."""
    from neuralpower.layers.base import torch_dtype

    if text is None:
        return None
    cast = torch_dtype(parsing.dtype(text))
    if cast not in map(torch_dtype, AUTOCAST_DTYPES):
        raise unknown("dtype of an autocast", text, AUTOCAST_DTYPES)
    learnt.check(parsing.dtype(text), "forward")
    return cast
