"""`neuralpower paradnn`: parameterised networks, run or predicted, one or a whole sweep of them.

The three families share the options of `Common`, under the names of the older programs and their own.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from neuralpower.cli import paradnn_tools
from neuralpower.cli.commands import Command, with_options
from neuralpower.cli.paradnn_options import Common
from neuralpower.errors import InputError

app = typer.Typer(
    name="paradnn",
    no_args_is_help=True,
    help="ParaDnn's networks with sizes for parameters (Wang, Wei, Brooks, MLSys 2020): run, swept, predicted, compared.",
)
app.add_typer(paradnn_tools.app)
EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}  # refused by name
TPU_FLAGS = (
    "use_tpu tpu tpu_name tpu_zone gcp_project master num_shards num_cores iterations iterations_per_loop model_dir data_dir "
    "skip_host_call transpose_input infeed_threads tpu_job_name"
).split()
KMP = {"KMP_BLOCKTIME": "30", "KMP_AFFINITY": "granularity=fine,compact,1,0"}


def with_common(function: Command) -> Command:
    """The command with its own options and those of `Common`; what no option takes is refused."""
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    asked = with_options(function, [context])

    @functools.wraps(asked)
    def command(ctx: typer.Context, **given: Any) -> None:
        refuse_extra(ctx.args)
        if given["mkl"]:
            intel_openmp()
        asked(**given)

    return command


def intel_openmp() -> bool:
    """Set Intel OpenMP's blocking time and affinity where the user has not; False where torch is loaded already.

    They are what ParaDnn ran TensorFlow with; a torch that is built with GNU's OpenMP takes no notice.
    """
    if "torch" in sys.modules:  # and its threads are started
        return False
    for name, value in KMP.items():
        os.environ.setdefault(name, value)
    return True


def refuse_extra(arguments: Sequence[str]) -> None:
    """Raise InputError for arguments that no option took: flags of a TPU by their name."""
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0].replace("-", "_")
        if argument.startswith("-") and name in TPU_FLAGS:
            raise InputError(
                f"--{name}: is for TPUs and Google's cloud, which are not driven from here; leave it out"
            )
        if argument.startswith("-"):
            raise InputError(f"no such option: {argument.partition('=')[0]}; --help shows what there is")
        raise InputError(f"argument {argument!r}: there is no place for it; --help shows the options")


# ---- the families ----


@app.command("fc", context_settings=EXTRA)
@with_common
def fully_connected(
    layers: int | None = typer.Option(None, "--layers", "--layer", help="Hidden layers; 8."),
    nodes: int | None = typer.Option(None, "--nodes", "--node", help="Width of each; 1024."),
    batch_size: int | None = typer.Option(
        None, "--batch_size", "--batch-size", help="Samples in a step; 1024."
    ),
    input_size: int | None = typer.Option(
        None, "--input_size", "--input-size", help="Width of the inputs; 1000."
    ),
    output_size: int | None = typer.Option(None, "--output_size", "--output-size", help="Classes; 100."),
    variant: str = typer.Option(
        "pytorch", help="pytorch: as many square matrices as layers; paradnn: one less."
    ),
    tf_defaults: bool = typer.Option(False, "--tf-defaults", help="TensorFlow's: 4 layers, batch 128."),
    *,
    common: Common,
) -> None:
    """Fully connected networks."""
    if tf_defaults:
        layers, batch_size = 4 if layers is None else layers, 128 if batch_size is None else batch_size
    sizes = {"layers": layers, "nodes": nodes, "input_size": input_size, "output_size": output_size}
    _run("fc", variant, {**sizes, "batch_size": batch_size}, common)


@app.command("cnn", context_settings=EXTRA)
@with_common
def convolutional(
    blocks: int | None = typer.Option(None, "--blocks", help="In each of four groups; 1."),
    filters: int | None = typer.Option(None, "--filters", "--filter", help="In the first group; 16."),
    batch_size: int | None = typer.Option(None, "--batch_size", "--batch-size", help="Images in a step; 8."),
    input_size: int | None = typer.Option(
        None, "--input_size", "--input-size", help="Side of an image; 224."
    ),
    output_size: int | None = typer.Option(None, "--output_size", "--output-size", help="Classes; 1000."),
    block: str | None = typer.Option(
        None, "--block_fn", "--block", help="residual or bottleneck; of a grid both."
    ),
    resnet_layers: str | None = typer.Option(
        None, "--resnet_layers", help='Blocks by group, such as "1,1,1,1".'
    ),
    *,
    common: Common,
) -> None:
    """Convolutional networks: residual and bottleneck blocks."""
    if resnet_layers is not None:
        blocks = _equal_blocks(resnet_layers, blocks)
    sizes = {"blocks": blocks, "filters": filters, "input_size": input_size, "output_size": output_size}
    _run("cnn", block, {**sizes, "batch_size": batch_size}, common, usual="residual")


@app.command("rnn", context_settings=EXTRA)
@with_common
def recurrent(
    layers: int | None = typer.Option(None, "--layers", "--layer", help="Recurrent layers; 5."),
    embed: int | None = typer.Option(None, "--embed", help="Width of embedding and cells; 100."),
    length: int | None = typer.Option(None, "--length", help="Steps of a sequence; 50."),
    vocabulary: int | None = typer.Option(None, "--vocabulary", help="Tokens; 1024."),
    input_size: str | None = typer.Option(None, "--input_size", help='The last three, as in "50,1024,100".'),
    batch_size: int | None = typer.Option(
        None, "--batch_size", "--batch-size", help="Sequences in a step; 128."
    ),
    cell: str | None = typer.Option(None, "--cell", help="lstm, gru or rnn; of a grid all."),
    *,
    common: Common,
) -> None:
    """Recurrent language models: plain, LSTM and GRU cells."""
    given = {
        "layers": layers,
        "embed": embed,
        "length": length,
        "vocabulary": vocabulary,
        "batch_size": batch_size,
    }
    if input_size is not None:
        sizes = _numbers("input_size", input_size, 3)
        for name, size in zip(("length", "vocabulary", "embed"), sizes, strict=True):
            if given[name] not in (None, size):
                raise InputError(
                    f"input_size {input_size!r} and --{name} {given[name]}: they differ; give one of them"
                )
            given[name] = size
    _run("rnn", cell, given, common, usual="lstm")


def _run(
    family: str, kind: str | None, given: dict[str, int | None], common: Common, *, usual: str = ""
) -> None:
    """One point or the sweep around it, of a kind, or of the `usual` and all."""
    from neuralpower.cli.paradnn_run import run
    from neuralpower.suites.paradnn.points import FAMILIES, Point

    known = FAMILIES[family]
    sizes = {name: known.defaults[name] if value is None else value for name, value in given.items()}
    run(Point.of(family, kind or usual, sizes), (kind,) if kind else known.swept_kinds, common)


def _numbers(name: str, text: str, count: int) -> list[int]:
    parts = text.split(",")
    if len(parts) != count or not all(part.strip().isdigit() for part in parts):
        raise InputError(f"{name} {text!r}: write {count} whole numbers with commas between them")
    return [int(part) for part in parts]


def _equal_blocks(text: str, blocks: int | None) -> int:
    """Of four equal numbers the number; raises InputError."""
    numbers = set(_numbers("resnet_layers", text, 4))
    if blocks is not None:
        numbers.add(blocks)
    if len(numbers) > 1:
        raise InputError(
            f"resnet_layers {text!r}{'' if blocks is None else f' and --blocks {blocks}'}: the points of the sweep have equal "
            "groups; other networks are MODELs, as zoo:paradnn_cnn?blocks=[3,4,6,3] for `neuralpower predict` or `profile`"
        )
    return numbers.pop()
