"""`neuralpower models`: models that are known by name, and networks of the zoo with what they work."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typer import Argument, Option, Typer

from neuralpower.cli.output import say
from neuralpower.errors import ModelError, unknown
from neuralpower.files.json_files import json_text

if TYPE_CHECKING:
    from neuralpower.networks.catalogue import Entry

app = Typer()
ZOO_TASK = "zoo"


@app.command()
def models(
    pattern: list[str] | None = Argument(None, help="Names, or patterns such as 'resnet*'; all by default."),
    task: str | None = Option(
        None, help="language, encoder, text-to-text, vision, vision-language, speech, or zoo."
    ),
    names: bool = Option(False, "--names", help="Print the names only; nothing is built."),
    as_json: bool = Option(False, "--json", help="Print as JSON."),
) -> None:
    """Print a line per model; the zoo's FLOP are of one sample's forward pass, products only."""
    listed, zoo = _entries(pattern or (), task), _zoo(pattern or (), task)
    for one in pattern or ():
        if not (fnmatch.filter([*listed, *zoo], one) or _entries([one], task)):
            raise unknown("model", one, [*_entries((), task), *_zoo((), task)], ModelError)
    if names:
        found = [*listed, *zoo]
        say(json_text(found) if as_json else "\n".join(found))
        return
    if as_json:
        entries = [_shown(entry) for entry in listed.values()]
        say(json_text({"schema": 1, "models": [_built(id) for id in zoo], "catalogue": entries}))
        return
    if listed:
        say(_catalogue_table(list(listed.values())) + "\n" * bool(zoo))
    if zoo:
        say(_zoo_table([_built(id) for id in zoo]))


def _entries(patterns: Sequence[str], task: str | None) -> dict[str, Entry]:
    """Models of the catalogue by name, those of a task together; raises ModelError for an unknown task."""
    from neuralpower.networks.catalogue import TASKS, catalogue, named

    if task is not None and task not in (*TASKS, ZOO_TASK):
        raise unknown("task", task, (*TASKS, ZOO_TASK), ModelError)
    entries = sorted(catalogue().values(), key=lambda entry: (TASKS.index(entry.task), entry.name))
    meant = {name for one in patterns if not fnmatch.filter(catalogue(), one) for name in named(one)}
    return {
        entry.name: entry
        for entry in entries
        if task in (None, entry.task)
        and (not patterns or entry.name in meant or any(fnmatch.fnmatch(entry.name, one) for one in patterns))
    }


def _zoo(patterns: Sequence[str], task: str | None) -> list[str]:
    """Ids of the zoo, which are listed where a pattern or the task asks for them."""
    from neuralpower.networks.zoo import ZOO

    if task not in (None, ZOO_TASK):
        return []
    return sorted(id for id in ZOO if not patterns or any(fnmatch.fnmatch(id, one) for one in patterns))


def _shown(entry: Entry) -> dict[str, Any]:
    """A model as JSON shows it."""
    about = {name: getattr(entry, name) for name in ("name", "task", "parameters", "dtype", "quantisation")}
    return {**about, "aliases": list(entry.aliases), "config": dict(entry.config)}


def _catalogue_table(entries: Sequence[Entry]) -> str:
    from neuralpower.report.tables import grid, quantity

    rows = []
    for entry in entries:
        dtype = f"{entry.dtype}, {entry.quantisation}" if entry.quantisation else entry.dtype
        hub = next((alias for alias in entry.aliases if "/" in alias), "")
        rows.append([entry.name, entry.task, dtype, hub, quantity(entry.parameters, "")])
    return grid(["model", "task", "dtype", "published as", "parameters"], rows, left=4)


def _zoo_table(found: Sequence[dict[str, Any]]) -> str:
    from neuralpower.report.tables import grid, quantity

    rows = []
    for m in found:
        sizes = ["x".join(map(str, m["input_shape"])), str(m["classes"]), f"{m['parameters']:,}"]
        rows.append([m["id"], m["title"], *sizes, quantity(m["flops"], "FLOP")])
    return grid(["id", "title", "input", "classes", "parameters", "FLOP (matmul)"], rows, left=3)


def _built(id: str) -> dict[str, Any]:
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
