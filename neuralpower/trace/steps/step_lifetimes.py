"""Lifetimes of the tensors of a training step, also with scores made again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_iter, tree_map_only

from neuralpower.errors import InputError, StepError, UsersError, quoted
from neuralpower.networks.refusals import check_followable
from neuralpower.networks.running import quiet
from neuralpower.networks.users_code import check_computed, raised, users_code
from neuralpower.optimizers.registry import KNOWN, States, canonical, optimizers_of, unknown_optimizer
from neuralpower.platforms import CPU, Platform
from neuralpower.quantisation.weights import EMBEDDING, HEAD
from neuralpower.trace.lifetimes import ACTIVATIONS, INPUTS, OPTIMIZER, StepLifetimes, Storage
from neuralpower.trace.notes import forward_of
from neuralpower.trace.operators.casts import cast_rules, casting
from neuralpower.trace.operators.higher_order import differentiated, not_compiled
from neuralpower.trace.operators.modules import With
from neuralpower.trace.operators.undisturbed import own_caches, swapped, unchanged, undisturbed, unwrapped
from neuralpower.trace.recipe import Loss, Recipe, checkpointed, default_loss
from neuralpower.trace.steps.attention_kernels import gpu_attention
from neuralpower.trace.steps.compiled_step import NOTE, compiled, without_fused
from neuralpower.trace.steps.sparse_gradients import check_sparse
from neuralpower.trace.steps.step_recorder import Masters, StepRecorder, is_sparse
from neuralpower.trace.weights import weights_of

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
    return Recipe(name, way, states=states).on(platform)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The keywords of `training_lifetimes` for a recipe."""
    name = recipe.optimizer
    optimizer = f"{name}:{recipe.implementation}" if recipe.implementation else name
    how: dict[str, Any] = {"accumulation": recipe.accumulation, "checkpointing": recipe.checkpointing}
    how |= {name: True for name in ("selective", "masters") if getattr(recipe, name)}
    how |= {} if recipe.states is None else {"states": recipe.states}
    return {"optimizer": optimizer, **how}


@dataclass(frozen=True)
class StepSettings:
    """How a step is made.

    It is `accumulation` times forward in training mode, loss and backward, then the optimizer, if any.
    Gradients are freed after its step (`zero_grad`), before the next forward pass.
    """

    # "adamw:foreach" takes temporaries as large as all parameters, "adamw:fused" none; None: no step
    optimizer: str | None = "adamw"
    holds_output: bool = False  # whether the loop holds the network's output until the backward pass ends
    loss: Loss | None = None  # None: the model's own, or the mean square of the first output
    platform: Platform = CPU
    accumulation: int = 1
    checkpointing: bool = False  # the model's own is switched on
    selective: bool = False  # instead, the scores of attention alone are made once more
    masters: bool = False  # weights of 16 bits have others, gradients and states in float32
    states: States | None = None  # what an unknown optimizer keeps
    # type that products are cast to; the copies of weights that this makes last for a forward pass
    autocast: torch.dtype | None = None
    compiled: bool = False  # as torch.compile runs the network, the loss and the optimizer aside
    dtype: torch.dtype | None = None  # of floating weights, buffers and inputs; None: their own

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
    follower, ends = StepRecorder(name := type(model).__name__, how.platform), list[int]()
    try:
        with users_code(name):
            check_followable(model, (args, kwargs))
            storages, note = _followed(model, (args, kwargs), (how, make), follower, ends)
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
    if how.compiled and not note:
        storages = without_fused(storages, follower.joined, ends)
    blocks, products = tuple(follower.blocks.items()), tuple(follower.weights_read)
    return StepLifetimes(storages, tuple(ends), follower.lifetimes.calls, compiler, blocks, products, note)


