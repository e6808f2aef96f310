"""`neuralpower models`: the networks of the zoo, and what they work."""

from __future__ import annotations

import dataclasses

import typer

from neuralpower.cli.output import say
from neuralpower.files.json_files import json_text

app = typer.Typer()


@app.command()
def models(
    pattern: list[str] | None = typer.Argument(None, help="Ids, or patterns such as 'resnet*'; all by default."),
    names: bool = typer.Option(False, "--names", help="Print the ids only; nothing is built."),
    as_json: bool = typer.Option(False, "--json", help="Print as JSON."),
) -> None:
    """List the zoo: id, title, input, classes, parameters, FLOP of one sample (forward, products only)."""
    from neuralpower.report.tables import grid, quantity
    from neuralpower.suites.models import listed, matching

    ids = matching(pattern or ())
    if names:
        say(json_text(ids) if as_json else "\n".join(ids))
        return
    found = [listed(id) for id in ids]
    if as_json:
        say(json_text({"schema": 1, "models": [dataclasses.asdict(model) for model in found]}))
        return
    rows = [
        [
            m.id,
            m.title,
            "x".join(map(str, m.input_shape)),
            str(m.classes),
            f"{m.parameters:,}",
            quantity(m.flops, "FLOP"),
        ]
        for m in found
    ]
    say(grid(["id", "title", "input", "classes", "parameters", "FLOP"], rows, left=3))
