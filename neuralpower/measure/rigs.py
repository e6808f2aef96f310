"""The device under test by its name."""

from __future__ import annotations

from neuralpower.measure.bench import Bench
from neuralpower.measure.cpu.bench import CpuBench
from neuralpower.measure.cpu.timer import prepare_process
from neuralpower.measure.cuda.bench import open_cuda_bench
from neuralpower.measure.cuda.runtime import device_named
from neuralpower.measure.meters import open_meter


def open_bench(device: str, power: str, threads: int, deep_idle: bool = False) -> Bench:
    """The bench of "cpu" or "cuda:0" and of the meter that `power` names; the process is set up to measure.

    `deep_idle`: what a device that has a context draws without it is measured first, which takes some seconds.

    Raises:
        InputError: a device or meter that is not known.
        DeviceError: one that is not there, or does not work.
    """
    if device == "cpu":
        prepare_process(threads)
        return CpuBench(threads, open_meter(power, device))
    return open_cuda_bench(device_named(device), power, deep_idle)
