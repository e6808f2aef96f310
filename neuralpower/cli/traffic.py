"""`neuralpower traffic`: what users wait for at a rate, and the highest rate that keeps a promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer import Typer
from typing_extensions import Unpack

from neuralpower.ask.options import Serving, options_of
from neuralpower.ask.output import Traffic
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
def traffic(model: Model, **asked: Unpack[Traffic]) -> None:
    """Serve requests without running anything: waiting times, throughput, energy, and the highest rate."""
    form = form_of(asked["form"], asked["out"], asked["as_json"])
    check_out(asked["out"], form)
    stage("importing torch and transformers")
    from neuralpower.api.serving import asked_traffic
    from neuralpower.report.results.served import traffic_page, traffic_table

    given: dict[str, Any] = {name: asked.get(name) for name in options_of(Serving)}
    found = asked_traffic(model, asked["device"], asked["predictor"], given)
    give(
        Answer(
            title=f"{found.model} on {found.devices} x {found.device}",
            table=lambda: traffic_table(found),
            json=found.to_json,
            rows=lambda: _rows(found),
            page=lambda: traffic_page(found),
        ),
        form,
        asked["out"],
    )


def _rows(found: serving.Traffic) -> list[list[Any]]:
    """A line for each waiting time in each bound, then what the engine does, then the curve."""
    from neuralpower.prediction.rows import BOUNDS
    from neuralpower.serving.load import MEASURES, POINTS

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
