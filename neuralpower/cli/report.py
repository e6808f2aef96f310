"""`neuralpower report`: rooflines, runtimes and training of networks, as a page, Markdown, figures, tables and raw data."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from neuralpower.cli import options
from neuralpower.cli.output import say

app = typer.Typer()


@app.command()
def report(
    models: list[str] | None = typer.Argument(
        None, help="MODEL...; by default twelve small networks of different families."
    ),
    out: Path = typer.Option(..., help="Folder for index.html, report.md, figures, tables and data.json."),
    device: str = typer.Option("cpu", help="What is measured: cpu, cuda or cuda:0."),
    predicted: bool = typer.Option(False, "--predicted", help="Measure nothing: predictors alone."),
    predictor: str | None = typer.Option(
        None, help="NAME[,NAME] of devices to predict; by default a GPU beside what is measured; none for none."
    ),
    batch_size: str = typer.Option("1,64,256", help="Batch sizes of the forward pass."),
    train_batch_size: int = typer.Option(16, help="Batch size of the training step."),
    dtype: str = options.DTYPE,
    time_budget: str = typer.Option("10m", help="After which nothing new is measured: 90s, 10m, 1h."),
) -> None:
    """Report on networks: rooflines, runtimes, correlations, utilisation, training. A second run goes on in the same folder."""
    given = models or []
    if given[:1] == ["roofline"]:  # the report's name, for which there is no other
        given = given[1:]
    batches = options.numbers(batch_size, "batch size", "1,64,256")
    budget_s = options.duration_s(time_budget)

    from neuralpower.data.journal import sole_writer
    from neuralpower.measure.cuda.runtime import device_named
    from neuralpower.report.page import write_csv, write_html, write_markdown
    from neuralpower.suites.roofline.analysis import View
    from neuralpower.suites.roofline.gather import MODELS, Gathering, Request
    from neuralpower.suites.roofline.pages import page
    from neuralpower.suites.roofline.runs import Bench

    bench = None if predicted else Bench(device_named(device))
    named = options.names(predictor, "predictor")
    if predicted and named is None:
        named = ("amd-epyc-2c", "nvidia-a100-pcie-40gb")
    request = Request(
        tuple(given) or MODELS,
        tuple(sorted(set(batches))),
        train_batch_size,
        options.dtype(dtype),
        None if predicted else device,
        () if named == ("none",) else named,
        budget_s,
    )
    gathering = Gathering(request, out, show=lambda text: print(text, file=sys.stderr), bench=bench)
    try:
        data = gathering.run()
    except KeyboardInterrupt:
        print(f"{out}: what was measured is kept; give the same command again to continue", file=sys.stderr)
        raise
    made = page(View(data, gathering.models, request.batch_sizes))
    print("drawing", file=sys.stderr)
    with sole_writer(out):  # gathering has given it back
        write_html(made, out / "index.html")
        for stem, table in made.tables():
            write_csv(table, out / "tables" / f"{stem}.csv")
        write_markdown(made, out / "report.md", out / "figures")
    say(out / "index.html")
