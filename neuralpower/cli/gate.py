"""`neuralpower gate`: refuse a model that became slower or larger than a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Typer
from typing_extensions import Unpack

from neuralpower.ask.keywords import limits_in
from neuralpower.ask.output import Gate
from neuralpower.cli.commands import examples, with_options
from neuralpower.cli.formats import JSON, Answer, check_out, form_of, give
from neuralpower.cli.known_names import checked_model, completed_models
from neuralpower.cli.output import say
from neuralpower.cli.parsing import check_file
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.prediction.explore.gate import Gate as Gated

app = Typer()


@app.command(
    epilog=examples(
        "neuralpower gate zoo:resnet50 --device t4 --baseline gate.json --update",
        "neuralpower gate --baseline gate.json --max-latency +5% --max-memory 2GiB",
    )
)
@with_options
def gate(
    models: Annotated[
        list[str] | None,
        Argument(
            metavar="[MODEL]...",
            help="Models as in `predict`; default: all of the baseline.",
            callback=checked_model,
            autocompletion=completed_models,
        ),
    ] = None,
    **options: Unpack[Gate],
) -> None:
    """Compare models with a baseline; exit code 1 where one became too slow or too large."""
    form = form_of(options["form"], options["out"], options["as_json"])
    check_out(options["out"], form)
    check_file(options["junit"], "gate.xml")
    limits_in(options)
    baseline = options["baseline"]
    if baseline is None:
        raise InputError("gate: no baseline; add --baseline FILE, and --update to write it the first time")
    stage("importing torch and transformers")
    from neuralpower.api.gates import asked_gate
    from neuralpower.files.atomic import replace_file
    from neuralpower.report.results.gates import junit_text, workflow_lines

    gated = asked_gate(models or (), baseline, options, update=options["update"])
    give(_answer(gated), form, options["out"])
    if options["junit"] is not None:
        replace_file(options["junit"], junit_text(gated))
    if options["github"] and form != JSON:
        for line in workflow_lines(gated):
            say(line)
    if not gated.passes:
        raise Exit(1)


def _answer(gated: Gated) -> Answer:
    from neuralpower.report.results.gates import cells, gate_table, summary

    def rows() -> list[list[Any]]:
        names = "model metric before now growth limit holds".split()
        values = [
            [model.model, m.metric, m.before, m.now, m.growth, m.limit, m.holds]
            for model in gated.models
            for m in model.measures
        ]
        return [names, *values]

    return Answer(
        title="gate: passes" if gated.passes else "gate: FAILS",
        table=lambda: gate_table(gated, marked=True),
        json=gated.to_json,
        rows=rows,
        shown=lambda: cells(gated),
        lead=lambda: [*summary(gated)],
    )
