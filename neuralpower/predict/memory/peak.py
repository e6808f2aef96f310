"""How much memory a network takes at its peak, and what for: from the lifetimes of its tensors, without running it.

    forward    the storages that the trace saw come and go (`Trace.storages`)
    training   a whole step on fake tensors, which have shapes and storages but no memory: autograd keeps and frees what
               it does in a real step, gradients pile up, the optimizer makes its state and its temporaries

    needed = max over operator calls of (bytes of all storages alive during the call + its kernel's work space) + framework
    peak   = needed + what the allocator keeps of freed memory: on a CPU from a replay of glibc's heap (`replay.py`)

A step that is not the first finds the optimizer's state in place, so that state counts from the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralpower.layers.base import FORWARD
from neuralpower.predict.memory.alive import peak, steady
from neuralpower.predict.memory.allocator_replay import PASS, STEP, heap_peak
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

Numbers = Any  # a number, or an array of them


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


def training_memory(step: StepLifetimes, *, accelerator: bool = False) -> Memory:
    """Of a training step, at its peak."""
    return memory_of(step.storages, TRAINING, accelerator=accelerator, compiler=step.compiler)


def memory_of_pass(followed: Followed, phase: str = FORWARD, *, accelerator: bool = False) -> Memory | None:
    """Of a pass or a step that was followed; None where it is not known what lives when."""
    if phase == FORWARD:
        return forward_memory(followed.trace, accelerator=accelerator)
    return None if followed.lifetimes is None else training_memory(followed.lifetimes, accelerator=accelerator)
