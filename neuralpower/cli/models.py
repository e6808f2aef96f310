"""`neuralpower models`: the networks of the zoo, and what they work."""

from __future__ import annotations

import fnmatch
from typing import Any

from typer import Argument, Option, Typer

from neuralpower.cli.output import say
from neuralpower.errors import ModelError, unknown
from neuralpower.files.json_files import json_text

app = Typer()


@app.command()
def models(
    pattern: list[str] | None = Argument(None, help="Ids, or patterns such as 'resnet*'; all by default."),
    names: bool = Option(False, "--names", help="Print the ids only; nothing is built."),
    as_json: bool = Option(False, "--json", help="Print as JSON."),
) -> None:
    """Print a line per network of the zoo; its FLOP are of one sample's forward pass, products only."""
    from neuralpower.networks.zoo import ZOO
    from neuralpower.report.tables import grid, quantity

    for one in pattern or ():
        if not fnmatch.filter(ZOO, one):
            raise unknown("zoo network", one, ZOO, ModelError)
    ids = sorted(id for id in ZOO if not pattern or any(fnmatch.fnmatch(id, one) for one in pattern))
    if names:
        say(json_text(ids) if as_json else "\n".join(ids))
        return
    found = [_listed(id) for id in ids]
    if as_json:
        say(json_text({"schema": 1, "models": found}))
        return
    rows = []
    for m in found:
        sizes = ["x".join(map(str, m["input_shape"])), str(m["classes"]), f"{m['parameters']:,}"]
        rows.append([m["id"], m["title"], *sizes, quantity(m["flops"], "FLOP")])
    say(grid(["id", "title", "input", "classes", "parameters", "FLOP"], rows, left=3))


def _listed(id: str) -> dict[str, Any]:
    """A network's figures, built on the meta device, which takes no memory."""
    from neuralpower.networks.inputs import InputRequest
    from neuralpower.networks.sources import resolve
    from neuralpower.networks.zoo import ZOO
    from neuralpower.profiling.conventions import product_flops
    from neuralpower.trace.tracer import trace

    source, entry = resolve(f"zoo:{id}"), ZOO[id]
    model = source.build("meta")
    inputs = source.inputs(model, InputRequest(1), "meta")
    traced = trace(model, inputs.args, dict(inputs.kwargs))
    return {
        "id": id,
        "title": entry.title,
        "input_shape": entry.input_shape,
        "classes": entry.classes,
        "parameters": traced.parameters,
        "flops": sum(product_flops(layer) for layer in traced.layers),
    }
