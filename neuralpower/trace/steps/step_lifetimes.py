"""Lifetimes of the tensors of a training step, also with scores made again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
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
from neuralpower.optimizers.registry import States, optimizers_of
from neuralpower.platforms import CPU, Platform
from neuralpower.quantisation.weights import EMBEDDING, HEAD
from neuralpower.trace.lifetimes import ACTIVATIONS, INPUTS, OPTIMIZER, StepLifetimes, Storage
from neuralpower.trace.notes import forward_of
from neuralpower.trace.operators.casts import cast_rules, casting
from neuralpower.trace.operators.fast_attention import gpu_attention
from neuralpower.trace.operators.higher_order import differentiated, not_compiled
from neuralpower.trace.operators.modules import With
from neuralpower.trace.operators.undisturbed import own_caches, swapped, unchanged, undisturbed, unwrapped
from neuralpower.trace.recipe import RECIPE, Loss, Recipe, checkpointed, default_loss
from neuralpower.trace.steps.compiled_step import NOTE, compiled, without_fused
from neuralpower.trace.steps.sparse_gradients import check_sparse
from neuralpower.trace.steps.step_recorder import Masters, StepRecorder, is_sparse
from neuralpower.trace.weights import weights_of


@dataclass(frozen=True)
class StepSettings:
    """How a step is made.

    It is `accumulation` times forward in training mode, loss and backward, then the optimizer, if any.
    Gradients are freed after its step (`zero_grad`), before the next forward pass.
    """

    # its "adamw:foreach" takes temporaries as large as all parameters, "adamw:fused" none
    recipe: Recipe = RECIPE
    stepped: bool = True  # whether the optimizer follows the backward passes
    holds_output: bool = False  # whether the loop holds the network's output until the backward pass ends
    loss: Loss | None = None  # None: the model's own, or the mean square of the first output
    platform: Platform = CPU
    # type that products are cast to; the copies of weights that this makes last for a forward pass
    autocast: torch.dtype | None = None
    compiled: bool = False  # as torch.compile runs the network, the loss and the optimizer aside
    dtype: torch.dtype | None = None  # of floating weights, buffers and inputs; None: their own


def training_lifetimes(
    model: nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **settings: Any
) -> StepLifetimes:
    """Lifetimes in the first training step, in which the optimizer makes its state.

    The step is followed by itself: autograd takes composite operators apart, which a trace keeps whole. The
    module is left as it was found. `settings` are fields of `StepSettings`, or of its recipe.

    Raises:
        InputError: an unknown optimizer, nothing to train, or weights that are no parameters of the module.
        StepError: the step raises on fake tensors; the message quotes its own error.
        ModelError: it has no activation checkpointing to switch on.
    """
    changes = {field.name: settings.pop(field.name) for field in fields(Recipe) if field.name in settings}
    how, model = StepSettings(**settings), unwrapped(model)
    how = replace(how, recipe=replace(how.recipe, **changes).on(how.platform))
    follower, ends, name = StepRecorder(model, how.platform), list[int](), type(model).__name__
    try:
        with users_code(name):
            check_followable(model, (args, kwargs))
            storages, note = _followed(model, (args, kwargs), how, follower, ends)
    except UsersError as error:
        if error.what != name:
            raise
        cause = raised(error)
        raise StepError(
            f"{name}: a training step on tensors without values raises {quoted(cause)[:200]}; "
            "choose phase forward, or measure with `neuralpower profile --phase training`"
        ) from cause
    of_transformers = any(type(module).__module__.startswith("transformers.") for module in model.modules())
    compiler = how.stepped and not of_transformers
    if how.recipe.selective:
        storages = scores_made_again(storages, follower.scores(), ends)
    if how.compiled and not note:
        storages = without_fused(storages, follower.joined, ends)
    blocks, products = tuple(follower.blocks.first.items()), tuple(follower.weights_read)
    return StepLifetimes(storages, tuple(ends), follower.lifetimes.calls, compiler, blocks, products, note)


def _followed(
    model: nn.Module,
    inputs: tuple[Sequence[Any], Mapping[str, Any] | None],
    how: StepSettings,
    follower: StepRecorder,
    ends: list[int],
) -> tuple[tuple[Storage, ...], str]:
    """Run a step on fake tensors below the follower; what lived when, and a note where it is not as asked.

    Notes the passes' ends.
    """
    args, kwargs = inputs
    lifetimes, fake = follower.lifetimes, FakeTensorMode(allow_non_fake_inputs=True)
    inputs_faked = tree_map_only(
        Tensor, lambda one: _faked(one, fake, how.dtype), (tuple(args), dict(kwargs or {}))
    )
    state, trained = _faked_state(model, fake, how.dtype)
    lifetimes.hold_state(state)
    lifetimes.hold(tree_iter(inputs_faked), INPUTS)
    masters = Masters(trained, fake, how.recipe.masters)
    lifetimes.hold(masters.made, OPTIMIZER)
    made = _optimizers(how.recipe, masters.stepped, _hidden(model, state, trained)) if how.stepped else []
    follower.begins(_state_of(made))
    follow = partial(follower.follow_gradients, trained, masters.move_gradient)
    rules, kernels = cast_rules(how.platform), gpu_attention(how.platform)
    with (
        _in_training(model),
        follower.blocks.attached(),
        rules,
        kernels,
        not_compiled(),
        differentiated(),
        fake,
    ):
        if how.recipe.checkpointing and not how.recipe.selective:
            checkpointed(model)
        run = partial(_passes, model, inputs_faked, how, follower, ends, follow)
        named = {f"model.{path}": tensor for path, tensor in state.items()}
        # as one call, so that blocks that run again in a backward pass find their weights
        note = torch.func.functional_call(With(model, run), named, (), tie_weights=True)
        if made:
            with follower:
                stepped = {path: masters.of(tensor) for path, tensor in state.items()}
                _check_gradients(how.recipe, stepped)
                with swapped(follower, stepping=True):
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


def _optimizers(
    recipe: Recipe, stepped: Sequence[nn.Parameter], hidden: Sequence[bool]
) -> list[torch.optim.Optimizer]:
    states = recipe.states if isinstance(recipe.states, States) else None  # a recipe has read them
    return optimizers_of(recipe.optimizer, stepped, hidden, recipe.implementation, states)


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
        for _ in range(how.recipe.accumulation):
            value, held = _loss(run, model, inputs, how)
            ends.append(follower.lifetimes.calls)
            value.backward()
            ends.append(follower.lifetimes.calls)
            del value, held
    return note


def _prepared(model: nn.Module, inputs: Any, how: StepSettings) -> tuple[Callable[..., Any], str]:
    """The compiled forward after its first step; the module itself with a note where there is none."""
    if how.recipe.checkpointing:
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
