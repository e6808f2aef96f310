"""`neuralpower report`: rooflines, runtimes and training of networks as pages, pictures, tables and data."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from neuralpower.ask import texts
from neuralpower.ask.options import Sizes
from neuralpower.ask.words import INPUT, MEASURING, OUTPUT, TARGET
from neuralpower.cli import parsing
from neuralpower.cli.commands import MeasuredDevice, OptionGroup, examples, flag, with_options
from neuralpower.cli.known_names import (
    checked_models,
    checked_predictors_or_none,
    completed_models,
    completed_predictors,
)
from neuralpower.cli.output import say, tell
from neuralpower.files.stages import stage

app = Typer()


class Report(OptionGroup):
    """Options: the networks, devices and sizes of a report."""

    panel = INPUT

    models: Annotated[
        list[str] | None,
        Argument(
            help="MODEL...; default: twelve small networks of different families.",
            callback=checked_models,
            autocompletion=completed_models,
        ),
    ] = None
    out: Annotated[
        Path,
        Option(
            "--out",
            "-o",
            help="Output folder for index.html, report.md, pictures, tables and data.json.",
            rich_help_panel=OUTPUT,
        ),
    ]
    device: MeasuredDevice = "cpu"
    predicted: Annotated[
        bool,
        Option("--predicted", help="Measure nothing; use only predictors.", rich_help_panel=MEASURING),
    ] = False
    predictor: Annotated[
        str | None,
        Option(
            help="Predictors with commas, or none; default: a GPU's predictor, next to what is measured.",
            callback=checked_predictors_or_none,
            autocompletion=completed_predictors,
            rich_help_panel=TARGET,
        ),
    ] = None
    batch_size: Annotated[
        str, Option("--batch-size", "-b", help="Batch sizes of the forward pass, with commas.")
    ] = "1,64,256"
    train_batch_size: Annotated[int, Option(help="Batch size of the training step.")] = 16
    dtype: Annotated[str, flag(Sizes, "dtype", "report")] = "float32"
    time_budget: Annotated[
        str,
        Option(help="Time after which no new measurement starts: 90s, 10m, 1h.", rich_help_panel=MEASURING),
    ] = "10m"


@app.command(
    epilog=examples(
        "neuralpower report zoo:resnet18 zoo:mobilenet_v2 --out reports/mine",
        "neuralpower report --predicted --predictor amd-epyc-2c,nvidia-t4 --out reports/gpu",
    )
)
@with_options
def report(options: Report) -> None:
    """Measure and predict the networks, and write the report; run it again to resume."""
    models, out = options.models or [], options.out
    if models[:1] == ["roofline"]:  # the name of the only report
        models = models[1:]
    batches = texts.numbers(options.batch_size, "batch size", "1,64,256")
    budget_s = parsing.duration_s(options.time_budget)

    stage("importing torch and transformers")
    from neuralpower.data.journal import sole_writer
    from neuralpower.files.csv_files import write_csv
    from neuralpower.measure.cuda.runtime import device_named
    from neuralpower.report.page import write_html, write_markdown
    from neuralpower.suites.roofline.analysis import View
    from neuralpower.suites.roofline.gather import MODELS, Gathering, Request
    from neuralpower.suites.roofline.pages import page
    from neuralpower.suites.roofline.records import Runner

    runner = None if options.predicted else Runner(device_named(options.device))
    named = texts.names(options.predictor, "predictor")
    if options.predicted and named is None:
        named = ("amd-epyc-2c", "nvidia-a100-pcie-40gb")
    request = Request(
        tuple(models) or MODELS,
        tuple(sorted(set(batches))),
        options.train_batch_size,
        parsing.dtype(options.dtype),
        None if options.predicted else options.device,
        () if named == ("none",) else named,
        budget_s,
    )
    gathering = Gathering(request, out, show=tell, runner=runner)
    try:
        data = gathering.run()
    except KeyboardInterrupt:
        tell(f"{out}: results so far are kept; run the same command again to resume")
        raise
    made = page(View(data, gathering.models, request.batch_sizes))
    tell("drawing")
    stage("drawing")
    with sole_writer(out):  # the signal handler is restored after gathering
        write_html(made, out / "index.html")
        for stem, table in made.tables():
            write_csv(out / "tables" / f"{stem}.csv", [table.header, *table.rows], "folder")
        write_markdown(made, out / "report.md", out / "figures")
    say(out / "index.html")
