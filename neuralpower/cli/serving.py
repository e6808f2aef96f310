"""`neuralpower traffic` and `plan`: what users wait for at a rate, and which devices keep a promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer import Exit, Typer
from typing_extensions import Unpack

from neuralpower.ask.options import Planning, Serving, options_of
from neuralpower.ask.output import Plan, Traffic
from neuralpower.cli.commands import Model, examples, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.files.stages import stage

if TYPE_CHECKING:
    from neuralpower.serving import traffic as serving

app = Typer()


@app.command(
    epilog=examples(
        "neuralpower traffic llama-3.1-8b --device l40s --rate 2 --input 1024 --output 256 --price 0.79/h",
        "neuralpower traffic llama-3.1-70b --device 4xh100-sxm --sla ttft=1s,tpot=40ms@p95",
    )
)
@with_options
def traffic(model: Model, **options: Unpack[Traffic]) -> None:
    """Serve requests without running anything: waiting times, throughput, energy, and the highest rate."""
    form = form_of(options["form"], options["out"], options["as_json"])
    check_out(options["out"], form)
    stage("importing torch and transformers")
    from neuralpower.api.serving import asked_traffic
    from neuralpower.report.results.served import traffic_page, traffic_table

    given: dict[str, Any] = {name: options.get(name) for name in options_of(Serving)}
    served = asked_traffic(model, options["device"], options["predictor"], given)
    give(
        Answer(
            title=f"{served.model} on {served.devices} x {served.device}",
            table=lambda: traffic_table(served),
            json=served.to_json,
            rows=lambda: _traffic_rows(served),
            page=lambda: traffic_page(served),
        ),
        form,
        options["out"],
    )


def _traffic_rows(found: serving.Traffic) -> list[list[Any]]:
    """A line for each waiting time in each bound, then what the engine does, then the curve."""
    from neuralpower.prediction.rows import BOUNDS
    from neuralpower.serving.results import MEASURES, POINTS

    loads: list[tuple[Any, str, Any]] = [("", bound, getattr(found, bound)) for bound in BOUNDS]
    loads += [(load.rate, BOUNDS[0], load) for load in found.curve]
    rows: list[list[Any]] = [["rate", "bound", "measure", "point", "value"]]
    for rate, bound, load in loads:
        for name, value in load.to_json().items():
            if name in MEASURES:
                rows += [[rate, bound, name, point, value[point]] for point in POINTS]
            elif not isinstance(value, dict) and name != "rate":
                rows.append([rate, bound, name, "", value])
    return rows


COLUMNS = (
    "device layout weights prefill_replicas replicas devices highest_rate cost_per_hour power_w front".split()
)


@app.command(
    epilog=examples(
        "neuralpower plan llama-3.1-8b --rate 50 --sla ttft=500ms,tpot=30ms@p95 --devices h100-sxm,l40s",
        "neuralpower plan qwen3-32b --rate 5 --sla ttft=1s --devices h100-sxm,l40s --by cost "
        "--price h100-sxm=2.49,l40s=0.79",
    )
)
@with_options
def plan(model: Model, **options: Unpack[Plan]) -> None:
    """Rank the devices that serve a rate; exit code 1 where none keeps the promise."""
    form = form_of(options["form"], options["out"], options["as_json"])
    check_out(options["out"], form)
    stage("importing torch and transformers")
    from neuralpower.api.serving import asked_plan
    from neuralpower.report.results.served import plan_page, plan_table
    from neuralpower.serving.plan import Interrupted

    given: dict[str, Any] = {name: options.get(name) for name in options_of(Planning)}
    interrupted: Interrupted | None = None
    try:
        ranked = asked_plan(model, given)
    except Interrupted as error:
        interrupted, ranked = error, error.plan
    rows = [choice.to_json() for choice in ranked.choices]
    give(
        Answer(
            title=f"{ranked.model} at {ranked.rate:g} requests/s",
            table=lambda: plan_table(ranked),
            json=ranked.to_json,
            rows=lambda: [COLUMNS, *([row[name] for name in COLUMNS] for row in rows)],
            page=lambda: plan_page(ranked),
        ),
        form,
        options["out"],
    )
    if interrupted is not None:
        raise interrupted
    if not ranked.choices:
        raise Exit(1)
