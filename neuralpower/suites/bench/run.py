"""One benchmark, measured: what is said of it while it runs, and what is known of it afterwards, also when it fails.

header | find, build, load | fits? | warm-up | timed | results
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralpower.devices.machine import available_bytes
from neuralpower.errors import InputError, NeuralPowerError, OutOfMemory, one_line
from neuralpower.networks.inputs import InputRequest, place
from neuralpower.profiling.steps import clock_of, title_of, told
from neuralpower.suites.bench.distributed import World, device_of, joined, parallel
from neuralpower.suites.bench.fits import TooLarge, check_host_memory, largest, peak_bytes
from neuralpower.suites.bench.images import Images, open_store
from neuralpower.suites.bench.loading import Loaded, Synthetic
from neuralpower.suites.bench.monitor import Monitor
from neuralpower.suites.bench.network import Network, Scores, find, optimizer_of
from neuralpower.suites.bench.options import Options
from neuralpower.suites.bench.system import described
from neuralpower.suites.precision import Precision, precision
from neuralpower.suites.steps import Batch, StepTimer, Times, Work

FEW_WARMUPS = 2
COARSE = 16  # the largest batch that fits is found to 1/16 where each trial runs the network

Emit = Callable[[str, Any], None]


def benchmark(options: Options) -> dict[str, Any]:
    """Run one benchmark in this process, on one device; its results by name, as the command line prints them.

    Raises:
        InputError: options, data or a network that cannot be used.
        DeviceError: no such device, or too little memory (OutOfMemory).
    """
    found: dict[str, Any] = {}
    Bench(options.checked(), World(), found.__setitem__).run()
    return found


class Bench:
    """One process of one benchmark; `emit` takes results as they come, `warn` what the user should know."""

    def __init__(
        self,
        options: Options,
        world: World,
        emit: Emit,
        warn: Callable[[str], None] = lambda text: None,
        *,
        monitor_file: Path | None = None,
    ) -> None:
        self.options, self.world, self.monitor_file = options, world, monitor_file
        self.emit: Emit = emit if world.rank == 0 else lambda name, value: None
        self.warn = warn if world.rank == 0 else lambda text: None
        self.timer: StepTimer | None = None
        self.data: Synthetic | Loaded | None = None
        self.begun = self.ready = time.perf_counter()

    def run(self) -> None:
        """Say the head, measure, and say the results; after an error or an interruption those of what was measured."""
        self._head()
        gpus = [f"cuda:{i}" for i in range(self.options.num_gpus)] if self.options.kind == "gpu" else []
        if ":" in self.options.device:
            gpus = [self.options.device]
        monitor = Monitor(self.options.monitor_frequency if self.world.rank == 0 else 0, gpus)
        try:
            monitor.start()
            with joined(self.world):
                self._measure()
        except KeyboardInterrupt:
            self._tail(monitor, "interrupted")
            raise
        except NeuralPowerError as error:
            self.emit("results.reason", "oom" if isinstance(error, OutOfMemory) else type(error).__name__)
            if isinstance(error, TooLarge):
                self.emit("results.largest_batch", error.largest_batch)
            self.emit("results.error", one_line(error))
            self._tail(monitor, "failure")
            raise
        self._tail(monitor, "ok")

    # ---- what is said ----

    def _head(self) -> None:
        o = self.options
        for name, value in described():
            self.emit(name, value)
        for name, value in {
            "exp.model": o.model,
            "exp.phase": o.phase,
            "exp.replica_batch": o.batch_size,
            "exp.effective_batch": o.batch_size * self.world.size,
            "exp.num_batches": o.num_batches,
            "exp.num_warmup_batches": o.num_warmup_batches,
            "exp.num_gpus": self.world.size,
            "exp.device_type": o.kind,
            "exp.dtype": o.numbers,
            "exp.autocast": o.autocast,
            "exp.data": "" if o.data_dir else o.data,
            "exp.data_dir": o.data_dir,
            "exp.dist_backend": self.world.backend,
            "exp.seed": o.seed,
            "pytorch.cudnn_benchmark": o.cudnn_benchmark,
            "pytorch.cudnn_fastest": o.cudnn_fastest,
            "pytorch.data_backend": o.data_backend if o.data_dir else None,
            "pytorch.data_shuffle": o.data_shuffle,
            "pytorch.num_loader_threads": o.num_loader_threads,
            "results.start_time": _now(),
            "results.proc_pid": os.getpid(),
        }.items():
            self.emit(name, value)
        if o.cudnn_fastest:
            self.warn("cudnn_fastest has no effect in PyTorch; it is recorded, cudnn_benchmark chooses the fastest")
        if o.num_warmup_batches < FEW_WARMUPS:
            self.warn(f"num_warmup_batches {o.num_warmup_batches}: too few for steady times; choose 10 or more")

    def _tail(self, monitor: Monitor, status: str) -> None:
        monitor.stop()
        times = self.timer.times if self.timer is not None else Times()
        for name, value in results(times, self.options.batch_size * self.world.size).items():
            self.emit(name, value)
        if isinstance(self.data, Loaded):
            self.emit("results.skipped_images", self.data.skipped)
            if self.data.skipped:
                self.warn(f"{self.data.skipped} images could not be read and were passed over")
        if self.data is not None:
            self.data.close()
        self._use(monitor)
        ended = time.perf_counter()
        self.emit("results.setup_s", (ended if self.timer is None else self.ready) - self.begun)
        self.emit("results.wall_s", ended - self.begun)
        self.emit("results.end_time", _now())
        self.emit("results.status", status)

    def _use(self, monitor: Monitor) -> None:
        """The monitor's samples: in the file asked for, else, or where that cannot be written, as result lines."""
        if not monitor.samples:
            return
        if self.monitor_file is not None:
            try:
                monitor.write(self.monitor_file)
                return
            except InputError as error:
                self.warn(str(error))
        self.emit("monitor.columns", monitor.columns)
        self.emit("monitor.samples", monitor.samples)

    # ---- what is done ----

    def _measure(self) -> None:
        o = self.options
        device = device_of(o, self.world)
        self.emit("exp.device_title", title_of(device))
        torch.backends.cudnn.benchmark = o.cudnn_benchmark
        network = find(o)
        self.emit("exp.model_title", network.title)
        images = self._images(network)  # first, since building a network may take minutes
        numbers = precision(o.numbers, device, autocast=o.autocast, masters=o.numbers == "float16")
        request = InputRequest(o.batch_size, o.seq_len, o.input_shape, numbers.stored)
        torch.manual_seed(o.seed + self.world.rank)
        if device.type == "cpu" and o.phase != "data_ingestion":
            peak = functools.partial(self._peak, network, request, numbers)
            needed = check_host_memory(peak, o.batch_size, network.title, available_bytes())
            self.emit("exp.estimated_memory_bytes", needed)
        work: Work | None = None
        try:
            with told(network.title):
                work = self._work(network, request, numbers, device, images)
            self.timer = StepTimer(work, clock_of(device))
            self.ready = time.perf_counter()
            self.timer.run(warmup=o.num_warmup_batches, steps=o.num_batches)
        except OutOfMemory as error:
            if self.world.size > 1 or o.phase == "data_ingestion":  # the others wait for this one; no network
                raise
            error.__traceback__ = error.__cause__ = error.__context__ = None  # their frames hold the tensors
            if work is not None:
                work.let_go()
            if self.data is not None:
                self.data.close()
            raise self._too_large(network, request, numbers, device) from None
        finally:
            if work is not None:
                work.let_go()

    def _peak(self, network: Network, request: InputRequest, numbers: Precision, batch_size: int) -> int | None:
        """Bytes of one process's step, times the processes that share this machine's memory."""
        found = peak_bytes(network, replace(request, batch_size=batch_size), numbers, self.options.phase == "training")
        return None if found is None else found * self.world.size

    def _images(self, network: Network) -> Images | None:
        """Those of the data_dir as the network sees them; None without one. Raises InputError."""
        o = self.options
        if not o.data_dir:
            return None
        store = open_store(o.data_backend, Path(o.data_dir))
        channels, size = network.image_size(o.input_shape)
        return Images(store, channels, size, o.seed)

    def _work(
        self, network: Network, request: InputRequest, numbers: Precision, device: torch.device, images: Images | None
    ) -> Work:
        o = self.options
        training = o.phase == "training"
        model: nn.Module = nn.Identity()
        if o.phase != "data_ingestion":
            model = network.built(device, numbers, training)
        draw: Synthetic | Loaded
        if images is not None:
            draw = Loaded(
                images,
                o.batch_size,
                device,
                numbers.stored,
                classes=network.classes if training else None,
                workers=o.num_loader_threads,
                shuffle=o.data_shuffle,
                world=self.world,
            )
        else:
            memory = {"synthetic": "pinned", "synthetic/gpu": "device"}.get(o.data) or o.data.partition("/")[2]
            draw = Synthetic(network.inputs(model, request), device, memory, shuffle=o.data_shuffle, seed=o.seed)
            self.emit("exp.data_memory", draw.memory)
        optimizer = optimizer_of(model, numbers) if training else None
        if training:
            model = parallel(model, self.world, device)
        self.data = draw
        return Work(model, draw, Scores(network.classes, o.seed), optimizer)

    def _too_large(self, network: Network, request: InputRequest, numbers: Precision, device: torch.device) -> TooLarge:
        """Find the largest batch that fits into the memory that is there, by trying."""
        asked, training = request.batch_size, self.options.phase == "training"

        def fits(batch_size: int) -> bool:
            return step_fits(network, replace(request, batch_size=batch_size), numbers, device, training)

        return TooLarge(f"batch size {asked} of {network.title}: out of memory", largest(fits, asked, COARSE))


