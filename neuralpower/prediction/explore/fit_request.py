"""The question whether a network fits: the network, its sizes, and how it runs."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from neuralpower.devices.cluster import Cluster
from neuralpower.devices.layout import ONE, Layout
from neuralpower.errors import InputError, unknown
from neuralpower.layers.base import FORWARD
from neuralpower.networks.inputs import check_count
from neuralpower.networks.phases import DECODE, GENERATE, PREFILL
from neuralpower.optimizers.registry import States
from neuralpower.platforms import CPU, Platform
from neuralpower.prediction.memory.engines import EngineRequest
from neuralpower.trace.casts import cast_dtype
from neuralpower.trace.master_weights import check_masters
from neuralpower.trace.question import checked_run
from neuralpower.trace.recipe import TRAINING, Recipe
from neuralpower.trace.step_settings import optimizer_named

PHASES = (FORWARD, TRAINING, PREFILL, DECODE, GENERATE)


@dataclass(frozen=True)
class Request:
    """The network and sizes that have to fit."""

    model: Any
    batch_size: int = 1
    seq_len: int | None = None
    input_shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    published: bool = False  # whether `dtype` is the model's own: an engine may then serve it in another
    phase: str = FORWARD
    optimizer: str = "adamw"  # of training: "sgd" keeps nothing, "momentum" a number per parameter
    platform: Platform = CPU
    context: int | None = None  # decode: tokens in the cache before the step
    accumulation: int = 1  # training: micro-batches of `batch_size` per step
    checkpointing: bool = False  # training: repeated blocks keep their inputs alone
    margin: float | None = None  # share of the memory that is kept free; None: as the platform says
    run: str | None = None  # one of `trace.question.RUNS`; None: the usual one of the phase, as in `predict`
    weights: str | None = None  # a name that `--weights` takes; None: the checkpoint's own
    new_tokens: int | None = None  # generate: made after a prompt of `seq_len` tokens; None: as in `predict`
    # training: what an optimizer of any other name keeps, in numbers per parameter: 2, or "2:bfloat16"
    optimizer_states: float | str | None = None
    autocast: str | None = None  # training: the low precision that products are cast to
    lora: str | int | None = None  # training: rank of adapters, such as 16 or "16:q_proj,v_proj"
    master_weights: bool = False  # training: 16-bit weights have float32 masters, gradients and states

    layout: Layout = ONE  # over several devices: the fullest of them has to hold its part
    cluster: Cluster | None = None  # these devices
    require_plan: bool = False  # whether a model without a plan for tensor ranks is refused
    engine: EngineRequest | None = None  # under this engine; None: under PyTorch alone
    remedies: bool = True  # whether changes that help are sought where it does not fit

    @property
    def replicas(self) -> int:
        """Batches of `batch_size` that all devices have in one step or pass."""
        return self.layout.data * self.accumulation

    @property
    def states(self) -> States | None:
        """What an unknown optimizer keeps; raises InputError."""
        return None if self.optimizer_states is None else States.parsed(self.optimizer_states)

    @property
    def cast(self) -> torch.dtype | None:
        """The low precision that products are cast to; raises InputError."""
        return None if self.autocast is None else cast_dtype(self.autocast)

    @property
    def length(self) -> int | None:
        """Tokens of a context or a text, whose largest number is searched; None: the model's own."""
        return self.context if self.phase == DECODE else self.seq_len


def check_room(platform: Platform, room_bytes: float) -> None:
    """Raise InputError for a device's memory that is below what the framework alone takes of it."""
    context = platform.overheads[0].value_bytes if platform.overheads else platform.framework.forward_bytes
    least = max(context, 0)
    if platform.family != CPU.family and room_bytes <= least:
        raise InputError(
            f"memory of {room_bytes / 2**20:.4g} MiB: the framework alone takes {least / 2**20:.0f} MiB of "
            f"{platform.called}; choose a larger memory"
        )


def checked_margin(request: Request) -> float:
    """The share of the memory that is kept free; raises InputError for what the request cannot be."""
    phase = request.phase
    if phase not in PHASES:
        raise unknown("phase", phase, PHASES)
    optimizer_named(request.optimizer, request.platform, request.states)
    if request.run is not None:
        checked_run(request.run, phase)
    Recipe(accumulation=request.accumulation)
    if request.cluster is not None:
        request.cluster.check(request.layout)
    if request.context is not None and phase != DECODE:
        raise InputError(f"context {request.context} belongs to phase decode, not to {phase}; leave it out")
    check_count("new_tokens", request.new_tokens)
    if request.new_tokens is not None and phase != GENERATE:
        raise InputError(
            f"new_tokens {request.new_tokens} belongs to phase generate, not to {phase}; leave it out"
        )
    in_flight = phase != TRAINING and request.layout.pipeline > 1
    for name in ("optimizer_states", "autocast", "lora", "master_weights"):
        if phase != TRAINING and (value := getattr(request, name)) not in (None, False):
            raise InputError(f"{name} {value} belongs to phase {TRAINING}, not to {phase}; leave it out")
    check_masters(request.master_weights, request.dtype, autocast=request.autocast, lora=request.lora)
    how = (request.optimizer, 1 if in_flight else request.accumulation, request.checkpointing)
    if phase != TRAINING and how != (Request.optimizer, Request.accumulation, Request.checkpointing):
        what = "optimizer, accumulation and checkpointing"
        raise InputError(f"{what} belong to phase training, not to {phase}; leave them out")
    margin = request.platform.margin(phase) if request.margin is None else request.margin
    if isinstance(margin, bool) or not isinstance(margin, Real) or not 0 <= margin < 1:
        what = "the share of memory to keep free must be 0 or more and below 1"
        raise InputError(f"margin {margin!r}: {what}; choose 0.3")
    return float(margin)
