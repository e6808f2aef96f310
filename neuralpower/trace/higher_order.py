"""Operators of higher order: they take functions, as `torch.cond` takes branches.

Such an operator is followed as the calls that it makes in eager mode (its kernel for
`CompositeExplicitAutograd`): each step of `while_loop`, `map` and `scan`, the body of `invoke_subgraph`. A
`cond` counts the costlier one of its branches. `flex_attention` is one kernel.
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
from torch.nn.attention import flex_attention
from torch.utils import _python_dispatch

from neuralpower.layers.attention import window_of
from neuralpower.trace.undisturbed import swapped

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
