"""`neuralpower lab`: train a network on digits, and profile its operators at several batch sizes."""

from pathlib import Path

from typer import Argument, Option, Typer

from neuralpower.cli import options
from neuralpower.cli.commands import OptionGroup, with_options
from neuralpower.cli.output import say, tell
from neuralpower.errors import InputError, unknown

app = Typer()


class Lab(OptionGroup):
    """The training, the profiles and their outputs."""

    step: str = Argument("all", help="all, or one of train, profile, report; compare reads printed tables.")
    out: Path = Option(Path("lab"), help="Folder for all files; a training in it is continued.")
    data_dir: Path | None = Option(
        None, help="MNIST's four idx files (.gz too); scikit-learn's digits without. Nothing is downloaded."
    )
    batch_size: int = Option(64, help="Images in a training batch.")
    test_batch_size: int = Option(1000, help="Images in a test batch.")
    epochs: int = Option(14, help="Passes over the training images.")
    lr: float = Option(1.0, help="Learning rate of Adadelta.")
    gamma: float = Option(0.7, help="Its factor after each epoch.")
    no_cuda: bool = Option(False, "--no-cuda", help="Leave a GPU alone.")
    seed: int = Option(1, help="Of weights, order and dropout.")
    log_interval: int = Option(10, help="Batches between points of the curves.")
    save_model: bool = Option(False, "--save-model", help="Write the weights to mnist_cnn.pt.")
    profile_batches: str = Option("1,16,64", help="Batch sizes to profile.")
    profile_images: int | None = Option(
        None, help="Test images of a profile; all without, repeated if too few."
    )
    by_shape: bool = Option(False, "--by-shape", help="Tell operators of other input shapes apart.")
    tensorboard: bool = Option(True, help="Write event files, if tensorboard is installed.")
    tensorboard_port: int | None = Option(None, help="Show them at http://localhost:PORT until Ctrl-C.")
    tables: Path | None = Option(None, help="For compare: a text with printed tables of torch's profiler.")
    operator: str | None = Option(None, help="For compare: the operator; the most expensive one without.")


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
        batches=options.numbers(asked.profile_batches, "profile-batches", "1,16,64"),
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
