"""`neuralpower plan`: which devices serve a rate and keep a promise."""

from __future__ import annotations

from typing import Annotated

from typer import Exit, Option, Typer

from neuralpower.ask import texts
from neuralpower.ask.options import Sizes
from neuralpower.ask.output import Output
from neuralpower.ask.panels import ENGINE, INPUT, OUTPUT, TARGET
from neuralpower.ask.words import PLANNED, SCHEDULERS
from neuralpower.cli import parsing
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import Model, OptionGroup, examples, flag, with_options
from neuralpower.cli.formats import Answer, check_out, form_of, give
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

app = Typer()


class Plan(OptionGroup):
    """Options: the model, the requests, the promise, and the devices to choose from."""

    panel = INPUT
    panels = {TARGET: "devices tensor_parallel", ENGINE: "engine", OUTPUT: "by price"}

    model: Model
    rate: Annotated[float, Option(help="Requests per second in all.")]
    sla: Annotated[str, Option(help="The promise: ttft=500ms,tpot=30ms@p95.")]
    devices: Annotated[str, Option(help="Devices to choose from, with commas: h100-sxm,l40s,b200.")]
    input: Annotated[int, Option(help="Tokens of a prompt.")] = 1024
    output: Annotated[int, Option(help="Tokens of an answer.")] = 256
    spread: Annotated[float, Option(help="Lengths are drawn up to this share off, evenly.")] = 0.0
    burstiness: Annotated[
        float, Option(help="Shape of the gaps: 1 a Poisson process, below 1 burstier, inf constant.")
    ] = 1.0
    requests: Annotated[int, Option(help="Requests of each simulation.")] = 400
    tensor_parallel: Annotated[str, Option(help="Ranks of a replica to try.")] = "1,2,4,8"
    engine: Annotated[str, choice("engine", SCHEDULERS, help="Its scheduler and its pool")] = "vllm"
    dtype: Annotated[str | None, flag(Sizes, "dtype")] = None
    weights: Annotated[str | None, flag(Sizes, "weights")] = None
    by: Annotated[str, choice("ranking", PLANNED, help="What ranks them; cost needs --price")] = "devices"
    price: Annotated[
        str | None, Option(help="Price of a device for an hour: h100-sxm=2.49,l40s=0.79, in any currency.")
    ] = None
    answer: Output


@app.command(
    epilog=examples(
        "neuralpower plan llama-3.1-8b --rate 50 --sla ttft=500ms,tpot=30ms@p95 --devices h100-sxm,l40s",
        "neuralpower plan qwen3-32b --rate 5 --sla ttft=1s --devices h100-sxm,l40s --by cost "
        "--price h100-sxm=2.49,l40s=0.79",
    )
)
@with_options
def plan(asked: Plan) -> None:
    """Rank the devices that serve a rate; exit code 1 where none keeps the promise."""
    form = form_of(asked.answer["form"], asked.answer["out"], asked.answer["as_json"])
    check_out(asked.answer["out"], form)
    from neuralpower.devices.spec import find_spec

    specs = [find_spec(name) for name in texts.names(asked.devices, "device") or ()]
    prices = _prices(asked.price)
    degrees = texts.numbers(asked.tensor_parallel, "tensor ranks", "1,2,4")
    stage("importing torch and transformers")
    from neuralpower.report.served import plan_table
    from neuralpower.serving.plan import plan as planned
    from neuralpower.serving.traffic import targets_of
    from neuralpower.serving.workload import requested

    dtype = asked.dtype and parsing.dtype(asked.dtype)
    names = "input output requests spread burstiness".split()
    workload = requested(rate=1.0, **{name: getattr(asked, name) for name in names})
    found = planned(
        asked.model,
        workload,
        asked.rate,
        targets_of(asked.sla),
        [(spec, parsing.predictor(None, spec.slug, dtype)) for spec in specs],
        prices={find_spec(name).slug: price for name, price in prices.items()},
        degrees=degrees,
        by=asked.by,
        engine=asked.engine,
        dtype=dtype,
        weights=asked.weights,
        longest=int((workload.prompt + workload.output).max()),
    )
    rows = [choice.to_json() for choice in found.choices]
    names = "device layout replicas devices highest_rate cost_per_hour".split()
    give(
        Answer(
            title=f"{found.model} at {found.rate:g} requests/s",
            table=lambda: plan_table(found),
            json=found.to_json,
            rows=lambda: [names, *([row[name] for name in names] for row in rows)],
        ),
        form,
        asked.answer["out"],
    )
    if not found.choices:
        raise Exit(1)


def _prices(text: str | None) -> dict[str, float]:
    """Prices by device; raises InputError."""
    prices: dict[str, float] = {}
    for part in texts.names(text, "price") or ():
        name, equals, value = part.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = 0.0
        if not equals or not 0 < price < float("inf"):
            raise InputError(f"--price {part}: a device and what it costs for an hour; write h100-sxm=2.49")
        if name in prices:
            raise InputError(f"--price: {name} has two prices; leave one out")
        prices[name] = price
    return prices
