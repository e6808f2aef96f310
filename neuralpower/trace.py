"""Model + inputs -> the layers that one forward pass makes, in order, without weights and without a device.

The model runs on the `meta` device under inference mode, where composite operators stay whole, below a dispatch mode that
sees each operator with its output. Every operator is
  a layer      its kind's fields describe the call,
  decomposed   no kind describes it, but it is composed of operators that are traced instead,
  free         its output shares memory with an input (a view), or it is on the short list FREE,
  unmodelled   anything else; listed with its reason and its bytes, never dropped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from neuralpower.errors import ModelError, Unmodelled
from neuralpower.layers import BY_OPERATOR, KINDS, Call, Layer
from neuralpower.layers.base import FLOATING, ITEMSIZE
from neuralpower.lifetimes import CACHE, INPUTS, WEIGHTS, Lifetimes, Storage, tensors_within

META = torch.device("meta")

# Operators that neither compute nor move anything and yet return no view.
FREE = frozenset(
    """
    empty empty_like new_empty empty_strided new_empty_strided empty_permuted _local_scalar_dense item sym_size
    sym_numel sym_stride is_same_size _assert_async _assert_tensor_metadata lift_fresh lift set_ resize_
    _has_compatible_shallow_copy_type _nested_tensor_size is_nonzero equal size dim result_type can_cast
    promote_types _is_zerotensor is_floating_point device _fw_primal
    """.split()
)


Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LayerCall:
    """One layer and the module that called it ("" for the model itself)."""

    path: str
    layer: Layer
    operator: str = ""
    inputs: Shapes = ()  # of the tensors among the operator's arguments, in order
    outputs: Shapes = ()


@dataclass(frozen=True)
class UnmodelledCall:
    """One operator call that no kind describes: what is known of it, for a roofline estimate."""

    path: str
    operator: str
    reason: str
    bytes: int
    dtype: str
    inputs: Shapes = ()
    outputs: Shapes = ()


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module's forward."""

    path: str
    inputs: Shapes
    outputs: Shapes


@dataclass(frozen=True)
class Trace:
    """What one pass does, in order."""

    calls: tuple[LayerCall, ...]
    unmodelled: tuple[UnmodelledCall, ...] = ()
    free_calls: int = 0  # operators that are views or bookkeeping
    module_calls: int = 0
    parameters: int = 0
    parameter_bytes: int = 0
    method: str = "meta"  # meta, fake or cpu: which way of tracing succeeded
    notes: tuple[str, ...] = field(default=())  # why the earlier ways did not
    modules: tuple[ModuleCall, ...] = ()  # in the order in which they return
    storages: tuple[Storage, ...] = ()  # when each tensor's memory was born and died

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers alone."""
        return tuple(call.layer for call in self.calls)

    @property
    def every_call(self) -> tuple[LayerCall | UnmodelledCall, ...]:
        """All calls that do something: layers, then what is not modelled."""
        return *self.calls, *self.unmodelled

    @property
    def flops(self) -> int:
        """FLOP of all layers."""
        return int(sum(layer.flops() for layer in self.layers))


def trace(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool | None = False,
) -> Trace:
    """The layers of `model(*args, **kwargs)`.

    The module is left as it was found (state dict, mode, hooks, attributes, random state), also when its forward raises.
    `training` chooses the mode during the pass; False is eval, None leaves every module in its own. Inputs may be on any
    device, their values matter only to the last fall-back. Three ways are tried: meta tensors, fake tensors, a real run on the CPU.

    Raises:
        ModelError: the forward raises in all three ways; the message quotes its own error.
    """
    model = unwrapped(model)
    kwargs = dict(kwargs or {})
    notes: list[str] = []
    failure: BaseException | None = None
    for method, run in (("meta", _run_meta), ("fake", _run_fake), ("cpu", _run_cpu)):
        recorder = _Recorder(model)
        try:
            with undisturbed(model, training), _slow_attention(), recorder.attached():
                run(model, tuple(args), kwargs, recorder)
        except Exception as error:
            failure = error
            notes.append(
                f"{method}: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:300]
            )
            continue
        return recorder.trace(method, tuple(notes))
    first = str(failure).strip().splitlines()
    raise ModelError(
        f"{type(model).__name__}: its forward raises {type(failure).__name__}: {first[0] if first else ''}; "
        "check the inputs (batch size, sequence length, input shape) against what the model takes"
    ) from failure


def trace_call(call: Callable[[], Any]) -> Trace:
    """The layers that a call on meta tensors makes, such as a layer's own `build`."""
    model = nn.Module()
    recorder = _Recorder(model)
    with torch.random.fork_rng(devices=[]), recorder.attached(), contextlib.ExitStack() as stack:
        if not (isinstance(call, Call) and _steps_optimizer(call)):
            stack.enter_context(torch.inference_mode())
        stack.enter_context(recorder)
        call()
    return recorder.trace("meta", ())


