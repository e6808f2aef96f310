"""`neuralpower predict`: trace a model and predict its layers; needs no device."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from typer import Exit, Typer
from typing_extensions import Unpack

from neuralpower.ask.keywords import ceilings_in
from neuralpower.ask.output import Predict
from neuralpower.ask.spread import check_used, cluster_in, device_in, layouts_in
from neuralpower.cli import parsing
from neuralpower.cli.answers import answered
from neuralpower.cli.commands import Model, examples, with_options
from neuralpower.cli.formats import HTML, TABLE, Answer, check_out, form_of, give
from neuralpower.cli.output import USUAL, level, tell
from neuralpower.errors import InputError, check_share
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.learn.predictor import Predictor
    from neuralpower.prediction.prediction import Prediction
    from neuralpower.prediction.timeline import Omitted, Stage

app = Typer()


@app.command(
    epilog=examples(
        "neuralpower predict llama-3.1-8b --phase decode --context 4096 --device h100",
        "neuralpower predict zoo:resnet50 -b 8 --phase training --by layer",
    )
)
@with_options
def predict(model: Model, **options: Unpack[Predict]) -> None:
    """Predict the network, print the result, and write the requested files."""
    form = _check(model, options)
    files = [options[name] for name in ("out", "csv", "trace_file", "plot", "memory_picture")]
    if options["no_cache"] or any(file is not None for file in files):
        _predict(model, options, form)
    else:
        answered(model, options, lambda: _predict(model, options, form))


def _predict(model: str, options: Predict, form: str) -> None:
    stage("importing torch and transformers")
    from neuralpower.api.predicting import predicted
    from neuralpower.files.atomic import check_place
    from neuralpower.prediction.prediction import check_coverage
    from neuralpower.prediction.request import phase_in

    phase_in(options)
    parsing.check_plot(options["plot"])
    parsing.check_memory_picture(options["memory_picture"], layouts_in(options)[0].alone)
    parsing.check_file(options["csv"], "rows.csv")
    check_out(options["out"], form)
    if options["trace_file"] is not None:
        check_place(options["trace_file"], "trace.json")
    stage("loading the predictor")
    trained = _predictor(options)
    stages: list[Stage | Omitted] = []
    drawn = (options["plot"], options["trace_file"], options["memory_picture"]) != (
        None,
        None,
        None,
    ) or form == HTML
    seen = stages.append if drawn else None
    stage(f"tracing {model}")
    least = options["min_coverage"]
    later: list[Callable[[], None]] = []
    prediction = predicted(trained, model, None, {**options, "min_coverage": None}, seen, later)
    _give(options, form, prediction, stages, trained)
    check_coverage(prediction, least, "--strict")
    _check_limits(prediction, options)
    _make_quick(later)


def _make_quick(later: Sequence[Callable[[], None]]) -> None:
    """Do what makes other sizes quick to answer, now that the answer has been shown; Ctrl-C leaves it out."""
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        for work in later:
            work()


def _check_limits(prediction: Prediction, asked: Predict) -> None:
    """Raise Exit with code 1 where a value is above its limit; say which."""
    from neuralpower.prediction.explore.gate import values_of
    from neuralpower.report.results.gates import exceeded

    if above := exceeded(values_of(prediction), ceilings_in(asked)):
        tell(f"Limits: {'; '.join(above)}")
        raise Exit(1)


def _give(
    options: Predict, form: str, prediction: Prediction, stages: Sequence[Stage | Omitted], trained: Predictor
) -> None:
    """Print the prediction, and write the requested files."""
    from neuralpower.files.csv_files import write_csv
    from neuralpower.report.perfetto import about, document, predicted, write
    from neuralpower.report.pictures import draw, prediction_page
    from neuralpower.report.tables import prediction_cells

    table = _table(prediction, options) if form == TABLE else ""
    rows = [] if options["csv"] is None else prediction_cells(prediction)
    if options["trace_file"] is not None:
        parts = document([predicted(prediction, stages, trained)], {"predicted": [about(prediction, stages)]})
        write(options["trace_file"], parts)
    if options["plot"] is not None:
        draw(prediction_page(prediction, stages, trained), options["plot"])
    if options["memory_picture"] is not None:
        from neuralpower.report.results.memory_pictures import of_stages, write_memory

        one = of_stages(prediction.model, stages, trained.platform)
        write_memory(one, prediction.memory, options["memory_picture"])
    if options["csv"] is not None:
        write_csv(options["csv"], rows)
    answer = prediction_answer(prediction, lambda: table or _table(prediction, options), options["by"])
    answer = replace(answer, page=lambda: prediction_page(prediction, stages, trained))
    give(answer, form, options["out"])


def _table(prediction: Prediction, view: Predict) -> str:
    from neuralpower.report.tables import prediction_table

    full = level() > USUAL
    return prediction_table(prediction, view["by"], view["depth"], view["top"], marked=True, full=full)


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


def _check(model: str, options: Predict) -> str:
    """The form of the answer; raises InputError for an impossible value of an option. Imports no torch."""
    parsing.check_batch_size(options["batch_size"])
    check_used(cluster_in(options), layouts_in(options), options, model)
    check_share("strict", options["min_coverage"], "--strict 0.95")
    ceilings_in(options)
    top, depth = options["top"], options["depth"]
    if top < 0 or depth < 1:
        text = "top must be 0 (all rows) or more, depth 1 or more"
        raise InputError(f"top {top}, depth {depth}: {text}")
    return form_of(options["form"], options["out"], options["as_json"])


def _predictor(asked: Predict) -> Predictor:
    """The predictor for the named device; raises InputError."""
    device, sheet = device_in(asked), asked["device_spec"]
    if device is not None and sheet is not None:
        raise InputError(f"--device {device} and --device-spec {sheet} both name a device; leave one out")
    return parsing.predictor(asked["predictor"], device or sheet, asked["dtype"])
