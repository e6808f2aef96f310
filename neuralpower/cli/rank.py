"""`neuralpower rank`: one model on all devices that are known; needs none of them."""

from __future__ import annotations

from typer import Exit, Typer
from typing_extensions import Unpack

from neuralpower.ask.output import Rank
from neuralpower.cli import parsing
from neuralpower.cli.commands import Model, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.files.stages import stage

app = Typer()


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