def _steps_optimizer(call: Call) -> bool:
    return isinstance(getattr(call.function, "__self__", None), torch.optim.Optimizer)


def _run_meta(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recorder: _Recorder) -> None:
    state = {name: t.detach().to(META) for name, t in _state(model) if not t.is_meta}
    args, kwargs = _to(META, args), _to(META, kwargs)
    recorder.hold([*(t for _, t in _state(model) if t.is_meta), *state.values()], (args, kwargs))
    with torch.inference_mode(), recorder:
        recorder.keep(torch.func.functional_call(model, state, args, kwargs, tie_weights=True))


def _run_fake(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recorder: _Recorder) -> None:
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(
        logging.CRITICAL
    )  # a failure here is only a fall-back's
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def convert(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        with fake:
            return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="cpu")

    state = {name: convert(t) for name, t in _state(model)}
    args, kwargs = tree_map(convert, args), tree_map(convert, kwargs)
    recorder.hold(state.values(), (args, kwargs))
    with torch.inference_mode(), fake, recorder:
        recorder.keep(torch.func.functional_call(model, state, args, kwargs, tie_weights=True))


def _run_cpu(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recorder: _Recorder) -> None:
    def convert(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        if not t.is_meta:
            return t.detach().cpu().clone()
        if t.is_floating_point():
            return torch.randn(t.shape).mul_(0.02).to(t.dtype)
        return torch.ones(t.shape, dtype=t.dtype)

    state = {name: convert(t) for name, t in _state(model)}
    args, kwargs = tree_map(convert, args), tree_map(convert, kwargs)
    recorder.hold(state.values(), (args, kwargs))
    with torch.inference_mode(), recorder:
        recorder.keep(torch.func.functional_call(model, state, args, kwargs, tie_weights=True))


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _to(device: torch.device, values: Any) -> Any:
    return tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, values)


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside DataParallel, DistributedDataParallel and torch.compile's wrapper."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif "_orig_mod" in model._modules and isinstance(model._modules["_orig_mod"], nn.Module):
            model = model._modules["_orig_mod"]
        else:
            return model


@contextlib.contextmanager
def undisturbed(model: nn.Module, training: bool | None) -> Iterator[None]:
    """Set the mode, and put back every attribute of every module afterwards, whatever the forward did to them."""
    before = [
        (m, dict(m.__dict__), {name: dict(m.__dict__[name]) for name in ("_parameters", "_buffers", "_modules")})
        for m in model.modules()
    ]
    try:
        with torch.random.fork_rng(devices=[]):
            for module, _, _ in before:
                module.training = module.training if training is None else training
            yield
    finally:
        for module, attributes, tables in before:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for name, table in tables.items():
                module.__dict__[name].clear()
                module.__dict__[name].update(table)


