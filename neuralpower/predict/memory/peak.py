"""How much memory a network takes at its peak, and what for: from the lifetimes of its tensors, without running it.

    forward    the storages that the trace saw come and go (`Trace.storages`)
    training   a whole step on fake tensors, which have shapes and storages but no memory: autograd keeps and frees what
               it does in a real step, gradients pile up, the optimizer makes its state and its temporaries

    needed = max over operator calls of (bytes of all storages alive during the call + its kernel's work space) + framework
    peak   = needed + what the allocator keeps of freed memory: on a CPU from a replay of glibc's heap (`allocator_replay.py`)

A step that is not the first finds the optimizer's state in place, so that state counts from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuralpower.layers.base import FORWARD
from neuralpower.platforms import CPU, Platform
from neuralpower.predict.memory.alive import peak, steady
from neuralpower.predict.memory.allocator_replay import PASS, STEP, Habits, heap_peak
from neuralpower.trace.follow import Followed
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
    Storage,
)
from neuralpower.trace.records import Trace
from neuralpower.trace.training import TRAINING
from neuralpower.trace.training_step import StepLifetimes

# A platform names the model of what its allocator keeps of freed memory: (storages, passes or steps) -> peak in bytes.
ALLOCATORS: Mapping[str, Callable[[Sequence[Storage], Habits], int]] = {"glibc": heap_peak}


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
    margin_bytes: (
        int  # what it keeps at most, and code once more: in `high_bytes` alone, in place of `heap_bytes`
    )
    tensor_bytes: int  # the most that tensors take alone, which may be at another time
    assumed: bool = (
        False  # what is beside tensors, where no allocator is modelled: `high_bytes` is then no upper bound
    )

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


def memory_of(
    storages: Sequence[Storage], phase: str = FORWARD, *, platform: Platform = CPU, compiler: bool = False
) -> Memory:
    """The peak of storages' lifetimes, with what the framework takes on the platform.

    `compiler` says that torch's compiler comes into the process with the network, not before it.
    """
    framework = platform.framework
    if not platform.workspace:  # its kernels are others
        storages = [storage for storage in storages if storage.part != WORKSPACE]
    code = framework.code_bytes(phase) + (framework.compiler_bytes if compiler else 0)
    if any(storage.part == WORKSPACE for storage in storages):
        code += framework.onednn_bytes
    later = steady(storages)
    most, parts = peak(later)
    tensors, _ = peak([storage for storage in later if storage.part != WORKSPACE])
    moving = sum(parts[part] for part in MOVING)
    kept = (
        ALLOCATORS[platform.allocator](storages, STEP if phase == TRAINING else PASS)
        if platform.allocator
        else most
    )
    heap = max(0, kept - most)
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
        assumed=not platform.allocator,
    )


def forward_memory(traced: Trace, *, platform: Platform = CPU) -> Memory:
    """Of the pass that was traced."""
    return memory_of(traced.storages, FORWARD, platform=platform)


def training_memory(step: StepLifetimes, *, platform: Platform = CPU) -> Memory:
    """Of a training step, at its peak."""
    return memory_of(step.storages, TRAINING, platform=platform, compiler=step.compiler)


def memory_of_pass(followed: Followed, phase: str = FORWARD, *, platform: Platform = CPU) -> Memory | None:
    """Of a pass or a step that was followed; None where it is not known what lives when."""
    if phase == FORWARD:
        return forward_memory(followed.trace, platform=platform)
    return None if followed.lifetimes is None else training_memory(followed.lifetimes, platform=platform)
