"""`neuralpower bench-log`: logs of benchmarks as tables, JSON and CSV."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from neuralpower.cli.output import say
from neuralpower.errors import unknown
from neuralpower.files.json_files import json_text
from neuralpower.files.terminal import visible

app = typer.Typer()


@app.command()
def bench_log(
    logs: list[Path] = typer.Argument(
        help="Log files, folders of them (*.log, *.txt, *.out), folders that a grid wrote."
    ),
    summary: list[str] = typer.Option(
        ["exploration"], help="exploration, weak, strong, statistics or time; repeatable; all for all."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print all values and the summaries as JSON."),
    csv: Path | None = typer.Option(None, help="Write a line per log to this file."),
) -> None:
    """Read result lines back, and sum them up: exploration, scaling, statistics, where the time went."""
    from neuralpower.report.tables import grid
    from neuralpower.suites.bench.logs import read_logs, write_csv
    from neuralpower.suites.bench.summaries import SUMMARIES

    names = [*SUMMARIES] if summary == ["all"] else summary
    for name in names:
        if name not in SUMMARIES:
            raise unknown("summary", name, [*SUMMARIES, "all"])
    found = [log for path in logs for log in read_logs(path)]
    for log in found:
        if log.unreadable:
            text = f"warning: {log.source}: no value in {log.unreadable[0][:80]!r}; it was cut off"
            print(visible(text), file=sys.stderr)
    if csv is not None:
        write_csv(found, csv)
    tables = {name: SUMMARIES[name]([log.values for log in found]) for name in names}
    if as_json:
        results = [{"source": log.source, **log.values} for log in found]
        summaries = {name: table.to_json() for name, table in tables.items()}
        say(json_text({"schema": 1, "results": results, "summaries": summaries}))
        return
    for number, table in enumerate(tables.values()):
        say(("\n" if number else "") + table.title)
        say(grid(table.header, table.texts(), left=4) if table.rows else "nothing to sum up")
