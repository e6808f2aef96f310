"""Measure one benchmark: it prints result lines while it runs, also when it fails; and its monitor.

header | find, build, load | fits? | warm-up | timed | results
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralpower.devices.host import PROC, read_cpu, text_of
from neuralpower.devices.machine import available_bytes, installed, read_machine
from neuralpower.errors import InputError, NeuralPowerError, OutOfMemory, one_line, writing
from neuralpower.files.atomic import aside
from neuralpower.measure.meters import MeterUnavailable, PowerMeter, Reading, open_meter, readings_of
from neuralpower.measure.meters.nvml import list_gpus
from neuralpower.networks.inputs.size_limits import InputRequest
from neuralpower.profiling.steps import clock_of, title_of, told
from neuralpower.suites.bench.data import Images, Loaded, Synthetic, open_store
from neuralpower.suites.bench.distributed import World, device_of, joined, parallel
from neuralpower.suites.bench.network import Case, Network, TooLarge, check_host_memory
from neuralpower.suites.bench.options import DATA, Options
from neuralpower.suites.steps import StepTimer, Times, Work, precision
from neuralpower.version import __version__

FEW_WARMUPS = 2
PACKAGES = ("numpy", "pillow", "lmdb", "transformers")


def benchmark(options: Options) -> dict[str, Any]:
    """Run one benchmark in this process, on one device; its results by name. Raises NeuralPowerError."""
    found: dict[str, Any] = {}
    Bench(options.checked(), World(), found.__setitem__).run()
    return found


@dataclass
class Bench:
    """One process of one benchmark; `emit` receives results as they come, `warn` receives warnings."""

    options: Options
    world: World
    emit: Callable[[str, Any], None]
    warn: Callable[[str], None] = lambda text: None
    monitor_file: Path | None = None
    timer: StepTimer | None = None
    data: Synthetic | Loaded | None = None

    def __post_init__(self) -> None:
        """Begin; the first of several processes prints for all."""
        if self.world.rank:
            self.emit, self.warn = lambda name, value: None, lambda text: None
        self.begun = self.ready = time.perf_counter()

    def run(self) -> None:
        """Emit the head, measure, and emit the results; after an error, the results so far."""
        self._head()
        o = self.options
        gpus = [o.device] if ":" in o.device else [f"cuda:{i}" for i in range(o.num_gpus)]
        monitor = Monitor(0 if self.world.rank else o.monitor_frequency, gpus if o.kind == "gpu" else ())
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

    # ---- output ----

    def _head(self) -> None:
        o = self.options
        asked = {
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
        }
        self._emit_all({**described(), **asked})
        if o.cudnn_fastest:
            text = "has no effect in PyTorch; use cudnn_benchmark, which chooses the fastest"
            self.warn(f"cudnn_fastest {text}")
        if (few := o.num_warmup_batches) < FEW_WARMUPS:
            self.warn(f"num_warmup_batches {few}: too few for steady times; choose 10 or more")

    def _emit_all(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.emit(name, value)

    def _tail(self, monitor: Monitor, status: str) -> None:
        monitor.stop()
        times = self.timer.times if self.timer is not None else Times()
        self._emit_all(results(times, self.options.batch_size * self.world.size))
        if isinstance(self.data, Loaded):
            skipped = self.data.images.skipped
            self.emit("results.skipped_images", skipped)
            if skipped:
                self.warn(f"{skipped} images could not be read and were skipped")
        self._close()
        if monitor.samples and not self._written(monitor):
            self._emit_all({"monitor.columns": monitor.columns, "monitor.samples": monitor.samples})
        ended = time.perf_counter()
        self.emit("results.setup_s", (ended if self.timer is None else self.ready) - self.begun)
        self.emit("results.wall_s", ended - self.begun)
        self.emit("results.end_time", _now())
        self.emit("results.status", status)

    def _close(self) -> None:
        if self.data is not None:
            self.data.close()

    def _written(self, monitor: Monitor) -> bool:
        """Whether the monitor's samples are in the requested file."""
        try:
            if self.monitor_file is not None:
                monitor.write(self.monitor_file)
            return self.monitor_file is not None
        except InputError as error:
            self.warn(str(error))
            return False

    # ---- steps ----

    def _measure(self) -> None:
        o = self.options
        device = device_of(o, self.world)
        self.emit("exp.device_title", title_of(device))
        torch.backends.cudnn.benchmark = o.cudnn_benchmark
        network = Network(o.model)
        title = network.title
        self.emit("exp.model_title", title)
        images = None
        if o.data_dir:  # first, since building a network can take minutes
            store = open_store(o.data_backend, Path(o.data_dir))
            images = Images(store, *network.image_size(o.input_shape), o.seed)
        numbers = precision(o.numbers, device, autocast=o.autocast, masters=o.numbers == "float16")
        request = InputRequest(o.batch_size, o.seq_len, o.input_shape, numbers.stored)
        case = Case(network, request, numbers, device, o.phase == "training", self.world.size)
        torch.manual_seed(o.seed + self.world.rank)
        if device.type == "cpu" and o.phase != "data_ingestion":
            found = check_host_memory(case.peak_bytes, o.batch_size, title, available_bytes())
            self.emit("exp.estimated_memory_bytes", found)
        work: Work | None = None
        try:
            with told(title):
                work = self._work(case, images)
            self.timer = StepTimer(work, clock_of(device))
            self.ready = time.perf_counter()
            self.timer.run(warmup=o.num_warmup_batches, steps=o.num_batches)
        except OutOfMemory as error:
            if self.world.size > 1 or o.phase == "data_ingestion":  # the others wait for this one; no network
                raise
            error.__traceback__ = error.__cause__ = error.__context__ = (
                None  # their frames keep the tensors alive
            )
            if work is not None:
                work.let_go()
            self._close()
            text = f"batch size {o.batch_size} of {title}: out of memory"
            raise TooLarge(text, case.largest_batch()) from None
        finally:
            if work is not None:
                work.let_go()

    def _work(self, case: Case, images: Images | None) -> Work:
        o, device, stored = self.options, case.device, case.precision.stored
        model = nn.Identity() if o.phase == "data_ingestion" else case.model()
        draw: Synthetic | Loaded
        if images is None:
            draw = Synthetic(case.inputs(model), device, DATA[o.data], o.data_shuffle, o.seed)
            self.emit("exp.data_memory", draw.memory)
        else:
            draw = Loaded(
                images,
                batch_size=o.batch_size,
                device=device,
                dtype=stored,
                classes=case.network.classes if case.training else None,
                workers=o.num_loader_threads,
                shuffle=o.data_shuffle,
                world=self.world,
            )
        work = case.work(model, draw, o.seed)
        if case.training:
            work.model = parallel(model, self.world, device)
        self.data = draw
        return work


