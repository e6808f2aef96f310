"""Lifetimes of the tensors of a training step."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.errors import InputError, StepError, UsersError, quoted
from neuralpower.layers.workspace import workspaces
from neuralpower.networks.call_cache import tensors_in
from neuralpower.networks.refusals import check_followable
from neuralpower.networks.running import Assumed, grouped_product, name_of, quiet
from neuralpower.networks.users_code import check_computed, raised, users_code
from neuralpower.optimizers.registry import KNOWN, States, canonical, optimizers_of, unknown_optimizer
from neuralpower.platforms import CPU, Platform
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.totals import sizes
from neuralpower.quantisation.weights import EMBEDDING, HEAD, Weight
from neuralpower.trace.attention_kernels import gpu_attention
from neuralpower.trace.casts import cast_rules, casting
from neuralpower.trace.fake_sparse import FakeRows, is_sparse
from neuralpower.trace.lifetimes import ACTIVATIONS, GRADIENTS, INPUTS, OPTIMIZER, Lifetimes, Storage
from neuralpower.trace.modules import ModuleStack, With
from neuralpower.trace.notes import forward_of
from neuralpower.trace.recipe import Loss, Recipe, checkpointed, default_loss
from neuralpower.trace.sparse_gradients import check_sparse
from neuralpower.trace.undisturbed import own_caches, swapped, undisturbed, unwrapped
from neuralpower.trace.weights import weights_of

INDEXED = ("aten.index", "aten.index_put", "aten.index_put_")
PRODUCT, SOFTMAX = "aten.bmm", "aten._softmax"
PRODUCTS = (PRODUCT, "aten.mm", "aten.addmm", "aten.baddbmm", "aten._grouped_mm")
Optimizers = Callable[[Sequence[nn.Parameter], Sequence[bool]], list[torch.optim.Optimizer]]


def optimizer_named(text: str, platform: Platform = CPU, states: States | None = None) -> Optimizers:
    """The maker of "adamw" or "adamw:fused"; without a way, the platform's default; raises InputError.

    It takes parameters, and which are hidden matrices (`optimizers_of`). An optimizer with `states` may have
    any name.
    """
    name = canonical(str(text).partition(":")[0])
    if states is None and name not in KNOWN:
        raise unknown_optimizer(name)
    way = recipe_of(text, platform, states).implementation
    return partial(optimizers_of, name, implementation=way, states=states)


def recipe_of(text: str, platform: Platform = CPU, states: States | None = None) -> Recipe:
    """The recipe with the optimizer "momentum" or "adamw:fused"; raises InputError where there is none."""
    name, _, way = str(text).partition(":")
    return Recipe({"momentum": "sgd"}.get(name, name), way, states=states).on(platform)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The keywords of `training_lifetimes` for a recipe; its plain gradient descent has momentum."""
    name = {"sgd": "momentum"}.get(recipe.optimizer, recipe.optimizer)
    optimizer = f"{name}:{recipe.implementation}" if recipe.implementation else name
    how: dict[str, Any] = {"accumulation": recipe.accumulation, "checkpointing": recipe.checkpointing}
    how |= {name: True for name in ("selective", "masters") if getattr(recipe, name)}
    how |= {} if recipe.states is None else {"states": recipe.states}
    return {"optimizer": optimizer, **how}


class StepLifetimes(NamedTuple):
    """Lifetimes of memory in the first training step, in operator calls, and its parts' ends."""

    storages: tuple[Storage, ...]
    passes: tuple[int, ...]  # forward, backward, forward, backward, ... of one micro-batch after the other
    end: int
    compiler: bool  # whether torch's compiler comes with the step
    blocks: tuple[
        tuple[str, int], ...
    ] = ()  # (path, operator calls before it) of repeated blocks, as they run
    products: tuple[tuple[int, str], ...] = ()  # (operator call, weight that it reads) of matrix products


