"""The question about a pass: phase, types, recipe and way to run, besides the network and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neuralpower.devices.cluster import ONE, Cluster, Layout
from neuralpower.errors import InputError, unknown
from neuralpower.late import torch
from neuralpower.layers.base import FORWARD
from neuralpower.networks.phases import PHASES
from neuralpower.platforms import CPU, Platform
from neuralpower.quantisation.schemes import Scheme
from neuralpower.trace.parts.routing import ROUTING, Routing
from neuralpower.trace.recipe import RECIPE, Recipe

EAGER, GRAPH, COMPILE, ENGINE = "eager", "graph", "compile", "engine"
RUNS = (EAGER, GRAPH, COMPILE, ENGINE)
"""Ways to run a network.

    eager    operator by operator, each launched by the host
    graph    the same calls, captured once as a CUDA graph and launched together
    compile  point-wise calls and reductions fused into kernels, as torch.compile's Inductor does
    engine   what engines that serve language models do: packed products, fused norms, a paged cache, graphs
"""

Knows = Callable[[str, str], bool]  # (kind, phase) -> whether a predictor knows its time


def everything(kind: str, phase: str) -> bool:
    """True for each kind: all are known."""
    return True


def checked_run(run: str, phase: str = FORWARD) -> str:
    """The way to run; raises InputError for an unknown one, and for one that the phase does not have."""
    if run not in RUNS:
        raise unknown("way to run", run, RUNS)
    if run == ENGINE and phase not in PHASES:
        raise InputError(f"run {ENGINE} serves a trained network, and phase {phase} trains; choose {COMPILE}")
    return run


def usual_run(platform: Platform, phase: str) -> str:
    """The default way to run a phase: language models on accelerators are served by engines."""
    served = platform.family != CPU.family and phase in PHASES and phase != FORWARD
    return ENGINE if served else EAGER


@dataclass(frozen=True)
class Question:
    """The phase of a pass, its types, its recipe and its way to run."""

    phase: str = FORWARD  # forward, backward, or training: a whole step
    dtype: str = "float32"
    recipe: Recipe = RECIPE  # of training; its implementation is said (`Recipe.on`)
    autocast: torch.dtype | None = None  # the low precision that products are cast to
    routing: Routing = ROUTING  # of tokens over a mixture's experts
    platform: Platform = CPU  # of the device: it says how optimizers step
    knows: Knows = everything
    run: str = EAGER  # one of RUNS
    weights: Scheme | None = None  # how they are quantised, as the device runs it; None: they are not
    layout: Layout = ONE  # how the network is spread over devices; the pass is that of one of them
    cluster: Cluster | None = None  # these devices; None: nodes as is usual
