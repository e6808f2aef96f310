"""A platform: a family of devices that compute alike, and all that is special to it.

Learner, memory model, training step and collector ask the platform of a device, by `platform_of(hardware)`.
A file in this folder with a `PLATFORM` adds one: no other code names the platforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.base import FORWARD
from neuralpower.optimizers.registry import KNOWN, LOOP
from neuralpower.platforms.views import KernelView, PooledKernelView, View

Numbers = Any  # a number, or an array of them


@dataclass(frozen=True)
class Framework:
    """Memory of a process besides its tensors: bytes, and shares of the bytes that come and go."""

    forward_bytes: int
    training_bytes: int
    # Shares of gradients, activations and work space: what an allocator keeps of freed memory, at most.
    forward_kept: float
    training_kept: float
    process_bytes: int  # of the device's own: what the process takes before there is a network
    untrimmed_bytes: int = 0  # that an allocator may leave at its end, at most
    onednn_bytes: int = 0  # a library that starts with the first convolution
    compiler_bytes: int = 0  # torch's compiler, which an optimizer imports, and so do transformers' classes

    def margin_bytes(self, phase: str, moving: Numbers, tensors: Numbers) -> Numbers:
        """Code again, and what the allocator keeps at most when `moving` of `tensors` bytes come and go."""
        share = self.forward_kept if phase == FORWARD else self.training_kept
        kept = np.maximum(share * moving, np.minimum(self.untrimmed_bytes, 4 * moving + tensors / 32))
        return self.code_bytes(phase) + kept

    def code_bytes(self, phase: str) -> int:
        """Bytes of code that any network's pass or step loads."""
        return self.forward_bytes if phase == FORWARD else self.training_bytes


@dataclass(frozen=True)
class Overhead:
    """Memory of a process besides its tensors that one library, or the driver, takes."""

    name: str
    value_bytes: int
    high_bytes: int  # the most that was seen
    source: str  # what was measured, or where it is said


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The rules of all devices of a family; by default they run kernels over many cores."""

    name: str
    called: str = "an accelerator"  # in messages
    plural: str = "accelerators"
    torch_type: str = ""  # `torch.device.type` of its devices; "" where torch runs none
    makers: tuple[str, ...] = ()  # whose devices are of the platform, as `Hardware.platform` may name it
    family: str = "accelerator"  # devices of one family can be pooled
    alone: View = field(default_factory=KernelView)  # how layers are described for one device
    pooled: View = field(default_factory=PooledKernelView)  # for several devices at once
    # ---- memory
    framework: Framework
    allocator: str = ""  # that is replayed for what it keeps of freed memory (prediction/memory); "": assumed
    library: str = ""  # of kernels, whose work space counts (layers/workspace); "": none is known
    # What is taken besides tensors, line by line; the sum is `framework.forward_bytes`. None: assumed as one
    overheads: tuple[Overhead, ...] = ()
    product_bytes: int = 0  # that the library of products keeps for each thread that multiplies
    margins: Mapping[str, float] = field(default_factory=dict)  # share kept free by phase; others: forward
    memory_notes: Mapping[str, str] = field(
        default_factory=dict
    )  # what is assumed, by phase; others: forward
    # ---- time
    optimizer: str = LOOP  # how torch steps an optimizer by default: loop, foreach or fused
    launch_s: float = 1e-6  # overhead of an untrained call, in addition to the time of its bytes and FLOP
    step_s: float = 0.0  # of an untrained recurrent layer: a step waits for the one before it
    again_bytes_per_s: float = math.inf  # at which each step reads the weights again, besides
    like: tuple[str, str, str, str] | None = None  # regressor of a memory pass, for untrained kinds
    keeps_weights: bool = False  # whether a small network's weights stay in the cache from pass to pass
    # ---- one device
    specialised: Callable[[Platform, Hardware], Platform] | None = None  # what differs from device to device
    # ---- measurement
    rig: str = ""  # module whose `open_rig(device, power, threads, deep_idle)` opens a device; "": none is

    @property
    def device_names(self) -> list[str]:
        return [self.torch_type] if self.family == "cpu" else [self.torch_type, f"{self.torch_type}:0"]

    def view(self, devices: int) -> View:
        """How layers are described for training on this number of devices."""
        return self.pooled if devices > 1 else self.alone

    def of(self, hardware: Hardware) -> Platform:
        """The platform as one of its devices has it."""
        return self if self.specialised is None else self.specialised(self, hardware)

    def margin(self, phase: str) -> float:
        """Share of a device's memory that is kept free by default."""
        return self.margins.get(phase, self.margins.get(FORWARD, 0.0))

    def left_bytes(self, room_bytes: float, phase: str, margin: float | None = None) -> float:
        """What a network may take of a device's memory: a peak whose upper bound is within it fits."""
        free = self.margin(phase) if margin is None else margin
        return room_bytes * (1 - free) - self.framework.process_bytes

    def memory_note(self, phase: str) -> str:
        """What is assumed of a phase's memory, as text; "" for nothing."""
        return self.memory_notes.get(phase, self.memory_notes.get(FORWARD, ""))

    def optimizer_way(self, optimizer: str) -> str:
        """How torch steps such an optimizer here: loop, foreach or fused."""
        return KNOWN[optimizer].way(self.optimizer) if optimizer in KNOWN else LOOP
