"""`neuralpower parallel`: all ways to spread a network over a cluster, ranked; needs no device."""

from __future__ import annotations

from typer import Exit, Typer
from typing_extensions import Unpack

from neuralpower.ask import texts
from neuralpower.ask.output import Parallel
from neuralpower.ask.spread import cluster_in
from neuralpower.cli import parsing
from neuralpower.cli.commands import Model, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

app = Typer()


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
