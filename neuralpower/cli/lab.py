"""`neuralpower lab`: train a network on digits, watch it learn, see which operators take its time at which batch size."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from neuralpower.cli import options
from neuralpower.cli.output import say

app = typer.Typer()


@app.command()
def lab(
    step: str = typer.Argument("all", help="all, or one of train, profile, report; compare reads printed tables."),
    out: Path = typer.Option(Path("lab"), help="Folder for all files; a training in it is continued."),
    data_dir: Path | None = typer.Option(
        None, help="MNIST's four idx files (.gz too); scikit-learn's digits without. Nothing is downloaded."
    ),
    batch_size: int = typer.Option(64, help="Images in a training batch."),
    test_batch_size: int = typer.Option(1000, help="Images in a test batch."),
    epochs: int = typer.Option(14, help="Passes over the training images."),
    lr: float = typer.Option(1.0, help="Learning rate of Adadelta."),
    gamma: float = typer.Option(0.7, help="Its factor after each epoch."),
    no_cuda: bool = typer.Option(False, "--no-cuda", help="Leave a GPU alone."),
    seed: int = typer.Option(1, help="Of weights, order and dropout."),
    log_interval: int = typer.Option(10, help="Batches between points of the curves."),
    save_model: bool = typer.Option(False, "--save-model", help="Write the weights to mnist_cnn.pt."),
    profile_batches: str = typer.Option("1,16,64", help="Batch sizes to profile."),
    profile_images: int | None = typer.Option(None, help="Test images of a profile; all without, repeated if too few."),
    by_shape: bool = typer.Option(False, "--by-shape", help="Tell operators of other input shapes apart."),
    tensorboard: bool = typer.Option(True, help="Write event files, if tensorboard is installed."),
    tensorboard_port: int | None = typer.Option(None, help="Show them at http://localhost:PORT until Ctrl-C."),
    tables: Path | None = typer.Option(None, help="For compare: a text with printed tables of torch's profiler."),
    operator: str | None = typer.Option(None, help="For compare: the operator; the most expensive one without."),
) -> None:
    """Train a small network on digits and profile its inference at several batch sizes; a report of both."""
    from neuralpower.errors import unknown
    from neuralpower.suites.lab.run import STEPS, Request, run
    from neuralpower.suites.lab.training import Settings

    if step == "compare":
        _compare(tables, operator)
        return
    if step not in STEPS:
        raise unknown("step", step, (*STEPS, "compare"))
    request = Request(
        out=out,
        step=step,
        settings=Settings(batch_size, test_batch_size, epochs, lr, gamma, seed, log_interval),
        data_dir=data_dir,
        batches=options.numbers(profile_batches, "profile-batches", "1,16,64"),
        images=profile_images,
        by_shape=by_shape,
        use_cuda=not no_cuda,
        save=save_model,
        tensorboard=tensorboard,
        port=tensorboard_port,
    )
    for path in run(request, lambda text: print(text, file=sys.stderr)):
        say(path)


def _compare(tables: Path | None, operator: str | None) -> None:
    """Print the table and the sentences of a file's tables."""
    from neuralpower.errors import InputError
    from neuralpower.report.tables import grid
    from neuralpower.suites.lab.comparison import HEADER, compare
    from neuralpower.suites.lab.printed import read_tables

    if tables is None:
        raise InputError("compare: needs --tables FILE, a text with printed tables of torch's profiler")
    found = compare(read_tables(tables), operator)
    say("\n".join([grid(HEADER, found.rows(), left=0), "", *found.sentences()]))
