"""`neuralpower explain`: where the time of a profiler's trace went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Typer
from typing_extensions import Unpack

from neuralpower.ask.output import Explain
from neuralpower.cli import parsing
from neuralpower.cli.commands import examples, with_options
from neuralpower.cli.formats import Answer, Rows, check_out, form_of, give
from neuralpower.errors import InputError
from neuralpower.files.paths import check_read, is_there
from neuralpower.files.stages import stage

app = Typer()


@app.command(
    epilog=examples(
        "neuralpower explain trace.json.gz",
        "neuralpower explain h100.json.gz --against mi300x.json.gz --out explained.html",
    )
)
@with_options
def explain(
    trace: Annotated[Path, Argument(help="A trace of torch.profiler: FILE.json or FILE.json.gz.")],
    **options: Unpack[Explain],
) -> None:
    """Price the calls of a trace; name causes, gaps, and what has no price."""
    form = form_of(options["form"], options["out"], options["as_json"])
    _check_is_file(trace)
    given = [Path(one) for one in (trace, options["against"], options["capture"]) if one is not None]
    for file in given:
        check_read(file)
    parsing.check_plot(options["plot"])
    check_out(options["out"], form)
    stage("importing torch and transformers")
    from neuralpower.report.pictures import draw
    from neuralpower.report.results.traces import explanation_page, explanation_table, shown_columns
    from neuralpower.traces.explanation import COLUMNS, explained, predictor_for

    stage(f"reading {trace.name}")
    against, capture = (
        None if one is None else Path(one) for one in (options["against"], options["capture"])
    )
    explanation = explained(
        trace,
        lambda recording: predictor_for(recording, options["device"], options["predictor"]),
        against,
        capture,
    )
    if options["plot"] is not None:
        draw(explanation_page(explanation), options["plot"])

    def rows() -> Rows:
        return [
            [column.name for column in COLUMNS],
            *([column.value(row) for column in COLUMNS] for row in explanation.rows),
        ]

    def readable() -> Rows:
        columns = shown_columns(explanation)
        return [[*columns], *([cell(row) for cell in columns.values()] for row in explanation.rows)]

    answer = Answer(
        title=f"{explanation.trace} on {explanation.device}",
        table=lambda: explanation_table(explanation, options["top"], marked=True),
        json=explanation.to_json,
        rows=rows,
        shown=readable,
        page=lambda: explanation_page(explanation),
    )
    give(answer, form, options["out"])


def _check_is_file(trace: Path) -> None:
    """Raise InputError for a name of a model in place of a trace."""
    if not trace.suffix and not is_there(trace):
        raise InputError(
            f"{trace}: explain reads a trace of torch.profiler, FILE.json; for a model's layers write "
            f"neuralpower predict {trace} --by layer"
        )
