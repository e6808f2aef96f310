"""`neuralpower sweep`: a grid of sizes, predicted without the device."""

from __future__ import annotations

from typer import Typer
from typing_extensions import Unpack

from neuralpower.ask import texts
from neuralpower.ask.output import Sweep
from neuralpower.ask.spread import check_used, cluster_in, device_in, layouts_in
from neuralpower.cli import parsing
from neuralpower.cli.commands import Model, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.devices.memory_size import bytes_of
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

app = Typer()
GRIDDED = {"batch_size": "batch size", "seq_len": "seq-len", "context": "context", "prompt": "prompt"}


@app.command(
    epilog=examples(
        "neuralpower sweep transformers:gpt2 --batch-size 1:8 --seq-len 64,128",
        "neuralpower sweep llama-3.1-8b --phase decode --context 1024:8192 --device h100",
    )
)
@with_options
def sweep(model: Model, **asked: Unpack[Sweep]) -> None:
    """Predict the points of the grid, and mark the Pareto-optimal ones."""
    form = form_of(asked["form"], asked["out"], asked["as_json"])
    for name, said in GRIDDED.items():
        if asked.get(name) is not None:
            texts.sizes(str(asked.get(name)), said)
    texts.shape(asked["input_shape"])
    if asked["memory"] is not None:
        bytes_of(asked["memory"])
    stage("importing torch and transformers")
    from neuralpower.api.loaded import LoadedPredictor, swept
    from neuralpower.files.csv_files import write_csv
    from neuralpower.report.grid import note_lines, warning_lines
    from neuralpower.report.pictures import draw, sweep_page
    from neuralpower.report.results.explored import sweep_table

    parsing.check_plot(asked["plot"])
    parsing.check_file(asked["csv"], "points.csv")
    check_out(asked["out"], form)
    check_used(cluster_in(asked), layouts_in(asked), asked, model)
    predictors = [
        LoadedPredictor(parsing.predictor(name, device))
        for name in texts.names(asked["predictor"], "predictor") or (None,)
        for device in texts.names(device_in(asked), "device") or (None,)
    ]
    found = swept(model, predictors, asked)
    if all(point.error for point in found.points):
        raise InputError(f"no point could be predicted: {found.points[0].error}")
    rows = [vars(found.points[0]), *(vars(p).values() for p in found.points)]
    if asked["csv"] is not None:
        write_csv(asked["csv"], rows)
    if asked["plot"] is not None:
        draw(sweep_page(found), asked["plot"])
    answer = Answer(
        title=f"{model}: {len(found.points)} points",
        table=lambda: sweep_table(found, asked["top"], marked=True),
        json=found.to_json,
        rows=lambda: [[*row] for row in rows],
        lead=lambda: [*warning_lines(found.warnings), *note_lines(found.notes)],
        page=lambda: sweep_page(found),
        warnings=found.warnings,
    )
    give(answer, form, asked["out"])
