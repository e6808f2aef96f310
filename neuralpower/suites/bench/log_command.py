"""`neuralpower bench-log`: logs of benchmarks as tables, JSON and CSV."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from neuralpower.cli.choices import SUMMARIES, choice
from neuralpower.cli.commands import examples
from neuralpower.cli.output import say
from neuralpower.cli.panels import OUTPUT
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import visible

app = typer.Typer()


Logs = Annotated[
    list[Path],
    typer.Argument(help="Log files, folders of logs (*.log, *.txt, *.out), or folders of a grid."),
]
Summary = Annotated[list[str], choice("summary", SUMMARIES, help="Repeatable")]


@app.command(
    epilog=examples(
        "neuralpower bench-log run.log", "neuralpower bench-log results/ --summary strong --csv all.csv"
    )
)
def bench_log(
    logs: Logs,
    summary: Summary = ["exploration"],  # noqa: B006  # read, never changed
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print all values and the summaries as JSON.", rich_help_panel=OUTPUT),
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(help="Write a line per log to this file.", rich_help_panel=OUTPUT)
    ] = None,
) -> None:
    """Read result lines back, and summarise them: exploration, scaling, statistics, shares of time."""
    from neuralpower.report.grid import grid
    from neuralpower.suites.bench.results import SUMMARIES as MADE
    from neuralpower.suites.bench.results import read_logs, write_csv

    names = [*MADE] if "all" in summary else summary
    found = [log for path in logs for log in read_logs(path)]
    for log in found:
        if log.unreadable:
            text = f"Warning: {log.source}: {log.unreadable[0][:80]!r} has no value; the line was cut off"
            print(visible(text), file=sys.stderr)
    if csv is not None:
        write_csv(found, csv)
    tables = {name: MADE[name]([log.values for log in found]) for name in names}
    if as_json:
        results = [{"source": log.source, **log.values} for log in found]
        summaries = {name: table.to_json() for name, table in tables.items()}
        say(json_text({"schema": 1, "results": results, "summaries": summaries}))
        return
    for number, table in enumerate(tables.values()):
        say(("\n" if number else "") + table.title)
        say(grid(table.header, table.texts(), left=4) if table.rows else "no results to summarise")
