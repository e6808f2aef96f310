"""Operators of higher order: they take functions, as `torch.cond` takes branches.

Such an operator is followed as the calls that it makes in eager mode (its kernel for
`CompositeExplicitAutograd`): each step of `while_loop`, `map` and `scan`, the body of `invoke_subgraph`. A
`cond` counts the costlier one of its branches. `flex_attention` is one kernel.

In a training step autograd follows these calls one by one. As PyTorch's own backward passes do, `cond`,
`map` and `while_loop` keep what goes into a branch or a body, and run it again; `scan` keeps what its steps
compute; the fused kernel keeps its inputs, its output and the sums of its rows.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import utils
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import flex_attention
from torch.utils import _python_dispatch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

from neuralpower.layers.attention import FLEX, window_of
from neuralpower.layers.tensors import tensors_in
from neuralpower.networks.running import name_of
from neuralpower.trace.operators.undisturbed import swapped

OTHERWISE = "write it as plain operators, or give the module without it"
EAGER = torch._C.DispatchKey.CompositeExplicitAutograd
NOT_SEEN = {"_get_current_dispatch_mode": lambda: None}
NO_SCORES = ("_identity", "noop_mask")  # names of rules that change nothing


def steps_of(func: HigherOrderOperator) -> Callable[..., Any] | None:
    """The kernel of eager mode, in Python; None where the operator has none."""
    kernel: Callable[..., Any] | None = func.py_kernels.get(EAGER)
    if kernel is None:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        """The kernel, which may refuse to be called while a mode sees its operators."""
        own = sys.modules[kernel.__module__]
        with known_swapped(own, **NOT_SEEN), known_swapped(_python_dispatch, **NOT_SEEN):
            return kernel(*args, **kwargs)

    return run


def of_branches(flops: Sequence[int]) -> str:
    """A note on a condition, given the FLOP of each branch."""
    return f"cond: of its branches ({' and '.join(f'{one:,}' for one in flops)} FLOP) the costlier one counts"


@contextlib.contextmanager
def not_compiled() -> Iterator[None]:
    """Have operators of higher order call what they are given: they compile it first, but for a trace.

    `flex_attention` takes tensors of each device, also where they ask for gradients.
    """

    def call(function: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))

    plain = {"_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True, "_validate_device": lambda *_: None}
    with known_swapped(utils, _hop_compile_and_call=call), known_swapped(flex_attention, **plain):
        yield


def known_swapped(module: ModuleType, **others: Any) -> contextlib.AbstractContextManager[None]:
    """Exchange those of these attributes that a module has: some versions of torch have others."""
    return swapped(module, **{name: other for name, other in others.items() if hasattr(module, name)})


def flex_output(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors as `flex_attention` returns: context, log sums and largest scores of the rows."""
    rows = query.shape[:-1]
    sums = query.new_empty(rows, dtype=torch.float32)
    return query.new_empty((*rows, value.shape[-1])), sums, torch.empty_like(sums)


def flex_notes(query: Tensor, key: Tensor, value: Tensor, scores: Any, blocks: Any) -> Iterator[str]:
    """What a fused kernel of `flex_attention` takes for granted."""
    yield "flex_attention is one fused kernel, as torch.compile makes it"
    if getattr(scores, "__name__", "") not in NO_SCORES:
        yield "flex_attention: the FLOP of its score_mod are not counted"
    rule = blocks[-1]
    plain = getattr(rule, "__name__", "") in NO_SCORES
    if not plain and window_of(rule, query.shape[-2], key.shape[-2]) is None:
        yield "flex_attention: blocks that its mask leaves out are counted, too"


@contextlib.contextmanager
def differentiated() -> Iterator[None]:
    """Have autograd see the calls that operators of higher order make, not the operators."""
    own: Any = HigherOrderOperator.dispatch

    def dispatch(operator: HigherOrderOperator, key: Any, *args: Any, **kwargs: Any) -> Any:
        name, run = name_of(operator), steps_of(operator)
        if name == FLEX and args[0].shape[-1] == args[2].shape[-1]:
            return _Flex.apply(*args[:3])  # type: ignore[no-untyped-call]
        if run is None:
            return own(operator, key, *args, **kwargs)
        if name == "cond":
            return _kept(_costlier(args[1:3], args[3]))(*args[3])
        functions = BODIES.get(name, slice(0))
        bodies = [*args]
        bodies[functions] = map(_kept, bodies[functions])
        return run(*bodies, **kwargs)

    with swapped(HigherOrderOperator, dispatch=dispatch):
        yield


BODIES = {"map_impl": slice(0, 1), "while_loop": slice(1, 2)}  # places of what runs again in a backward pass


def _kept(body: Callable[..., Any]) -> Callable[..., Any]:
    """The function, of which a backward pass finds the operands alone."""

    def run(*operands: Any) -> Any:
        return checkpoint(body, *operands, use_reentrant=False, preserve_rng_state=False)

    return run


def _costlier(branches: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> Callable[..., Any]:
    """The branch with more FLOP and bytes; no mode but that of tensors without values sees it run."""
    mode = _python_dispatch._get_current_dispatch_mode()
    faking = mode is None or isinstance(mode, FakeTensorMode)
    unseen: Any = contextlib.nullcontext() if faking else _python_dispatch._pop_mode_temporarily()
    costs = []
    with unseen, torch.no_grad():
        for branch in branches:
            with _Costs() as cost:  # type: ignore[no-untyped-call]  # its constructor is untyped
                branch(*operands)
            costs.append(cost.total)
    return branches[costs.index(max(costs))]


class _Costs(_python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]  # its subclass hook is untyped
    """FLOP of products, as torch counts them, and bytes of all operators."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        count = flop_registry.get(getattr(func, "_overloadpacket", None))
        self.total += count(*args, **(kwargs or {}), out_val=output) if count else 0
        self.total += sum(tensor.nbytes for tensor in tensors_in((args, kwargs, output)))
        return output


class _Flex(torch.autograd.Function):
    """The memory of the fused kernel, and of its backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output, sums, largest = flex_output(query, key, value)
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.mark_non_differentiable(sums, largest)
        return output, sums, largest

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        """A product of output and gradient for each row, then the gradients of the inputs."""
        *inputs, _, sums = ctx.saved_tensors
        rows = torch.empty_like(sums)
        gradients = tuple(map(torch.empty_like, inputs))
        del rows
        return gradients
