"""Functions as networks: those that compute from inputs, and those that make a module.

A function is a builder where it can be called without arguments, as torchvision.models.resnet18: it returns a
network. Any other function is a forward pass.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, ModelError, UsersError, unknown
from neuralpower.files.paths import is_file, resolved, shown
from neuralpower.networks.inputs.arguments import transformers_inputs
from neuralpower.networks.inputs.input_values import with_values_of, written
from neuralpower.networks.inputs.inputs import Inputs, called_with
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.networks.libraries.transformers import is_transformers
from neuralpower.networks.source import AT_A_PROMPT, Source, brought_inputs, by_shape, checked_module
from neuralpower.networks.sources.base import grammar
from neuralpower.networks.users_code import check_computed, users_code
from neuralpower.processes.alone import alone

# Networks that a user's function or module makes.

EXAMPLE = "example_input_array"  # attribute of a module, as in PyTorch Lightning


def path_of(location: str) -> Path:
    """The path that a text names; raises ModelError for `~name` of no user."""
    try:
        return Path(location).expanduser()
    except RuntimeError as error:
        raise ModelError(f"{location}: {error}; give a full path") from None


def call_function(function: Callable[..., Any], keywords: Mapping[str, Any], text: str) -> Any:
    """`function(**keywords)`; raises ModelError where its signature does not take them."""
    try:
        signature = inspect.signature(function)
        signature.bind(**keywords)
    except TypeError as error:
        names = ", ".join(name for name in signature.parameters if name != "self") or "none"
        raise ModelError(
            f"{text} cannot be called like this ({error}); it takes {names}; "
            "give them as MODEL?name=value&name=value"
        ) from error
    return function(**keywords)


def function_source(text: str, location: str, name: str, overrides: dict[str, Any]) -> Source:
    """`package.module:function` and `path/file.py:function`; overrides are keywords of the function."""
    of_file = location.endswith(".py")
    loaded = _loaded_file(location) if of_file else _imported(text, location)
    folder = resolved(path_of(location)).parent if of_file else Path.cwd()
    with users_code(f"{name} of {location} cannot be read"):  # a module may have a `__getattr__` of its own
        function = getattr(loaded, name, None)
    if not callable(function):
        names = [n for n, value in vars(loaded).items() if callable(value) and not n.startswith("_")]
        own = [n for n in names if getattr(getattr(loaded, n), "__module__", None) == loaded.__name__]
        raise unknown(f"function in {location}", name, own or names, ModelError)
    if isinstance(function, nn.Module):
        kind = type(function).__name__
        raise ModelError(f"{text} is a {kind} that has been built; give a function that returns it")
    with users_code(f"example_inputs of {location} cannot be read"):
        beside = getattr(loaded, "example_inputs", None)
    kept: WeakKeyDictionary[nn.Module, Inputs] = WeakKeyDictionary()

    def called() -> tuple[Any, Any]:
        with _importing_from(folder):
            value = call_function(function, overrides, text)
            if isinstance(value, tuple) and len(value) == 2:
                return value
            return value, getattr(value, EXAMPLE, None)

    def construct(dtype: torch.dtype) -> nn.Module:
        with written() as memory:
            value, example = called()
        model = checked_module(value, text, dtype)
        if example is not None:
            given, weight_bytes = called_with(example), sum(p.nbytes for p in model.parameters())
            kept[model] = with_values_of(memory.marked(given), lambda: called()[1], weight_bytes)
        return model

    def examples(model: nn.Module, request: InputRequest) -> Inputs:
        if request.input_shape is None:
            has_length = getattr(model, EXAMPLE, None) is not None  # a module's example has its own length
            if model in kept and not (request.seq_len is not None and callable(beside) and has_length):
                return brought_inputs(text, kept[model], request)
            if callable(beside):
                with _importing_from(folder):
                    return called_with(ask(beside, request, text))
        return derived_inputs(text, model, request)

    def untyped() -> nn.Module:
        return checked_module(called()[0], text, None)

    return Source(text, construct, examples, brings=kept.get, untyped=untyped)


def derived_inputs(name: str, model: nn.Module, request: InputRequest, way_out: str = AT_A_PROMPT) -> Inputs:
    """Inputs that follow from a module: from the configuration of transformers, else from a shape."""
    if is_transformers(model):
        return transformers_inputs(model, request)
    return by_shape(name, model, request, way_out=way_out)


def ask(make: Callable[..., Any], request: InputRequest, text: str) -> Any:
    """The answer of an `example_inputs` function, which may take `seq_len` besides the batch size."""
    keywords = {} if request.seq_len is None else {"seq_len": request.seq_len}
    if keywords and "seq_len" not in inspect.signature(make).parameters:
        raise InputError(
            f"seq_len is {request.seq_len}, but the inputs of {text} have their own length; "
            "leave seq_len out, or let example_inputs take it"
        )
    call = f"example_inputs({request.batch_size}) of {text}"
    with users_code(f"{call} failed"), written() as memory:
        made = make(request.batch_size, **keywords)
    check_computed(made, call)
    memory.marked(called_with(made))
    return made


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Let the user's code import its neighbours, and print to stderr: stdout is for results."""
    with alone():
        sys.path.insert(0, str(folder))
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            if str(folder) in sys.path:
                sys.path.remove(str(folder))