@dataclass(frozen=True)
class StepSettings:
    """How a step is made.

    It is `accumulation` times forward in training mode, loss and backward, then the optimizer, if any.
    Gradients are freed after its step (`zero_grad`), before the next forward pass.
    """

    # "adamw:foreach" takes temporaries as large as all parameters, "adamw:fused" none; None: no step
    optimizer: str | None = "adamw"
    loss: Loss | None = None  # None: the model's own, or the mean square of the first output
    platform: Platform = CPU
    accumulation: int = 1
    checkpointing: bool = False  # the model's own is switched on
    selective: bool = False  # instead, the scores of attention alone are made once more
    masters: bool = False  # weights of 16 bits have others, gradients and states in float32
    states: States | None = None  # what an unknown optimizer keeps
    # type that products are cast to; the copies of weights that this makes last for a forward pass
    autocast: torch.dtype | None = None

    @property
    def make(self) -> Optimizers | None:
        """The maker of the optimizers; raises InputError for an unknown one."""
        return optimizer_named(self.optimizer, self.platform, self.states) if self.optimizer else None


def training_lifetimes(
    model: nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **settings: Any
) -> StepLifetimes:
    """Lifetimes in the first training step, in which the optimizer makes its state.

    The step is followed by itself: autograd takes composite operators apart, which a trace keeps whole. The
    module is left as it was found. `settings` are fields of `StepSettings`.

    Raises:
        InputError: an unknown optimizer, nothing to train, or weights that are no parameters of the module.
        StepError: the step raises on fake tensors; the message quotes its own error.
        ModelError: it has no activation checkpointing to switch on.
    """
    how, model = StepSettings(**settings), unwrapped(model)
    make = how.make
    follower, ends = _Follower(name := type(model).__name__, how.platform), list[int]()
    try:
        with users_code(name):
            check_followable(model, (args, kwargs))
            trained, storages = _followed(model, (args, kwargs), (how, make), follower, ends)
    except UsersError as error:
        if error.what != name:
            raise
        cause = raised(error)
        raise StepError(
            f"{name}: a training step on tensors without values raises {quoted(cause)[:200]}; "
            "choose phase forward, or measure with `neuralpower profile --phase training`"
        ) from cause
    of_transformers = any(type(module).__module__.startswith("transformers.") for module in model.modules())
    compiler = make is not None and not of_transformers
    if how.selective:
        storages = scores_made_again(storages, follower.scores(), ends)
    if how.masters:
        storages = with_masters(storages, trained)
    blocks, products = tuple(follower.blocks.items()), tuple(follower.weights_read)
    return StepLifetimes(storages, tuple(ends), follower.lifetimes.calls, compiler, blocks, products)


def _followed(
    model: nn.Module,
    inputs: tuple[Sequence[Any], Mapping[str, Any] | None],
    asked: tuple[StepSettings, Optimizers | None],
    follower: _Follower,
    ends: list[int],
) -> tuple[list[nn.Parameter], tuple[Storage, ...]]:
    """Run a step on fake tensors below the follower; the trained parameters, and what lived when.

    Notes the passes' ends.
    """
    (how, make), (args, kwargs) = asked, inputs
    lifetimes, fake = follower.lifetimes, FakeTensorMode(allow_non_fake_inputs=True)
    given = tree_map_only(Tensor, lambda one: _faked(one, fake), (tuple(args), dict(kwargs or {})))
    state, trained = _faked_state(model, fake)
    lifetimes.hold_state(state)
    lifetimes.hold(tree_iter(given), INPUTS)
    made = make(trained, _hidden(model, state, trained)) if make else []
    follower.begins(_state_of(made))
    follower.follow_gradients(trained)
    rules, kernels = cast_rules(how.platform, how.autocast), gpu_attention(how.platform)
    with _in_training(model), follower.noting_blocks(model), rules, kernels, fake, follower:
        if how.checkpointing and not how.selective:
            checkpointed(model)
        run = partial(_passes, model, given, how, lifetimes, ends)
        named = {f"model.{path}": tensor for path, tensor in state.items()}
        # as one call, so that blocks that run again in a backward pass find their weights
        torch.func.functional_call(With(model, run), named, (), tie_weights=True)
        if made:
            _check_gradients(recipe_of(how.optimizer or "", how.platform, how.states), state)
            with follower.stepping():
                for one in made:
                    one.step()
            follower.assign(_state_of(made), OPTIMIZER)
    return trained, lifetimes.storages()  # while inputs, buffers and the optimizer's state live


