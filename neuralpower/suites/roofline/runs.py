"""Times of real runs on a device, warmed up and synchronised; and the device's measured roof."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from neuralpower.devices.host import read_cpu
from neuralpower.dtypes import TENSORFLOAT32
from neuralpower.errors import InputError, ModelError, first_line, quoted
from neuralpower.layers.base import Call, torch_dtype
from neuralpower.measure import ROUNDS
from neuralpower.measure.cpu.timer import SLOW_CALL_S, Sentinel, prepare_process, time_calls
from neuralpower.measure.rig import failure
from neuralpower.networks.inputs.input_request import InputRequest
from neuralpower.networks.sources import resolve
from neuralpower.networks.users_code import raised, users_code
from neuralpower.profiling import Keywords, profile
from neuralpower.profiling.result import NetworkProfile
from neuralpower.profiling.steps import clock_of, title_of
from neuralpower.suites.roofs import Roof, measured_roof
from neuralpower.suites.steps import elapsed_s, free_bytes

CUDA_SAMPLES = 20
CUDA_LIMIT_S = 2.0  # after which no further sample begins, once there are five
TRAINING_REPEATS = 3
Sizes = Mapping[str, tuple[int, ...]]  # by type of device
PRODUCTS: Sizes = {"cpu": (1024, 2048, 3072), "cuda": (4096, 8192, 16384)}
TRIADS: Sizes = {"cpu": (2**26, 2**27), "cuda": (2**30, 2**31)}  # bytes of an array: beyond any cache


class Runner:
    """One device of this machine."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.products, self.triads = PRODUCTS[place.type], TRIADS[place.type]
        self.generator = random.Random(0)
        self.sentinel: Sentinel | None = None

    @property
    def name(self) -> str:
        return title_of(self.place)

    def check(self, dtype: str) -> None:
        """Raises InputError for a dtype that the device cannot multiply."""
        if dtype == TENSORFLOAT32:
            if self.place.type == "cpu":
                raise InputError("dtype tensorfloat32: a CPU has none; choose --dtype float32")
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
        try:
            one = torch.ones(2, 2, device=self.place).to(torch_dtype(dtype))
            torch.relu(torch.mm(one, one)).add(1)
        except (RuntimeError, TypeError) as error:
            text = f"dtype {dtype} on {self.place}: {first_line(error)}; choose --dtype float32"
            raise InputError(text) from None

    def prepare(self) -> None:
        """Prepare the measuring process, and warm up the sentinel."""
        if self.place.type == "cpu":
            prepare_process(read_cpu().cores)
            self.sentinel = Sentinel().settle(10)

    def free_bytes(self) -> int | None:
        """Memory that a run can take; None if unknown."""
        return free_bytes(self.place)

    def cost(self, runtime_s: float) -> float:
        if self.place.type == "cuda":
            return runtime_s * (2 + max(5, min(CUDA_SAMPLES, CUDA_LIMIT_S / max(runtime_s, 1e-9))))
        return runtime_s * (1 + ROUNDS // 3 if runtime_s > SLOW_CALL_S else 2 + ROUNDS)

    def samples(self, call: Call) -> tuple[float, ...]:
        """Times of one call (s); raises what it raises."""
        if self.place.type == "cuda":
            return self._cuda_samples(call)
        if self.sentinel is None:
            self.prepare()
        assert self.sentinel is not None  # `prepare` made it
        timing = time_calls([call], self.sentinel, self.generator)[0]
        if isinstance(timing, Exception):
            raise timing
        return timing.samples_s

    def _cuda_samples(self, call: Call) -> tuple[float, ...]:
        clock = clock_of(self.place)
        samples: list[float] = []
        with torch.inference_mode():
            elapsed_s(call, clock, 2)
            begun = time.perf_counter()
            while len(samples) < 5 or (
                len(samples) < CUDA_SAMPLES and time.perf_counter() - begun < CUDA_LIMIT_S
            ):
                samples.append(elapsed_s(call, clock))
        return tuple(samples)

    def statistic(self, samples: Sequence[float]) -> float:
        """10th percentile on a CPU, since other load only makes it slower; median on a GPU."""
        return float(np.percentile(samples, 10 if self.place.type == "cpu" else 50))

    def forward(self, model: str, batch_size: int, dtype: str) -> tuple[float, ...]:
        """Times of a forward pass (s); raises MemoryError, or ModelError if it fails otherwise."""
        try:
            call = self._call(model, batch_size, dtype)
            with users_code(f"{model}: its forward"):
                return self.samples(call)
        except Exception as refused:
            error = raised(refused)
            if failure(error)["status"] == "oom":
                raise MemoryError(first_line(error)) from None
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{model}: its forward raises {quoted(error)}") from error
        finally:
            if self.place.type == "cuda":
                torch.cuda.empty_cache()

    def training(self, model: str, batch_size: int, dtype: str) -> NetworkProfile:
        """A training step, with rows. Raises what `forward` raises."""
        try:
            call = self._call(model, batch_size, dtype)
            assert isinstance(call.function, nn.Module)
            how: Keywords = {"phase": "training", "warmup": 1, "repeat": TRAINING_REPEATS, "power": "none"}
            return profile(call.function.train(), call.args, call.kwargs, **how)
        except Exception as error:
            if failure(error)["status"] == "oom":
                raise MemoryError(first_line(error)) from None
            raise

    def _call(self, model: str, batch_size: int, dtype: str) -> Call:
        request = InputRequest(batch_size, dtype=torch_dtype(dtype))
        return resolve(model).call(request, device=str(self.place))

    def roof(self, dtype: str) -> Roof:
        sizes = self.products, self.triads
        return measured_roof(self.name, self.samples, self.place, torch_dtype(dtype), *sizes)