def results(times: Times, effective_batch: int) -> dict[str, Any]:
    """Result lines of timed steps: milliseconds under the old names, seconds if the name ends in _s."""
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


def described() -> dict[str, Any]:
    """Names and values of software and hardware; the reason if GPUs cannot be listed."""
    gpus: Any
    try:
        gpus = [asdict(gpu) for gpu in list_gpus()]
    except MeterUnavailable as error:
        gpus = error.reason
    return {
        "neuralpower.version": __version__,
        "torch.version": torch.__version__,
        "cuda.version": torch.version.cuda,
        "cudnn.version": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]  # torch has no type
        "sys.software": {**read_machine(), **installed(PACKAGES)},
        "sys.cpu": read_cpu().to_json(),
        "sys.gpus": gpus,
        "sys.threads": torch.get_num_threads(),
    }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


# ---- Monitor a process and its devices during a benchmark, from /proc and the power meters ----


COLUMNS = ("process_pid", "time", "virt", "res", "shrd", "cpu", "mem", "power")
"""Processor time (s), virtual, resident, shared memory (bytes), % of a core, % of memory, CPU packages' W."""

Sample = tuple[float | int | None, ...]


class ProcessReader:
    """The kernel's counters of one process; `cpu` counts since the last sample."""

    def __init__(self, pid: int, proc: Path = PROC, clock: Callable[[], float] = time.perf_counter) -> None:
        self.pid, self.folder, self.clock = pid, proc / str(pid), clock
        self.tick_s, self.page = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._before: tuple[float, float] | None = None
        self.memory = read_cpu(proc).memory_bytes

    def read(self) -> Sample:
        """Pid, time, virt, res, shrd, cpu, mem; None for a value that cannot be read."""
        fields = text_of(self.folder / "stat").rpartition(")")[2].split()  # a name may hold blanks
        used_s = (int(fields[11]) + int(fields[12])) * self.tick_s if len(fields) > 12 else None
        now, cpu = self.clock(), None
        sizes = [int(pages) * self.page for pages in text_of(self.folder / "statm").split()[:3]]
        virt, res, shared = sizes if len(sizes) == 3 else (None, None, None)
        if used_s is not None:
            if self._before is not None and now > self._before[1]:
                cpu = 100 * (used_s - self._before[0]) / (now - self._before[1])
            self._before = (used_s, now)
        mem = 100 * res / self.memory if res is not None and self.memory else None
        return (self.pid, used_s, virt, res, shared, cpu, mem)


