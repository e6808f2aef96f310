"""Record each operator of a run as a layer, a view, or as unmodelled."""

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
from torch._ops import HigherOrderOperator
from torch.autograd import Function
from torch.nested._internal.nested_tensor import NestedTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import checkpoint
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.devices.layout import EXPERT, GROUP
from neuralpower.dtypes import DTYPES
from neuralpower.errors import InputError, ModelError, Unmodelled, quoted
from neuralpower.layers import BY_OPERATOR, KINDS, Layer
from neuralpower.layers.attention import FLEX
from neuralpower.layers.base import of_real
from neuralpower.layers.embedding import RENORM, RENORMED, renormalised
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.movement import ALIAS, Movement
from neuralpower.layers.tensors import check_output, common_dtype, tensors_in
from neuralpower.layers.training import backward_of
from neuralpower.layers.workspace import workspaces
from neuralpower.networks.caches import CACHES
from neuralpower.networks.call_cache import key_of
from neuralpower.networks.mixed_dtypes import refused
from neuralpower.networks.promised_values import made_up, tensors_within
from neuralpower.networks.running import ASKING, Answers, Run, is_composite, name_of, on_one_device
from neuralpower.networks.sharding import placed_experts
from neuralpower.networks.users_code import check_computed
from neuralpower.trace.accesses import Flow, accesses
from neuralpower.trace.gradients import Gradients
from neuralpower.trace.higher_order import (
    OTHERWISE,
    flex_notes,
    flex_output,
    not_compiled,
    of_branches,
    steps_of,
)
from neuralpower.trace.inner_gradients import NOTE, asking_noticed
from neuralpower.trace.lifetimes import CACHE, INPUTS, Lifetimes
from neuralpower.trace.loops import OFTEN, Called, recurring
from neuralpower.trace.memory_formats import CONVOLUTIONS, laid_out
from neuralpower.trace.modules import Modules, With
from neuralpower.trace.notes import (
    check_countable,
    decided_notes,
    derived_notes,
    forward_of,
    idle_note,
    unpriced_hooks,
    unread_notes,
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
from neuralpower.trace.quantised_calls import QUANTISED, plain_call
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
from neuralpower.trace.undisturbed import swapped
from neuralpower.trace.weights import packed_weights, weights_of

REAL = {name: dtype.parts for name, dtype in DTYPES.items() if dtype.parts}  # of complex numbers
# Operators that neither compute nor move anything and yet return no view.
FREE = frozenset(
    """
    empty empty_like new_empty empty_strided new_empty_strided empty_permuted _local_scalar_dense item
    sym_size sym_numel sym_stride is_same_size _assert_async _assert_tensor_metadata lift_fresh lift set_
    resize_ _has_compatible_shallow_copy_type _nested_tensor_size is_nonzero equal size dim result_type
    can_cast promote_types _is_zerotensor is_floating_point device _fw_primal _efficientzerotensor
    q_scale q_zero_point q_per_channel_axis q_per_channel_scales q_per_channel_zero_points qscheme
    _empty_affine_quantized _nested_view_from_jagged _nested_get_values _nested_get_offsets
    _nested_get_lengths _nested_get_ragged_idx _nested_get_jagged_dummy _nested_get_min_seqlen
    _nested_get_max_seqlen
    """.split()
)
# operators that decide by numbers
DEPENDING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
VIEW = Movement(function=ALIAS, elements=1, recurs=True)


class Recorder(Answers):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Sees every operator call, and the path of the module that makes it."""

    def __init__(self, model: nn.Module, routing: Routing = ROUTING) -> None:
        super().__init__()
        self.model = model
        self.routing = routing
        self.assumptions: dict[str, None] = {}
        self._descriptions: dict[Hashable, Layer | str] = {}
        self._made_up = WeakIdKeyDictionary()  # tensors that follow from made-up values -> these, as text
        self._decided_by: dict[str, None] = {}  # made-up values that a number or a shape was asked of
        self._fitting: set[Hashable] = set()  # operators with types and axes that PyTorch takes
        self._per_token = 1  # experts: the last choice of the largest that was made
        self._placed = placed_experts(model)
        self.modules = Modules(model)
        self._packed = packed_weights(model)
        self.calls: list[LayerCall] = []
        self.flows: dict[int, Flow] = {}  # what each call reads and writes, by LayerCall.at
        self._views: list[tuple[int, str, str, bool]] = []  # of a LayerCall: at, path, operator, again
        self._state: dict[int, str] = {}  # identity of what stands for a parameter or a buffer -> its name
        self._memory: dict[int, str] = {}  # identity of a storage -> the parameter or buffer that lies there
        # (identity, offset, shape) of a part -> the call that was the first to read it, its bytes
        self._read: dict[tuple[int, Any, torch.Size], tuple[int, int]] = {}
        self.followed = Gradients(())
        self._leaves: list[Tensor] = []  # what stands for the parameters that ask for a gradient
        self._stand_ins: Mapping[str, Tensor] = {}
        self.unmodelled: list[UnmodelledCall] = []
        self.outside = ""  # path of what runs outside of every module
        self.lifetimes = Lifetimes()
        self._in_optimizer = False
        self._in_function: bool | None = None  # whether a running autograd function was called with gradients
        self.asked = False  # whether autograd functions hear that their inputs need gradients
        self.trained = False  # whether their backward passes are run
        self.derived: dict[Any, str] = {}  # functions whose backward pass cannot be followed -> why
        # call -> its first part, its backward pass
        self._own: dict[int, tuple[int, tuple[LayerCall, ...]]] = {}
        self._within: list[LayerCall] | None = None  # what a running backward pass of its own has called
        self._output: Any = None  # of the pass
        self._beside: list[LayerCall] = []  # what hooks on gradients call
        self._gathered: set[str] = set()  # parameters whose gradient such a backward pass has made
        self._checkpoints = 0  # of `torch.utils.checkpoint` that are running, one within the other

    def trace(self, method: str, notes: tuple[str, ...]) -> Trace:
        """The recorded trace."""
        parameters = list(self.model.parameters())
        check_countable(type(self.model).__name__, self.calls, self.unmodelled)
        followed, calls = self.followed, self._looped()
        recurs = {call.at for call in calls if call.layer.recurs}
        beside = (
            LayerCall(path, _again(layer) if at in recurs else layer) for path, layer, at in followed.beside()
        )
        trained = self._trained()
        read = {identity for identity, _, _ in self._read}
        unread = {name for identity, name in self._state.items() if identity not in read}
        return Trace(
            calls=tuple(_passed(calls, followed)),
            unmodelled=tuple(self.unmodelled),
            parameters=sum(p.numel() for p in parameters) + sum(w.numbers for w in self._packed),
            parameter_bytes=sum(p.nbytes for p in parameters) + sum(w.bytes for w in self._packed),
            method=method,
            notes=notes,
            modules=tuple(self.modules.seen),
            gradients=(*beside, *self._beside),
            own_backward=self._own_backward(followed, calls),
            trained=tuple((common_dtype(p), p.numel()) for _, p, rows in trained if rows is None),
            trained_names=tuple(name for name, _, rows in trained if rows is None),
            of_experts=frozenset(name for name, p, _ in trained if getattr(p, GROUP, "") == EXPERT),
            sparse=tuple((name, rows) for name, _, rows in trained if rows is not None),
            assumptions=(
                *self.assumptions,
                *derived_notes(self.derived),
                *(unpriced_hooks(self.model) if self.trained else ()),
                *([NOTE] if self.autograd else ()),
                *decided_notes(self._decided_by),
                *unread_notes(self.calls, followed.forgotten),
            ),
            storages=self.lifetimes.storages(),
            idle=idle_note(self.model, unread),
            flows=self.flows,
            weights=weights_of(self.model, self._packed),
        )

    def _comes_from(self, tensors: Iterable[Tensor]) -> dict[str, None]:
        """The made-up values that tensors follow from, as text."""
        return {text: None for tensor in tensors if tensor in self._made_up for text in self._made_up[tensor]}

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
                calls += (LayerCall(path, VIEW, name, at=at, again=again) for at, path, name, again in before)
            calls.append(_in_loop(call) if recurs else call)
        return calls

    def _own_backward(self, followed: Gradients, calls: Sequence[LayerCall]) -> tuple[OwnBackward, ...]:
        """Own backward passes of the calls that a gradient goes through."""
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
        """(name, parameter, rows of a sparse gradient) of those that get a gradient; if none does, of all."""
        asking = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        # inputs come after the parameters
        followed = zip(asking, self.followed.arrived(), self.followed.sparse(), strict=False)
        found = [(name, p, rows) for (name, p), gets, rows in followed if gets or name in self._gathered]
        return found or [(name, p, None) for name, p in asking]

    def follow(
        self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Callable[[Any], Any] | None
    ) -> None:
        """See a forward pass, a loss of its output, and the model's own backward passes."""
        output = run(self.model, args, kwargs, self)
        check_computed(output, forward_of(self.model))
        self._output = output  # as whoever calls the model keeps it
        self.lifetimes.assign(tensors_within(getattr(output, "past_key_values", None)), CACHE)
        self.outside = LOSS

        def back() -> None:
            self.followed.end_at(tensors_in(loss(output)) if loss is not None else None)

        with self.tracing(), self:
            state = {f"model.{name}": tensor for name, tensor in self._stand_ins.items()}
            torch.func.functional_call(With(self.model, back), state, (), tie_weights=True)

    def begins(self, state: Mapping[str, Tensor], inputs: Any) -> None:
        """Note what is in memory before the first operator, and which tensors ask for gradients."""
        args, kwargs = inputs
        self.lifetimes.hold_state(state)
        self.lifetimes.hold_sizes({weight.name: weight.bytes for weight in self._packed})
        self.lifetimes.hold(tensors_within([kwargs[name] for name in CACHES if name in kwargs]), CACHE)
        self.lifetimes.hold(tensors_within((args, kwargs)), INPUTS)
        self._stand_ins = state
        self._made_up.update(_made_up_inputs(self.model, args, kwargs))
        self._made_up.update(
            {tensor: (f"weights ({why})",) for tensor in state.values() if (why := made_up(tensor))}
        )
        parameters = dict(self.model.named_parameters())  # whose names tied ones go by
        self._state = {id(state[name]): name for name in (*state, *parameters)}
        self._memory = {
            state[name].untyped_storage()._cdata: name for name in (*reversed([*state]), *parameters)
        }
        self._leaves = [state[name] for name, p in parameters.items() if p.requires_grad]
        asking = [t for t in tensors_within((args, kwargs)) if t.requires_grad]
        self.followed = Gradients([*self._leaves, *asking])

    @property
    def _at(self) -> int:
        """Number of the running operator call, from 1."""
        return self.lifetimes.calls + 1

    @property
    def path(self) -> str:
        """Path of the module that is running."""
        return self.modules.path or self.outside

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Module and optimizer hooks, taken off again in any case."""
        before = register_optimizer_step_pre_hook(self._before_step)
        after = register_optimizer_step_post_hook(self._after_step)
        noticed = contextlib.nullcontext() if self.autograd else asking_noticed()
        with contextlib.ExitStack() as stack:
            for one in (before, after, self.modules.attached(), self._checkpointing(), self._functions()):
                stack.enter_context(one)
            stack.enter_context(noticed)
            stack.enter_context(not_compiled())
            yield

    @contextlib.contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """See what `torch.utils.checkpoint` runs; without gradients its two ways do nothing more."""

        def reentrant(function: Callable[..., Any], _: bool, *args: Any) -> Any:
            with swapped(self, _checkpoints=self._checkpoints + 1):
                return function(*args)

        def other(*_: Any, **__: Any) -> Iterator[None]:
            first = len(self.calls)
            with swapped(self, _checkpoints=self._checkpoints + 1):
                yield
            if not self._checkpoints:
                block = self.calls[first:]
                for place in range(first + len(run_again(block)), len(self.calls)):
                    self.calls[place] = dataclasses.replace(self.calls[place], again=False)

        one_way = SimpleNamespace(apply=reentrant)
        with swapped(checkpoint, CheckpointFunction=one_way, _checkpoint_without_reentrant_generator=other):
            yield

    @contextlib.contextmanager
    def _functions(self) -> Iterator[None]:
        """Recognise calls of a `torch.autograd.Function`: without gradients, yet with a backward pass."""
        own = vars(Function)["apply"]

        def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
            if self.asked and kind not in self.derived and any(map(self._follows, tensors)):
                return self._called(kind, args, kwargs)
            # with gradients it would keep what a trace cannot
            with swapped(self, _in_function=self._enabled), torch.no_grad():
                return own.__func__(kind, *args, **kwargs)

        own_hook: Any = Tensor.register_hook
        own_retain: Any = Tensor.retain_grad

        def register_hook(tensor: Tensor, hook: Any) -> Any:
            return self._hooked(tensor, hook) if self._follows(tensor) else own_hook(tensor, hook)

        def retain_grad(tensor: Tensor) -> None:
            if not self._follows(tensor):
                own_retain(tensor)

        hooks = {"register_hook": register_hook, "retain_grad": retain_grad}
        with swapped(Function, apply=classmethod(apply)), swapped(Tensor, **hooks):
            yield

    def _follows(self, tensor: Tensor) -> bool:
        """Whether it has no graph, but asks for a gradient."""
        return self.gradients and self._enabled and self.followed.asks(tensor)

    def _called(self, kind: Any, args: Any, kwargs: Any) -> Any:
        """Call an autograd function; its backward pass runs once it is known what depends on its outputs."""
        first = self._at
        with swapped(self, _in_function=False):
            call = called(kind, args, kwargs, self.followed.asks)
        self.lifetimes.called(())  # a number of its own
        if self.calls and any(tensor is not None for tensor in call.context.to_save):
            self.calls[-1] = dataclasses.replace(self.calls[-1], saves=True)
        self.unmodelled = [dataclasses.replace(u, once=True) if u.at >= first else u for u in self.unmodelled]
        self._note_own(call, self.lifetimes.calls, first)
        return call.output

    def _note_own(self, call: OwnCall, at: int, first: int) -> None:
        """Follow call `at`, whose backward pass is its own; `first`: the first operator call within it."""
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
                    note = f"a hook on a gradient is not priced: it raises {quoted(error)[:200]}"
                    self.assumptions[note] = None

        self.followed.hook(tensor, call)
        return handle

    @contextlib.contextmanager
    def _apart(self, path: str) -> Iterator[list[LayerCall]]:
        """Record what a backward pass of its own calls, as if a module of that path made it."""
        names = "calls flows followed unmodelled lifetimes outside _own _within _views _in_function _beside"
        before, seen = {name: getattr(self, name) for name in names.split()}, len(self.modules.seen)
        self.calls, self.unmodelled, self._views, self._beside, self._own = [], [], [], [], {}
        self.flows = {}
        self.lifetimes, self.followed = Lifetimes(), Gradients((), found=True)
        self.outside, self._in_function = path, None
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
        """List what was called so far; a gradient may still be asked through it."""
        assert self._within is not None  # in a backward pass alone
        for number, call in enumerate(self.calls):
            if not call.done:
                share = call.gradient if call.operator in REVERSED else 0.0
                self._within.append(dataclasses.replace(call, gradient=share))
                self.calls[number] = dataclasses.replace(call, done=True)

    def _answer(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], keeps: bool) -> tuple[Any, ...]:
        """Run the backward pass of what ran again in one of the model's own; the gradients of `inputs`."""
        if not any(self.followed.asks(tensor) for tensor in outputs):
            raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
        followed = self.followed.again()
        followed.end_at(outputs)
        self._flush()
        assert self._within is not None  # in a backward pass alone
        own = self._own_backward(followed, self.calls)
        self._within += backward_calls(_passed(self.calls, followed), own)
        self._within += [LayerCall(path, layer) for path, layer, _ in followed.beside()]
        if not keeps:
            return tuple(gradient_of(tensor) if followed.reaches(tensor) else None for tensor in inputs)
        for tensor in followed.reached():
            if id(tensor) in self._state:
                self._gathered.add(self._state[id(tensor)])
            elif not inputs or any(tensor is one for one in inputs):
                tensor.grad = gradient_of(tensor)
        return ()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        layer = self._described("optimizer.step", None, (optimizer,), {})
        if isinstance(layer, Layer):
            self.calls.append(LayerCall(self.modules.path, layer, "optimizer.step"))
        self._in_optimizer = True

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and record it; a jagged tensor runs it as operators on its values."""
        if any(issubclass(one, NestedTensor) for one in types):
            return NotImplemented
        before, kwargs = self.lifetimes.calls, kwargs or {}
        seen = len(self.calls) + len(self.unmodelled)
        output = self._run(func, args, kwargs)
        whole = self.lifetimes.calls == before  # a call made of parts needs nothing besides theirs
        if self._made_up and (sources := self._comes_from(tensors_in((args, kwargs)))):
            self._made_up.update(dict.fromkeys(tensors_in(output), tuple(sources)))
        name = name_of(func)
        blocks = workspaces(name, args, kwargs, output) if whole else {}
        self.lifetimes.called(output, blocks, (self.path, name))
        if whole and len(self.calls) + len(self.unmodelled) > seen:
            reads = accesses(tensors_in((args, kwargs)), self.lifetimes)
            self.flows[self.lifetimes.calls] = Flow(reads, accesses(tensors_in(output), self.lifetimes))
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
        if isinstance(func, HigherOrderOperator):
            return self._higher_order(func, args, kwargs)
        if not known:
            output = self._decomposed(func, args, kwargs)
            if output is not NotImplemented:
                return output
        output = self.called(name, func, args, kwargs)
        if name in CONVOLUTIONS:
            output = laid_out(output, args, kwargs)
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

    def _higher_order(self, func: HigherOrderOperator, args: Any, kwargs: Any) -> Any:
        """Follow the functions that an operator is given: those that it runs, of branches the costlier one.

        Raises:
            ModelError: it cannot be followed.
        """
        operator = name_of(func)
        if operator == FLEX:
            output = flex_output(*args[:3])
            if isinstance(self._described(operator, output, args, kwargs), Layer):
                self.assumptions |= dict.fromkeys(flex_notes(*args[:5]))
                return self._recorded(operator, output, args, kwargs)
        run = steps_of(func)
        if run is None:
            raise ModelError(
                f"{forward_of(self.model)} calls {operator}, which cannot be followed; {OTHERWISE}"
            )
        with self:
            return self._costlier(args[1:3], args[3]) if operator == "cond" else run(*args, **kwargs)

    def _costlier(self, branches: Sequence[Callable[..., Any]], operands: Any) -> Any:
        """Run both branches of a condition, and note the calls of the one with more FLOP and bytes."""
        ways: list[tuple[int, int, Any, list[LayerCall], list[UnmodelledCall]]] = []
        first, missing = len(self.calls), len(self.unmodelled)
        for branch in branches:
            output = branch(*operands)
            calls, unknown = self.calls[first:], self.unmodelled[missing:]
            del self.calls[first:], self.unmodelled[missing:]
            flops = sum(int(call.layer.flops()) for call in calls)
            size = sum(int(sum(call.layer.bytes())) for call in calls) + sum(u.work_bytes for u in unknown)
            ways.append((flops + size, flops, output, calls, unknown))
        _, _, output, calls, unknown = max(ways, key=lambda way: way[0])
        self.calls += calls
        self.unmodelled += unknown
        self.assumptions[of_branches([flops for _, flops, *_ in ways])] = None
        return output

    def _recorded(
        self, operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any] = (), func: Any = None
    ) -> Any:
        """Note the call as a layer or as unmodelled; raises InputError for types that PyTorch refuses."""
        if self._reversed(operator, args, kwargs, output):
            return output
        layer, name = self._described(operator, output, args, kwargs, tags), operator.split(".", 1)[-1]
        if func is not None:
            self._check_types(name, func, args, kwargs)
        if operator == "aten._grouped_mm" and isinstance(layer, Matmul):
            layer = self._routed(layer, args[0].shape[0], args[1].shape[0])
        if isinstance(layer, Layer):
            shapes = call_shapes((args, kwargs)), call_shapes(output)
            if not shapes[1] or any(map(math.prod, shapes[1])):  # else all that it returns is empty
                share, asked = self._asked(layer, operator, output, args, kwargs)
                again = self._checkpoints > 0 or (self._within is not None and torch.is_grad_enabled())
                weight = self._weight(args) if layer.multiplies else ""
                call = LayerCall(
                    self.path, layer, operator, *shapes, share, self._at, again, asked, weight=weight
                )
                self.calls.append(call)
                self._follow(name, args, kwargs, output)
            return output
        own = self._own_operator(operator, args, kwargs, output)
        self._follow(name, args, kwargs, output, alone=own)
        if operator == RENORM:  # what a lookup with `max_norm` does to the rows before
            (table, places), again = args[:2], self._checkpoints > 0
            self.assumptions[RENORMED] = None
            layers = renormalised(common_dtype(table), places.numel(), table.shape[1])
            self.calls += (LayerCall(self.path, layer, RENORM, at=self._at, again=again) for layer in layers)
            return output
        size = sum(t.numel() * t.element_size() for t in tensors_in((args, kwargs, output)))
        work = equivalent_bytes(operator, size, args, tensors_in(output))
        dtype = common_dtype(args, kwargs, output)
        shapes = call_shapes((args, kwargs)), call_shapes(output)
        missing = UnmodelledCall(self.path, operator, layer, size, work, dtype, *shapes, self._at, once=own)
        self.unmodelled.append(missing)
        return output

    def _weight(self, args: Any) -> str:
        """The parameter with a matrix, or with stacked ones, that is among a product's operands; or ""."""
        matrices = (tensor for tensor in tensors_in(args) if tensor.dim() > 1)
        names = (self._memory.get(tensor.untyped_storage()._cdata, "") for tensor in matrices)
        return next(filter(None, names), "")

    def _own_operator(self, operator: str, args: Any, kwargs: Any, output: Any) -> bool:
        """Whether it is a custom operator with a backward pass of its own, which is then followed."""
        call = None
        if self.trained and self._enabled and operator not in self.derived:
            call = called_operator(operator, args, kwargs, output, self.followed.asks)
        if call is not None:
            self._note_own(call, self._at, self._at)
        return call is not None

    def _reversed(self, operator: str, args: Any, kwargs: Any, output: Any) -> bool:
        """Whether autograd itself calls the operator for a backward pass, which is then noted.

        In a backward pass of its own that pass is listed as such, else as the layers that do its work.
        """
        if operator not in REVERSED:
            return False
        forward, given, asked, result = REVERSED[operator](*args)
        layer = self._described(forward, given[0] if result is None else result, given, {})
        if not isinstance(layer, Layer):
            return False
        shapes = call_shapes(args), call_shapes(output)
        if self._within is not None:
            share = 1.0 if asked is None else len(asked - {"bias"}) / 2
            layers: Sequence[Layer] = (layer,) if share else ()
        else:
            share = self.followed.share(layer.kind, args, kwargs) if self._enabled else 0.0
            layers = backward_of(layer, asked)
        self.calls += (LayerCall(self.path, one, operator, *shapes, share, self._at) for one in layers)
        if self._within is None:
            self._follow(operator.split(".", 1)[-1], args, kwargs, output)
        return True

    def _asked(
        self, layer: Layer, operator: str, output: Any, args: Any, kwargs: Any
    ) -> tuple[float, frozenset[str] | None]:
        """The share of its backward pass that is needed, and the operands that need it, where known."""
        followed = self._enabled and not operator.startswith(QUANTISED)
        share = self.followed.share(layer.kind, args, kwargs) if followed else 0.0
        operands = (
            layer.training.operands_of(operator, output, args, kwargs)
            if share and layer.training.gradients(layer)
            else {}
        )
        if not operands:
            return share, None
        asked = self.followed.asked(operands)
        return layer.training.share_of(layer, asked), asked

    def _check_types(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        """Raise InputError where PyTorch refuses the types of a call without values; once for each sort."""
        tensors = tensors_in((args, kwargs))
        sort = (func, *((t.dtype, t.dim()) for t in tensors))
        if sort in self._fitting or (self.known is None and not any(t.is_meta for t in tensors)):
            return  # on the CPU it has run
        if said := refused(name, func, args, kwargs):
            types = ", ".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in tensors))
            raise InputError(
                f"{self.path or type(self.model).__name__}: {name} of {types} is refused by PyTorch "
                f"({said}); give inputs of its type, such as floating numbers in the dtype of the "
                "weights, ids as int64"
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
                where = id(tensor), part.storage_offset(), part.shape
                self._read.setdefault(where, (self._at, part.nbytes))
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
        """The products with the weights of the experts that the tokens are taken to reach: one kernel."""
        whole = pairs % self._per_token == 0 and self._per_token <= experts and self.path not in self._placed
        per_token = self._per_token if whole else 1
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
        by_tag = {torch.Tag.pointwise: "elementwise", torch.Tag.reduction: "reduction"}
        fields: Mapping[str, Any] = {}
        try:
            plain = plain_call(operator, args, kwargs, output)
        except Unmodelled as reason:
            return str(reason)
        if plain is not None:
            operator, args, kwargs, fields = plain.operator, plain.args, {}, plain.fields
            output = output if plain.output is None else plain.output
            tags = (torch.Tag.pointwise,)
        kind = BY_OPERATOR.get(operator) or next((KINDS[k] for tag, k in by_tag.items() if tag in tags), None)
        if kind is None:
            return "no layer kind knows this operator"
        try:
            layer = kind.from_call(operator, output, *args, **kwargs)
            check_output(layer, operator, output)
            dtype = common_dtype(args, kwargs, output)
            if layer.multiplies and dtype in REAL:
                layer, dtype = of_real(layer), REAL[dtype]
        except Unmodelled as reason:
            return str(reason)
        return dataclasses.replace(layer, **{"dtype": dtype, **fields})


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


def _passed(calls: Sequence[LayerCall], followed: Gradients) -> list[LayerCall]:
    """The calls, without a gradient where none goes through them."""
    passed = followed.passed
    return [c if c.at in passed else dataclasses.replace(c, gradient=0.0) for c in calls]


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
