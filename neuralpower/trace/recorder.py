"""Each operator of a run, read as a layer, a view, or as unmodelled."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import checkpoint
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.dtypes import DTYPES, FLOATING
from neuralpower.errors import InputError, Unmodelled, quoted
from neuralpower.layers import BY_OPERATOR, KINDS, Layer
from neuralpower.layers.base import check_output
from neuralpower.layers.embedding import RENORM, RENORMED, renormalised
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.movement import ALIAS, Movement
from neuralpower.layers.workspace import workspace_blocks
from neuralpower.networks.mixed_dtypes import refused
from neuralpower.networks.phases import CACHES
from neuralpower.networks.promised_values import made_up, tensors_within
from neuralpower.networks.repeats import key_of, tensors_in
from neuralpower.networks.running import (
    ASKING,
    Answers,
    Run,
    is_composite,
    name_of,
    on_one_device,
    tracing,
)
from neuralpower.networks.running import META as META
from neuralpower.networks.users_code import check_computed
from neuralpower.trace.gradients import Gradients
from neuralpower.trace.lifetimes import CACHE, INPUTS, WEIGHTS, Lifetimes
from neuralpower.trace.loops import OFTEN, Called, recurring
from neuralpower.trace.modules import Modules, With
from neuralpower.trace.notes import (
    check_countable,
    derived_notes,
    forward_of,
    idle_note,
    packed,
    unpriced_hooks,
    unread,
)
from neuralpower.trace.numerics import equivalent_bytes
from neuralpower.trace.own_backward import (
    REVERSED,
    OwnCall,
    called,
    called_operator,
    engine_answered,
    gradient_of,
    requiring,
)
from neuralpower.trace.records import (
    LOSS,
    LayerCall,
    OwnBackward,
    Trace,
    UnmodelledCall,
    backward_calls,
    call_shapes,
    run_again,
)
from neuralpower.trace.routing import ROUTING, Routing
from neuralpower.trace.sparse_gradients import Rows, sparse_use

REAL = {name: dtype.parts for name, dtype in DTYPES.items() if dtype.parts}  # of complex numbers
# Operators that neither compute nor move anything and yet return no view.
FREE = frozenset(
    """
    empty empty_like new_empty empty_strided new_empty_strided empty_permuted _local_scalar_dense item sym_size
    sym_numel sym_stride is_same_size _assert_async _assert_tensor_metadata lift_fresh lift set_ resize_
    _has_compatible_shallow_copy_type _nested_tensor_size is_nonzero equal size dim result_type can_cast
    promote_types _is_zerotensor is_floating_point device _fw_primal
    """.split()
)
DEPENDING = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
}  # operators that decide by numbers
VIEW = Movement(function=ALIAS, elements=1, recurs=True)


class Recorder(Answers):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Sees every operator call, and the path of the module that makes it."""

    def __init__(self, model: nn.Module, routing: Routing = ROUTING) -> None:
        super().__init__()
        self.model = model
        self.routing = routing
        self.assumptions: dict[str, None] = {}
        self._descriptions: dict[Hashable, Layer | str] = {}
        self._made_up = (
            WeakIdKeyDictionary()
        )  # tensors that follow from values that are nobody's -> which, in words
        self._decided_by: dict[
            str, None
        ] = {}  # those of which a number was asked for, or a shape that depends on one
        self._fitting: set[Hashable] = set()  # operators with types and axes that PyTorch takes
        self._per_token = 1  # experts: the last choice of the largest that was made
        self.modules = Modules(model)
        self.calls: list[LayerCall] = []
        self._views: list[tuple[int, str, str, bool]] = []  # of a LayerCall: at, path, operator, again
        self._state: dict[int, str] = {}  # identity of what stands for a parameter or a buffer -> its name
        # by which of these, offset and shape of a part: the call that was the first to read it, and its bytes
        self._read: dict[tuple[int, Any, torch.Size], tuple[int, int]] = {}
        self.followed = Gradients(())
        self._leaves: list[Tensor] = []  # what stands for the parameters that ask for a gradient
        self._stand_ins: Mapping[str, Tensor] = {}
        self.unmodelled: list[UnmodelledCall] = []
        self.outside = ""  # path of what runs outside of every module
        self.lifetimes = Lifetimes()
        self._in_optimizer = False
        self._in_function: bool | None = (
            None  # whether gradients were enabled where an autograd function was called
        )
        self.asked = False  # whether autograd functions hear that their inputs need gradients
        self.trained = False  # whether their backward passes are run
        self.derived: dict[
            Any, str
        ] = {}  # autograd functions whose backward pass cannot be followed, and why
        # by call: its first operator call, its backward pass
        self._own: dict[int, tuple[int, tuple[LayerCall, ...]]] = {}
        # a backward pass of its own that is running: what it has called so far
        self._within: list[LayerCall] | None = None
        self._output: Any = None  # of the pass
        self._beside: list[LayerCall] = []  # what hooks on gradients call
        self._gathered: set[str] = (
            set()
        )  # parameters to which such a backward pass has added a gradient itself
        self._checkpoints = 0  # of `torch.utils.checkpoint` that are running, one within the other

    def trace(self, method: str, notes: tuple[str, ...]) -> Trace:
        """What was seen."""
        parameters = list(self.model.parameters())
        check_countable(type(self.model).__name__, self.calls, self.unmodelled)
        passed, calls = self.followed.passed, self._looped()
        recurs = {call.at for call in calls if call.layer.recurs}
        beside = (
            (path, _again(layer) if at in recurs else layer) for path, layer, at in self.followed.beside()
        )
        trained = self._trained()
        return Trace(
            calls=tuple(c if c.at in passed else dataclasses.replace(c, gradient=0.0) for c in calls),
            unmodelled=tuple(self.unmodelled),
            parameters=sum(p.numel() for p in parameters),
            parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
            method=method,
            notes=notes,
            modules=tuple(self.modules.seen),
            gradients=(*(LayerCall(path, layer) for path, layer in beside), *self._beside),
            own_backward=self._own_backward(self.followed, calls),
            trained=tuple((_dtype_of((p,), {}, None), p.numel()) for _, p, rows in trained if rows is None),
            trained_names=tuple(name for name, _, rows in trained if rows is None),
            sparse=tuple((name, rows) for name, _, rows in trained if rows is not None),
            assumptions=(
                *self.assumptions,
                *derived_notes(self.derived),
                *self._silent_hooks(),
                *self._decided(),
                *packed(self.model),
                *unread(self.calls, self.followed.forgotten),
            ),
            storages=self.lifetimes.storages(),
            idle=idle_note(self.model, self._unread()),
        )

    def _silent_hooks(self) -> Iterator[str]:
        return unpriced_hooks(self.model) if self.trained else iter(())

    def _decided(self) -> Iterator[str]:
        """In words, what the calls depend on that nobody has given."""
        if self._decided_by:
            named = "; ".join(self._decided_by)
            yield f"its forward pass decides by numbers that are made up: {named}; by others it may make other calls"

    def _comes_from(self, tensors: Iterable[Tensor]) -> dict[str, None]:
        """Which made-up values tensors follow from, in words."""
        return {text: None for tensor in tensors if tensor in self._made_up for text in self._made_up[tensor]}

    def _unread(self) -> set[str]:
        """Names of parameters and buffers that no call used."""
        read = {identity for identity, _, _ in self._read}
        return {name for identity, name in self._state.items() if identity not in read}

    def _looped(self) -> list[LayerCall]:
        """The calls; those that a loop repeats say so, and the views before each of them are among them."""
        often = Counter((call.path, call.operator) for call in self.calls)
        if max(often.values(), default=0) < OFTEN:
            return self.calls
        size = {layer: int(sum(layer.bytes())) for layer in {call.layer for call in self.calls}}
        new, views = deque(self._read.values()), deque(self._views)
        called = [
            Called((c.path, c.operator, c.layer), size[c.layer], sum(read for _, read in _until(new, c.at)))
            for c in self.calls
        ]
        calls: list[LayerCall] = []
        for call, recurs in zip(self.calls, recurring(called), strict=True):
            before = _until(views, call.at)
            if recurs:
                calls += (
                    LayerCall(path, VIEW, operator, at=at, again=again)
                    for at, path, operator, again in before
                )
                call = dataclasses.replace(call, layer=_again(call.layer))
            calls.append(call)
        return calls

    def _own_backward(self, followed: Gradients, calls: Sequence[LayerCall]) -> tuple[OwnBackward, ...]:
        """Of the calls that a gradient goes through."""
        paths = {call.at: (call.path, call.operator) for call in calls}
        recurs = {call.at for call in calls if call.layer.recurs}
        found = [
            OwnBackward(at, tuple(LayerCall(paths[at][0], layer, paths[at][1], at=at) for layer in layers))
            for at, layers in followed.instead()
        ]
        for at, (first, own) in self._own.items():
            if at in followed.passed:
                looped = any(number in recurs for number in range(first, at))
                found.append(OwnBackward(at, tuple(_in_loop(call) for call in own) if looped else own))
        return tuple(sorted(found, key=lambda one: one.at))

    def _trained(self) -> list[tuple[str, nn.Parameter, Rows | None]]:
        """The parameters that get a gradient, by name, with its rows where it is sparse; all that ask, where none was followed."""
        asking = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        arrived = self.followed.arrived()[: len(asking)]  # inputs come after them
        arrived = [gets or name in self._gathered for gets, (name, _) in zip(arrived, asking, strict=True)]
        sparse = self.followed.sparse()[: len(asking)]
        if not any(arrived):
            return [(name, p, None) for name, p in asking]
        return [
            (name, p, rows) for (name, p), gets, rows in zip(asking, arrived, sparse, strict=True) if gets
        ]

    def follow(
        self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Callable[[Any], Any] | None
    ) -> None:
        """See a forward pass, the loss of what it returns where one is given, and backward passes of the model's own."""
        output = run(self.model, args, kwargs, self)
        check_computed(output, forward_of(self.model))
        self._output = output  # as whoever calls the model keeps it
        self.ends(output)

        def back() -> None:
            self.followed.end_at(tensors_in(loss(output)) if loss is not None else None)

        with tracing(self.gradients), self.under(LOSS):
            state = {f"model.{name}": tensor for name, tensor in self._stand_ins.items()}
            torch.func.functional_call(With(self.model, back), state, (), tie_weights=True)

    def begins(self, state: Mapping[str, Tensor], inputs: Any) -> None:
        """What is in memory before the first operator, and what asks for gradients: what stands for the weights."""
        args, kwargs = inputs
        self.lifetimes.hold(state.values(), WEIGHTS)
        self.lifetimes.hold(tensors_within([kwargs[name] for name in CACHES if name in kwargs]), CACHE)
        self.lifetimes.hold(tensors_within((args, kwargs)), INPUTS)
        self._stand_ins = state
        self._made_up.update(_made_up_inputs(self.model, args, kwargs))
        self._made_up.update(
            {tensor: (f"weights ({why})",) for tensor in state.values() if (why := made_up(tensor))}
        )
        self._state = {id(tensor): name for name, tensor in state.items()}
        self._state |= {
            id(state[name]): name for name, _ in self.model.named_parameters()
        }  # of tied ones that name
        trained = [state[name] for name, p in self.model.named_parameters() if p.requires_grad]
        self._leaves = trained
        self.followed = Gradients([*trained, *(t for t in tensors_within((args, kwargs)) if t.requires_grad)])

    def ends(self, output: Any) -> None:
        """What the model returned is in memory until the last operator; keys and values of a cache are told apart."""
        self.lifetimes.assign(tensors_within(getattr(output, "past_key_values", None)), CACHE)

    @contextlib.contextmanager
    def under(self, path: str) -> Iterator[None]:
        """See what runs after the model, as if a module of that path made it."""
        self.outside = path
        with self:
            yield

    @property
    def _at(self) -> int:
        """Which operator call is running, from 1."""
        return self.lifetimes.calls + 1

    @property
    def path(self) -> str:
        """Of the module that is running."""
        return self.modules.path or self.outside

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Module and optimizer hooks, taken off again in any case."""
        handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        try:
            with self.modules.attached(), self._checkpointing(), self._functions():
                yield
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """See what `torch.utils.checkpoint` runs: in place of its two ways, which do nothing more where there are no gradients."""

        def reentrant(function: Callable[..., Any], _: bool, *args: Any) -> Any:
            with self._checkpoint():
                return function(*args)

        def other(*_: Any, **__: Any) -> Iterator[None]:
            first = len(self.calls)
            with self._checkpoint():
                yield
            if not self._checkpoints:
                block = self.calls[first:]
                for place in range(first + len(run_again(block)), len(self.calls)):
                    self.calls[place] = dataclasses.replace(self.calls[place], again=False)

        ways = {
            "CheckpointFunction": SimpleNamespace(apply=reentrant),
            "_checkpoint_without_reentrant_generator": other,
        }
        before = {name: getattr(checkpoint, name) for name in ways}
        vars(checkpoint).update(ways)
        try:
            yield
        finally:
            vars(checkpoint).update(before)

    @contextlib.contextmanager
    def _functions(self) -> Iterator[None]:
        """Tell what a `torch.autograd.Function` runs, without gradients yet with a backward pass, from what has none."""
        own = vars(Function)["apply"]

        def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
            if self._has_own_backward(kind, args, kwargs):
                return self._called(kind, args, kwargs)
            before, self._in_function = self._in_function, self._enabled
            try:
                with torch.no_grad():  # else it would keep what a trace cannot
                    return own.__func__(kind, *args, **kwargs)
            finally:
                self._in_function = before

        own_hook, own_retain = Tensor.register_hook, Tensor.retain_grad

        def register_hook(tensor: Tensor, hook: Any) -> Any:
            return self._hooked(tensor, hook) if self._follows(tensor) else own_hook(tensor, hook)  # type: ignore[no-untyped-call]

        def retain_grad(tensor: Tensor) -> None:
            if not self._follows(tensor):
                own_retain(tensor)

        Function.apply = classmethod(apply)  # type: ignore[assignment]  # put back below
        Tensor.register_hook, Tensor.retain_grad = register_hook, retain_grad  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Function.apply = own  # type: ignore[method-assign]  # as it was
            Tensor.register_hook, Tensor.retain_grad = own_hook, own_retain  # type: ignore[method-assign]

    def _follows(self, tensor: Tensor) -> bool:
        """Whether it has no graph, but asks for a gradient."""
        return self.gradients and self._enabled and self.followed.asks(tensor)

    def _has_own_backward(self, kind: Any, args: Any, kwargs: Any) -> bool:
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        return self.asked and kind not in self.derived and any(self._follows(one) for one in tensors)

    def _called(self, kind: Any, args: Any, kwargs: Any) -> Any:
        """Call an autograd function; its backward pass runs once it is known what depends on its outputs."""
        before, self._in_function = self._in_function, False
        first = self._at
        try:
            call = called(kind, args, kwargs, self.followed.asks)
        finally:
            self._in_function = before
        self.lifetimes.called(())  # a number of its own
        if self.calls and any(tensor is not None for tensor in call.context.to_save):
            self.calls[-1] = dataclasses.replace(self.calls[-1], saves=True)
        self.unmodelled = [dataclasses.replace(u, once=True) if u.at >= first else u for u in self.unmodelled]
        self._note_own(call, self.lifetimes.calls, first)
        return call.output

    def _note_own(self, call: OwnCall, at: int, first: int) -> None:
        """Follow a call that has a backward pass of its own, by its number and that of the first operator call it is made of."""
        path = self.path

        def run(with_gradient: Sequence[bool]) -> Sequence[bool]:
            if not self.trained:
                return [True for _ in call.inputs]
            saved = [t for t in call.context.to_save if t is not None and self.followed.asks(t)]
            with requiring([*saved, *self._leaves]), self._apart(path) as found:
                gets = call.backward(with_gradient)
            self._own[at] = first, tuple(found)
            return gets

        self.followed.note_own(path, at, call.inputs, call.differentiable, run)

    def _hooked(self, tensor: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
        """Note a hook on a tensor's gradient, as `Tensor.register_hook` takes it."""
        hooks: OrderedDict[int, Any] = OrderedDict()
        handle, path = RemovableHandle(hooks), self.path
        hooks[handle.id] = hook

        def call() -> None:
            for one in hooks.values():
                try:
                    with requiring(self._leaves), self._apart(path) as found, torch.no_grad():
                        one(gradient_of(tensor))
                    self._beside += found
                except Exception as error:
                    self.assumptions[
                        f"a hook on a gradient is not priced: it raises {quoted(error)[:200]}"
                    ] = None

        self.followed.hook(tensor, call)
        return handle

    @contextlib.contextmanager
    def _apart(self, path: str) -> Iterator[list[LayerCall]]:
        """Record what a backward pass of its own calls, as if a module of that path made it."""
        names = "calls followed unmodelled lifetimes outside _own _within _views _in_function _beside".split()
        before, seen = {name: getattr(self, name) for name in names}, len(self.modules.seen)
        self.calls, self.unmodelled, self.lifetimes, self.followed = (
            [],
            [],
            Lifetimes(),
            Gradients((), found=True),
        )
        self.outside, self._own, self._views, self._in_function, self._beside = path, {}, [], None, []
        found = self._within = []
        try:
            with engine_answered(self._answer):
                yield found
                self._flush()
        finally:
            unmodelled = [dataclasses.replace(call, once=True) for call in self.unmodelled]
            vars(self).update(before)
            self.unmodelled = self.unmodelled + unmodelled
            del self.modules.seen[seen:]

    def _flush(self) -> None:
        """What was called so far is called; what of it a gradient went through may be asked for again."""
        assert self._within is not None  # in a backward pass alone
        for number, call in enumerate(self.calls):
            if not call.done:
                share = call.gradient if call.operator in REVERSED else 0.0
                self._within.append(dataclasses.replace(call, gradient=share))
                self.calls[number] = dataclasses.replace(call, done=True)

    def _answer(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], keeps: bool) -> tuple[Any, ...]:
        """What `torch.autograd` runs in a backward pass of its own: that of what was run again in it; gradients of `inputs`."""
        if not any(self.followed.asks(tensor) for tensor in outputs):
            raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
        followed = self.followed.again()
        followed.end_at(outputs)
        self._flush()
        assert self._within is not None  # in a backward pass alone
        passed = [
            dataclasses.replace(c, gradient=c.gradient if c.at in followed.passed else 0.0)
            for c in self.calls
        ]
        self._within += backward_calls(passed, self._own_backward(followed, self.calls))
        self._within += [LayerCall(path, layer) for path, layer, _ in followed.beside()]
        if not keeps:
            return tuple(gradient_of(tensor) if followed.reaches(tensor) else None for tensor in inputs)
        for tensor in followed.reached():
            if id(tensor) in self._state:
                self._gathered.add(self._state[id(tensor)])
            elif not inputs or any(tensor is one for one in inputs):
                tensor.grad = gradient_of(tensor)
        return ()

    @contextlib.contextmanager
    def _checkpoint(self) -> Iterator[None]:
        self._checkpoints += 1
        try:
            yield
        finally:
            self._checkpoints -= 1

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        layer = self._described("optimizer.step", None, (optimizer,), {})
        if isinstance(layer, Layer):
            self.calls.append(LayerCall(self.modules.path, layer, "optimizer.step"))
        self._in_optimizer = True

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and record it."""
        before = self.lifetimes.calls
        output = self._run(func, args, kwargs or {})
        whole = self.lifetimes.calls == before  # what is made of its parts needs nothing beside theirs
        if self._made_up and (sources := self._comes_from(tensors_in((args, kwargs)))):
            self._made_up.update(dict.fromkeys(tensors_in(output), tuple(sources)))
        self.lifetimes.called(
            output, workspace_blocks(name_of(func), args, kwargs or {}, output) if whole else ()
        )
        return output

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        operator = name_of(func)
        args, kwargs = on_one_device((args, kwargs))
        tags = getattr(func, "tags", ())
        name = operator.split(".", 1)[-1]
        if self._made_up and (name in ASKING or DEPENDING.intersection(tags) or _selects(name, args)):
            self._decided_by |= self._comes_from(tensors_in(args[1] if name == "index" else args))
        if name in ASKING and (value := self.answered(operator, args)) is not NotImplemented:
            return value
        if name in FREE:
            return self.called(name, func, args, kwargs) if self.known else func(*args, **kwargs)
        output = self.answered(operator, args)
        if output is not NotImplemented:
            return self._recorded(operator, output, args, kwargs)
        known = operator in BY_OPERATOR or torch.Tag.pointwise in tags or torch.Tag.reduction in tags
        if self._in_optimizer:
            return func(*args, **kwargs)
        if not known:
            output = self._decomposed(func, args, kwargs)
            if output is not NotImplemented:
                return output
        output = self.called(name, func, args, kwargs)
        if not _writes(func) and _is_view(output, args, kwargs):  # or numbers from numbers
            self._follow(name, args, kwargs, output, view=True)
            self._views.append((self._at, self.path, operator, self._checkpoints > 0))
            return output
        self.assume(name, output, args)
        if name == "topk":
            self._per_token = max(output[0].shape[-1], 1)
        if known and isinstance(self._described(operator, output, args, kwargs, tags), str):
            parts = self._decomposed(func, args, kwargs)
            if parts is not NotImplemented:
                return parts
        return self._recorded(operator, output, args, kwargs, tags, func)

    def _recorded(
        self, operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any] = (), func: Any = None
    ) -> Any:
        """Note the call as a layer or as unmodelled; its output. Raises InputError for types that no device would take."""
        if self._reversed(operator, args, output):
            return output
        layer, name = self._described(operator, output, args, kwargs, tags), operator.split(".", 1)[-1]
        if func is not None:
            self._check_types(name, func, args, kwargs)
        if operator == "aten._grouped_mm" and isinstance(layer, Matmul):
            layer = self._routed(layer, args[0].shape[0], args[1].shape[0])
        if isinstance(layer, Layer):
            if not _is_empty(output):
                shapes = call_shapes((args, kwargs)), call_shapes(output)
                share, asked = self._asked(layer, operator, output, args, kwargs)
                again = self._checkpoints > 0 or (self._within is not None and torch.is_grad_enabled())
                self.calls.append(
                    LayerCall(self.path, layer, operator, *shapes, share, self._at, again, asked)
                )
                self._follow(name, args, kwargs, output)
            return output
        own = self._own_operator(operator, args, kwargs, output)
        self._follow(name, args, kwargs, output, alone=own)
        if operator == RENORM:
            self._renormalise(*args[:2])
            return output
        tensors = tensors_in((args, kwargs, output))
        size = sum(t.numel() * t.element_size() for t in tensors)
        self.unmodelled.append(
            UnmodelledCall(
                self.path,
                operator,
                layer,
                size,
                equivalent_bytes(operator, size, args, tensors_in(output)),
                _dtype_of(args, kwargs, output),
                call_shapes((args, kwargs)),
                call_shapes(output),
                self._at,
                once=own,
            )
        )
        return output

    def _own_operator(self, operator: str, args: Any, kwargs: Any, output: Any) -> bool:
        """Whether it is an operator of somebody's own with a backward pass of its own, which is then followed."""
        if not self.trained or not self._enabled or operator in self.derived:
            return False
        call = called_operator(operator, args, kwargs, output, self.followed.asks)
        if call is not None:
            self._note_own(call, self._at, self._at)
        return call is not None

    def _reversed(self, operator: str, args: Any, output: Any) -> bool:
        """Whether it is the operator that autograd itself calls for a backward pass, which is then noted as that."""
        if self._within is None or operator not in REVERSED:
            return False
        forward, given, share = REVERSED[operator](*args)
        layer = self._described(forward, given[0] if forward != "aten.convolution" else args[0], given, {})
        if isinstance(layer, Layer) and share:
            shapes = call_shapes(args), call_shapes(output)
            self.calls.append(LayerCall(self.path, layer, operator, *shapes, share, self._at))
        return isinstance(layer, Layer)

    def _renormalise(self, table: Tensor, places: Tensor) -> None:
        """Note what a lookup with `max_norm` does to the rows before."""
        self.assumptions[RENORMED] = None
        again = self._checkpoints > 0
        for layer in renormalised(_dtype_of((table,), {}, None), places.numel(), table.shape[1]):
            self.calls.append(LayerCall(self.path, layer, RENORM, at=self._at, again=again))

    def _asked(
        self, layer: Layer, operator: str, output: Any, args: Any, kwargs: Any
    ) -> tuple[float, frozenset[str] | None]:
        """The share of its backward pass that is asked for, and by which operands, where each has a part of its own."""
        share = self.followed.share(layer.kind, args, kwargs) if self._enabled else 0.0
        operands = layer.operands_of(operator, output, args, kwargs) if share and layer.gradients() else {}
        if not operands:
            return share, None
        asked = self.followed.asked(operands)
        return layer.share_of(asked), asked

    def _check_types(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        """Raise InputError where PyTorch refuses the types of a call that had no values; each sort of call is looked at once."""
        tensors = tensors_in((args, kwargs))
        sort = (func, *((t.dtype, t.dim()) for t in tensors))
        if sort in self._fitting or (self.known is None and not any(t.is_meta for t in tensors)):
            return  # on the CPU it has run
        if said := refused(name, func, args, kwargs):
            types = ", ".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors))
            raise InputError(
                f"{self.path or type(self.model).__name__}: {name} of {types} is refused by PyTorch ({said}); give inputs of the "
                "type that it reads, as floating numbers in the dtype of the weights, ids as int64"
            )
        self._fitting.add(sort)

    def _follow(
        self, name: str, args: Any, kwargs: Any, output: Any, view: bool = False, alone: bool = False
    ) -> None:
        """Note what a call reads, and what asks for a gradient after it, unless it is followed `alone`."""
        inputs = tensors_in((args, kwargs))
        for tensor in inputs:
            if id(tensor) in self._state:
                part = output if view and isinstance(output, Tensor) else tensor
                self._read.setdefault(
                    (id(tensor), part.storage_offset(), part.shape), (self._at, part.nbytes)
                )
        if self._enabled and not alone:
            sparse = sparse_use(name, args, kwargs, self.followed.asks) if self.gradients else None
            self.followed.note(self.path, self._at, name, inputs, output, view, sparse)
            if self._within is not None:  # such backward passes ask what requires a gradient
                for tensor in tensors_in(output):
                    if tensor.is_floating_point() and self.followed.asks(tensor):
                        tensor.requires_grad_(True)

    @property
    def _enabled(self) -> bool:
        """Whether the model has not disabled gradients, as `torch.no_grad` does."""
        if self._in_function is not None:
            return self._in_function
        return not self.gradients or torch.is_grad_enabled()

    def _routed(self, layer: Matmul, pairs: int, experts: int) -> Matmul:
        """The products with those experts' weights that the tokens are taken to reach; one kernel, so that it stays one call."""
        per_token = self._per_token if pairs % self._per_token == 0 and self._per_token <= experts else 1
        reached = self.routing.reached(pairs, per_token, experts)
        self.assumptions[self.routing.note(pairs, per_token, experts)] = None
        return dataclasses.replace(layer, batch=reached, rows=max(round(pairs / reached), 1))

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The call made of its parts, each traced; NotImplemented where it is not composed of others."""
        if not is_composite(func):
            return NotImplemented
        with self:
            return func.decompose(*args, **kwargs)

    def _described(
        self, operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any] = ()
    ) -> Layer | str:
        """The layer that the call is, or the reason why no kind describes it; of equal calls the same."""
        key = key_of(operator, output, args, kwargs)
        if key is None:
            return self._description(operator, output, args, kwargs, tags)
        at = (key, *tags)
        if at not in self._descriptions:
            self._descriptions[at] = self._description(operator, output, args, kwargs, tags)
        return self._descriptions[at]

    @staticmethod
    def _description(operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any]) -> Layer | str:
        kind = BY_OPERATOR.get(operator)
        if kind is None and torch.Tag.pointwise in tags:
            kind = KINDS["elementwise"]
        if kind is None and torch.Tag.reduction in tags:
            kind = KINDS["reduction"]
        if kind is None:
            return "no layer kind knows this operator"
        try:
            layer = kind.from_call(operator, output, *args, **kwargs)
            check_output(layer, operator, output)
            dtype = _dtype_of(args, kwargs, output)
            if layer.multiplies and dtype in REAL:
                layer, dtype = layer.of_real(), REAL[dtype]
        except Unmodelled as reason:
            return str(reason)
        return dataclasses.replace(layer, dtype=dtype)


def _selects(name: str, args: Any) -> bool:
    """Whether a call takes what a mask says: as many numbers as there are true ones."""
    masks = args[1] if name == "index" else ()
    return any(isinstance(mask, Tensor) and mask.dtype in (torch.bool, torch.uint8) for mask in masks)


def _made_up_inputs(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[Tensor, tuple[str, ...]]:
    """Inputs whose values are nobody's -> their names, and why."""
    try:
        names = [*inspect.signature(model.forward).parameters]
    except ValueError:  # of what is not written in Python
        names = []
    called = {names[i] if i < len(names) else f"input {i + 1}": value for i, value in enumerate(args)}
    found = ((name, t) for name, value in (called | dict(kwargs)).items() for t in tensors_within(value))
    return {tensor: (f"{name} ({why})",) for name, tensor in found if (why := made_up(tensor))}


