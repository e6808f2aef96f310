"""A copy of a module on another device: its weights are not copied first, so on meta it costs no memory.

On meta it promises the originals' values. `copy.deepcopy` keeps functions as they are. A function that
reaches the module or a layer by a closure or a global name, as a hook or a user's forward often does, would
call the original from within the copy: it is made again, with the copy's.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from neuralpower.dtypes import FEWEST_NETWORK_BITS
from neuralpower.errors import ModelError
from neuralpower.networks.inputs.known_values import promise, promised

CONTAINERS = (dict, OrderedDict, list, tuple)


def copied(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A copy of `module` on `device`, tensors of its main type in `dtype`.

    Raises ModelError for meta weights off meta.
    """
    own = main_dtype(module)
    memo: dict[int, Any] = {}  # as in deepcopy: identity of an original -> its counterpart
    for tensor in (*module.parameters(), *module.buffers(), *_computed(module)):
        if tensor.is_meta and device.type != "meta":
            raise ModelError(
                f"the weights of {type(module).__name__} are on the meta device and have no values for "
                f"{device.type}; give a module with weights, or the function that builds it"
            )
        moved = retyped(tensor.detach(), own, dtype, device)
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


def main_dtype(module: nn.Module) -> torch.dtype | None:
    """The type of most floats in the parameters, else in the buffers; None where there is none.

    Weights of 8 bits do not count: they are stored so, and the module computes in another type. Weights of
    lazy layers do not count either, as they have no shape yet.
    """
    for tensors in (module.parameters(), module.buffers()):
        numbers: Counter[torch.dtype] = Counter()
        for tensor in tensors:
            if not is_lazy(tensor) and is_castable(tensor):
                numbers[tensor.dtype] += tensor.numel()
        if numbers:
            return max(numbers, key=lambda dtype: numbers[dtype])
    return None


def is_castable(tensor: Tensor) -> bool:
    """Whether a tensor holds floats that a network can have in any type: not of 8 bits."""
    return tensor.is_floating_point() and 8 * tensor.element_size() >= FEWEST_NETWORK_BITS


def retyped(
    tensor: Tensor, own: torch.dtype | None, dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """`tensor` of a module whose main type is `own`, cast to `dtype` if it is of that type.

    Others were given their type on purpose: scales in float32, tables in float64, weights in 8 bits.
    """
    kept = dtype if tensor.dtype == own else tensor.dtype
    return tensor.to(device=device or tensor.device, dtype=kept)


def in_dtype(tensor: Tensor, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """An input, on another device if given; floats in `dtype`, unless they have 8 bits."""
    kept = dtype if is_castable(tensor) else tensor.dtype
    return tensor.to(device=device or tensor.device, dtype=kept)


def _computed(module: nn.Module) -> list[Tensor]:
    """Attributes that a graph has computed, as pruning and weight norm leave them: deepcopy refuses these."""
    seen: set[int] = set()
    found = (value for part in module.modules() for value in _held(vars(part), seen))
    return [value for value in found if isinstance(value, Tensor) and not value.is_leaf]


def _held(value: Any, seen: set[int]) -> Iterator[Any]:
    """The values in a container and in those within it, each once; other values as they are."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if type(value) in CONTAINERS:
        for inner in _inside(value):
            yield from _held(inner, seen)
    else:
        yield value


def _inside(container: Any) -> Iterable[Any]:
    """Its items; of a dictionary the values."""
    return container.values() if isinstance(container, dict) else container


def _own(value: Any, memo: dict[int, Any]) -> Any:
    """The copy's counterpart of `value`: itself, unless it leads to the original; one for each value."""
    if id(value) in memo:
        return memo[id(value)]
    if not _leads(value, memo, set()):
        return value
    if isinstance(value, FunctionType):
        return _own_function(value, memo)
    if isinstance(value, MethodType):
        return MethodType(_own(value.__func__, memo), _own(value.__self__, memo))
    if type(value) is tuple:
        return tuple(_own(inner, memo) for inner in value)
    made = memo[id(value)] = type(value)()  # before what it holds, which can be itself
    if isinstance(made, list):
        made += [_own(inner, memo) for inner in value]
    else:
        made.update((key, _own(inner, memo)) for key, inner in value.items())
    return made


def _leads(value: Any, memo: dict[int, Any], seen: set[int]) -> bool:
    """Whether a function, or a container of functions, reaches something that was copied."""
    if id(value) in memo:
        return True
    if id(value) in seen:
        return False
    seen.add(id(value))
    inside: Iterable[Any] = ()
    if isinstance(value, FunctionType):
        # an empty cell raises when it is read
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        inside = (*cells, value.__defaults__, value.__kwdefaults__, *_reaching(value, memo).values())
    elif isinstance(value, MethodType):
        inside = value.__func__, value.__self__
    elif type(value) in CONTAINERS:
        inside = _inside(value)
    return any(_leads(one, memo, seen) for one in inside)


def _own_function(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """The function with cells, defaults and globals of the copy; a cell that functions share stays shared."""
    cells = function.__closure__ or ()
    new = [cell for cell in cells if id(cell) not in memo]
    memo.update((id(cell), CellType()) for cell in new)
    own = tuple(memo[id(cell)] for cell in cells)
    names = {name: _own(value, memo) for name, value in _reaching(function, memo).items()}
    space = {**function.__globals__, **names} if names else function.__globals__
    made = FunctionType(function.__code__, space, function.__name__, None, own or None)
    memo[id(function)] = made  # before what it is closed over, which can be itself
    for cell in new:
        if cell != CellType():
            memo[id(cell)].cell_contents = _own(cell.cell_contents, memo)
    made.__defaults__ = _own(function.__defaults__, memo)
    made.__kwdefaults__ = _own(function.__kwdefaults__, memo)
    vars(made).update(vars(function))
    return made


def _reaching(function: FunctionType, memo: dict[int, Any]) -> dict[str, Any]:
    """Global names by which the function knows the original, a part of it, or a method of one."""
    found = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return {name: value for name, value in found.items() if id(getattr(value, "__self__", value)) in memo}