def scores_made_again(
    storages: Sequence[Storage], scores: Sequence[tuple[int, int]], ends: Sequence[int]
) -> tuple[Storage, ...]:
    """The storages, those of attention's scores freed after the forward pass and made again for the backward.

    Args:
        storages: of a step.
        scores: (first, last) operator call that makes them, of each attention.
        ends: the passes' ends, as `StepLifetimes.passes`.
    """
    found = list(storages)
    for first, last in scores:
        end = next(end for end in ends[::2] if last <= end)
        kept = [
            (place, one)
            for place, one in enumerate(found)
            if first <= one.birth <= last and one.part == ACTIVATIONS and (one.death or end + 1) > end
        ]
        again = min((one.death for _, one in kept if one.death is not None), default=end + 1)
        for place, one in kept:
            found[place] = one._replace(birth=again)
            found.append(one._replace(death=last))
    return tuple(found)


def with_quantised(step: StepLifetimes, weights: Sequence[Weight], scheme: Scheme) -> StepLifetimes:
    """The step with frozen weights in a scheme's formats; each product widens its own while it runs.

    Raises InputError where a group does not divide a product's inputs.
    """
    forms = scheme.forms(weights, {})
    found = sizes(weights, forms, {})
    plain = {one.name: one.bytes for one in weights if forms.get(one.name) is not None}
    widened = [Storage(call, call, plain[name], ACTIVATIONS) for call, name in step.products if name in plain]
    storages = [one._replace(bytes=found.get(one.name, one.bytes)) for one in step.storages]
    return step._replace(storages=(*storages, *widened))


def with_masters(storages: Sequence[Storage], trained: Sequence[Tensor]) -> tuple[Storage, ...]:
    """The storages, gradients and optimizer's states in float32, with another copy of weights of 16 bits."""
    wide = torch.float32.itemsize
    before = sum(one.nbytes for one in trained)
    masters = sum(wide * one.numel() for one in trained if one.element_size() < wide)
    after = sum(max(wide, one.element_size()) * one.numel() for one in trained)
    wider = (GRADIENTS, OPTIMIZER)
    found = [s._replace(bytes=round(s.bytes * after / before)) if s.part in wider else s for s in storages]
    return (*found, Storage(0, None, masters, OPTIMIZER)) if masters else tuple(found)


def _faked_state(model: nn.Module, fake: FakeTensorMode) -> tuple[dict[str, Tensor], list[nn.Parameter]]:
    """Parameters and buffers by path, and parameters that are trained; raises InputError where none are."""
    state = {path: _faked(t, fake) for path, t in (*model.named_parameters(), *model.named_buffers())}
    trained = [t for t in state.values() if isinstance(t, nn.Parameter) and t.requires_grad]
    if not trained:
        name = type(model).__name__
        raise InputError(f"{name} has no parameter that requires a gradient: there is nothing to train")
    return state, trained


def _state_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[Any]:
    return [value for one in optimizers for values in one.state.values() for value in values.values()]


def _hidden(model: nn.Module, state: Mapping[str, Tensor], trained: Sequence[nn.Parameter]) -> list[bool]:
    """[trained parameters] whether each is a matrix between the embeddings and the output's weights."""
    ends = {one.name for one in weights_of(model) if one.sort in (EMBEDDING, HEAD)}
    hidden = {id(tensor) for path, tensor in state.items() if tensor.dim() == 2 and path not in ends}
    return [id(p) in hidden for p in trained]


@contextlib.contextmanager
def _in_training(model: nn.Module) -> Iterator[None]:
    """Training mode with gradients, and nothing of it left in the module afterwards."""
    unchecked: Any = vars(torch.sparse)["check_sparse_tensor_invariants"](enable=False)  # unsaid, torch warns
    with quiet(), undisturbed(model, True), own_caches(model), unchecked, _unpacked(), torch.enable_grad():
        yield


