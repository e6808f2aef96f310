"""`neuralpower lab`: train a network on digits, and profile its operators at several batch sizes."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from neuralpower.cli import parsing
from neuralpower.cli.commands import OptionGroup, with_options
from neuralpower.cli.output import say, tell
from neuralpower.errors import InputError, unknown

app = Typer()


class Lab(OptionGroup):
    """The training, the profiles and their outputs."""

    step: Annotated[
        str, Argument(help="all, or one of train, profile, report; compare reads printed tables.")
    ] = "all"
    out: Annotated[Path, Option(help="Folder for all files; a training in it is continued.")] = Path("lab")
    data_dir: Annotated[
        Path | None,
        Option(
            help="MNIST's four idx files (.gz too); scikit-learn's digits without. Nothing is downloaded."
        ),
    ] = None
    batch_size: Annotated[int, Option(help="Images in a training batch.")] = 64
    test_batch_size: Annotated[int, Option(help="Images in a test batch.")] = 1000
    epochs: Annotated[int, Option(help="Passes over the training images.")] = 14
    lr: Annotated[float, Option(help="Learning rate of Adadelta.")] = 1.0
    gamma: Annotated[float, Option(help="Its factor after each epoch.")] = 0.7
    no_cuda: Annotated[bool, Option("--no-cuda", help="Leave a GPU alone.")] = False
    seed: Annotated[int, Option(help="Of weights, order and dropout.")] = 1
    log_interval: Annotated[int, Option(help="Batches between points of the curves.")] = 10
    save_model: Annotated[bool, Option("--save-model", help="Write the weights to mnist_cnn.pt.")] = False
    profile_batches: Annotated[str, Option(help="Batch sizes to profile.")] = "1,16,64"
    profile_images: Annotated[
        int | None, Option(help="Test images of a profile; all without, repeated if too few.")
    ] = None
    by_shape: Annotated[bool, Option("--by-shape", help="Tell operators of other input shapes apart.")] = (
        False
    )
    tensorboard: Annotated[bool, Option(help="Write event files, if tensorboard is installed.")] = True
    tensorboard_port: Annotated[
        int | None, Option(help="Show them at http://localhost:PORT until Ctrl-C.")
    ] = None
    tables: Annotated[
        Path | None, Option(help="For compare: a text with printed tables of torch's profiler.")
    ] = None
    operator: Annotated[
        str | None, Option(help="For compare: the operator; the most expensive one without.")
    ] = None


@app.command()
@with_options
def lab(asked: Lab) -> None:
    """Run the steps that are asked for, and print the files that they write."""
    from neuralpower.suites.lab.run import STEPS, Request, run
    from neuralpower.suites.lab.training import Settings

    if asked.step == "compare":
        _compare(asked.tables, asked.operator)
        return
    if asked.step not in STEPS:
        raise unknown("step", asked.step, (*STEPS, "compare"))
    names = ("batch_size", "test_batch_size", "epochs", "lr", "gamma", "seed", "log_interval")
    request = Request(
        out=asked.out,
        step=asked.step,
        settings=Settings(*(getattr(asked, name) for name in names)),
        data_dir=asked.data_dir,
        batches=parsing.numbers(asked.profile_batches, "profile-batches", "1,16,64"),
        images=asked.profile_images,
        by_shape=asked.by_shape,
        use_cuda=not asked.no_cuda,
        save=asked.save_model,
        tensorboard=asked.tensorboard,
        port=asked.tensorboard_port,
    )
    for path in run(request, tell):
        say(path)


def _compare(tables: Path | None, operator: str | None) -> None:
    """Print the table and the sentences of a file's tables."""
    from neuralpower.report.tables import grid
    from neuralpower.suites.lab.comparison import HEADER, compare
    from neuralpower.suites.lab.printed import read_tables

    if tables is None:
        raise InputError("compare: needs --tables FILE, a text with printed tables of torch's profiler")
    found = compare(read_tables(tables), operator)
    say("\n".join([grid(HEADER, found.rows(), left=0), "", *found.sentences()]))
