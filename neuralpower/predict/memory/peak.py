"""How much memory a network takes at its peak, and what for: from the lifetimes of its tensors, without running it.

    forward    the storages that the trace saw come and go (`Trace.storages`)
    training   a whole step on fake tensors, which have shapes and storages but no memory: autograd keeps and frees what
               it does in a real step, gradients pile up, the optimizer makes its state and its temporaries

    needed = max over operator calls of (bytes of all storages alive during the call + its kernel's work space) + framework
    peak   = needed + what the allocator keeps of freed memory: on a CPU from a replay of glibc's heap (`replay.py`)

A step that is not the first finds the optimizer's state in place, so that state counts from the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from neuralpower.errors import InputError, StepError, UsersError, quoted, unknown
from neuralpower.layers.base import FORWARD
from neuralpower.layers.optimizer import CLASSES
from neuralpower.layers.workspace import workspace_blocks
from neuralpower.networks.refusals import check_followable
from neuralpower.networks.repeats import tensors_in
from neuralpower.networks.running import Assumed, grouped_product, name_of, quiet
from neuralpower.networks.users_code import check_computed, raised, users_code
from neuralpower.predict.memory.allocator_replay import PASS, STEP, heap_peak
from neuralpower.trace.fake_sparse import FakeRows, is_sparse
from neuralpower.trace.lifetimes import (
    ACTIVATIONS,
    CACHE,
    GRADIENTS,
    INPUTS,
    MOVING,
    OPTIMIZER,
    PARTS,
    WEIGHTS,
    WORKSPACE,
    Lifetimes,
    Storage,
    peak,
)
from neuralpower.trace.sparse_gradients import check_sparse
from neuralpower.trace.tracer import Trace, own_caches, undisturbed, unwrapped
from neuralpower.trace.training import TRAINING, Loss, Recipe, checkpointed, default_loss

INDEXED = ("aten.index", "aten.index_put", "aten.index_put_")
Numbers = Any  # a number, or an array of them
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    **CLASSES,
    "momentum": partial(CLASSES["sgd"], momentum=0.9),  # a `Recipe` means this one by sgd
}


@dataclass(frozen=True)
class Framework:
    """What a process takes beside its tensors on a class of devices; bytes, and a share of what comes and goes."""

    forward_bytes: int
    training_bytes: int
    forward_kept: float  # of gradients, activations and work space: what an allocator keeps of freed memory, at most
    training_kept: float
    process_bytes: int  # of the device's own: what the process takes before there is a network
    untrimmed_bytes: int = 0  # that an allocator may leave at its end, at most
    onednn_bytes: int = 0  # a library that starts with the first convolution
    compiler_bytes: int = 0  # torch's compiler, which making an optimizer imports, and so do transformers' classes

    def margin_bytes(self, phase: str, moving: Numbers, tensors: Numbers) -> Numbers:
        """Code once more, and what the allocator keeps at most where `moving` of `tensors` bytes come and go."""
        share = self.forward_kept if phase == FORWARD else self.training_kept
        kept = np.maximum(share * moving, np.minimum(self.untrimmed_bytes, 4 * moving + tensors / 32))
        return self.code_bytes(phase) + kept

    def code_bytes(self, phase: str) -> int:
        """What any network's pass or step pages in."""
        return self.forward_bytes if phase == FORWARD else self.training_bytes


# cpu: code that is paged in, libraries' and threads' buffers, in a process that has imported torch and the network's classes;
# what glibc's heap keeps at most is more than was seen, and no less than the 64 MiB that it leaves at its end; a small heap
# has a small end. Chosen over the first table of benchmarks/memory.py. Python with torch and transformers was 381 MB.
# gpu: a CUDA context with cuBLAS's work space, and the caching allocator's rounding to blocks of 2 MiB: assumed, not measured.
CPU = Framework(16_000_000, 30_000_000, 3.0, 1.25, 400_000_000, 64 << 20, 8_000_000, 72_000_000)
GPU = Framework(600_000_000, 600_000_000, 0.1, 0.1, 0)


