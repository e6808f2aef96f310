"""The parts of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuralpower.late import Tensor, torch
from neuralpower.layers import Layer
from neuralpower.layers.base import BACKWARD, FORWARD
from neuralpower.layers.tensors import tensors_in
from neuralpower.layers.training import KEEPS_INPUTS, KEEPS_NOTHING, KEEPS_OUTPUTS, backward_of
from neuralpower.networks.diffusion.pictures import Picture
from neuralpower.quantisation.totals import Quantised
from neuralpower.quantisation.weights import Weight
from neuralpower.trace.lifetimes import Flow, Storage
from neuralpower.trace.steps.sparse_gradients import Rows

LOSS = "(loss)"  # path of the loss function
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LayerCall:
    """One layer and the module that called it ("" for the model itself)."""

    path: str
    layer: Layer
    operator: str = ""
    inputs: Shapes = ()  # of the tensors among the operator's arguments, in order
    outputs: Shapes = ()
    gradient: float = 0.0  # share of its backward pass that training asks for
    at: int = field(default=0, compare=False)  # which operator call it is in `Trace.storages`, from 1
    again: bool = False  # the model has it run once more in a backward pass, by `torch.utils.checkpoint`
    asked: frozenset[str] | None = None  # operands whose gradients are needed; None: one pass makes all
    # an autograd function that ends with it, or later, keeps tensors for its backward pass
    saves: bool = False
    done: bool = field(default=False, compare=False)  # of a backward pass of its own: it is listed
    parts: tuple[str, ...] = ()  # of calls that a trace pass has joined: their names, in order
    weight: str = ""  # of a product: the parameter that it multiplies by, by name
    share: float = 1.0  # the part of the call that is done: of one kernel for samples of several lengths


@dataclass(frozen=True)
class OwnBackward:
    """Calls of the own backward pass of an operator or an autograd function, in order, instead of its kind's.

    A call without a gradient runs as it is; of a call with one its backward pass runs, in that share.
    """

    at: int  # which call, as LayerCall.at
    calls: tuple[LayerCall, ...]


@dataclass(frozen=True)
class UnmodelledCall:
    """One operator call that no kind describes: what is known of it, for a roofline estimate."""

    path: str
    operator: str
    reason: str
    bytes: int
    work_bytes: int  # the same, or as many as move in the time that its work takes, where that is longer
    dtype: str
    inputs: Shapes = ()
    outputs: Shapes = ()
    at: int = field(default=0, compare=False)  # as LayerCall.at
    once: bool = False  # in a step of training: it has no backward pass of its own, or is part of one


@dataclass(frozen=True)
class ModuleCall:
    path: str
    inputs: Shapes
    outputs: Shapes


@dataclass(frozen=True)
class Task:
    """One layer's work in a step of training or in a pass; `share`: the part of it that is done."""

    path: str
    layer: Layer
    step: str = FORWARD
    share: float = 1.0
    again: bool = False  # has been done before in this step: no part of the model's own FLOP
    operator: str = field(default="", compare=False)  # of the call that it is, or whose gradient it works on
    at: int = field(default=0, compare=False)  # of a forward call: as LayerCall.at
    asked: frozenset[str] | None = None  # of a backward pass that is predicted as a whole: as LayerCall.asked
    parts: tuple[str, ...] = ()  # as LayerCall.parts
    stream: str = (
        ""  # of the device; "" runs the layers; others run at the same time, after what stands before
    )
    event: str = ""  # what others wait for by this name
    waits: tuple[str, ...] = ()  # events or streams whose latest task before it has to end first
    last: bool = False  # of a step with several micro-batches: in the last one alone

    def flops_and_bytes(self) -> tuple[float, float]:
        """FLOP and bytes of the task: in a backward pass those of the needed gradients."""
        layer, share = self.layer, self.share if self.asked is None else 1.0
        parts = backward_of(layer, self.asked) if layer.phase == BACKWARD else (layer,)
        flops, size = sum(int(part.flops()) for part in parts), sum(int(sum(part.bytes())) for part in parts)
        return share * flops, share * size


@dataclass(frozen=True)
class Savings:
    """Savings of a way to run against eager mode."""

    run: str
    calls_before: int
    bytes_before: int
    calls: int
    bytes: int

    def __str__(self) -> str:
        fewer = self.bytes_before - self.bytes
        size, unit = next(
            (s, u)
            for s, u in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
            if abs(fewer) >= s or s == 1
        )
        more = "less" if fewer >= 0 else "more"
        return (
            f"{self.run}: {self.calls_before:,} calls joined into {self.calls:,} kernels; "
            f"{abs(fewer) / size:.3g} {unit} {more} memory traffic"
        )


@dataclass(frozen=True)
class PassShape:
    """The pass of a trace, for a language model that keeps a cache."""

    phase: str = FORWARD  # forward, prefill or decode
    batch: int = 1  # samples
    tokens: int = 0  # new ones of each sample; 0 where they are not known
    context: int = 0  # tokens of each sample in the cache before it
    windows: Mapping[str, int] = field(default_factory=dict)  # path of a module -> keys that it sees at most
    placed: frozenset[str] = frozenset()  # paths of experts that get a row for each choice, from all ranks
    stepped: int = 0  # requests that get a token, where the prompt stands for a step of several; else 0

    @property
    def ends(self) -> int:
        """Requests that get a token."""
        return self.stepped or self.batch


