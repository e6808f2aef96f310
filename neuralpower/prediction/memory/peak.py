"""Peak memory of a network by its parts, from the lifetimes of its tensors.

    forward    the storages that the trace saw come and go (`Trace.storages`)
    training   a step on fake tensors, which have shapes and storages but no memory: autograd keeps and
               frees as in a real step, gradients pile up, the optimizer makes its state and its temporaries

    needed = max over operator calls of (bytes of all storages alive + the kernel's work space) + framework
    peak   = needed + freed memory that the allocator keeps: on a CPU, from a replay of glibc's heap
             (`allocator_replay.py`), on an NVIDIA GPU of PyTorch's caching allocator (`cuda_allocator.py`)

A step that is not the first finds the optimizer's state in place, so that state counts from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuralpower.layers.base import FORWARD
from neuralpower.networks.diffusion.pictures import MODEL
from neuralpower.platforms import CPU, Platform
from neuralpower.prediction.memory.allocator_replay import PASS, STEP, heap_peak
from neuralpower.prediction.memory.cuda_allocator import replayed
from neuralpower.trace.lifetimes import (
    MOVING,
    OPTIMIZER,
    PARTS,
    WEIGHTS,
    WORKSPACE,
    StepLifetimes,
    Storage,
    on_library,
)
from neuralpower.trace.question import EAGER, GRAPH
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.records import Trace

WORKSPACES_MORE = 2  # largest work spaces that cuDNN may take besides: VGG-16 on an A100 had two more
CUBLAS, CUDNN, KEPT = "cuBLAS work space", "cuDNN work space", "kept by the allocator"
GRAPHS = "CUDA graph's pool"
# A trial's work space is at most the free memory (`cudaMemGetInfo`), halved until the allocator has it, and
# `emptyCache` follows the trials of each convolution (PyTorch's aten/src/ATen/native/cudnn/Conv_v8.cpp).
TRIALS, TRIALS_RULE = "cuDNN trials", "with benchmark = True, free memory alone, given back afterwards"


@dataclass(frozen=True)
class MemoryLine:
    """What a library, the driver or the allocator takes, in bytes."""

    name: str
    value_bytes: int
    high_bytes: int
    source: str  # what was measured, or which rules say so


def _glibc(storages: Sequence[Storage], phase: str, platform: Platform) -> int:
    return heap_peak(storages, STEP if phase == TRAINING else PASS)


def _cuda(storages: Sequence[Storage], phase: str, platform: Platform) -> int:
    return replayed(storages, handles=products(phase, platform)).peak_reserved


# name that a platform gives its allocator -> model of the bytes that it holds at its peak
ALLOCATORS: Mapping[str, Callable[[Sequence[Storage], str, Platform], int]] = {"glibc": _glibc, "cuda": _cuda}


def products(phase: str, platform: Platform) -> tuple[int, ...]:
    """Bytes of each work space for products: autograd's thread has another in training."""
    count = 2 if phase == TRAINING else 1
    return (platform.product_bytes,) * count if platform.product_bytes else ()


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a pass or a step, by purpose."""

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
    margin_bytes: int  # what it keeps at most, and code once more: in `high_bytes`, instead of `heap_bytes`
    tensor_bytes: int  # the most that tensors take alone, which may be at another time
    communication_bytes: int = 0  # buffers of exchanges with other devices
    assumed: bool = False  # whether no allocator is modelled: `high_bytes` is then no upper bound
    lines: tuple[MemoryLine, ...] = ()  # what is taken besides tensors, one by one, where it is known

    @property
    def value_bytes(self) -> int:
        """The expected peak."""
        return sum(self.parts.values())

    @property
    def low_bytes(self) -> int:
        """The tensors alone, a lower bound."""
        return self.tensor_bytes

    @property
    def high_bytes(self) -> int:
        """The bytes that have to fit; an upper bound where nothing is `assumed`."""
        return self.needed_bytes + self.margin_bytes

    @property
    def needed_bytes(self) -> int:
        """The bytes of a process that gives freed memory back at once."""
        return self.value_bytes - self.heap_bytes

    @property
    def parts(self) -> dict[str, int]:
        """Name -> bytes of what adds up to `value_bytes`."""
        return {
            name: getattr(self, f"{name}_bytes") for name in (*PARTS, "communication", "framework", "heap")
        }

    @property
    def shown_parts(self) -> dict[str, int]:
        """What a reader sees -> bytes: the parts that are not empty, the largest first."""
        sizes = sorted(self.parts.items(), key=lambda one: -one[1])
        return {KEPT if name == "heap" else name: size for name, size in sizes if size}

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; all in bytes."""
        parts = {f"{name}_bytes": size for name, size in self.parts.items()}
        lines = [vars(line) for line in self.lines]
        return {"phase": self.phase, **parts, "assumed": self.assumed, **({"lines": lines} if lines else {})}

    @property
    def bounds(self) -> dict[str, int]:
        return {"value": self.value_bytes, "low": self.low_bytes, "high": self.high_bytes}


