"""Record each operator of a run as a layer, a view, or as unmodelled."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.nested._internal.nested_tensor import NestedTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import checkpoint

from neuralpower.devices.layout import EXPERT, GROUP
from neuralpower.errors import ModelError
from neuralpower.layers import BY_OPERATOR, Layer
from neuralpower.layers.attention import FLEX
from neuralpower.layers.embedding import RENORM, RENORMED, renormalised
from neuralpower.layers.matmul import Matmul
from neuralpower.layers.tensors import common_dtype, tensors_in
from neuralpower.layers.training import backward_of
from neuralpower.layers.workspace import workspaces
from neuralpower.networks.caches import CACHES, cache_of
from neuralpower.networks.inputs.promised_values import tensors_within
from neuralpower.networks.running import ASKING, Answers, Run, is_composite, name_of, on_one_device
from neuralpower.networks.sharding import placed_experts
from neuralpower.networks.users_code import check_computed
from neuralpower.trace.lifetimes import CACHE, INPUTS, Flow, accesses
from neuralpower.trace.notes import (
    MadeUp,
    check_countable,
    derived_notes,
    forward_of,
    granted_by,
    idle_note,
    unpriced_hooks,
    unread_notes,
)
from neuralpower.trace.operators.described import QUANTISED, Descriptions, Experts, equivalent_bytes
from neuralpower.trace.operators.higher_order import (
    OTHERWISE,
    flex_notes,
    flex_output,
    not_compiled,
    of_branches,
    steps_of,
)
from neuralpower.trace.operators.loops import View, layer_in_loop, looped
from neuralpower.trace.operators.memory_formats import CONVOLUTIONS, laid_out
from neuralpower.trace.operators.modules import Modules, With
from neuralpower.trace.operators.own_passes import OwnPasses, Section, passed
from neuralpower.trace.operators.undisturbed import swapped
from neuralpower.trace.parts.routing import ROUTING, Routing
from neuralpower.trace.records import LOSS, LayerCall, Trace, UnmodelledCall, call_shapes, run_again
from neuralpower.trace.steps.gradients import Gradients
from neuralpower.trace.steps.own_backward import NOTE, REVERSED, asking_noticed
from neuralpower.trace.steps.sparse_gradients import Rows, sparse_use
from neuralpower.trace.weights import StandIns, packed_weights, weights_of

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


class Recorder(Answers):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Sees every operator call, and the path of the module that makes it.

    Its parts: `stand_ins` for weights, `modules` that run, `own` backward passes with the running section,
    `made_up` values, `layers` that calls are, `experts` that are reached.
    """

    def __init__(self, model: nn.Module, routing: Routing = ROUTING, training: bool | None = False) -> None:
        super().__init__()
        self.model = model
        self.stand_ins, self.modules = StandIns(model), Modules(model)
        self.own = OwnPasses(self.modules, self.stand_ins, training)
        self.gradients = self.own.gradients
        self.made_up, self.layers = MadeUp(), Descriptions()
        self.experts = Experts(routing, placed_experts(model))
        self.lifetimes = self.own.section.lifetimes  # of the pass
        self.assumptions = self.own.notes
        self._packed = packed_weights(model)
        self._in_optimizer = False
        self._output: Any = None  # of the pass
        self._checkpoints = 0  # of `torch.utils.checkpoint` that are running, one within the other

    @property
    def section(self) -> Section:
        """What is running: the pass, or a backward pass of the model's own."""
        return self.own.section

    def trace(self, method: str, notes: tuple[str, ...]) -> Trace:
        section, parameters = self.section, list(self.model.parameters())
        check_countable(type(self.model).__name__, section.calls, section.unmodelled)
        followed = section.gradients
        calls = looped(section.calls, section.views, self.stand_ins.first_read.values())
        recurs = {call.at for call in calls if call.layer.recurs}
        beside = (
            LayerCall(path, layer_in_loop(layer) if at in recurs else layer)
            for path, layer, at in followed.beside()
        )
        trained = self._trained()
        return Trace(
            calls=tuple(passed(calls, followed)),
            unmodelled=tuple(section.unmodelled),
            parameters=sum(p.numel() for p in parameters) + sum(w.numbers for w in self._packed),
            parameter_bytes=sum(p.nbytes for p in parameters) + sum(w.bytes for w in self._packed),
            method=method,
            notes=notes,
            modules=tuple(self.modules.seen),
            gradients=(*beside, *section.beside),
            own_backward=section.own_backward(followed, calls),
            trained=tuple((common_dtype(p), p.numel()) for _, p, rows in trained if rows is None),
            trained_names=tuple(name for name, _, rows in trained if rows is None),
            of_experts=frozenset(name for name, p, _ in trained if getattr(p, GROUP, "") == EXPERT),
            sparse=tuple((name, rows) for name, _, rows in trained if rows is not None),
            assumptions=(
                *self.assumptions,
                *granted_by(self.model),
                *derived_notes(self.own.derived),
                *(unpriced_hooks(self.model) if self.own.trained else ()),
                *([NOTE] if self.autograd else ()),
                *self.made_up.notes(),
                *unread_notes(section.calls, followed.forgotten),
            ),
            storages=section.lifetimes.storages(),
            idle=idle_note(self.model, self.stand_ins.unread),
            flows=section.flows,
            weights=weights_of(self.model, self._packed),
        )

    def _trained(self) -> list[tuple[str, nn.Parameter, Rows | None]]:
        """(name, parameter, rows of a sparse gradient) of those that get a gradient; if none does, of all."""
        asking = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        gradients, gathered = self.section.gradients, self.own.gathered
        # inputs come after the parameters
        followed = zip(asking, gradients.arrived(), gradients.sparse(), strict=False)
        trained = [(name, p, rows) for (name, p), gets, rows in followed if gets or name in gathered]
        return trained or [(name, p, None) for name, p in asking]

    def follow(
        self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Callable[[Any], Any] | None
    ) -> None:
        """See a forward pass, a loss of its output, and the model's own backward passes."""
        output = run(self.model, args, kwargs, self)
        check_computed(output, forward_of(self.model))
        self._output = output  # as whoever calls the model keeps it
        self.lifetimes.assign(tensors_within(cache_of(output)), CACHE)
        self.section.outside = LOSS

        def back() -> None:
            self.section.gradients.end_at(tensors_in(loss(output)) if loss is not None else None)

        with self.tracing(), self:
            state = {f"model.{name}": tensor for name, tensor in self.stand_ins.tensors.items()}
            torch.func.functional_call(With(self.model, back), state, (), tie_weights=True)

    def begins(self, state: Mapping[str, Tensor], inputs: Any) -> None:
        """Note what is in memory before the first operator, and which tensors ask for gradients."""
        args, kwargs = inputs
        self.lifetimes.hold_state(state)
        self.lifetimes.hold_sizes({weight.name: weight.bytes for weight in self._packed})
        self.lifetimes.hold(tensors_within([kwargs[name] for name in CACHES if name in kwargs]), CACHE)
        self.lifetimes.hold(tensors_within((args, kwargs)), INPUTS)
        self.stand_ins.begins(state)
        self.made_up.begins(self.model, state, inputs)
        asking = [t for t in tensors_within((args, kwargs)) if t.requires_grad]
        self.section.gradients = Gradients([*self.stand_ins.leaves, *asking])

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Module and optimizer hooks, taken off again in any case."""

        def steps(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            layer = self.layers.of("optimizer.step", None, (optimizer,), {})
            if isinstance(layer, Layer):
                self.section.calls.append(LayerCall(self.modules.path, layer, "optimizer.step"))
            self._in_optimizer = True

        def stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            self._in_optimizer = False

        with (
            register_optimizer_step_pre_hook(steps),
            register_optimizer_step_post_hook(stepped),
            self.modules.attached(),
            self._checkpointing(),
            self.own.attached(),
            contextlib.nullcontext() if self.autograd else asking_noticed(),
            not_compiled(),
        ):
            yield

    @contextlib.contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """See what `torch.utils.checkpoint` runs; without gradients its two ways do nothing more."""

        def reentrant(function: Callable[..., Any], _: bool, *args: Any) -> Any:
            with swapped(self, _checkpoints=self._checkpoints + 1):
                return function(*args)

        def other(*_: Any, **__: Any) -> Iterator[None]:
            calls = self.section.calls
            first = len(calls)
            with swapped(self, _checkpoints=self._checkpoints + 1):
                yield
            if not self._checkpoints:
                for place in range(first + len(run_again(calls[first:])), len(calls)):
                    calls[place] = dataclasses.replace(calls[place], again=False)

        one_way = SimpleNamespace(apply=reentrant)
        with swapped(checkpoint, CheckpointFunction=one_way, _checkpoint_without_reentrant_generator=other):
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and record it; a jagged tensor runs it as operators on its values."""
        if any(issubclass(kind, NestedTensor) for kind in types):
            return NotImplemented
        section, kwargs = self.section, kwargs or {}
        lifetimes = section.lifetimes
        before, seen = lifetimes.calls, len(section.calls) + len(section.unmodelled)
        output = self._run(func, args, kwargs)
        whole = lifetimes.calls == before  # a call made of parts needs nothing besides theirs
        self.made_up.called((args, kwargs), output)
        name = name_of(func)
        blocks = workspaces(name, args, kwargs, output) if whole else {}
        lifetimes.called(output, blocks, (self.own.path, name))
        if whole and len(section.calls) + len(section.unmodelled) > seen:
            reads = accesses(tensors_in((args, kwargs)), lifetimes)
            section.flows[lifetimes.calls] = Flow(reads, accesses(tensors_in(output), lifetimes))
        return output

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        operator = name_of(func)
        args, kwargs = on_one_device((args, kwargs))
        tags = getattr(func, "tags", ())
        name = operator.split(".", 1)[-1]
        self.made_up.asked(name, tags, args)
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
            self.section.views.append(View(self.section.at, self.own.path, operator, self._checkpoints > 0))
            return output
        self.assume(name, output, args)
        if name == "topk":
            self.experts.per_token = max(output[0].shape[-1], 1)
        if known and isinstance(self.layers.of(operator, output, args, kwargs, tags), str):
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
            if isinstance(self.layers.of(operator, output, args, kwargs), Layer):
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
        section = self.section
        first, missing = len(section.calls), len(section.unmodelled)
        for branch in branches:
            output = branch(*operands)
            calls, unknown = section.calls[first:], section.unmodelled[missing:]
            del section.calls[first:], section.unmodelled[missing:]
            flops = sum(int(call.layer.flops()) for call in calls)
            size = sum(int(sum(call.layer.bytes())) for call in calls) + sum(u.work_bytes for u in unknown)
            ways.append((flops + size, flops, output, calls, unknown))
        _, _, output, calls, unknown = max(ways, key=lambda way: way[0])
        section.calls += calls
        section.unmodelled += unknown
        self.assumptions[of_branches([flops for _, flops, *_ in ways])] = None
        return output

    def _recorded(
        self, operator: str, output: Any, args: Any, kwargs: Any, tags: Sequence[Any] = (), func: Any = None
    ) -> Any:
        """Note the call as a layer or as unmodelled; raises InputError for types that PyTorch refuses."""
        if self._reversed(operator, args, kwargs, output):
            return output
        section, path = self.section, self.own.path
        layer, name = self.layers.of(operator, output, args, kwargs, tags), operator.split(".", 1)[-1]
        if func is not None and (
            self.known is not None or any(t.is_meta for t in tensors_in((args, kwargs)))
        ):
            self.layers.check_types(path or type(self.model).__name__, func, args, kwargs)  # else it has run
        if operator == "aten._grouped_mm" and isinstance(layer, Matmul):
            layer, note = self.experts.reached(layer, path, args[0].shape[0], args[1].shape[0])
            self.assumptions[note] = None
        if isinstance(layer, Layer):
            shapes = call_shapes((args, kwargs)), call_shapes(output)
            if not shapes[1] or any(map(math.prod, shapes[1])):  # else all that it returns is empty
                share, asked = self._asked(layer, operator, output, args, kwargs)
                again = self._checkpoints > 0 or (section.listed is not None and torch.is_grad_enabled())
                weight = self._weight(args) if layer.multiplies else ""
                call = LayerCall(
                    path, layer, operator, *shapes, share, section.at, again, asked, weight=weight
                )
                section.calls.append(call)
                self._follow(name, args, kwargs, output)
            return output
        alone = self.own.operator(operator, args, kwargs, output)
        self._follow(name, args, kwargs, output, alone=alone)
        if operator == RENORM:  # what a lookup with `max_norm` does to the rows before
            (table, places), again = args[:2], self._checkpoints > 0
            self.assumptions[RENORMED] = None
            layers = renormalised(common_dtype(table), places.numel(), table.shape[1])
            section.calls += (LayerCall(path, layer, RENORM, at=section.at, again=again) for layer in layers)
            return output
        size = sum(t.numel() * t.element_size() for t in tensors_in((args, kwargs, output)))
        work = equivalent_bytes(operator, size, args, tensors_in(output))
        dtype = common_dtype(args, kwargs, output)
        shapes = call_shapes((args, kwargs)), call_shapes(output)
        missing = UnmodelledCall(path, operator, layer, size, work, dtype, *shapes, section.at, once=alone)
        section.unmodelled.append(missing)
        return output

    def _weight(self, args: Any) -> str:
        """The parameter with a matrix, or with stacked ones, that is among a product's operands; or ""."""
        matrices = (tensor for tensor in tensors_in(args) if tensor.dim() > 1)
        names = (self.lifetimes.name(tensor) for tensor in matrices)
        return next(filter(None, names), "")

    def _reversed(self, operator: str, args: Any, kwargs: Any, output: Any) -> bool:
        """Whether autograd itself calls the operator for a backward pass, which is then noted.

        In a backward pass of its own that pass is listed as such, else as the layers that do its work.
        """
        if operator not in REVERSED:
            return False
        forward, given, asked, result = REVERSED[operator](*args)
        layer = self.layers.of(forward, given[0] if result is None else result, given, {})
        if not isinstance(layer, Layer):
            return False
        shapes, section = (call_shapes(args), call_shapes(output)), self.section
        if section.listed is not None:
            share = 1.0 if asked is None else len(asked - {"bias"}) / 2
            layers: Sequence[Layer] = (layer,) if share else ()
        else:
            share = section.gradients.share(layer.kind, args, kwargs) if self.own.enabled else 0.0
            layers = backward_of(layer, asked)
        path = self.own.path
        section.calls += (LayerCall(path, part, operator, *shapes, share, section.at) for part in layers)
        if section.listed is None:
            self._follow(operator.split(".", 1)[-1], args, kwargs, output)
        return True

    def _asked(
        self, layer: Layer, operator: str, output: Any, args: Any, kwargs: Any
    ) -> tuple[float, frozenset[str] | None]:
        """The share of its backward pass that is needed, and the operands that need it, where known."""
        followed = self.own.enabled and not operator.startswith(QUANTISED)
        share = self.section.gradients.share(layer.kind, args, kwargs) if followed else 0.0
        operands = (
            layer.training.operands_of(operator, output, args, kwargs)
            if share and layer.training.gradients(layer)
            else {}
        )
        if not operands:
            return share, None
        asked = self.section.gradients.asked(operands)
        return layer.training.share_of(layer, asked), asked

    def _follow(
        self, name: str, args: Any, kwargs: Any, output: Any, view: bool = False, alone: bool = False
    ) -> None:
        """Note what a call reads, and what asks for a gradient after it, unless it is followed `alone`."""
        inputs, section = tensors_in((args, kwargs)), self.section
        self.stand_ins.read(section.at, inputs, output if view and isinstance(output, Tensor) else None)
        if self.own.enabled and not alone:
            sparse = sparse_use(name, args, kwargs, self.own.asks) if self.gradients else None
            section.gradients.note(self.own.path, section.at, name, inputs, output, view, sparse)
            if section.listed is not None:  # such backward passes ask what requires a gradient
                for tensor in tensors_in(output):
                    if tensor.is_floating_point() and self.own.asks(tensor):
                        tensor.requires_grad_(True)

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The call made of its parts, each traced; NotImplemented where it is not composed of others."""
        if not is_composite(func):
            return NotImplemented
        with self:
            return func.decompose(*args, **kwargs)


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