@dataclass(frozen=True)
class Trace:
    """The recorded work of one pass, in order."""

    calls: tuple[LayerCall, ...]
    unmodelled: tuple[UnmodelledCall, ...] = ()
    parameters: int = 0
    parameter_bytes: int = 0
    method: str = "meta"  # meta, fake or cpu: which way of tracing succeeded
    notes: tuple[str, ...] = field(default=())  # why the earlier ways did not
    modules: tuple[ModuleCall, ...] = ()  # in the order in which they return
    # calls of a backward pass besides the calls' own (`trace.gradients`)
    gradients: tuple[LayerCall, ...] = ()
    own_backward: tuple[OwnBackward, ...] = ()  # in the order of their operator calls
    # what checkpointed blocks run again, where passes have joined calls; None: the calls that say so
    repeats: tuple[LayerCall, ...] | None = None
    trained: tuple[tuple[str, int], ...] = ()  # (dtype, numbers) of parameters that get a dense gradient
    trained_names: tuple[str, ...] = ()  # of these
    of_experts: frozenset[str] = frozenset()  # of these: parameters that expert ranks share out
    sparse: tuple[tuple[str, Rows], ...] = ()  # (name, gradient) of parameters that get rows
    assumptions: tuple[str, ...] = ()  # on what only data can show
    storages: tuple[Storage, ...] = ()  # when each tensor's memory was born and died
    idle: str = ""  # as text: parameters that no call used, where they are many
    tasks: tuple[Task, ...] = ()  # what runs, in order: made from the calls by `neuralpower.trace.passes`
    passes: tuple[str, ...] = ()  # names of the trace passes that made it, in order
    granted: tuple[str, ...] = ()  # as text: assumptions of these
    flows: Mapping[int, Flow] = field(default_factory=dict, compare=False, repr=False)  # by LayerCall.at
    about: PassShape = PassShape()
    picture: Picture | None = None  # what a pipeline of diffusion makes, and how often its parts run
    fetched: Mapping[str, int] = field(default_factory=dict)  # path of a part -> bytes over the host's link
    graphed: bool = False  # whether the host launches all calls at once, as a CUDA graph
    weights: tuple[Weight, ...] = ()  # parameters and buffers, in the order of `named_parameters`
    quantised: Quantised | None = None  # what a scheme has made of the weights
    baseline: tuple[int, int] | None = None  # calls and bytes of eager mode, where passes join calls
    savings: Savings | None = None  # effect of joining them

    @property
    def offload(self) -> str:
        """What of a pipeline is fetched from the host: model, sequential, group; else empty."""
        return "" if self.picture is None else self.picture.offload

    @property
    def repeated(self) -> tuple[LayerCall, ...]:
        """The calls that a backward pass makes once more, since their blocks keep their inputs alone."""
        again = tuple(call for call in self.calls if call.again)
        return again if self.repeats is None else self.repeats

    @property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(call.layer for call in self.calls)

    @property
    def every_call(self) -> tuple[LayerCall | UnmodelledCall, ...]:
        """All calls that do something: layers, then what is not modelled."""
        return *self.calls, *self.unmodelled

    @property
    def flops(self) -> int:
        return int(sum(layer.flops() for layer in self.layers))


def counted(trace: Trace) -> tuple[int, int]:
    """(calls that do something, bytes that they move) of a pass."""
    sizes = {layer: int(sum(layer.bytes())) for layer in set(trace.layers)}
    unmodelled = sum(call.bytes for call in trace.unmodelled)
    moved = sum(call.share * sizes[call.layer] for call in trace.calls)
    return round(sum(call.share for call in trace.calls)) + len(trace.unmodelled), round(moved) + unmodelled


def run_again(block: Sequence[LayerCall]) -> list[LayerCall]:
    """The calls of a checkpointed block that are made once more before its backward pass.

    They end once all that it needs is there (`torch.utils.checkpoint`, early stop): a sum at the end keeps
    nothing, and the product before it needs only its input.
    """
    calls = list(block)
    while calls:
        if calls[-1].saves:
            break
        kept = calls[-1].layer.training.keeps(calls[-1].layer) if calls[-1].gradient else KEEPS_NOTHING
        if kept == KEEPS_OUTPUTS:
            break
        calls.pop()
        if kept == KEEPS_INPUTS:
            break
    return calls


def backward_calls(calls: Sequence[LayerCall], own: Sequence[OwnBackward]) -> Iterator[LayerCall]:
    """The calls that a gradient goes through, the last one first, some replaced by their own passes."""
    instead = {one.at: one.calls for one in own}
    passed = [
        c
        for c in reversed(calls)
        if c.gradient and c.layer.training.differentiable(c.layer) and c.at not in instead
    ]
    found = [(call.at, (call,)) for call in passed] + [*instead.items()]
    for _, some in sorted(found, key=lambda one: -one[0]):
        yield from some


def shapes_of(values: Any) -> Shapes:
    """Shapes of the tensors in `values`, in order."""
    return tuple(_shape(t) for t in torch.utils._pytree.tree_iter(values) if isinstance(t, Tensor))


def call_shapes(values: Any) -> Shapes:
    """Shapes of the tensors in an operator's arguments or results, by a faster search."""
    return tuple(_shape(t) for t in tensors_in(values))


def _shape(tensor: Any) -> tuple[int, ...]:
    """A tensor's shape; a jagged one has that of its values."""
    jagged = tensor.layout == torch.jagged
    return tuple(tensor._values.shape if jagged else tensor.shape)
