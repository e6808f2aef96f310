"""`neuralpower plan`: which devices serve a rate and keep a promise."""

from __future__ import annotations

from typing import Any

from typer import Exit, Typer
from typing_extensions import Unpack

from neuralpower.ask.options import Planning, options_of
from neuralpower.ask.output import Plan
from neuralpower.cli.commands import Model, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.files.stages import stage

COLUMNS = (
    "device layout weights prefill_replicas replicas devices highest_rate cost_per_hour power_w front".split()
)
app = Typer()


@app.command(
    epilog=examples(
        "neuralpower plan llama-3.1-8b --rate 50 --sla ttft=500ms,tpot=30ms@p95 --devices h100-sxm,l40s",
        "neuralpower plan qwen3-32b --rate 5 --sla ttft=1s --devices h100-sxm,l40s --by cost "
        "--price h100-sxm=2.49,l40s=0.79",
    )
)
@with_options
def plan(model: Model, **asked: Unpack[Plan]) -> None:
    """Rank the devices that serve a rate; exit code 1 where none keeps the promise."""
    form = form_of(asked["form"], asked["out"], asked["as_json"])
    check_out(asked["out"], form)
    stage("importing torch and transformers")
    from neuralpower.api.serving import asked_plan
    from neuralpower.report.results.served import plan_page, plan_table
    from neuralpower.serving.plan import Interrupted

    given: dict[str, Any] = {name: asked.get(name) for name in options_of(Planning)}
    interrupted: Interrupted | None = None
    try:
        found = asked_plan(model, given)
    except Interrupted as error:
        interrupted, found = error, error.plan
    rows = [choice.to_json() for choice in found.choices]
    give(
        Answer(
            title=f"{found.model} at {found.rate:g} requests/s",
            table=lambda: plan_table(found),
            json=found.to_json,
            rows=lambda: [COLUMNS, *([row[name] for name in COLUMNS] for row in rows)],
            page=lambda: plan_page(found),
        ),
        form,
        asked["out"],
    )
    if interrupted is not None:
        raise interrupted
    if not found.choices:
        raise Exit(1)