# 72 training steps of 40 networks on an A100, float32: predictions were 30 % below the real peaks in the median, and 92 % of the
# peaks above the high figure. Of forward passes nothing was measured: servers of language models leave a tenth free.
TRAINING_MARGIN, FORWARD_MARGIN = 0.3, 0.1
ASSUMED = (
    "on an accelerator, memory beside tensors is an assumed overhead, not an upper bound: of 72 training steps on an A100 the "
    "prediction was 30 % too low in the median, and 92 % of the real peaks lay above its high figure"
)


def margin_of(accelerator: bool, phase: str) -> float:
    """Share of a device's memory that is kept free where nothing else is asked for: none where the high figure is a bound."""
    return 0.0 if not accelerator else TRAINING_MARGIN if phase == TRAINING else FORWARD_MARGIN


def framework_of(accelerator: bool) -> Framework:
    """The class that a device is of."""
    return GPU if accelerator else CPU


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a pass or a step, by what they are for."""

    phase: str
    weights_bytes: int  # parameters and buffers
    gradients_bytes: int
    optimizer_bytes: int  # state, not the step's temporaries: those are activations
    cache_bytes: int  # keys and values
    inputs_bytes: int
    activations_bytes: int
    workspace_bytes: int  # that kernels need for themselves while they run
    framework_bytes: int
    heap_bytes: int  # that the allocator is expected to keep of freed memory
    margin_bytes: int  # what it keeps at most, and code once more: in `high_bytes` alone, in place of `heap_bytes`
    tensor_bytes: int  # the most that tensors take alone, which may be at another time
    assumed: bool = False  # what is beside tensors, as on an accelerator: `high_bytes` is then no upper bound

    @property
    def value_bytes(self) -> int:
        """What is expected."""
        return sum(self.parts.values())

    @property
    def low_bytes(self) -> int:
        """The tensors alone: it cannot be less."""
        return self.tensor_bytes

    @property
    def high_bytes(self) -> int:
        """What has to fit; an upper bound where nothing is `assumed`."""
        return self.needed_bytes + self.margin_bytes

    @property
    def needed_bytes(self) -> int:
        """What a process takes where freed memory is given back at once."""
        return self.value_bytes - self.heap_bytes

    @property
    def parts(self) -> dict[str, int]:
        """Name -> bytes of what adds up to `value_bytes`."""
        return {name: getattr(self, f"{name}_bytes") for name in (*PARTS, "framework", "heap")}

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; all in bytes."""
        parts = {f"{name}_bytes": size for name, size in self.parts.items()}
        return {"phase": self.phase, **parts, "assumed": self.assumed}

    def bounds_json(self) -> dict[str, int]:
        """(value, low, high) as a JSON object."""
        return {"value": self.value_bytes, "low": self.low_bytes, "high": self.high_bytes}


