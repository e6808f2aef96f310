"""A copy of a module on another device: its weights are not copied first, so on meta it costs no memory.

There it promises the originals' values. `copy.deepcopy` keeps functions as they are. One that knows the module or a layer of it
by a name of its surroundings, as a hook or a forward of one's own often does, would call the original from within the copy: it
is made again, with the copy's.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

from neuralpower.errors import ModelError
from neuralpower.values import promise, promised


def copied(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A copy of `module` on `device`, floating weights in `dtype`; raises ModelError for meta weights to go elsewhere."""
    memo: dict[int, Any] = {}  # as deepcopy has it: identity of an original -> what stands for it
    for tensor in (*module.parameters(), *module.buffers(), *_computed(module)):
        if tensor.is_meta and device.type != "meta":
            raise ModelError(
                f"the weights of {type(module).__name__} are on the meta device and have no values for {device.type}; "
                "give a module with weights, or the function that builds it"
            )
        target = dtype if tensor.is_floating_point() else tensor.dtype
        moved = tensor.detach().to(device=device, dtype=target)
        if isinstance(tensor, nn.Parameter):
            moved = nn.Parameter(moved, requires_grad=tensor.requires_grad)
        if moved.is_meta:
            _pass_on(tensor, moved)
        memo[id(tensor)] = moved
    made = copy.deepcopy(module, memo)
    for part in made.modules():
        vars(part).update({name: _own(value, memo) for name, value in vars(part).items()})
    return made


def _pass_on(tensor: Tensor, moved: Tensor) -> None:
    """Let `moved`, on meta, promise the values of `tensor`, or what this one promises."""
    draw = promised(tensor) if tensor.is_meta else lambda: tensor
    if draw is not None:
        promise(moved, draw)


def _computed(module: nn.Module) -> list[Tensor]:
    """Attributes that a graph has computed, as pruning and weight norm leave them: deepcopy refuses these."""
    values = tree_iter([dict(vars(part)) for part in module.modules()])
    return [value for value in values if isinstance(value, Tensor) and not value.is_leaf]


def _own(value: Any, memo: dict[int, Any]) -> Any:
    """What the copy has in place of `value`: the same, unless it holds a function or leads to the original."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, FunctionType):
        return _own_function(value, memo)
    if isinstance(value, MethodType):
        return MethodType(_own(value.__func__, memo), _own(value.__self__, memo))
    if type(value) in (dict, OrderedDict):
        own = {key: _own(inner, memo) for key, inner in value.items()}
        return value if all(own[key] is inner for key, inner in value.items()) else type(value)(own)
    if type(value) in (list, tuple):
        inside = [_own(inner, memo) for inner in value]
        return value if all(a is b for a, b in zip(inside, value, strict=True)) else type(value)(inside)
    return value


def _own_function(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """The function with cells, defaults and globals of the copy's; functions that shared a cell share the new one."""
    cells, names = function.__closure__ or (), _own_globals(function, memo)
    if not (cells or names or function.__defaults__ or function.__kwdefaults__):
        return function
    new = [cell for cell in cells if id(cell) not in memo]
    memo.update((id(cell), CellType()) for cell in new)
    own = tuple(memo[id(cell)] for cell in cells)
    space = {**function.__globals__, **names} if names else function.__globals__
    made = FunctionType(function.__code__, space, function.__name__, None, own or None)
    memo[id(function)] = made  # before what it is closed over, which can be itself
    for cell in new:
        if cell != CellType():  # an empty one raises
            memo[id(cell)].cell_contents = _own(cell.cell_contents, memo)
    made.__defaults__ = _own(function.__defaults__, memo)
    made.__kwdefaults__ = _own(function.__kwdefaults__, memo)
    vars(made).update(vars(function))
    return made


def _own_globals(function: FunctionType, memo: dict[int, Any]) -> dict[str, Any]:
    """Global names of the function for the original, a part of it or a method of one -> the copy's."""
    found = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    reaching = {name: value for name, value in found.items() if id(getattr(value, "__self__", value)) in memo}
    return {name: _own(value, memo) for name, value in reaching.items()}
