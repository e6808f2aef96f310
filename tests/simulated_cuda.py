"""A CUDA device for tests: two clocks, kernels of known length, graphs that are lists of kernels.

It keeps the contract of `neuralpower.measure.cuda.runtime.Cuda`. Time passes where the host issues, waits or
sleeps; nothing really runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from neuralpower.layers import Call, Layer
from neuralpower.measure.cuda.rig import CudaRig
from neuralpower.measure.cuda.runtime import Condition, NotCapturable, Properties
from neuralpower.measure.cuda.timer import CudaTimer

META = torch.device("meta")
GRAPH_S = 6e-6  # of the host for a replay, however long


@dataclass
class SimulatedMark:
    device: SimulatedCuda
    at_s: float

    def done(self) -> bool:
        return self.device.host_s >= self.at_s


@dataclass
class SimulatedGraph:
    device: SimulatedCuda
    kernels: list[float]

    def replay(self) -> None:
        self.device.queue(sum(self.kernels), GRAPH_S)
        self.device.replays += 1


@dataclass
class SimulatedCuda:
    noise: float = 0.0  # standard deviation of a replay's or an eager kernel's relative length
    free: int = 10**9
    l2_bytes: int = 10**6
    host_s: float = 0.0
    device_s: float = 0.0  # when the device will have done all that is queued
    capturing: list[float] | None = None
    poisoned: bool = False
    breaks_on_capture: bool = False
    replays: int = 0
    released: int = 0
    slept_s: list[float] = field(default_factory=list)
    generator: Any = field(default_factory=lambda: np.random.default_rng(0))

    def launch(self, kernel_s: float, dispatch_s: float, waits: bool = False) -> None:
        """What a call's function does here."""
        if self.poisoned:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if self.capturing is None:
            self.queue(kernel_s, dispatch_s)
            if waits:
                self.synchronize()
        elif waits:
            raise NotCapturable("called a synchronizing CUDA operation")
        else:
            self.capturing.append(kernel_s)

    def queue(self, length_s: float, issue_s: float) -> None:
        self.host_s += issue_s
        self.device_s = max(self.host_s, self.device_s) + length_s * (
            1 + self.noise * self.generator.standard_normal()
        )

    def clock_ns(self) -> int:
        return round(self.host_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.host_s += seconds

    # ---- neuralpower.measure.cuda.runtime.Cuda ----

    def properties(self) -> Properties:
        return Properties("Simulated", "GPU-0", 100, self.l2_bytes, 10**10, "9.0")

    def free_bytes(self) -> int:
        return self.free

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        yield

    def capture(self, steps: Sequence[Callable[[], Any]]) -> SimulatedGraph:
        self.capturing = []
        try:
            for step in steps:
                step()
            return SimulatedGraph(self, self.capturing)
        except NotCapturable:
            self.poisoned = self.poisoned or self.breaks_on_capture
            raise
        finally:
            self.capturing = None

    def mark(self) -> SimulatedMark:
        return SimulatedMark(self, max(self.host_s, self.device_s))

    def elapsed_s(self, start: SimulatedMark, end: SimulatedMark) -> float:
        return end.at_s - start.at_s

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.device_s)

    def release(self) -> None:
        self.released += 1

    def works(self) -> bool:
        return not self.poisoned


def kernel(
    cuda: SimulatedCuda, kernel_s: float, dispatch_s: float = 5e-6, waits: bool = False, size: int = 0
) -> Call:
    """A call of known length on tensors of a given size in bytes, which hold no memory."""
    arguments = (torch.empty(size, dtype=torch.uint8, device=META),) if size else ()
    return Call(lambda *_: cuda.launch(kernel_s, dispatch_s, waits), arguments)


def layer_call(cuda: SimulatedCuda, layer: Layer, kernel_s: float, dispatch_s: float) -> Call:
    """A layer's own call, of known length."""
    return dataclasses.replace(layer.build(META), function=lambda *_, **__: cuda.launch(kernel_s, dispatch_s))


def rig_of(cuda: SimulatedCuda, condition: Callable[[], Condition] = Condition, **more: Any) -> CudaRig:
    """A rig on it, whose clock is the device's host."""
    return CudaRig(META, CudaTimer(cuda, condition, cuda.clock_ns, cuda.sleep), **more)