def step_fits(
    network: Network, request: InputRequest, numbers: Precision, device: torch.device, training: bool
) -> bool:
    """Whether one step of that batch finds memory on the device."""
    try:
        model = network.built(device, numbers, training)
        with told(network.title):
            inputs = place(network.inputs(model, request), str(device), request.dtype)
        optimizer = optimizer_of(model, numbers) if training else None
        work = Work(model, lambda: Batch(inputs), Scores(network.classes), optimizer)
        StepTimer(work, clock_of(device)).run(warmup=0, steps=1)
    except OutOfMemory:
        return False
    return True


def results(times: Times, effective_batch: int) -> dict[str, Any]:
    """Result lines of what was timed: milliseconds under the old names, seconds where the name says so."""
    mean, std = times.mean_s, times.std_s
    return {
        "results.time": None if mean is None else mean * 1e3,
        "results.time_std": None if std is None else std * 1e3,
        "results.throughput": None if not mean else int(effective_batch / mean),
        "results.time_data": [seconds * 1e3 for seconds in times.step_s],
        "results.timed_batches": len(times.step_s),
        "results.warmup_batches": len(times.warmup_s),
        "results.warmup_s": sum(times.warmup_s),
        "results.timed_s": times.total_s,
        "results.data_wait_s": sum(times.data_s),
        "results.peak_memory_bytes": times.peak_memory_bytes,
    }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
