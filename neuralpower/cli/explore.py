"""`neuralpower sweep`, `rank` and `parallel`: a grid of sizes, all devices, all ways to spread a network."""

from __future__ import annotations

from typer import Exit, Typer
from typing_extensions import Unpack

from neuralpower.ask import texts
from neuralpower.ask.output import Parallel, Rank, Sweep
from neuralpower.ask.spread import check_used, cluster_in, device_in, layouts_in
from neuralpower.cli import parsing
from neuralpower.cli.commands import Model, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.devices.names import bytes_of
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


@app.command(
    epilog=examples(
        "neuralpower rank llama-3.1-8b --phase decode --context 4096 --by energy",
        "neuralpower rank zoo:resnet50 -b 8 --by price --price prices.csv --device h100,l40s,t4",
    )
)
@with_options
def rank(model: Model, **asked: Unpack[Rank]) -> None:
    """Rank the devices; exit code 1 where the model fits none."""
    form = form_of(asked["form"], asked["out"], asked["as_json"])
    check_out(asked["out"], form)
    parsing.check_plot(asked["plot"])
    parsing.check_batch_size(asked["batch_size"])
    stage("importing torch and transformers")
    from neuralpower.api.ranked import asked_rank
    from neuralpower.report.grid import note_lines, warning_lines
    from neuralpower.report.pictures import draw
    from neuralpower.report.results.ranked import rank_cells, rank_page, rank_table, skipped_lines

    found = asked_rank(model, asked["device"], asked)
    if asked["plot"] is not None:
        draw(rank_page(found), asked["plot"])
    answer = Answer(
        title=f"{model} on {len(found.devices)} devices",
        table=lambda: rank_table(found, asked["top"], marked=True),
        json=found.to_json,
        rows=lambda: rank_cells(found),
        lead=lambda: [*warning_lines(found.warnings), *skipped_lines(found), *note_lines(found.notes)],
        page=lambda: rank_page(found),
        warnings=(*found.warnings, *skipped_lines(found)),
    )
    give(answer, form, asked["out"])
    if not found.ranked:
        raise Exit(1)


@app.command(
    epilog=examples(
        "neuralpower parallel llama-3.1-70b --phase decode --context 2048 --devices 8xh100-sxm",
        "neuralpower parallel llama-3.1-70b --phase training --seq-len 4096 --devices 8xh100-sxm --nodes 4",
    )
)
@with_options
def parallel(model: Model, **asked: Unpack[Parallel]) -> None:
    """Rank the layouts; exit code 1 where none fits."""
    form = form_of(asked["form"], asked["out"], asked["as_json"])
    cluster = cluster_in(asked)
    if cluster is None:
        raise InputError("parallel: --devices says which devices there are; give --devices 8xh100-sxm")
    for batch in texts.counts(asked["batch_size"], "batch size"):
        parsing.check_batch_size(batch)
    stage("importing torch and transformers")
    from neuralpower.api.loaded import laid
    from neuralpower.report.results.layouts import layouts_table

    check_out(asked["out"], form)
    trained = parsing.predictor(asked["predictor"], cluster.spec.slug, asked["dtype"])
    found = laid(model, trained, asked)
    rows = [one.to_json() for one in found.found]
    flat = [
        {
            **row,
            "layout": one.layout.short,
            "runtime_s": one.runtime_s and one.runtime_s.value,
            "energy_j": one.energy_j and one.energy_j.value,
        }
        for row, one in zip(rows, found.found, strict=True)
    ]
    answer = Answer(
        title=f"{model} on {cluster}",
        table=lambda: layouts_table(found, asked["top"], marked=True),
        json=found.to_json,
        rows=lambda: [[*flat[0]], *([*row.values()] for row in flat)],
        lead=lambda: layouts_table(found, asked["top"]).splitlines()[:2],
    )
    give(answer, form, asked["out"])
    if not found.fitting:
        raise Exit(1)
