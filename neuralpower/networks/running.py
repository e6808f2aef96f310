"""Three ways to run a forward pass without a device: meta tensors, fake tensors, random numbers on the CPU.

Each leaves the model and its inputs as they are: weights are exchanged for the call, and tensors in inputs
are copied, also those inside a cache of keys and values, since a forward pass writes into its cache.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from neuralpower.errors import quoted
from neuralpower.layers.tensors import tensors_in
from neuralpower.networks.caches import REPEATS
from neuralpower.networks.inputs.known_values import WHOLE_BYTES, Known, promised, tensors_within, values_of
from neuralpower.networks.inputs.known_values import with_values as with_values
from neuralpower.networks.inputs.size_limits import check_room
from neuralpower.processes.alone import alone

META = torch.device("meta")
ASKING = ("item", "_local_scalar_dense", "is_nonzero")  # operators that want a number
PACKING = ("aten._pack_padded_sequence", "aten._pad_packed_sequence")
RECURRENT = ("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu")

Change = Callable[[Tensor], Tensor]
Run = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], "Answers"], Any]


def on_meta(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inside: Answers) -> Any:
    """Run on shapes alone; fails where the forward pass asks for a value."""
    state = {name: t.detach().to(META) for name, t in _state(model) if inside.autograd or not t.is_meta}
    return _run(model, state, converted((args, kwargs), _shape_alone), inside)


def _run(model: nn.Module, state: dict[str, Tensor], inputs: Any, inside: Answers) -> Any:
    """The forward pass with `state` in place of the model's own, and inputs (args, kwargs)."""
    if inside.autograd:
        asking = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
        state |= {name: state[name].detach().requires_grad_() for name in asking}
    inside.begins({**dict(_state(model)), **state}, inputs)
    with inside.tracing(), inside:
        return torch.func.functional_call(model, state, *inputs, tie_weights=True)


def _shape_alone(tensor: Tensor) -> Tensor:
    """A meta tensor of its own: what a cache drops must die, though the caller keeps that cache."""
    if not tensor.is_meta:
        return tensor.to(META)
    return torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META, requires_grad=tensor.requires_grad
    )


