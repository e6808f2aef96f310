"""`neuralpower models`: models that are known by name, and networks of the zoo with their FLOP."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

from neuralpower.ask.output import Output
from neuralpower.ask.words import INPUT, OUTPUT, TASKS
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import OptionGroup, examples, with_options
from neuralpower.cli.formats import Answer, Rows, check_out, form_of, give
from neuralpower.cli.known_names import completed_models
from neuralpower.errors import ModelError, unknown
from neuralpower.files.stages import counted
from neuralpower.networks.names.slips import zoo_names

if TYPE_CHECKING:
    from neuralpower.networks.names.catalogue import Entry

app = Typer()
ZOO_TASK = "zoo"


class Listed(OptionGroup):
    """Options: which models to list, and how."""

    panel = INPUT

    pattern: Annotated[
        list[str] | None,
        Argument(help="Names, or patterns such as 'resnet*'; default: all.", autocompletion=completed_models),
    ] = None
    task: Annotated[str | None, choice("task", TASKS, help="Models of one task")] = None
    names: Annotated[
        bool, Option("--names", help="Print the names only; nothing is built.", rich_help_panel=OUTPUT)
    ] = False
    output: Output


@app.command(
    epilog=examples("neuralpower models --task language", "neuralpower models 'llama*' --format json")
)
@with_options
def models(options: Listed) -> None:
    """List models; the zoo's FLOP count all operations of one sample's forward pass."""
    form = form_of(options.output["form"], options.output["out"], options.output["as_json"])
    check_out(options.output["out"], form)
    pattern, task = [one.removeprefix("zoo:") for one in options.pattern or ()], options.task
    listed, zoo = _entries(pattern, task), _zoo(pattern, task)
    for one in pattern:
        if not (fnmatch.filter([*listed, *zoo], one) or _entries([one], task)):
            raise unknown("model", one, [*_entries((), task), *_zoo((), task)], ModelError)
    if options.names:
        found = [*listed, *zoo]
        answer = Answer(
            title=f"{len(found)} models",
            table=lambda: "\n".join(found),
            json=lambda: found,
            rows=lambda: [["name"], *([name] for name in found)],
        )
    else:
        answer = _answer(list(listed.values()), zoo)
    give(answer, form, options.output["out"])


def _answer(listed: Sequence[Entry], zoo: Sequence[str]) -> Answer:
    """Models of the catalogue, and networks of the zoo, which are built for it."""
    built = functools.cache(lambda: [_built(id) for id in counted(zoo, "building")])

    def table() -> str:
        parts = [_catalogue_table(listed)] if listed else []
        return "\n\n".join(parts + ([_zoo_table(built())] if zoo else []))

    def rows() -> Rows:
        header = ["name", "task", "dtype", "quantisation", "parameters", "flops"]
        models = [[e.name, e.task, e.dtype, e.quantisation, e.parameters, None] for e in listed]
        networks = [
            [f"zoo:{m['id']}", ZOO_TASK, "float32", None, m["parameters"], m["flops"]] for m in built()
        ]
        return [header, *models, *networks]

    return Answer(
        title=f"{len(listed) + len(zoo)} models",
        table=table,
        json=lambda: {"schema": 1, "models": built(), "catalogue": [_shown(entry) for entry in listed]},
        rows=rows,
    )


def _entries(patterns: Sequence[str], task: str | None) -> dict[str, Entry]:
    """Models of the catalogue by name, grouped by task."""
    from neuralpower.networks.names.catalogue import TASKS, catalogue, named

    entries = sorted(catalogue().values(), key=lambda entry: (TASKS.index(entry.task), entry.name))
    meant = {name for one in patterns if not fnmatch.filter(catalogue(), one) for name in named(one)}
    return {
        entry.name: entry
        for entry in entries
        if task in (None, entry.task)
        and (not patterns or entry.name in meant or any(fnmatch.fnmatch(entry.name, one) for one in patterns))
    }


def _zoo(patterns: Sequence[str], task: str | None) -> list[str]:
    """Ids of the zoo that match a pattern or the task."""
    if task not in (None, ZOO_TASK):
        return []
    return sorted(
        id for id in zoo_names() if not patterns or any(fnmatch.fnmatch(id, one) for one in patterns)
    )


def _shown(entry: Entry) -> dict[str, Any]:
    about = {name: getattr(entry, name) for name in ("name", "task", "parameters", "dtype", "quantisation")}
    return {**about, "aliases": list(entry.aliases), "config": dict(entry.config)}


def _catalogue_table(entries: Sequence[Entry]) -> str:
    from neuralpower.report.grid import grid
    from neuralpower.report.number_format import quantity

    rows = []
    for entry in entries:
        dtype = f"{entry.dtype}, {entry.quantisation}" if entry.quantisation else entry.dtype
        hub = next((alias for alias in entry.aliases if "/" in alias), "")
        rows.append([entry.name, entry.task, dtype, quantity(entry.parameters, ""), hub])
    header = ["model", "task", "dtype", "parameters", "published as"]
    return grid(header, rows, left=3, spared=header[-1:])


def _zoo_table(found: Sequence[dict[str, Any]]) -> str:
    from neuralpower.report.grid import grid
    from neuralpower.report.number_format import quantity
    from neuralpower.report.tables import FLOP_CONVENTION

    rows = []
    for m in found:
        sizes = ["x".join(map(str, m["input_shape"])), str(m["classes"]), f"{m['parameters']:,}"]
        rows.append([m["id"], m["title"], *sizes, quantity(m["flops"], "FLOP")])
    return grid(["id", "title", "input", "classes", "parameters", f"FLOP ({FLOP_CONVENTION})"], rows, left=3)


def _built(id: str) -> dict[str, Any]:
    """A network's numbers; it is built on the meta device, which needs no memory."""
    from neuralpower.networks.inputs.size_limits import InputRequest
    from neuralpower.networks.sources import resolve
    from neuralpower.networks.zoo import ZOO
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
        "flops": sum(int(layer.flops()) for layer in traced.layers),
    }
