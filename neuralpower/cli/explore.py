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
def sweep(model: Model, **options: Unpack[Sweep]) -> None:
    """Predict the points of the grid, and mark the Pareto-optimal ones."""
    form = form_of(options["form"], options["out"], options["as_json"])
    for name, said in GRIDDED.items():
        if options.get(name) is not None:
            texts.sizes(str(options.get(name)), said)
    texts.shape(options["input_shape"])
    if options["memory"] is not None:
        bytes_of(options["memory"])
    stage("importing torch and transformers")
    from neuralpower.api.loaded import LoadedPredictor, swept
    from neuralpower.files.csv_files import write_csv
    from neuralpower.report.grid import note_lines, warning_lines
    from neuralpower.report.pictures import draw, sweep_page
    from neuralpower.report.results.explored import sweep_table

    parsing.check_plot(options["plot"])
    parsing.check_file(options["csv"], "points.csv")
    check_out(options["out"], form)
    check_used(cluster_in(options), layouts_in(options), options, model)
    predictors = [
        LoadedPredictor(parsing.predictor(name, device))
        for name in texts.names(options["predictor"], "predictor") or (None,)
        for device in texts.names(device_in(options), "device") or (None,)
    ]
    grid = swept(model, predictors, options)
    if all(point.error for point in grid.points):
        raise InputError(f"no point could be predicted: {grid.points[0].error}")
    rows = [vars(grid.points[0]), *(vars(p).values() for p in grid.points)]
    if options["csv"] is not None:
        write_csv(options["csv"], rows)
    if options["plot"] is not None:
        draw(sweep_page(grid), options["plot"])
    answer = Answer(
        title=f"{model}: {len(grid.points)} points",
        table=lambda: sweep_table(grid, options["top"], marked=True),
        json=grid.to_json,
        rows=lambda: [[*row] for row in rows],
        lead=lambda: [*warning_lines(grid.warnings), *note_lines(grid.notes)],
        page=lambda: sweep_page(grid),
        warnings=grid.warnings,
    )
    give(answer, form, options["out"])


@app.command(
    epilog=examples(
        "neuralpower rank llama-3.1-8b --phase decode --context 4096 --by energy",
        "neuralpower rank zoo:resnet50 -b 8 --by price --price prices.csv --device h100,l40s,t4",
    )
)
@with_options
def rank(model: Model, **options: Unpack[Rank]) -> None:
    """Rank the devices; exit code 1 where the model fits none."""
    form = form_of(options["form"], options["out"], options["as_json"])
    check_out(options["out"], form)
    parsing.check_plot(options["plot"])
    parsing.check_batch_size(options["batch_size"])
    stage("importing torch and transformers")
    from neuralpower.api.ranked import asked_rank
    from neuralpower.report.grid import note_lines, warning_lines
    from neuralpower.report.pictures import draw
    from neuralpower.report.results.ranked import rank_cells, rank_page, rank_table, skipped_lines

    ranking = asked_rank(model, options["device"], options)
    if options["plot"] is not None:
        draw(rank_page(ranking), options["plot"])
    answer = Answer(
        title=f"{model} on {len(ranking.devices)} devices",
        table=lambda: rank_table(ranking, options["top"], marked=True),
        json=ranking.to_json,
        rows=lambda: rank_cells(ranking),
        lead=lambda: [*warning_lines(ranking.warnings), *skipped_lines(ranking), *note_lines(ranking.notes)],
        page=lambda: rank_page(ranking),
        warnings=(*ranking.warnings, *skipped_lines(ranking)),
    )
    give(answer, form, options["out"])
    if not ranking.ranked:
        raise Exit(1)


@app.command(
    epilog=examples(
        "neuralpower parallel llama-3.1-70b --phase decode --context 2048 --devices 8xh100-sxm",
        "neuralpower parallel llama-3.1-70b --phase training --seq-len 4096 --devices 8xh100-sxm --nodes 4",
    )
)
@with_options
def parallel(model: Model, **options: Unpack[Parallel]) -> None:
    """Rank the layouts; exit code 1 where none fits."""
    form = form_of(options["form"], options["out"], options["as_json"])
    cluster = cluster_in(options)
    if cluster is None:
        raise InputError("parallel: --devices says which devices there are; give --devices 8xh100-sxm")
    for batch in texts.counts(options["batch_size"], "batch size"):
        parsing.check_batch_size(batch)
    stage("importing torch and transformers")
    from neuralpower.api.loaded import laid
    from neuralpower.report.results.layouts import layouts_table

    check_out(options["out"], form)
    trained = parsing.predictor(options["predictor"], cluster.spec.slug, options["dtype"])
    layouts = laid(model, trained, options)
    rows = [one.to_json() for one in layouts.found]
    flat = [
        {
            **row,
            "layout": one.layout.short,
            "runtime_s": one.runtime_s and one.runtime_s.value,
            "energy_j": one.energy_j and one.energy_j.value,
        }
        for row, one in zip(rows, layouts.found, strict=True)
    ]
    answer = Answer(
        title=f"{model} on {cluster}",
        table=lambda: layouts_table(layouts, options["top"], marked=True),
        json=layouts.to_json,
        rows=lambda: [[*flat[0]], *([*row.values()] for row in flat)],
        lead=lambda: layouts_table(layouts, options["top"]).splitlines()[:2],
    )
    give(answer, form, options["out"])
    if not layouts.fitting:
        raise Exit(1)