def on_fake(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inside: Answers) -> Any:
    """Run on shapes on the CPU, as some models require; results of inputs alone have values."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def convert(tensor: Tensor) -> Tensor:
        with fake:
            empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
        return empty.requires_grad_(tensor.requires_grad)

    state = {name: convert(t) for name, t in _state(model)}
    held = values_of(list(tensors_within((args, kwargs))))
    inside.known = Known()

    def hold(tensor: Tensor) -> Tensor:
        real = held.get(id(tensor))
        return convert(tensor) if real is None else real.requires_grad_(tensor.requires_grad)

    args, kwargs = converted((args, kwargs), hold)
    inside.begins({**dict(_state(model)), **state}, (args, kwargs))
    with quiet(), inside.tracing(), fake, inside:
        return torch.func.functional_call(model, state, args, kwargs, tie_weights=True)


@contextlib.contextmanager
def quiet(name: str = "torch._subclasses.fake_tensor") -> Iterator[None]:
    """Keep a part of torch from logging what it cannot do: another way follows, or an error says it."""
    with alone():
        logger = logging.getLogger(name)
        before = logger.level
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(before)


@contextlib.contextmanager
def own_randomness() -> Iterator[None]:
    """Seed torch, Python and numpy within; afterwards their random states are as they were."""
    with alone():
        yield from _own_randomness()


def _own_randomness() -> Iterator[None]:
    before, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            yield
    finally:
        random.setstate(before)
        np.random.set_state(of_numpy)


def on_cpu(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inside: Answers) -> Any:
    """Run on the CPU, with random numbers for tensors without values and without a promise."""
    given = [*model.parameters(), *model.buffers(), *tensors_within((args, kwargs))]
    check_room(tensor for tensor in given if promised(tensor) is None)
    # buffers first: a model may be built for them
    buffers = {name: with_values(t) for name, t in model.named_buffers()}
    state = {name: with_values(t) for name, t in model.named_parameters()} | buffers
    inputs = converted((args, kwargs), lambda t: with_values(t).requires_grad_(t.requires_grad))
    return _run(model, state, inputs, inside)


def values_change_nothing(model: nn.Module, failures: Iterable[BaseException]) -> bool:
    """Whether meta and fake tensors raised the same, in a model too large to run only to see it again."""
    size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    said = [quoted(error) for error in failures]
    return size > WHOLE_BYTES and len(said) > 1 and len({*said}) == 1


class Answers(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Answers what meta tensors cannot: a mask that the model makes is all ones, and nothing is infinite."""

    gradients = False  # whether they are enabled, unless the model itself disables them
    autograd = False  # whether it runs, for a forward pass that takes gradients itself
    known: Known | None = None  # in a run where some tensors have values
    supports_higher_order_operators = True  # seen as one operator, which no kind describes

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.made = REPEATS
        self.assumed = Assumed()

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Without autograd, which takes composite operators apart, unless the forward pass needs it."""
        with torch.inference_mode(not self.autograd), torch.set_grad_enabled(self.gradients or self.autograd):
            yield

    def begins(self, state: Mapping[str, Tensor], inputs: Any) -> None:
        """Note, before a run, the tensors that stand for parameters and buffers, and the inputs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = name_of(func)
        args, kwargs = on_one_device((args, kwargs or {}))
        output = self.answered(operator, args)
        if output is NotImplemented:
            output = self.called(operator.split(".", 1)[-1], func, args, kwargs)
            self.assume(operator.split(".", 1)[-1], output, args)
        return output

    def called(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a call: numbers where they are known, else its shape."""
        output = NotImplemented if self.known is None else self.known(name, func, args, kwargs)
        return self.made(func, args, kwargs) if output is NotImplemented else output

    def answered(self, operator: str, args: Any) -> Any:
        """The result where torch's code for meta tensors cannot give it; else NotImplemented."""
        if operator.split(".", 1)[-1] in ASKING and (value := self.assumed.value(args[0])) is not None:
            return value
        if operator == "aten._grouped_mm" and args[0].device == META:
            return grouped_product(*args)
        if operator in RECURRENT and args[0].device == META:
            return recurrent(*args)
        if operator in PACKING and self.known is not None:
            return self.known.packing(operator.split(".", 1)[-1], args)
        if operator in RECURRENT and args[0].dim() == 2 and isinstance(args[3][0], FakeTensor):
            return recurrent_packed(*args)
        return NotImplemented

    def assume(self, name: str, output: Any, args: Any) -> None:
        """Remember the value that a real run would find in a number that the network may read."""
        if isinstance(output, Tensor) and output.is_meta:
            self.assumed.note(name, output, args)


class Assumed:
    """Assumed values of numbers without values: a mask is all ones, and nothing is infinite."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Tensor, int]] = {}  # keeps the tensor, lest its id be used again

    def value(self, tensor: Any) -> int | None:
        """The value that a real run would find in it; None where that is not known."""
        return self._values[id(tensor)][1] if id(tensor) in self._values else None

    def note(self, name: str, output: Tensor, args: Any) -> None:
        if output.dim():
            return
        if name in ("all", "any"):
            self._values[id(output)] = (output, name == "all")
        elif name == "sum" and args[0].dtype == torch.bool:
            self._values[id(output)] = (output, args[0].numel())
        elif name == "eq" and self.value(args[0]) is not None and isinstance(args[1], int):
            self._values[id(output)] = (output, self.value(args[0]) == args[1])


def grouped_product(a: Tensor, b: Tensor, ends: Tensor | None = None, *_: Any) -> Tensor:
    """An empty tensor as `aten._grouped_mm` returns it; its own code for meta tensors takes bfloat16 only.

    Rows [m, k] by a matrix for each group [groups, k, n]: [m, n]; for the gradient, [k, m] by [m, n]:
    [groups, k, n].
    """
    groups = () if ends is None or b.dim() == 3 else (ends.shape[0],)
    return a.new_empty((*groups, a.shape[-2], b.shape[-1]))


def recurrent(x: Tensor, hidden: Any, *settings: Any) -> tuple[Tensor, ...]:
    """Empty tensors as `aten.lstm` and its like return them; their code for meta tensors takes every step.

    x [steps, batch, inputs], or batch first, with states [layers x directions, batch, outputs]: outputs of
    all steps, last states. Packed, x is [steps of all sequences, inputs], and the batch of each step comes
    before the states.
    """
    packed = isinstance(hidden, Tensor) and not hidden.is_floating_point()
    given = settings[0] if packed else hidden
    states = given if isinstance(given, (tuple, list)) else (given,)
    bidirectional, batch_first = (settings[-1], False) if packed else settings[-2:]
    last = tuple(state.new_empty(state.shape) for state in states)
    steps = (x.shape[1], x.shape[0]) if batch_first else x.shape[:-1]
    outputs = x.new_empty((*steps, states[0].shape[2] * (1 + bidirectional)))
    return outputs.transpose(0, 1) if batch_first else outputs, *last


def recurrent_packed(x: Tensor, _sizes: Any, hidden: Any, weights: Any, *settings: Any) -> tuple[Tensor, ...]:
    """The same for packed sequences: x [samples of all steps, inputs]."""
    states = hidden if isinstance(hidden, (tuple, list)) else (hidden,)
    shapes = ((x.shape[0], states[0].shape[2] * (1 + settings[-1])), *(state.shape for state in states))
    return tuple(weights[0].new_empty(shape) for shape in shapes)


@functools.cache
def name_of(func: Any) -> str:
    """`aten.add` of an operator's overload."""
    packet = getattr(func, "overloadpacket", None)
    return str(packet).removeprefix("torch.ops.") if packet is not None else str(func)


@functools.cache
def is_composite(func: Any) -> bool:
    """Whether an operator's overload is composed of others, whatever the device."""
    if not hasattr(func, "decompose") or not torch._C._dispatch_has_kernel(func.name()):
        return False  # `sym_size` of a nested tensor has no kernel, and an exception there ends the process
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


def on_one_device(values: Any) -> Any:
    """All on meta where meta tensors meet real ones with axes, as in a module's plain attributes."""
    devices = {t.device.type for t in tensors_in(values) if t.is_meta or t.dim()}
    if "meta" not in devices or len(devices) == 1:
        return values
    return tree_map(lambda v: v.to(META) if isinstance(v, Tensor) and v.dim() else v, values)


Ways = Sequence[tuple[str, Run]]
WAYS: Ways = (("meta", on_meta), ("fake", on_fake), ("cpu", on_cpu))
"""From the fastest to the one that always works, with their names in a trace."""


def converted(values: Any, change: Change) -> Any:
    """`values` with every tensor in it changed; objects that hold tensors, as a cache does, are copied."""
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else _copied(leaf, change), values)


def _copied(value: Any, change: Change) -> Any:
    tensors = list(tensors_within(value))
    return copy.deepcopy(value, {id(tensor): change(tensor) for tensor in tensors}) if tensors else value


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
