"""Channels last goes through convolutions of meta tensors, and torch.compile turns networks to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from neuralpower.layers.convolution import Conv2d
from neuralpower.learn.networks.network_rows import _traced
from neuralpower.platforms import CPU, PLATFORMS
from neuralpower.trace.passes import applied
from neuralpower.trace.passes.channels_last import turns
from neuralpower.trace.question import COMPILE, EAGER, Question
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace
from tests.layers.made import conv3x3


def network(groups: int = 1) -> nn.Sequential:
    layers = [
        nn.Conv2d(3, 64, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, groups=groups),
    ]
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(("weights", "images"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_convolution_runs_in_channels_last_where_an_operand_lies_so(
    autocast: torch.dtype | None, device: str, weights: bool, images: bool
) -> None:
    formats = {True: torch.channels_last, False: torch.contiguous_format}
    model = network().to(device).to(memory_format=formats[weights])
    x = torch.empty(8, 3, 32, 32, device=device).contiguous(memory_format=formats[images])
    found = [layer for layer in trace(model, (x,), autocast=autocast).layers if isinstance(layer, Conv2d)]
    assert [layer.channels_last for layer in found] == 2 * [weights or images]


@pytest.mark.parametrize("dtype", ["amp", "float32"])
def test_a_network_turned_to_channels_last_has_no_convolution_in_another_format(dtype: str) -> None:
    row = {"model": "zoo:resnet18", "batch": 2, "dtype": dtype, "layout": "nhwc"}
    found = _traced(row, PLATFORMS["nvidia"])
    assert all(layer.channels_last for layer in found if isinstance(layer, Conv2d))


def followed(*, last: bool, groups: int = 1) -> Trace:
    form = torch.channels_last if last else torch.contiguous_format
    model = network(groups).to("meta").to(memory_format=form)
    return trace(model, (torch.empty(8, 3, 32, 32, device="meta").contiguous(memory_format=form),))


@pytest.mark.parametrize("last", [False, True])
def test_every_call_of_a_network_has_the_format_of_its_input(last: bool) -> None:
    layers = followed(last=last).layers
    formats = {
        layer.kind: getattr(layer, "channels_last", getattr(layer, "strided", None)) for layer in layers
    }
    assert formats == {"conv2d": last, "norm": last, "activation": None, "pool2d": last}


@pytest.mark.parametrize(
    ("run", "platform", "groups", "last"),
    [
        (COMPILE, "nvidia", 1, True),
        (EAGER, "nvidia", 1, False),
        (COMPILE, "cpu", 1, False),
        (COMPILE, "nvidia", 2, False),
    ],
)
def test_inductor_turns_networks_without_wide_groups(
    run: str, platform: str, groups: int, last: bool
) -> None:
    question = Question(run=run, platform=PLATFORMS[platform])
    work = applied(followed(last=False, groups=groups), question)
    found = {task.layer.channels_last for task in work.tasks if isinstance(task.layer, Conv2d)}
    assert found == {last}
    assert CPU.family == "cpu"


def test_the_weights_of_inductor_decide_by_flop() -> None:
    dense = conv3x3(128, 128)
    grouped = replace(dense, groups=2)
    # 0.823 x 2 + 1.358 x 1 = 3.004 of 3: grouped ones have half of the FLOP
    assert not turns([dense, grouped, grouped], inference=True)  # (0.823 x 2 + 1.358 x 2) / 4 = 1.09
    assert turns([dense, dense, grouped], inference=True)
    assert not turns([dense, grouped], inference=False) and turns([dense], inference=False)
