"""ParaDnn's networks, whose sizes are parameters (Wang and others, MLSys 2020, arXiv 1907.10701, section 2).

Keywords set the sizes, also those of the inputs: `zoo:paradnn_fc?layers=8&nodes=1024&input_size=2000`. SWEEPS
are the ranges of the paper's table 1, which gives those of the convolutional and recurrent networks only in
part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import nn

from neuralpower.errors import ModelError
from neuralpower.networks.zoo.base import Sweep, zoo_model
from neuralpower.networks.zoo.blocks import conv_unit, named
from neuralpower.networks.zoo.plain import perceptron
from neuralpower.networks.zoo.sequences import LanguageModel
from neuralpower.networks.zoo.shortcuts import basic, bottleneck, residual_stage

VARIANTS = {"paradnn": 0, "pytorch": 1}  # square matrices beyond layers - 1
CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
BLOCKS = ("residual", "bottleneck")
GROUPS = 4
SMALLEST_IMAGE = 193  # five halvings, each rounded up, leave the 7x7 that the average pool needs


def doublings(low: int, high: int, factor: int = 2) -> tuple[int, ...]:
    """`low`, `factor` times that, and so on up to `high`."""
    sizes = [low]
    while sizes[-1] * factor <= high:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


SWEEPS: Mapping[str, Sweep] = {
    "paradnn_fc": {
        "layers": doublings(4, 128),
        "nodes": doublings(32, 8192),
        "input_size": tuple(range(2000, 8001, 2000)),
        "output_size": tuple(range(200, 1001, 200)),
        "batch_size": doublings(64, 16384),
    },
    "paradnn_cnn": {
        "block": BLOCKS,
        "blocks": tuple(range(1, 9)),
        "filters": doublings(16, 64),
        "input_size": (200, 250, 300),
        "output_size": (500, 1000, 1500),
        "batch_size": doublings(64, 1024),
    },
    "paradnn_rnn": {
        "cell": tuple(CELLS),
        "layers": (1, 5, 9, 13),
        "embed": (100, 500, 900),
        "length": (10, 50, 90),
        "vocabulary": doublings(2, 1024, 4),
        "batch_size": doublings(16, 1024, 4),
    },
}


@zoo_model(
    "paradnn_fc",
    title="ParaDnn fully connected",
    input_shape=(1000,),
    classes=100,
    example_inputs=lambda batch_size, input_size=1000: (torch.rand(batch_size, input_size),),
    sweep=SWEEPS["paradnn_fc"],
)
def paradnn_fc(
    layers: int = 8,
    nodes: int = 1024,
    input_size: int = 1000,
    output_size: int = 100,
    variant: str = "paradnn",
) -> nn.Module:
    """Vectors [batch, input_size] -> [batch, output_size], a rectifier after all linear layers but the last.

    The paradnn `variant` has layers - 1 square matrices, as the paper counts parameters; pytorch has
    `layers`.

    Raises:
        ModelError: no such variant.
    """
    check_choice("variant", variant, VARIANTS)
    return perceptron((input_size, *[nodes] * (layers + VARIANTS[variant]), output_size))


@zoo_model(
    "paradnn_cnn",
    title="ParaDnn convolutional",
    input_shape=(3, 224, 224),
    classes=1000,
    example_inputs=lambda batch_size, input_size=224: (torch.rand(batch_size, 3, input_size, input_size),),
    sweep=SWEEPS["paradnn_cnn"],
)
def paradnn_cnn(
    blocks: int | Sequence[int] = 1,
    filters: int = 16,
    input_size: int = 224,
    output_size: int = 1000,
    block: str = "residual",
) -> nn.Module:
    """Images [batch, 3, input_size, input_size] -> [batch, output_size].

    Four groups of `blocks` blocks with `filters` filters, twice as many in each further group. A `block` is
    residual (3x3, 3x3) or bottleneck (1x1, 3x3, 1x1 with four times the filters). The first block of every
    group projects its shortcut. Paddings are symmetric, sizes those of TensorFlow's SAME.

    Raises:
        ModelError: an image below 193, no such block, or not one number of blocks for each group.
    """
    counts = [blocks] * GROUPS if isinstance(blocks, int) else [*blocks]
    if len(counts) != GROUPS:
        raise ModelError(
            f"blocks {counts}: there are {GROUPS} groups; give one number, or one for each of them"
        )
    check_choice("block", block, BLOCKS)
    size = pooled_size(input_size)

    network = named(stem=conv_unit(3, filters, 7, 2), pool=nn.MaxPool2d(3, 2, padding=1))
    channels = filters
    for group, count in enumerate(counts):
        inner = filters * 2**group
        outputs = 4 * inner if block == "bottleneck" else inner

        def body(inputs: int, stride: int, inner: int = inner, outputs: int = outputs) -> nn.Module:
            if block == "bottleneck":
                made = bottleneck(inputs, stride, inner=inner, outputs=outputs, unit=conv_unit)
            else:
                made = basic(inputs, stride, outputs=outputs, unit=conv_unit)
            return _starting_as_shortcut(made)

        stride = 2 if group else 1
        units = residual_stage(channels, outputs, count, stride, body, name="block", unit=conv_unit)
        network.add_module(f"group{group + 1}", units)
        channels = outputs
    network.add_module("average", nn.AvgPool2d(7, stride=1))
    network.add_module("flatten", nn.Flatten())
    network.add_module("classifier", nn.Linear(channels * size**2, output_size))
    return network


def _starting_as_shortcut(body: nn.Sequential) -> nn.Sequential:
    """The body of a block that starts as its shortcut: its last normalisation scales by 0 at first."""
    nn.init.zeros_(body[-1].normalisation.weight)  # type: ignore[union-attr, arg-type]  # a conv_unit
    return body


def pooled_size(image: int) -> int:
    """Side of the map that is flattened, from an image's side; raises ModelError for an image below 193."""
    if image < SMALLEST_IMAGE:
        raise ModelError(
            f"image of {image} pixels: the 7x7 average pool needs a map of 7x7 after five halvings; "
            f"choose {SMALLEST_IMAGE} or more"
        )
    return -(-image // 2**5) - 6


@zoo_model(
    "paradnn_rnn",
    title="ParaDnn recurrent",
    input_shape=(50,),
    classes=1024,
    example_inputs=lambda batch_size, seq_len=None, length=50, vocabulary=1024: (
        torch.randint(vocabulary, (batch_size, seq_len or length)),
    ),
    sweep=SWEEPS["paradnn_rnn"],
)
def paradnn_rnn(
    layers: int = 5, embed: int = 100, length: int = 50, vocabulary: int = 1024, cell: str = "lstm"
) -> nn.Module:
    """Tokens [batch, length] -> [batch, length, vocabulary]; `length` is of the inputs alone.

    Raises:
        ModelError: no such cell.
    """
    check_choice("cell", cell, CELLS)
    return LanguageModel(vocabulary, embed, layers, CELLS[cell])


def check_choice(name: str, value: str, known: Collection[str]) -> None:
    """Raise ModelError unless the value is among those known."""
    if value not in known:
        raise ModelError(f"{name} {value!r}: choose {' or '.join(known)}")
