"""A training step as `torch.compile` runs it, on tensors without values.

AOTAutograd traces the network, and its partitioner decides by a minimum cut which tensors the backward pass
finds, and which point-wise results it makes again: both are the installed PyTorch's own, as Inductor calls
them (torch/_functorch/partitioners.py, `min_cut_rematerialization_partition`). The graphs' operators are
Inductor's decompositions. Kernels are not made: `without_fused` drops what lives within one of them alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from neuralpower.trace.lifetimes import ACTIVATIONS, Storage

NOTE = "the memory is that of an eager step"
# Reductions, copies and fills: Inductor makes kernels of them, and joins these with point-wise ones.
JOINED = frozenset(
    f"aten.{name}"
    for name in """
        sum mean amax amin max min var var_mean std prod argmax argmin any all logsumexp
        clone copy cat constant_pad_nd full full_like zeros zeros_like ones ones_like empty empty_like
        arange scalar_tensor index select_scatter slice_scatter embedding gather expand
    """.split()
)


def compiled(model: nn.Module) -> Callable[..., Any]:
    """The forward of a module as the two graphs that AOTAutograd makes of it when it is called first.

    Weights and buffers are those that the module has now. What an output has besides tensors, such as a
    cache of keys and values, is None.
    """
    import torch._inductor.lowering  # which the partitioner asks
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    form: list[tuple[list[bool], Any]] = []  # of the output: which leaves are tensors, and what they form

    def forward(
        state: dict[str, Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, ...]:
        output = torch.func.functional_call(model, state, tuple(args), dict(kwargs))
        leaves, spec = tree_flatten(output)
        form[:] = [([isinstance(one, Tensor) for one in leaves], spec)]
        return tuple(one for one in leaves if isinstance(one, Tensor))

    def called(*args: Any, **kwargs: Any) -> Any:
        tensors = iter(made(state, args, kwargs))
        ((are_tensors, spec),) = form
        return tree_unflatten([next(tensors) if one else None for one in are_tensors], spec)

    made = aot_function(
        forward,
        fw_compiler=_kept,
        partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        decompositions=select_decomp_table(),
        num_params_buffers=len(state),
    )
    return called


def _kept(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """The graph as it is; it frees its inputs as it goes, as Inductor's wrapper does."""
    from torch.fx.graph import _BoxedCodeGen

    own = copy.copy(gm)
    own.graph.set_codegen(_BoxedCodeGen())
    own.recompile()
    forward: Any = own.forward

    def run(inputs: list[Any]) -> Any:
        return forward(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def joins(name: str, operator: Any) -> bool:
    """Whether Inductor makes a kernel of an operator, in which neighbouring operators can be joined."""
    return name in JOINED or torch.Tag.pointwise in operator.tags


def without_fused(
    storages: Sequence[Storage], joined: Collection[int], ends: Sequence[int]
) -> tuple[Storage, ...]:
    """The storages but those that are made and read within one run of joined operators: registers hold them.

    Args:
        storages: of a step, in the order of its calls.
        joined: calls of operators that can be joined, or that make nothing.
        ends: the last call of each pass; what the optimizer makes after them stays.
    """
    inside, last = set(joined), dict[int, int]()
    for call in range(ends[-1], 0, -1):  # the last call of the run that a call belongs to
        goes_on = call in inside and call + 1 in inside and call not in ends
        last[call] = last[call + 1] if goes_on else call
    return tuple(one for one in storages if not _in_registers(one, inside, last))


def _in_registers(one: Storage, joined: Collection[int], last: Mapping[int, int]) -> bool:
    """Whether a result of a joined call is read within its run alone."""
    made = one.part == ACTIVATIONS and one.birth in joined and one.birth in last
    return made and one.death is not None and one.death <= last[one.birth]