@contextlib.contextmanager
def _slow_attention() -> Iterator[None]:
    """The modules' own forward instead of PyTorch's fused fast path, which hides what it is made of."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class ModuleStack:
    """Which module is running, by hooks on every module of the process that are taken off again."""

    def __init__(self, model: nn.Module) -> None:
        self.calls = 0
        self._paths: dict[int, list[str]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            self._paths.setdefault(id(module), []).append(name)
        self._stack: list[tuple[int, str]] = []

    @property
    def path(self) -> str:
        """Path of the innermost module that is running."""
        return self._stack[-1][1] if self._stack else ""

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Follow the calls."""
        handles = [
            nn.modules.module.register_module_forward_pre_hook(self._enter),
            nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def entered(self, path: str) -> None:
        """A module's forward begins: nothing to do here."""

    def left(self, path: str, args: Any, output: Any) -> None:
        """A module's forward has returned: nothing to do here."""

    def _enter(self, module: nn.Module, args: Any) -> None:
        identity = id(module)
        names = self._paths.get(identity)
        if names is None:
            path = self.path  # made during the forward; it has no name of its own
        elif len(names) == 1:
            path = names[0]
        else:
            inside = self.path + "." if self.path else ""
            path = next((name for name in names if name.startswith(inside)), names[0])
        self.calls += 1
        self._stack.append((identity, path))
        if names is not None:
            self.entered(path)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        while self._stack:  # a forward that raised below leaves its entries behind
            identity, path = self._stack.pop()
            if identity == id(module):
                if identity in self._paths:
                    self.left(path, args, output)
                break


class _Modules(ModuleStack):
    """Keeps the shapes of every module call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.seen: list[ModuleCall] = []

    def left(self, path: str, args: Any, output: Any) -> None:
        self.seen.append(ModuleCall(path, shapes_of(args), shapes_of(output)))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Sees every operator call, and the path of the module that makes it."""

    supports_higher_order_operators = True  # seen as one operator, which no kind describes

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.model = model
        self.modules = _Modules(model)
        self.calls: list[LayerCall] = []
        self.unmodelled: list[UnmodelledCall] = []
        self.free_calls = 0
        self.lifetimes = Lifetimes()
        self._in_optimizer = False
        self._assumed: dict[int, tuple[Tensor, bool]] = {}  # the tensor is kept, lest its id be used again

    def trace(self, method: str, notes: tuple[str, ...]) -> Trace:
        """What was seen."""
        parameters = list(self.model.parameters())
        return Trace(
            calls=tuple(self.calls),
            unmodelled=tuple(self.unmodelled),
            free_calls=self.free_calls,
            module_calls=self.modules.calls,
            parameters=sum(p.numel() for p in parameters),
            parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
            method=method,
            notes=notes,
            modules=tuple(self.modules.seen),
            storages=self.lifetimes.storages(),
        )

    def hold(self, weights: Iterable[Tensor], inputs: Any) -> None:
        """What is in memory before the first operator."""
        self.lifetimes.hold(weights, WEIGHTS)
        self.lifetimes.hold(tree_iter(inputs), INPUTS)

    def keep(self, output: Any) -> None:
        """What the model returned is in memory until the last operator; keys and values of a cache are told apart."""
        self.lifetimes.assign(tensors_within(getattr(output, "past_key_values", None)), CACHE)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Module and optimizer hooks, taken off again in any case."""
        handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        try:
            with self.modules.attached():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        layer = self._described("optimizer.step", None, (optimizer,), {})
        if isinstance(layer, Layer):
            self.calls.append(LayerCall(self.modules.path, layer, "optimizer.step"))
        self._in_optimizer = True

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and record it."""
        output = self._run(func, args, kwargs or {})
        self.lifetimes.called(output)
        return output

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        packet = getattr(func, "overloadpacket", None)
        operator = str(packet).removeprefix("torch.ops.") if packet is not None else str(func)
        if _mixed_devices((args, kwargs)):
            args, kwargs = _on_meta(args), _on_meta(kwargs)
        tags = getattr(func, "tags", ())
        name = operator.split(".", 1)[-1]
        if name in ("item", "_local_scalar_dense", "is_nonzero") and id(args[0]) in self._assumed:
            return self._assumed[id(args[0])][1]
        if name in FREE:
            self.free_calls += not self._in_optimizer
            return func(*args, **kwargs)
        if operator == "aten._grouped_mm" and args[0].device == META:  # its own meta code takes bfloat16 only
            output = args[0].new_empty((args[0].shape[0], args[1].shape[-1]))
            return self._recorded(operator, output, args, kwargs)
        known = operator in BY_OPERATOR or torch.Tag.pointwise in tags or torch.Tag.reduction in tags
        if self._in_optimizer:
            return func(*args, **kwargs)
        if not known:
            output = self._decomposed(func, args, kwargs)
            if output is not NotImplemented:
                return output
        output = func(*args, **kwargs)
        if not _writes(func) and _is_view(output, args, kwargs):  # or numbers from numbers
            self.free_calls += 1
            return output
        if name in ("all", "any") and isinstance(output, Tensor) and output.is_meta:
            # a mask that the model made itself is all ones, and nothing is infinite: what a real run would find
            self._assumed[id(output)] = (output, name == "all")
        if known and isinstance(self._described(operator, output, args, kwargs, tags), str):
            parts = self._decomposed(func, args, kwargs)
            if parts is not NotImplemented:
                return parts
        return self._recorded(operator, output, args, kwargs, tags)

    def _recorded(self, operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any] = ()) -> Any:
        """Note the call as a layer or as unmodelled; its output."""
        layer = self._described(operator, output, args, kwargs, tags)
        if isinstance(layer, Layer):
            if not _is_empty(output):
                shapes = shapes_of((args, kwargs)), shapes_of(output)
                self.calls.append(LayerCall(self.modules.path, layer, operator, *shapes))
            return output
        tensors = [t for t in tree_iter((args, kwargs, output)) if isinstance(t, Tensor)]
        size = sum(t.numel() * t.element_size() for t in tensors)
        self.unmodelled.append(
            UnmodelledCall(
                self.modules.path,
                operator,
                layer,
                size,
                _dtype_of(args, kwargs, output),
                shapes_of((args, kwargs)),
                shapes_of(output),
            )
        )
        return output

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The call made of its parts, each traced; NotImplemented where it is not composed of others."""
        if not hasattr(func, "decompose") or not func.has_kernel_for_dispatch_key(
            torch._C.DispatchKey.CompositeImplicitAutograd
        ):
            return NotImplemented
        with self:
            return func.decompose(*args, **kwargs)

    @staticmethod
    def _described(operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any] = ()) -> Layer | str:
        """The layer that the call is, or the reason why no kind describes it."""
        kind = BY_OPERATOR.get(operator)
        if kind is None and torch.Tag.pointwise in tags:
            kind = KINDS["elementwise"]
        if kind is None and torch.Tag.reduction in tags:
            kind = KINDS["reduction"]
        if kind is None:
            return "no layer kind knows this operator"
        try:
            layer = kind.from_call(operator, output, *args, **kwargs)
        except Unmodelled as reason:
            return str(reason)
        return dataclasses.replace(layer, dtype=_dtype_of(args, kwargs, output))


def shapes_of(values: Any) -> Shapes:
    """Shapes of the tensors in `values`, in order."""
    return tuple(tuple(t.shape) for t in tree_iter(values) if isinstance(t, Tensor))


def _mixed_devices(values: Any) -> bool:
    """Whether meta tensors meet real ones with axes, as a module's plain attributes are."""
    devices = {t.device.type for t in tree_iter(values) if isinstance(t, Tensor) and (t.is_meta or t.dim())}
    return "meta" in devices and len(devices) > 1


