"""`neuralpower paradnn`: parameterised networks, run or predicted, one or a whole sweep of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from neuralpower.cli import paradnn_tools
from neuralpower.cli.paradnn_options import Common, with_common
from neuralpower.errors import InputError

if TYPE_CHECKING:
    from neuralpower.suites.paradnn.points import Point

app = typer.Typer(
    name="paradnn",
    no_args_is_help=True,
    help="ParaDnn's networks with sizes for parameters (Wang, Wei, Brooks, MLSys 2020): run, swept, predicted, compared.",
)
app.add_typer(paradnn_tools.app)
EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}  # refused by name


@app.command("fc", context_settings=EXTRA)
@with_common
def fully_connected(
    layers: int | None = typer.Option(None, "--layers", "--layer", help="Hidden layers; 8."),
    nodes: int | None = typer.Option(None, "--nodes", "--node", help="Width of each; 1024."),
    batch_size: int | None = typer.Option(None, "--batch_size", "--batch-size", help="Samples in a step; 1024."),
    input_size: int | None = typer.Option(None, "--input_size", "--input-size", help="Width of the inputs; 1000."),
    output_size: int | None = typer.Option(None, "--output_size", "--output-size", help="Classes; 100."),
    variant: str = typer.Option("pytorch", help="pytorch: as many square matrices as layers; paradnn: one less."),
    tf_defaults: bool = typer.Option(False, "--tf-defaults", help="TensorFlow's: 4 layers, batch 128."),
    *,
    common: Common,
) -> None:
    """Fully connected networks."""
    from neuralpower.cli.paradnn_run import run
    from neuralpower.suites.paradnn.points import FAMILIES

    given = {"layers": layers, "nodes": nodes, "input_size": input_size, "output_size": output_size}
    defaults = {**FAMILIES["fc"].defaults, **({"layers": 4, "batch_size": 128} if tf_defaults else {})}
    run(_point("fc", variant, {**given, "batch_size": batch_size}, defaults), (variant,), common)


@app.command("cnn", context_settings=EXTRA)
@with_common
def convolutional(
    blocks: int | None = typer.Option(None, "--blocks", help="In each of four groups; 1."),
    filters: int | None = typer.Option(None, "--filters", "--filter", help="In the first group; 16."),
    batch_size: int | None = typer.Option(None, "--batch_size", "--batch-size", help="Images in a step; 8."),
    input_size: int | None = typer.Option(None, "--input_size", "--input-size", help="Side of an image; 224."),
    output_size: int | None = typer.Option(None, "--output_size", "--output-size", help="Classes; 1000."),
    block: str | None = typer.Option(None, "--block_fn", "--block", help="residual or bottleneck; of a grid both."),
    resnet_layers: str | None = typer.Option(None, "--resnet_layers", help='Blocks by group, such as "1,1,1,1".'),
    *,
    common: Common,
) -> None:
    """Convolutional networks: residual and bottleneck blocks."""
    from neuralpower.cli.paradnn_run import run
    from neuralpower.suites.paradnn.points import FAMILIES

    if resnet_layers is not None:
        blocks = _equal_blocks(resnet_layers, blocks)
    given = {"blocks": blocks, "filters": filters, "input_size": input_size, "output_size": output_size}
    start = _point("cnn", block or "residual", {**given, "batch_size": batch_size}, FAMILIES["cnn"].defaults)
    run(start, (block,) if block else FAMILIES["cnn"].swept_kinds, common)


@app.command("rnn", context_settings=EXTRA)
@with_common
def recurrent(
    layers: int | None = typer.Option(None, "--layers", "--layer", help="Recurrent layers; 5."),
    embed: int | None = typer.Option(None, "--embed", help="Width of embedding and cells; 100."),
    length: int | None = typer.Option(None, "--length", help="Steps of a sequence; 50."),
    vocabulary: int | None = typer.Option(None, "--vocabulary", help="Tokens; 1024."),
    input_size: str | None = typer.Option(None, "--input_size", help='The last three, as in "50,1024,100".'),
    batch_size: int | None = typer.Option(None, "--batch_size", "--batch-size", help="Sequences in a step; 128."),
    cell: str | None = typer.Option(None, "--cell", help="lstm, gru or rnn; of a grid all."),
    *,
    common: Common,
) -> None:
    """Recurrent language models: plain, LSTM and GRU cells."""
    from neuralpower.cli.paradnn_run import run
    from neuralpower.suites.paradnn.points import FAMILIES

    given = {"layers": layers, "embed": embed, "length": length, "vocabulary": vocabulary, "batch_size": batch_size}
    if input_size is not None:
        sizes = _numbers("input_size", input_size, 3)
        for name, size in zip(("length", "vocabulary", "embed"), sizes, strict=True):
            if given[name] not in (None, size):
                raise InputError(f"input_size {input_size!r} and --{name} {given[name]}: they differ; give one of them")
            given[name] = size
    start = _point("rnn", cell or "lstm", given, FAMILIES["rnn"].defaults)
    run(start, (cell,) if cell else FAMILIES["rnn"].swept_kinds, common)


def _point(family: str, kind: str, given: dict[str, int | None], defaults: Mapping[str, int]) -> Point:
    from neuralpower.suites.paradnn.points import Point

    sizes = {name: defaults[name] if value is None else value for name, value in given.items()}
    return Point.of(family, kind, sizes)


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
