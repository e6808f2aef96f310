"""`neuralpower compare`: two networks, or two devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Typer
from typing_extensions import Unpack

from neuralpower.ask import texts
from neuralpower.ask.output import Compare
from neuralpower.ask.spread import check_used, cluster_in, device_in, layouts_in
from neuralpower.cli import parsing
from neuralpower.cli.commands import examples, with_options
from neuralpower.cli.formats import Answer, Rows, check_out, form_of, give
from neuralpower.cli.known_names import checked_side, completed_models, split_layout
from neuralpower.devices.cluster import is_cluster, layout_of
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.devices.cluster import Cluster
    from neuralpower.learn.predictor import Predictor
    from neuralpower.prediction.explore.compare import Comparison, Side

app = Typer()


@app.command(
    epilog=examples(
        "neuralpower compare transformers:bert transformers:distilbert --seq-len 128",
        "neuralpower compare llama-3.1-8b@h100 @l40s --phase decode --context 4096",
    )
)
@with_options
def compare(
    a: Annotated[
        str,
        Argument(
            help="MODEL, MODEL@PREDICTOR, with a layout MODEL@8xh100-sxm:tp4pp2, or an earlier answer: "
            "FILE.json of predict --json.",
            callback=checked_side,
            autocompletion=completed_models,
        ),
    ],
    b: Annotated[
        str | None,
        Argument(
            help="The other side; @PREDICTOR alone is the same model on another device, as is --device A,B.",
            callback=checked_side,
            autocompletion=completed_models,
        ),
    ] = None,
    **options: Unpack[Compare],
) -> None:
    """Predict both sides and compare their times."""
    form = form_of(options["form"], options["out"], options["as_json"])
    stage("importing torch and transformers")
    from neuralpower.prediction.explore.compare import compare as compared
    from neuralpower.report.grid import warning_lines
    from neuralpower.report.pictures import comparison_page, draw
    from neuralpower.report.results.explored import comparison_table

    parsing.check_plot(options["plot"])
    check_out(options["out"], form)
    if b is None:
        a, b, options = _on_two_devices(a, options)
    sides = _sides(a, b, options)
    found = compared(*sides)
    if options["plot"] is not None:
        draw(comparison_page(found, sides), options["plot"])

    answer = Answer(
        title=f"{found.a} against {found.b}",
        table=lambda: comparison_table(found, marked=True),
        json=found.to_json,
        rows=lambda: _rows(found),
        lead=lambda: [*warning_lines(found.warnings), *comparison_table(found).splitlines()[-1:]],
        page=lambda: comparison_page(found, sides),
        warnings=found.warnings,
    )
    give(answer, form, options["out"])


def _on_two_devices(model: str, options: Compare) -> tuple[str, str, Compare]:
    """The sides of one model on the two devices of --device; raises InputError."""
    devices: Sequence[str] = texts.names(device_in(options), "device") or ()
    if len(devices) != 2 or "@" in model:
        way = f"neuralpower compare {model} --device t4,l4, or: neuralpower sweep for more devices"
        raise InputError(f"compare needs two sides: give another model, or two devices: {way}")
    return f"{model}@{devices[0]}", f"@{devices[1]}", {**options, "device": None}


def _rows(found: Comparison) -> Rows:
    """A row for each side: its time, and what it takes where options request that."""
    from neuralpower.report.results.explored import footprint_columns

    names, cells = footprint_columns(found)
    sides = zip((found.a, found.b), (found.a_s, found.b_s), cells, strict=True)
    body = [[name, time.value, time.low, time.high, *more] for name, time, more in sides]
    return [["name", "runtime_s", "low_s", "high_s", *names], *body]


def _sides(a: str, b: str, asked: Compare) -> list[Side]:
    """Both models, each predicted on its device; raises InputError."""
    from neuralpower.learn.settings import set_to
    from neuralpower.prediction.case import predict_request
    from neuralpower.prediction.costs.footprint import footprint_of
    from neuralpower.prediction.explore.compare import Side, earlier
    from neuralpower.prediction.request import phase_in, request_of, run_of

    phase = phase_in(asked).name
    known: dict[str, Predictor] = {}
    sides = []
    for number, text in enumerate((a, b)):
        stage(f"predicting {text}", number, 2)
        parsing.check_named([text], "model")
        model, at, place = text.partition("@")
        if at and not place:
            raise InputError(
                f"{text!r} names no predictor behind @; write MODEL@PREDICTOR or @PREDICTOR, or leave @ out"
            )
        if kept := earlier(Path(text)) if text.endswith(".json") else None:
            sides.append(kept)
            continue
        model = model or a.partition("@")[0]
        options = _placed(asked, model, place)
        name = str(options.pop("name"))
        known[name] = trained = known.get(name) or _answers(asked, name if at else "", cluster_in(options))
        dtype = parsing.usual_dtype(
            model, trained, asked["dtype"], run_of(asked["run"], phase, trained.platform)
        )
        trained = set_to(trained, asked["power_limit"], asked["clock"])
        request = request_of(model, options, dtype=dtype)
        request.check(trained)
        prediction, _ = predict_request(request, trained)
        prediction = replace(prediction, footprint=footprint_of(prediction, asked))
        label = request.label + (f" {request.way}" if request.way != "forward" else "")
        if "@" in a + b:
            label += f" on {trained.name}"
        sides.append(Side(label, prediction, trained))
    return sides


def _placed(asked: Compare, model: str, place: str) -> dict[str, Any]:
    """The options of a side with its own layout and devices, and the name of what predicts it."""
    name, own = split_layout(place)
    options = {**asked, "layout": layout_of(own)} if own else dict(asked)
    if name:
        options["devices"] = name if is_cluster(name) else None
        options["nodes"] = asked["nodes"] if is_cluster(name) else None
    cluster = cluster_in(options)
    if cluster is None:
        return {**options, "name": name or asked["predictor"] or ""}
    cluster.check(layouts_in(options)[0])
    if not own:
        check_used(cluster, layouts_in(options), options, model)
    return {**options, "name": name or asked["devices"] or ""}


def _answers(options: Compare, name: str, cluster: Cluster | None) -> Predictor:
    """The predictor of a side; raises InputError."""
    from neuralpower.learn.files.predictor_lookup import all_known

    if cluster is not None:
        return parsing.predictor(options["predictor"], cluster.spec.slug)
    return all_known(name) if name else parsing.predictor(options["predictor"], options["device"])