def _on_meta(values: Any) -> Any:
    return tree_map(lambda v: v.to(META) if isinstance(v, Tensor) and v.dim() else v, values)


def _writes(func: Any) -> bool:
    """Whether the operator changes an argument's numbers."""
    schema = getattr(func, "_schema", None)
    if schema is None or torch.Tag.inplace_view in getattr(func, "tags", ()):
        return False
    return any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)


def _is_view(output: Any, args: Any, kwargs: Any) -> bool:
    """Whether every output shares memory with an input."""
    outputs = [t for t in tree_iter(output) if isinstance(t, Tensor)]
    inputs = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
    return all(t.untyped_storage()._cdata in inputs for t in outputs)


def _is_empty(output: Any) -> bool:
    tensors = [t for t in tree_iter(output) if isinstance(t, Tensor)]
    return bool(tensors) and all(math.prod(t.shape) == 0 for t in tensors)


def _dtype_of(args: Any, kwargs: Any, output: Any) -> str:
    """The first floating type among arguments, then output; else the first type."""
    names = [str(t.dtype).removeprefix("torch.") for t in tree_iter((args, kwargs, output)) if isinstance(t, Tensor)]
    floating = [name for name in names if name in FLOATING]
    known = floating or [name for name in names if name in ITEMSIZE]
    return known[0] if known else "float32"
