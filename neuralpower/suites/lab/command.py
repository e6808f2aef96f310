"""`neuralpower lab`: train a network on digits, and profile its operators at several batch sizes."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from neuralpower.ask import texts
from neuralpower.ask.words import LAB_STEPS, MEASURING, OUTPUT, TARGET, TRAINING
from neuralpower.cli.choices import choice
from neuralpower.cli.commands import OptionGroup, examples, with_options
from neuralpower.cli.known_names import checked_place, completed_places
from neuralpower.cli.output import say, tell
from neuralpower.errors import InputError
from neuralpower.files.stages import stage

app = Typer()


class Trained(OptionGroup):
    """Options: how the network is trained."""

    panel = TRAINING

    data_dir: Annotated[
        Path | None,
        Option(help="MNIST's four idx files (.gz, too); default: scikit-learn's digits. No download."),
    ] = None
    batch_size: Annotated[int, Option("--batch-size", "-b", help="Images in a training batch.")] = 64
    test_batch_size: Annotated[int, Option(help="Images in a test batch.")] = 1000
    epochs: Annotated[int, Option(help="Passes over the training images.")] = 14
    lr: Annotated[float, Option(help="Learning rate of Adadelta.")] = 1.0
    gamma: Annotated[float, Option(help="Factor of the learning rate after each epoch.")] = 0.7
    seed: Annotated[int, Option(help="Seed of weights, order and dropout.")] = 1
    log_interval: Annotated[int, Option(help="Batches between points of the curves.")] = 10


class Lab(OptionGroup):
    """Options: the training, the profiles and their outputs."""

    panel = MEASURING

    step: Annotated[
        str,
        choice("step", LAB_STEPS, help="Step to run; compare reads printed tables", kind=Argument),
    ] = "all"
    trained: Trained
    device: Annotated[
        str | None,
        Option(
            help="Device: cpu, cuda or cuda:0; default: a GPU, if there is one.",
            callback=checked_place,
            autocompletion=completed_places,
            rich_help_panel=TARGET,
        ),
    ] = None
    no_cuda: Annotated[bool, Option("--no-cuda", hidden=True)] = False
    profile_batches: Annotated[str, Option(help="Batch sizes to profile, with commas.")] = "1,16,64"
    profile_images: Annotated[
        int | None,
        Option(help="Test images of a profile; default: all. Images are repeated if a batch needs more."),
    ] = None
    by_shape: Annotated[bool, Option("--by-shape", help="Group operators by input shape.")] = False
    tables: Annotated[
        Path | None, Option(help="compare: text file with printed tables of torch's profiler.")
    ] = None
    operator: Annotated[
        str | None, Option(help="compare: the operator; default: the most expensive one.")
    ] = None
    out: Annotated[
        Path,
        Option(
            "--out", "-o", help="Folder for all files; a training in it is resumed.", rich_help_panel=OUTPUT
        ),
    ] = Path("lab")
    save_model: Annotated[
        bool, Option("--save-model", help="Write the weights to mnist_cnn.pt.", rich_help_panel=OUTPUT)
    ] = False
    tensorboard: Annotated[
        bool, Option(help="Write event files; needs tensorboard.", rich_help_panel=OUTPUT)
    ] = True
    tensorboard_port: Annotated[
        int | None,
        Option(help="Show event files at http://localhost:PORT until Ctrl-C.", rich_help_panel=OUTPUT),
    ] = None


@app.command(
    epilog=examples(
        "neuralpower lab --epochs 3 --out lab",
        "neuralpower lab profile --profile-batches 1,64 --by-shape",
    )
)
@with_options
def lab(options: Lab) -> None:
    """Run the chosen steps, and print the files that they write."""
    stage("importing torch")
    from neuralpower.suites.lab.run import Request, run
    from neuralpower.suites.lab.training import Settings

    if options.step == "compare":
        _compare(options.tables, options.operator)
        return
    names = ("batch_size", "test_batch_size", "epochs", "lr", "gamma", "seed", "log_interval")
    request = Request(
        out=options.out,
        step=options.step,
        settings=Settings(*(getattr(options.trained, name) for name in names)),
        data_dir=options.trained.data_dir,
        batches=texts.numbers(options.profile_batches, "profile-batches", "1,16,64"),
        images=options.profile_images,
        by_shape=options.by_shape,
        use_cuda=not options.no_cuda and options.device != "cpu",
        save=options.save_model,
        tensorboard=options.tensorboard,
        port=options.tensorboard_port,
    )
    for path in run(request, tell):
        say(path)


def _compare(tables: Path | None, operator: str | None) -> None:
    from neuralpower.report.grid import grid
    from neuralpower.suites.lab.operators import COLUMNS, compare, read_tables

    if tables is None:
        raise InputError("compare: needs --tables FILE, a text with printed tables of torch's profiler")
    found = compare(read_tables(tables), operator)
    say(f"{found.operator} on {found.device}\n{grid([*COLUMNS], found.rows(), left=0)}")
