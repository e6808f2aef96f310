"""The memory format that torch.compile gives to convolutional networks on accelerators.

Inductor turns all convolutions of a network to channels last: in inference where the sum of their FLOP,
weighted by how much faster they then are, falls; in training where none is grouped or hurt otherwise. Source:
`GraphLowering.decide_layout_opt`, torch/_inductor/graph.py, torch 2.6 to 2.13.
"""

from __future__ import annotations

from dataclasses import replace

from neuralpower.layers.base import FORWARD, Layer
from neuralpower.layers.convolution import Conv2d, Convolution
from neuralpower.layers.pooling import Pool2d
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import COMPILE, Question
from neuralpower.trace.records import Trace

SMALL = 64  # channels on both sides
# Time in channels last over that in channels first, as Inductor's authors measured it.
GROUPED, FEW, NARROWING, OTHERS = 1.358, 0.783, 0.725, 0.823


@trace_pass(place="types", applies=lambda _, asked: asked.run == COMPILE and asked.platform.family != "cpu")
def channels_last(trace: Trace, question: Question) -> Trace:
    """Let convolutions and poolings run in channels last where Inductor turns the network to it."""
    found = [
        task.layer
        for task in trace.tasks
        if isinstance(task.layer, Convolution) and task.layer.phase == FORWARD
    ]
    if not found or not turns(found, inference=question.phase == FORWARD):
        return trace
    return replace(trace, tasks=tuple(replace(task, layer=_turned(task.layer)) for task in trace.tasks))


def turns(convolutions: list[Convolution], *, inference: bool) -> bool:
    """Whether Inductor turns a network with these convolutions to channels last."""
    sorts = [_sort(one) for one in convolutions]
    if not inference:
        return GROUPED not in sorts and NARROWING not in sorts and any(sort != FEW for sort in sorts)
    flops = [int(one.flops()) for one in convolutions]
    return sum(sort * count for sort, count in zip(sorts, flops, strict=True)) <= sum(flops)


def _sort(convolution: Convolution) -> float:
    """The weight of a convolution: its time in channels last over that in channels first."""
    inner, outer = convolution.in_channels // convolution.groups, convolution.out_channels
    if convolution.groups > 1 and inner > 1:
        return GROUPED
    if inner <= SMALL and outer <= SMALL:
        return FEW
    return NARROWING if outer * 2 <= inner and convolution.sizes("kernel")[0] > 1 else OTHERS


def _turned(layer: Layer) -> Layer:
    return replace(layer, channels_last=True) if isinstance(layer, (Conv2d, Pool2d)) else layer