def _loaded_file(location: str) -> ModuleType:
    """The module in a file, loaded afresh."""
    path = path_of(location)
    if not is_file(path):
        raise ModelError(f"there is no file {shown(location)}; give an existing path/file.py:function")
    path = resolved(path)
    name = f"neuralpower_model_{path.stem}_{abs(hash(path))}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ModelError(f"{location} is not a Python file; give path/file.py:function")
    loaded = importlib.util.module_from_spec(specification)
    sys.modules[name] = loaded  # dataclasses look their module up
    try:
        with users_code(f"{location} cannot be imported"), _importing_from(path.parent):
            specification.loader.exec_module(loaded)
    except UsersError:  # a script's own parser of arguments ends the program
        del sys.modules[name]
        raise
    return loaded


def _imported(text: str, location: str) -> ModuleType:
    """An installed module, or one in the working folder."""
    try:
        with users_code(f"{location} cannot be imported"), _importing_from(Path.cwd()):
            return importlib.import_module(location)
    except UsersError as error:
        name = error.error.name if isinstance(error.error, ModuleNotFoundError) else None
        if name is not None and (location == name or location.startswith(name + ".")):
            raise ModelError(f"there is no module {location!r} for {text!r}; {grammar()}") from error
        raise


OF_MODULES = frozenset(dir(nn.Module()))


class Forward(nn.Module):
    """A function's call as a module's, with what the function uses as its parts.

    A copy of it calls a function that uses the copied parts (`neuralpower.networks.copies`).
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        inner, self.bound, keywords = _unbound(function)
        self.called, self.keywords = inner, keywords
        for name, value in dict(_used_by(inner, self.bound, keywords)).items():
            own = f"{name}_" if name in OF_MODULES or name in vars(self) else name
            if isinstance(value, nn.Module):
                self.add_module(own, value)
            elif isinstance(value, nn.Parameter):
                self.register_parameter(own, value)
            else:
                self.register_buffer(own, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.called(*self.bound, *args, **{**self.keywords, **kwargs})


def is_builder(function: object) -> bool:
    """Whether an object can be called without arguments, modules aside."""
    if isinstance(function, type):
        return issubclass(function, nn.Module)
    try:
        inspect.signature(function).bind()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return callable(function)


def as_network(model: Any) -> Any:
    """A function as a module; modules, builders, names and all else as they are."""
    if isinstance(model, nn.Module) or not callable(model) or is_builder(model):
        return model
    name = getattr(_unbound(model)[0], "__name__", type(model).__name__).strip("<>")
    return type(name, (Forward,), {})(model)


def _unbound(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(a function, positions, keywords) that a partial function stands for."""
    if not isinstance(function, functools.partial):
        return function, (), {}
    return function.func, function.args, dict(function.keywords)


def _used_by(
    function: Any, bound: tuple[Any, ...], keywords: dict[str, Any]
) -> Iterator[tuple[str, nn.Module | Tensor]]:
    """(name, module or tensor) that a function reads: its arguments', object's, closure's and globals'."""
    named = {f"argument_{n}": value for n, value in enumerate(bound)} | keywords
    if isinstance(function, nn.Module):
        named[type(function).__name__.lower()] = function
    elif isinstance(function, MethodType):
        named[type(function.__self__).__name__.lower()] = function.__self__
    elif isinstance(function, FunctionType):
        found = inspect.getclosurevars(function)
        named |= {**found.globals, **found.nonlocals}
    for name, value in named.items():
        if isinstance(value, (nn.Module, Tensor)):
            yield name, value
