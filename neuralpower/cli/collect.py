"""`neuralpower collect-data`: sweep -> measurement -> dataset."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import typer

from neuralpower.cli import options


def collect_data(
    device: str = typer.Option("cpu", help="Where to measure."),
    preset: str = typer.Option("standard", help="quick (2 minutes), standard (20 minutes) or full (4 hours)."),
    kinds: str | None = typer.Option(None, help="Layer kinds, comma-separated; all by default."),
    models: str | None = typer.Option(None, help="Networks whose layers to measure; 'none' for the sweep alone."),
    dtype: str = typer.Option("float32", help="float32, bfloat16, float16, float64; comma-separated."),
    phase: str = typer.Option("forward", help="forward."),
    power: str = typer.Option("auto", help="auto or none: runtime only, this version reads no meter."),
    time_budget: str | None = typer.Option(None, help="Such as 20m; the preset's by default."),
    seed: int = typer.Option(0, help="Of the sweep."),
    out: Path | None = typer.Option(None, help="The dataset's folder; datasets/THIS-MACHINE by default."),
) -> None:
    """Measure layers on this machine. The same command continues what was interrupted."""
    from neuralpower.collect.presets import preset_named
    from neuralpower.collect.supervisor import Progress, Request, collect
    from neuralpower.devices.host import read_cpu
    from neuralpower.errors import InputError, unknown

    if device != "cpu":
        raise unknown("device", device, ["cpu"])
    if phase != "forward":
        raise unknown("phase", phase, ["forward"])
    if power not in ("auto", "none"):
        raise InputError(
            f"power {power!r}: this version reads no power meter; leave the option out, runtime is measured"
        )
    cpu = read_cpu()
    settings = preset_named(preset)
    request = Request(
        preset=preset,
        kinds=options.names(kinds),
        models=options.names(models),
        dtypes=tuple(options.dtype(d) for d in options.names(dtype) or ()),
        seed=seed,
        budget_s=options.duration_s(time_budget) if time_budget else settings.budget_s,
        out=out or Path("datasets") / cpu.slug,
    )

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    console.print(f"{cpu.name}, {cpu.cores} cores -> {request.out}", highlight=False)
    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]}"),
        console=console,
    ) as bar:
        task = bar.add_task("planning", total=None, rate="")

        def show(progress: Progress) -> None:
            rate = progress.measured / progress.spent_s if progress.spent_s else 0.0
            left = (
                min(progress.budget_s - progress.spent_s, (progress.planned - progress.done) / rate) if rate else None
            )
            text = f"{rate:.0f}/s, {left:.0f} s left, {progress.failed} failed" if left is not None else ""
            bar.update(task, description="measuring", total=progress.planned, completed=progress.done, rate=text)

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's end is a Ctrl-C
        try:
            counts = collect(request, show)
        except KeyboardInterrupt:
            bar.stop()
            console.print("what was measured is kept; give the same command again to continue", highlight=False)
            raise

    from neuralpower.dataset import read_dataset, replace_file
    from neuralpower.report.cards import dataset_card

    replace_file(request.out / "README.md", dataset_card(read_dataset(request.out)))
    console.print(
        f"{sum(counts.values())} rows in {request.out}: "
        + ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())),
        highlight=False,
    )
    print(request.out, file=sys.stdout)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("collect-data")(collect_data)