def _followed(
    model: nn.Module,
    inputs: tuple[Sequence[Any], Mapping[str, Any] | None],
    asked: tuple[StepSettings, Optimizers | None],
    follower: StepRecorder,
    ends: list[int],
) -> tuple[tuple[Storage, ...], str]:
    """Run a step on fake tensors below the follower; what lived when, and a note where it is not as asked.

    Notes the passes' ends.
    """
    (how, make), (args, kwargs) = asked, inputs
    lifetimes, fake = follower.lifetimes, FakeTensorMode(allow_non_fake_inputs=True)
    inputs_faked = tree_map_only(
        Tensor, lambda one: _faked(one, fake, how.dtype), (tuple(args), dict(kwargs or {}))
    )
    state, trained = _faked_state(model, fake, how.dtype)
    lifetimes.hold_state(state)
    lifetimes.hold(tree_iter(inputs_faked), INPUTS)
    masters = Masters(trained, fake, how.masters)
    lifetimes.hold(masters.made, OPTIMIZER)
    made = make(masters.stepped, _hidden(model, state, trained)) if make else []
    follower.begins(_state_of(made))
    follow = partial(follower.follow_gradients, trained, masters.move_gradient)
    rules, kernels = cast_rules(how.platform), gpu_attention(how.platform)
    with (
        _in_training(model),
        follower.noting_blocks(model),
        rules,
        kernels,
        not_compiled(),
        differentiated(),
        fake,
    ):
        if how.checkpointing and not how.selective:
            checkpointed(model)
        run = partial(_passes, model, inputs_faked, how, follower, ends, follow)
        named = {f"model.{path}": tensor for path, tensor in state.items()}
        # as one call, so that blocks that run again in a backward pass find their weights
        note = torch.func.functional_call(With(model, run), named, (), tie_weights=True)
        if made:
            with follower:
                stepped = {path: masters.of(tensor) for path, tensor in state.items()}
                _check_gradients(recipe_of(how.optimizer or "", how.platform, how.states), stepped)
                with follower.stepping():
                    for one in made:
                        one.step()
                follower.assign(_state_of(made), OPTIMIZER)
    return lifetimes.storages(), note  # while inputs, buffers and the optimizer's state live


def _faked_state(
    model: nn.Module, fake: FakeTensorMode, dtype: torch.dtype | None
) -> tuple[dict[str, Tensor], list[nn.Parameter]]:
    """Parameters and buffers by path, and parameters that are trained; raises InputError where none are."""
    state = {path: _faked(t, fake, dtype) for path, t in (*model.named_parameters(), *model.named_buffers())}
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
    left, caches = undisturbed(model, True), own_caches(model)
    with unchanged(model), quiet(), left, caches, unchecked, _unpacked(), torch.enable_grad():
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


def _passes(
    model: nn.Module,
    inputs: Any,
    how: StepSettings,
    follower: StepRecorder,
    ends: list[int],
    follow: Callable[[], None],
) -> str:
    """Run forward and backward passes in turn; note the number of calls at the end of each.

    `follow` has gradients counted. Returns a note where the network is not compiled as asked.
    """
    run, note = _prepared(model, inputs, how) if how.compiled else (model, "")
    follow()
    with follower:
        for _ in range(how.accumulation):
            value, held = _loss(run, model, inputs, how)
            ends.append(follower.lifetimes.calls)
            value.backward()
            ends.append(follower.lifetimes.calls)
            del value, held
    return note


def _prepared(model: nn.Module, inputs: Any, how: StepSettings) -> tuple[Callable[..., Any], str]:
    """The compiled forward after its first step; the module itself with a note where there is none."""
    if how.checkpointing:
        return model, f"{NOTE}: checkpointing under torch.compile is not modelled"
    run = compiled(model)
    try:
        _loss(run, model, inputs, how)[0].backward()
    except Exception as error:  # whatever a network does that cannot be one graph
        return model, f"{NOTE}: the network is not one graph: {quoted(error)[:120]}"
    finally:
        model.zero_grad()
    return run, ""


def _loss(run: Callable[..., Any], model: nn.Module, given: Any, how: StepSettings) -> tuple[Any, Any]:
    """(loss, what the loop holds until the backward pass ends) of a forward pass of the model, by `run`."""
    args, kwargs = given
    with casting(how.autocast):  # its end frees the weights' copies that no backward pass needs
        output = run(*args, **kwargs)
        check_computed(output, forward_of(model))
        value = (how.loss or default_loss)(output)
        return value, output if how.holds_output else None


def _faked(tensor: Tensor, fake: FakeTensorMode, dtype: torch.dtype | None) -> Tensor:
    """A tensor of that shape and layout on a CPU that is not there; floating ones have the dtype."""
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    with fake:
        new = torch.empty_strided(tensor.size(), tensor.stride(), dtype=kind, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new.requires_grad_(tensor.requires_grad)


def scores_made_again(
    storages: Sequence[Storage], scores: Sequence[tuple[int, int]], ends: Sequence[int]
) -> tuple[Storage, ...]:
    """The storages, those of attention's scores freed after the forward pass and made again for the backward.

    Args:
        storages: of a step.
        scores: (first, last) operator call that makes them, of each attention.
        ends: the passes' ends, as `StepLifetimes.passes`.
    """
    changed = list(storages)
    for first, last in scores:
        end = next(end for end in ends[::2] if last <= end)
        kept = [
            (place, one)
            for place, one in enumerate(changed)
            if first <= one.birth <= last and one.part == ACTIVATIONS and (one.death or end + 1) > end
        ]
        again = min((one.death for _, one in kept if one.death is not None), default=end + 1)
        for place, one in kept:
            changed[place] = one._replace(birth=again)
            changed.append(one._replace(death=last))
    return tuple(changed)