@contextlib.contextmanager
def _unpacked() -> Iterator[None]:
    """Have transformers find one text in each sample, as in a real step; else each layer keeps a mask.

    It reads positions for that, which have no values here.
    """
    masks = sys.modules.get("transformers.masking_utils")
    if not hasattr(masks, "find_packed_sequence_indices"):  # older versions have no such search
        yield
        return
    with swapped(masks, find_packed_sequence_indices=lambda positions: None):
        yield


def _check_gradients(recipe: Recipe, state: Mapping[str, Tensor]) -> None:
    """Raise InputError where a gradient is sparse that the optimizer does not take, or dense."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for path, tensor in state.items():
        if tensor.grad is not None:
            names[is_sparse(tensor.grad)].append(path)
    check_sparse(recipe.optimizer, recipe.implementation, names[True], names[False])


def _passes(model: nn.Module, given: Any, how: StepSettings, lifetimes: Lifetimes, ends: list[int]) -> None:
    """Run forward and backward passes in turn; note the number of calls at the end of each."""
    args, kwargs = given
    for _ in range(how.accumulation):
        with casting(how.autocast):  # its end frees the weights' copies that no backward pass needs
            output = model(*args, **kwargs)
            check_computed(output, forward_of(model))
            value: Any = (how.loss or default_loss)(output)
        del output
        ends.append(lifetimes.calls)
        value.backward()
        ends.append(lifetimes.calls)
        del value


def _faked(tensor: Tensor, fake: FakeTensorMode) -> Tensor:
    """A tensor of that shape and layout on a CPU that is not there."""
    with fake:
        new = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new.requires_grad_(tensor.requires_grad)


def _unknown(tensor: Tensor) -> bool:
    """Whether a tensor has no values, not even a constant's."""
    return isinstance(tensor, FakeTensor) and tensor.constant is None