def optimizer_named(text: str, accelerator: bool = False) -> Callable[..., torch.optim.Optimizer]:
    """What makes "adamw" or "adamw:fused"; alone, a loop on a CPU and foreach on an accelerator, as torch chooses.

    Raises:
        InputError: there is no such optimizer, or not in that way.
    """
    name, _, way = str(text).partition(":")
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    way = Recipe({"momentum": "sgd"}.get(name, name), way).on(accelerator).implementation  # raises where torch has none
    ways = {"fused": True} if way == "fused" else {"foreach": way == "foreach"}
    return partial(OPTIMIZERS[name], lr=1e-4, **(ways if name != "sparseadam" else {}))  # which has one way alone


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The keywords of `training_lifetimes` for a recipe; its plain gradient descent has momentum."""
    name = {"sgd": "momentum"}.get(recipe.optimizer, recipe.optimizer)
    optimizer = f"{name}:{recipe.implementation}" if recipe.implementation else name
    return {"optimizer": optimizer, "accumulation": recipe.accumulation, "checkpointing": recipe.checkpointing}


def memory_of(
    storages: Sequence[Storage], phase: str = FORWARD, *, accelerator: bool = False, compiler: bool = False
) -> Memory:
    """The peak of storages' lifetimes, with what the framework takes on a CPU or an accelerator.

    `compiler` says that torch's compiler comes into the process with the network, not before it.
    """
    framework = framework_of(accelerator)
    if accelerator:  # its kernels are others
        storages = [storage for storage in storages if storage.part != WORKSPACE]
    code = framework.code_bytes(phase) + (framework.compiler_bytes if compiler else 0)
    if any(storage.part == WORKSPACE for storage in storages):
        code += framework.onednn_bytes
    later = steady(storages)
    most, parts = peak(later)
    tensors, _ = peak([storage for storage in later if storage.part != WORKSPACE])
    moving = sum(parts[part] for part in MOVING)
    heap = 0 if accelerator else max(0, heap_peak(storages, STEP if phase == TRAINING else PASS) - most)
    return Memory(
        phase=phase,
        weights_bytes=parts[WEIGHTS],
        gradients_bytes=parts[GRADIENTS],
        optimizer_bytes=parts[OPTIMIZER],
        cache_bytes=parts[CACHE],
        inputs_bytes=parts[INPUTS],
        activations_bytes=parts[ACTIVATIONS],
        workspace_bytes=parts[WORKSPACE],
        framework_bytes=code,
        heap_bytes=heap,
        margin_bytes=max(int(framework.margin_bytes(phase, moving, most)), heap),
        tensor_bytes=tensors,
        assumed=accelerator,
    )


def forward_memory(traced: Trace, *, accelerator: bool = False) -> Memory:
    """Of the pass that was traced."""
    return memory_of(traced.storages, FORWARD, accelerator=accelerator)


class StepLifetimes(NamedTuple):
    """When memory is born and dies in the first training step, in operator calls, and its parts' last calls."""

    storages: tuple[Storage, ...]
    passes: tuple[int, ...]  # forward, backward, forward, backward, ... of one micro-batch after the other
    end: int
    compiler: bool  # whether torch's compiler comes with the step

    def memory(self, accelerator: bool = False) -> Memory:
        """At the step's peak."""
        return memory_of(self.storages, TRAINING, accelerator=accelerator, compiler=self.compiler)

    @property
    def steady(self) -> list[Storage]:
        """Of later steps, which find the optimizer's state."""
        return steady(self.storages)


def steady(storages: Sequence[Storage]) -> list[Storage]:
    """The lifetimes with the optimizer's state there from the beginning."""
    return [storage._replace(birth=0) if storage.part == OPTIMIZER else storage for storage in storages]


def training_lifetimes(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    optimizer: str | None = "adamw",
    loss: Loss | None = None,
    accelerator: bool = False,
    accumulation: int = 1,
    checkpointing: bool = False,
) -> StepLifetimes:
    """Lifetimes in the first training step, in which the optimizer makes its state.

    That is forward in training mode, loss (by default the mean square of the first output), backward, optimizer.
    `accumulation` micro-batches come before the optimizer, or are all there is without one; with `checkpointing`, the
    model's own switch for it is on. `optimizer` may name a way, as "adamw:foreach": working on all parameters at once,
    which is usual on an accelerator, takes temporaries as large as they are; "adamw:fused" takes none.
    The module is left as it was found and may be on the meta device.

    Raises:
        InputError: an optimizer that is not known, nothing to train, or something that is no parameter of the module.
        StepError: the step raises on fake tensors; the message quotes its own error.
        ModelError: it has no activation checkpointing to switch on.
    """
    make = optimizer_named(optimizer, accelerator) if optimizer else None
    model = unwrapped(model)
    check_followable(model, (args, kwargs))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    state = {name: _faked(t, fake) for name, t in (*model.named_parameters(), *model.named_buffers())}
    given = tree_map(lambda v: _faked(v, fake) if isinstance(v, Tensor) else v, (tuple(args), dict(kwargs or {})))
    trained = [t for t in state.values() if isinstance(t, nn.Parameter) and t.requires_grad]
    if not trained:
        raise InputError(f"{type(model).__name__} has no parameter that requires a gradient: there is nothing to train")
    follower = _Follower(type(model).__name__)
    lifetimes = follower.lifetimes
    lifetimes.hold(state.values(), WEIGHTS)
    lifetimes.hold(tree_iter(given), INPUTS)
    made = make(trained) if make else None
    if made:
        follower.begins([v for values in made.state.values() for v in values.values()])
    for parameter in trained:
        hook = parameter.register_post_accumulate_grad_hook
        hook(lambda p: follower.assign([p.grad], GRADIENTS))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    try:
        # torch warns where it is not said
        unchecked: Any = vars(torch.sparse)["check_sparse_tensor_invariants"](enable=False)
        with (
            users_code(type(model).__name__),
            quiet(),
            undisturbed(model, True),
            own_caches(model),
            unchecked,
            torch.enable_grad(),
            fake,
            follower,
        ):
            if checkpointing:
                checkpointed(model)
            batches = _MicroBatches(model, loss or default_loss, accumulation, lambda: lifetimes.calls)
            named = {f"model.{name}": tensor for name, tensor in state.items()}
            torch.func.functional_call(batches, named, given, tie_weights=True)
            if made:
                _check_gradients(optimizer or "", accelerator, state)
                made.step()
                follower.assign([v for values in made.state.values() for v in values.values()], OPTIMIZER)
    except UsersError as error:
        if error.what != type(model).__name__:
            raise
        raise StepError(
            f"{type(model).__name__}: a training step on tensors without values raises {quoted(raised(error))[:200]}; "
            "choose phase forward, or measure with `neuralpower profile --phase training`"
        ) from raised(error)
    compiler = made is not None and not any(type(m).__module__.startswith("transformers.") for m in model.modules())
    return StepLifetimes(lifetimes.storages(), tuple(batches.ends), lifetimes.calls, compiler)


