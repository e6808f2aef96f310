"""Automatic casts of `torch.autocast`, as a device's platform does them, on tensors of a CPU without values.

Products run in the low type on each device. What runs in float32 differs: on a GPU norms, softmaxes, powers,
exponentials, sums and losses, too (torch/csrc: `AT_FORALL_FP32` and `AT_FORALL_FP32_SET_OPT_DTYPE` of
ATen/autocast_mode.h, torch 2.6 to 2.13). Outside of a CPU these rules are registered for the time of a pass.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import Library
from torch.utils._pytree import tree_leaves, tree_map_only

from neuralpower.dtypes import AUTOCAST_DTYPES, full_name
from neuralpower.errors import unknown
from neuralpower.layers.base import torch_dtype
from neuralpower.platforms import CPU, Platform
from neuralpower.processes.alone import alone
from neuralpower.trace.operators.undisturbed import swapped

LOW = (torch.bfloat16, torch.float16)
# operators that run in float32 on a GPU, and as their inputs are on a CPU
WIDE = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm group_norm cosine_similarity
    huber_loss l1_loss binary_cross_entropy_with_logits dist renorm logsumexp
    norm.Scalar norm.ScalarOpt_dim
    sum sum.dim_IntList prod prod.dim_int cumprod cumsum linalg_vector_norm
""".split()
CELLS = ("gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell")
# operators that run in the low type on a GPU (`AT_FORALL_LOWER_PRECISION_FP`), and not on a CPU
NARROW = ("addmv", "addr", "mv", "chain_matmul", "linalg_multi_dot", *CELLS)
# that run in the widest type of their inputs on a GPU (`AT_FORALL_PROMOTE`)
PROMOTED = ("bilinear", "dot", "vdot", "grid_sampler", "index_put", "tensordot", "scatter_add")
# Composed of products, without a rule of their own. A trace sees such a call whole, behind its parts' casts.
COMPOSED = ("einsum", "inner")
FUSED = ("softmax.int", "log_softmax.int")  # their kernels read 16 bits and write 32


def cast_dtype(text: str) -> torch.dtype:
    """The type of a name that products can be cast to; raises InputError."""
    name = full_name(text)
    if name not in AUTOCAST_DTYPES:
        raise unknown("dtype of an autocast", text, AUTOCAST_DTYPES)
    return torch_dtype(name)


def casting(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """A block whose products run in `dtype`; copies of weights last until its end. None: no casts."""
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)


@contextlib.contextmanager
def not_blind() -> Iterator[None]:
    """Have a model's own automatic casts raise RuntimeError, as on meta tensors, which these do not see."""
    own: Any = torch.autocast.__enter__

    def enter(block: Any) -> Any:
        if block._enabled:
            raise RuntimeError("tensors without a device have no automatic casts")
        return own(block)

    with swapped(torch.autocast, __enter__=enter):
        yield


def _as_of_a_cpu(rule: Callable[..., None]) -> Callable[..., None]:
    """Make automatic casts of any device those of a CPU's tensors, in that device's usual type."""

    def make(
        block: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        rule(block, "cpu", dtype or torch.get_autocast_dtype(device_type), *args, **kwargs)

    return make


@contextlib.contextmanager
def cast_rules(platform: Platform) -> Iterator[None]:
    """Have automatic casts follow the platform's rules, in blocks within this one, also a model's own."""
    gpu = platform.family != CPU.family
    own: Any = vars(torch.autocast)["__init__"]
    with alone(), swapped(torch.autocast, __init__=_as_of_a_cpu(own) if gpu else own):
        library: Any = Library("aten", "IMPL", "AutocastCPU")  # type: ignore[no-untyped-call]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a newer torch may have the rule already
                for name, rule in (RULES_OF_A_GPU if gpu else RULES).items():
                    library.impl(name, rule(_operator(name)))
            yield
        finally:
            library._destroy()


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _without_casts() -> Any:
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(key)


def _in_type(operator: Any, cast: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_casts():
            return operator(*tree_map_only(Tensor, cast, args), **kwargs)

    return run


def _promoting(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        types = {tensor.dtype for tensor in tree_leaves(args) if isinstance(tensor, Tensor)}
        cast = _widened if torch.float32 in types else _same
        return _in_type(operator, cast)(*args, **kwargs)

    return run


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _widening(operator: Any) -> Callable[..., Any]:
    """A softmax in float32; a step without values has no copy of its input in float32."""

    def run(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        with _without_casts():
            memory_alone = isinstance(x, FakeTensor) and not torch.is_inference_mode_enabled()
            if dtype is None and x.dtype in LOW and memory_alone:
                return _Softmax.apply(x)  # type: ignore[no-untyped-call]
            return operator(_widened(x) if dtype is None else x, dim, dtype)

    return run


class _Softmax(torch.autograd.Function):
    """Memory of a softmax of 16 bits with a result of 32, which its backward pass reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = torch.empty_like(x, dtype=torch.float32)
        ctx.save_for_backward(result)
        ctx.dtype = x.dtype
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """A gradient of 16 bits."""
        return torch.empty_like(ctx.saved_tensors[0], dtype=ctx.dtype)


def _narrowed(tensor: Tensor) -> Tensor:
    dtype = torch.get_autocast_dtype("cpu")
    return tensor.to(dtype) if tensor.dtype in (*LOW, torch.float32) else tensor


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in LOW else tensor


RULES: Mapping[str, Callable[[Any], Any]] = dict.fromkeys((*COMPOSED, *CELLS), attrgetter("decompose"))
RULES_OF_A_GPU: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(COMPOSED, attrgetter("decompose")),
    **dict.fromkeys(NARROW, partial(_in_type, cast=_narrowed)),
    **dict.fromkeys(PROMOTED, _promoting),
    **dict.fromkeys(WIDE, partial(_in_type, cast=_widened)),
    **dict.fromkeys(FUSED, _widening),
}