class PowerReader:
    """Watts of a meter: its own reading, or its counter's joules since the last sample."""

    def __init__(self, meter: PowerMeter) -> None:
        self.meter = meter
        self._before: dict[str, Reading] = {}

    def read(self) -> float | None:
        """Watts of all its domains except memory within another; None if unknown."""
        try:
            readings = readings_of(self.meter)
        except MeterUnavailable:
            return None
        watts = [w for r in readings if not r.domain.startswith("dram") and (w := self._watts(r)) is not None]
        self._before = {r.domain: r for r in readings}
        return sum(watts) if watts else None

    def _watts(self, reading: Reading) -> float | None:
        if reading.power_w is not None:
            return reading.power_w
        joules, before = reading.energy_j, self._before.get(reading.domain)
        if joules is None or before is None or before.energy_j is None or reading.t_ns <= before.t_ns:
            return reading.average_w
        return (joules - before.energy_j) / (reading.t_ns - before.t_ns) * 1e9


@dataclass
class Monitor:
    """Sample in a separate thread, between `start` and `stop`; a frequency of 0 does nothing."""

    frequency: float  # samples per second
    gpus: Sequence[str] = ()  # "cuda:0" and so on
    process: ProcessReader | None = None  # reader of the process; None: of this process
    meters: Sequence[PowerMeter] | None = None  # of the CPU and of each GPU; None: the first that works
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = (*COLUMNS, *(f"gpu{number}_power" for number in range(len(self.gpus))))
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if not self.frequency:
            return
        if self.meters is None:
            self.meters = [open_meter("auto", device) for device in ("cpu", *self.gpus)]
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        process = self.process or ProcessReader(os.getpid())
        powers = [PowerReader(meter) for meter in self.meters or ()]
        while not self.samples or not self._ended.wait(1 / self.frequency):
            self.samples.append((*process.read(), *(power.read() for power in powers)))

    def stop(self) -> None:
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        for meter in self.meters or ():
            with contextlib.suppress(MeterUnavailable):
                meter.close()

    def write(self, path: Path) -> None:
        """Write a line of names, then one per sample, "-" for an unknown value; raises InputError."""
        lines = [self.columns, *(map(_cell, sample) for sample in self.samples)]
        with writing(path, "--monitor-file"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside(path) as new:
                new.write_text("".join(" ".join(line) + "\n" for line in lines))


def _cell(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