def _until(noted: deque[Any], at: int) -> list[Any]:
    """Take what was noted of operator calls up to this one, `at` first of each."""
    taken = []
    while noted and noted[0][0] <= at:
        taken.append(noted.popleft())
    return taken


def _in_loop(call: LayerCall) -> LayerCall:
    return dataclasses.replace(call, layer=_again(call.layer))


@functools.lru_cache(2**12)
def _again(layer: Layer) -> Layer:
    """The layer as a loop makes it."""
    return dataclasses.replace(layer, recurs=True)


@functools.cache
def _writes(func: Any) -> bool:
    """Whether the operator changes an argument's numbers."""
    schema = getattr(func, "_schema", None)
    if schema is None or torch.Tag.inplace_view in getattr(func, "tags", ()):
        return False
    return any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)


def _is_view(output: Any, args: Any, kwargs: Any) -> bool:
    """Whether every output shares memory with an input."""
    inputs = {t.untyped_storage()._cdata for t in tensors_in((args, kwargs))}
    return all(t.untyped_storage()._cdata in inputs for t in tensors_in(output))


def _is_empty(output: Any) -> bool:
    tensors = tensors_in(output)
    return bool(tensors) and all(math.prod(t.shape) == 0 for t in tensors)


def _dtype_of(args: Any, kwargs: Any, output: Any) -> str:
    """The first floating type among arguments, then output; else the first type."""
    names = [str(t.dtype).removeprefix("torch.") for t in tensors_in((args, kwargs, output))]
    floating = [name for name in names if name in FLOATING]
    known = floating or [name for name in names if name in DTYPES]
    return known[0] if known else "float32"