class _Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Notes what every operator brings into the world.

    Numbers that are drawn and masks made from data have values: they decide which layers run and which places
    are masked. Where a step asks whether a mask is all ones, it is, as in a trace.
    """

    def __init__(self, model: str, platform: Platform = CPU) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.model = model
        self._bits = platform.family != CPU.family  # kernels of dropout keep a mask of one byte a number
        self.lifetimes = Lifetimes()
        self._known = WeakIdKeyDictionary()  # tensors with values, and what was computed from these alone
        self._assumed = Assumed()
        self._rows = FakeRows()
        self.blocks: dict[str, int] = {}  # path -> operator calls before it runs first
        self._products: list[tuple[str, int]] = []  # products of activations and softmaxes, and their calls
        self.weights_read: list[tuple[int, str]] = []  # (operator call, name) of weights of matrix products
        self._steps = False  # whether the optimizer's step runs
        self._modules: ModuleStack | None = None
        self._paths: dict[int, str] = {}  # number of a node of autograd's graph -> module that made it

    @contextlib.contextmanager
    def noting_blocks(self, model: nn.Module) -> Iterator[None]:
        """Note when the model's repeated blocks run first, and which module runs."""
        paths = {
            id(module): path for path, module in model.named_modules() if path.rpartition(".")[2].isdigit()
        }

        def enters(module: nn.Module, args: Any) -> None:
            if (path := paths.get(id(module))) is not None:
                self.blocks.setdefault(path, self.lifetimes.calls)

        self._modules = ModuleStack(model)
        with self._modules.attached(), nn.modules.module.register_module_forward_pre_hook(enters):
            yield

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Answer what an optimizer asks of its tensors' values, such as their norm, by 1."""
        self._steps = True
        try:
            yield
        finally:
            self._steps = False

    def _path(self) -> str:
        """Path of the module whose forward or backward pass is running; "" outside of all."""
        own = self._modules.path if self._modules is not None else ""
        autograd: Any = torch._C
        if (node := autograd._current_autograd_node()) is not None:
            return own or self._paths.get(node._sequence_nr(), "")
        if (
            torch.is_grad_enabled()
        ):  # a call without a node of its own comes after the one that has the number
            self._paths.setdefault(autograd._autograd._get_sequence_nr() - 1, own)
        return own

    def scores(self) -> list[tuple[int, int]]:
        """(first, last) operator call of what lies between two products of activations, with a softmax."""
        names = [name for name, _ in self._products]
        return [
            (self._products[i - 1][1], self._products[i + 1][1] - 1)
            for i in range(1, len(names) - 1)
            if names[i - 1 : i + 2] == [PRODUCT, SOFTMAX, PRODUCT]
        ]

    def begins(self, state: Sequence[Any]) -> None:
        """An optimizer's state that is there before its first step; counts of steps have values."""
        self.lifetimes.hold(state, OPTIMIZER)
        known = [v for v in state if isinstance(v, Tensor) and not isinstance(v, FakeTensor)]
        self._known.update(dict.fromkeys(known, True))

    def follow_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Count what is accumulated for each parameter as its gradient."""
        for parameter in parameters:
            hook: Any = parameter.register_post_accumulate_grad_hook
            hook(lambda p: self.assign([p.grad], GRADIENTS))

    def assign(self, tensors: Sequence[Any], part: str) -> None:
        """Say what living tensors are."""
        self.lifetimes.assign(self._rows.within(tensors), part)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        name, kwargs = name_of(func), kwargs or {}
        tensors = tensors_in((args, kwargs))
        if torch.is_grad_enabled() and name != "aten.detach":
            self._refuse(tensors)
        if name == "aten._local_scalar_dense" and (value := self._assumed.value(args[0])) is not None:
            return value
        if self._steps and name == "aten._local_scalar_dense" and _unknown(args[0]):
            return 1.0 if args[0].is_floating_point() else 1
        if (output := self._rows.answered(name, args)) is not NotImplemented:
            return output
        if name == "aten._grouped_mm":
            output = grouped_product(*args)
        elif (output := self._rows.made(name, args)) is not NotImplemented:
            pass
        elif self._has_values(func, name, args, tensors):
            with unset_fake_temporarily():
                output = func(*args, **kwargs)
            self._known.update(dict.fromkeys(tensors_in(output), True))
        else:
            output = func(*(self._at_places(args) if name in INDEXED else args), **kwargs)
            if isinstance(output, Tensor):
                self._assumed.note(name.split(".", 1)[-1], output, args)
        new = self._rows.note(name, args, kwargs, output)
        if name == "aten.bernoulli_" and self._bits:
            self.lifetimes.resize(output, output.numel())
        if name in (PRODUCT, SOFTMAX):
            self._products.append((name, self.lifetimes.calls + 1))
        if name in PRODUCTS:
            names = filter(None, map(self.lifetimes.name, tensors))
            self.weights_read += [(self.lifetimes.calls + 1, one) for one in names]
        self.lifetimes.called(new, workspaces(name, args, kwargs, output), (self._path(), name))
        return output

    def _has_values(self, func: Any, name: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> bool:
        """Whether a call's result is known, or drawn as a single number."""
        if name == "aten.lift_fresh":
            return tensors[0].dtype == torch.bool and not isinstance(tensors[0], FakeTensor)
        if tensors:
            return all(tensor in self._known for tensor in tensors)
        sizes = [value for value in args if isinstance(value, (list, tuple))]
        return torch.Tag.nondeterministic_seeded in func.tags and any(math.prod(size) == 1 for size in sizes)

    def _at_places(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments of an indexing call, with places instead of known masks, which alone say how many."""
        source, masks, *more = args
        places: list[Any] = []
        with unset_fake_temporarily():
            for mask in masks:
                if mask is None or mask.dtype != torch.bool:
                    places.append(mask)
                elif mask in self._known:
                    places += mask.nonzero().unbind(1)
                elif torch._C._current_graph_task_id() >= 0:  # a backward pass: which places are padding
                    places += [mask.new_empty((mask.numel(),), dtype=torch.int64) for _ in mask.shape]
                else:
                    places.append(mask)
        return source, places, *more

    def _refuse(self, tensors: Sequence[Tensor]) -> None:
        """Raise InputError for what would be left with a gradient of this step, which has no values."""
        for tensor in tensors:
            if not isinstance(tensor, FakeTensor) and tensor.requires_grad and tensor.is_leaf:
                raise InputError(
                    f"{self.model}: its forward uses weights of {tuple(tensor.shape)} that are not "
                    "its parameters, but a global's, or in a plain list. Make them an attribute and call "
                    "them through self, or detach them"
                )