def memory_of(
    storages: Sequence[Storage], phase: str = FORWARD, *, platform: Platform = CPU, compiler: bool = False
) -> Memory:
    """The peak of storages' lifetimes, with what the framework takes on the platform.

    `compiler` says that torch's compiler comes into the process with the network, not before it.
    """
    framework = platform.framework
    storages = on_library(storages, platform.library)
    code = framework.code_bytes(phase) + (framework.compiler_bytes if compiler else 0)
    if any(storage.part == WORKSPACE for storage in storages):
        code += framework.onednn_bytes
    later = steady(storages)
    most, parts = peak(later)
    tensors, _ = peak([storage for storage in later if storage.part != WORKSPACE])
    moving = sum(parts[part] for part in MOVING)
    multiplying = sum(products(phase, platform))
    parts[WORKSPACE] += multiplying
    heap = 0
    if platform.allocator:
        held = ALLOCATORS[platform.allocator](storages, phase, platform)
        heap = max(0, held - most - multiplying)
    margin, lines = max(int(framework.margin_bytes(phase, moving, most)), heap), tuple[MemoryLine, ...]()
    if platform.overheads:
        lines = _lines(storages, platform, multiplying, heap, moving)
        margin = heap + sum(line.high_bytes - line.value_bytes for line in lines)
    return Memory(
        phase=phase,
        **{f"{part}_bytes": size for part, size in parts.items()},
        framework_bytes=code,
        heap_bytes=heap,
        margin_bytes=margin,
        tensor_bytes=tensors,
        assumed=not platform.allocator,
        lines=lines,
    )


def overhead_lines(platform: Platform) -> list[MemoryLine]:
    """What the driver and its libraries take in any process."""
    return [MemoryLine(**vars(one)) for one in platform.overheads]


def kept_line(platform: Platform, heap: int, moving: int) -> MemoryLine:
    """What the caching allocator keeps of freed memory, of which `moving` bytes come and go."""
    most = heap + int(platform.framework.training_kept * moving)
    return MemoryLine(KEPT, heap, most, "a replay of PyTorch's caching allocator")


def _lines(
    storages: Sequence[Storage], platform: Platform, multiplying: int, heap: int, moving: int
) -> tuple[MemoryLine, ...]:
    """What is taken besides tensors, with upper values."""
    lines = overhead_lines(platform)
    rule = "as PyTorch sizes it, for each thread that multiplies"
    lines.append(MemoryLine(CUBLAS, multiplying, multiplying, rule))
    if work := max((storage.bytes for storage in storages if storage.part == WORKSPACE), default=0):
        lines.append(MemoryLine(CUDNN, work, (1 + WORKSPACES_MORE) * work, "copies that its kernels work on"))
        lines.append(MemoryLine(TRIALS, 0, 0, TRIALS_RULE))
    return (*lines, kept_line(platform, heap, moving))


def forward_memory(traced: Trace, *, platform: Platform = CPU, run: str = EAGER) -> Memory:
    """The peak of the pass that was traced; calls that trace passes removed take none.

    A captured pass (`run` graph) has a private pool besides what the passes before its capture left.
    """
    storages = [storage for storage in traced.storages if storage.bytes]
    fullest = max(
        (memory_of(one, FORWARD, platform=platform) for one in _between_offloads(storages, traced.offload)),
        key=lambda memory: memory.high_bytes,
    )
    if run != GRAPH or not fullest.lines:
        return fullest
    again = fullest.activations_bytes + fullest.workspace_bytes - sum(products(FORWARD, platform))
    line = MemoryLine(GRAPHS, again, again, "a captured pass's own activations: passes before it keep theirs")
    margin = fullest.margin_bytes + again
    return replace(
        fullest, heap_bytes=fullest.heap_bytes + again, margin_bytes=margin, lines=(*fullest.lines, line)
    )


def _between_offloads(storages: list[Storage], offload: str) -> list[list[Storage]]:
    """The storages that live while each part is on the device.

    Where a part goes back to the host, the allocator's cache is emptied (accelerate's `CpuOffload`).
    """
    spans = {(one.birth, one.death or 0) for one in storages if one.part == WEIGHTS and one.birth}
    if offload != MODEL or not spans:
        return [storages]
    return [
        [one for one in storages if one.birth <= last and (one.death is None or one.death >= first)]
        for first, last in spans
    ]


def training_memory(step: StepLifetimes, *, platform: Platform = CPU) -> Memory:
    return memory_of(step.storages, TRAINING, platform=platform, compiler=step.compiler)


def steady(storages: Sequence[Storage]) -> list[Storage]:
    """The lifetimes of a step that is not the first: the optimizer's state is there from the beginning."""
    return [storage._replace(birth=0) if storage.part == OPTIMIZER else storage for storage in storages]


def alive(storages: Sequence[Storage], calls: int = 0) -> np.ndarray:
    """Bytes that live during each operator call, from 0, before the first, to the last change or `calls`."""
    last = max((max(s.birth, s.death or 0) for s in storages), default=0)
    change = np.zeros(max(last + 2, calls), dtype=np.int64)
    for storage in storages:
        change[storage.birth] += storage.bytes
        if storage.death is not None:
            change[storage.death + 1] -= storage.bytes
    return np.cumsum(change)


def peak(storages: Sequence[Storage]) -> tuple[int, dict[str, int]]:
    """(the most bytes that live during one operator call, the same by part)."""
    total = alive(storages)
    when = int(np.argmax(total))
    parts = dict.fromkeys(PARTS, 0)
    for storage in storages:
        if storage.birth <= when and (storage.death is None or when <= storage.death):
            parts[storage.part] += storage.bytes
    return int(total[when]), parts