def _check_gradients(optimizer: str, accelerator: bool, state: Mapping[str, Tensor]) -> None:
    """Raise InputError where a gradient is sparse that the optimizer does not take, or dense."""
    name, _, way = optimizer.partition(":")
    recipe = Recipe({"momentum": "sgd"}.get(name, name), way).on(accelerator)
    names: dict[bool, list[str]] = {True: [], False: []}
    for path, tensor in state.items():
        if tensor.grad is not None:
            names[is_sparse(tensor.grad)].append(path)
    check_sparse(recipe.optimizer, recipe.implementation, names[True], names[False])


class _MicroBatches(nn.Module):
    """What comes before the optimizer, as one call, so that a block that runs again in a backward pass has its weights."""

    def __init__(self, model: nn.Module, loss: Loss, count: int, calls: Callable[[], int]) -> None:
        super().__init__()
        self.model, self.loss, self.count, self.calls = model, loss, count, calls
        self.ends: list[int] = []

    def forward(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Forward and backward passes, one after the other; `calls` says how many calls there were at the end of each."""
        for _ in range(self.count):
            output = self.model(*args, **kwargs)
            check_computed(output, f"{type(self.model).__name__}: its forward")
            value = self.loss(output)
            del output
            self.ends.append(self.calls())
            value.backward()  # type: ignore[no-untyped-call]
            self.ends.append(self.calls())
            del value


def _faked(tensor: Tensor, fake: FakeTensorMode) -> Tensor:
    """A tensor of that shape and layout on a CPU that is not there."""
    with fake:
        new = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new.requires_grad_(tensor.requires_grad)


class _Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Notes what every operator brings into the world.

    What decides which layers run and which places are masked has values: a number that is drawn, a mask made from data. Where
    a step asks whether a mask is all ones, it is, as in a trace.
    """

    def __init__(self, model: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.model = model
        self.lifetimes = Lifetimes()
        self._known = WeakIdKeyDictionary()  # tensors with values, and what was computed from these alone
        self._assumed = Assumed()
        self._rows = FakeRows()

    def begins(self, state: Sequence[Any]) -> None:
        """An optimizer's state that is there before its first step; counts of steps have values."""
        self.lifetimes.hold(state, OPTIMIZER)
        self._known.update({v: True for v in state if isinstance(v, Tensor) and not isinstance(v, FakeTensor)})

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
        self.lifetimes.called(new, workspace_blocks(name, args, kwargs, output))
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
        """Arguments of an indexing call with places instead of known masks, whose number nothing else says."""
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
                    f"{self.model}: its forward uses weights of {tuple(tensor.shape)} that are not reached as its parameters (but "
                    "as a global's, or in a plain list), so that what training takes cannot be said; make them an attribute "
                    "and call them through self, or detach them"
                )
