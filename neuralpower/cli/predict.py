"""`neuralpower predict`: model -> trace -> layers -> regressors -> report; needs no device."""

from __future__ import annotations

from pathlib import Path

import typer

from neuralpower.cli import options
from neuralpower.cli.output import say
from neuralpower.dtypes import AUTOCAST_DTYPES
from neuralpower.files.json_files import json_text

app = typer.Typer()


@app.command()
def predict(
    model: str = options.MODEL,
    predictor: str | None = typer.Option(
        None, help="Name or file, NAME@DEVICE of one of several devices; this machine's by default."
    ),
    batch_size: int | None = options.BATCH_SIZE,
    seq_len: int | None = options.SEQ_LEN,
    input_shape: str | None = options.INPUT_SHAPE,
    dtype: str = options.DTYPE,
    device_spec: str | None = typer.Option(
        None, help="Of a predictor of several devices: a known device, or a spec sheet."
    ),
    phase: str = typer.Option(
        "forward",
        help="forward, training; prefill, decode or generate of a language model; backward where it was learnt.",
    ),
    context: int | None = options.CONTEXT,
    prompt: int | None = typer.Option(None, help="prefill, generate: tokens of the prompt."),
    new_tokens: int | None = typer.Option(None, help="generate: tokens to make after the prompt."),
    routing: str = typer.Option(
        "uniform", help="Tokens over a mixture's experts: uniform, worst, or how many each gets."
    ),
    optimizer: str = options.OPTIMIZER,
    accumulation: int = options.ACCUMULATION,
    checkpointing: bool = typer.Option(
        False, help="Run repeated blocks again in training instead of keeping activations."
    ),
    autocast: str | None = typer.Option(
        None, help="Cast products to this dtype, as torch.autocast: bfloat16 or float16."
    ),
    by: str = typer.Option("kind", help="Rows of the table: layer, kind or module."),
    depth: int = options.DEPTH,
    top: int = typer.Option(15, help="Rows to print; 0 for all."),
    strict: float | None = typer.Option(None, help="End with code 3 where the coverage is below this share."),
    as_json: bool = typer.Option(False, "--json", help="Print the whole prediction as JSON."),
    csv: Path | None = typer.Option(None, help="Write one line per layer to this file."),
    trace_file: Path | None = typer.Option(
        None, help="Write the timeline for ui.perfetto.dev or chrome://tracing to this file."
    ),
) -> None:
    """Predict a network's latency, in total and layer by layer, without running it."""
    from neuralpower.errors import CoverageError, InputError, unknown

    views = ("layer", "kind", "module")
    if by not in views:
        raise unknown("view", by, views)
    options.check_batch_size(batch_size)
    if strict is not None and not 0 <= strict <= 1:
        raise InputError(f"strict {strict:g}: a share must lie between 0 and 1; choose --strict 0.95 for 95 %")
    if top < 0 or depth < 1:
        raise InputError(f"top {top}, depth {depth}: top must be 0 (all rows) or more, depth 1 or more")
    shape = options.shape(input_shape)
    case_phase = options.phase(phase, context, prompt, new_tokens)

    from neuralpower.files.atomic import check_place
    from neuralpower.files.csv_files import write_csv
    from neuralpower.files.paths import is_file
    from neuralpower.layers.base import torch_dtype
    from neuralpower.learn.shelf import on
    from neuralpower.networks.asked import asked_of
    from neuralpower.networks.inputs import InputRequest
    from neuralpower.predict import case
    from neuralpower.predict.compose import question_of
    from neuralpower.predict.timeline import Omitted, Stage
    from neuralpower.report.chrome import document, write
    from neuralpower.report.perfetto import about, predicted
    from neuralpower.report.tables import prediction_cells, prediction_table
    from neuralpower.trace.routing import Routing
    from neuralpower.trace.training import TRAINING

    options.check_file(csv, "rows.csv")
    if trace_file is not None:
        check_place(trace_file, "trace.json")
    learnt = options.predictor(predictor)
    if device_spec is not None:
        if predictor and "@" in predictor and not is_file(predictor):
            raise InputError(f"predictor {predictor} and device spec {device_spec} both name a device; leave one out")
        learnt, _ = on(learnt, device_spec)
    learnt_phase = "forward" if phase in (TRAINING, case_phase.name) else phase
    learnt.check(options.dtype(dtype), learnt_phase)
    recipe = options.recipe(optimizer, accumulation, checkpointing, phase)
    cast = None if autocast is None else torch_dtype(options.dtype(autocast))
    if cast not in (None, *map(torch_dtype, AUTOCAST_DTYPES)):
        raise unknown("dtype of an autocast", str(autocast), AUTOCAST_DTYPES)
    if autocast is not None:
        learnt.check(options.dtype(autocast), "forward")
    way = TRAINING if phase == TRAINING else learnt_phase
    question = question_of(
        learnt,
        phase=way,
        dtype=options.dtype(dtype),
        recipe=recipe,
        autocast=cast,
        routing=Routing.parsed(routing),
    )
    request = InputRequest(batch_size or 1, seq_len, shape, torch_dtype(question.dtype))
    asked = asked_of(model, request, case_phase, own_batch=batch_size is None)
    stages: list[Stage | Omitted] = []
    seen = None if trace_file is None else stages.append
    prediction, _ = case.predict(asked, learnt, question, model=model, seen=seen)
    table = None if as_json else prediction_table(prediction, by, depth, top)
    cells = prediction_cells(prediction)
    if trace_file is not None:
        drawn = document([predicted(prediction, stages, learnt)], {"predicted": [about(prediction, stages)]})
        write(trace_file, drawn)
    if csv is not None:
        write_csv(csv, cells)
    say(json_text(prediction.to_json()) if table is None else table)
    if strict is not None and prediction.coverage < strict:
        raise CoverageError(
            f"coverage {prediction.coverage:.1%} is below {strict:.1%}: "
            f"{', '.join(u.operator for u in prediction.unmodelled[:5]) or 'kinds without a regressor'}; "
            "lower --strict, or collect the kinds"
        )
