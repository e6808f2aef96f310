"""One process per device, started by torchrun, with WORLD_SIZE and RANK in the environment."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from neuralpower.errors import DeviceError, InputError, NeuralPowerError, OutOfMemory, first_line
from neuralpower.processes.tether import environment, python, tethered
from neuralpower.suites.bench.options import Options

ADDRESS = "127.0.0.1"
TAKEN = "port {}: in use by another process; choose another --master-port, or 0 for a free one"


@dataclass(frozen=True)
class World:
    """The rank of a process among all; `local_rank` is its number on its machine."""

    size: int = 1
    rank: int = 0
    local_rank: int = 0
    backend: str | None = None  # None for a single process


def world_of(options: Options, environment: Mapping[str, str] | None = None) -> World | None:
    """The place of this process; None if processes must still be launched. Raises InputError."""
    environment = os.environ if environment is None else environment
    if "WORLD_SIZE" not in environment:
        return World() if options.num_gpus == 1 else None
    try:
        size, rank = int(environment["WORLD_SIZE"]), int(environment.get("RANK", "0"))
        local = int(environment.get("LOCAL_RANK", str(options.local_rank)))
    except ValueError:
        text = "WORLD_SIZE, RANK and LOCAL_RANK must be whole numbers; unset them, or use torchrun"
        raise InputError(text) from None
    if not 0 <= rank < size:
        raise InputError(f"RANK {rank} of WORLD_SIZE {size}: it must be below; unset both, or use torchrun")
    if size > 1 and options.forward_only:
        raise InputError(f"inference by {size} processes: it runs in one; leave torchrun out, or train")
    backend = "gloo" if options.kind == "cpu" else options.dist_backend  # NCCL supports only GPUs
    return World(size, rank, local, backend if size > 1 else None)


def device_of(options: Options, world: World) -> torch.device:
    """The device of this process; raises DeviceError if it is missing."""
    if options.kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if not count:
        raise DeviceError(f"device {options.device}: torch finds no CUDA device here; choose --device cpu")
    asked = options.device.partition(":")[2]
    index = int(asked) if asked.isdigit() else world.local_rank
    needed = max(index + 1, options.num_gpus)
    if needed > count:
        there = f"{count} {'is' if count == 1 else 'are'} there; choose --num-gpus {count} or fewer"
        raise DeviceError(f"{needed} GPUs requested, {there}")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


@contextlib.contextmanager
def joined(world: World) -> Iterator[None]:
    """Connect the processes within; raises DeviceError if they do not find each other."""
    if world.backend is None:
        yield
        return
    try:
        dist.init_process_group(world.backend, rank=world.rank, world_size=world.size)
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            raise DeviceError(TAKEN.format(int(os.environ.get("MASTER_PORT", "0")))) from None
        text = f"found no other processes ({first_line(error)[:200]}); start all of them"
        raise DeviceError(f"process {world.rank} of {world.size} {text}") from None
    try:
        yield
    finally:
        gc.collect()  # references to the group keep its threads, which abort the interpreter at its end
        dist.destroy_process_group()


def parallel(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """Wrap a network so that gradients are averaged over all processes; raises DeviceError."""
    if world.backend is None:
        return model
    try:
        places = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=places)
    except RuntimeError as error:
        raise DeviceError(f"process {world.rank} of {world.size}: {first_line(error)[:200]}") from None


def torchrun(options: Options, arguments: Sequence[str]) -> list[str]:
    """The command that starts the processes on this machine."""
    port = options.master_port
    meeting = [f"--master-addr={ADDRESS}", f"--master-port={port}"] if port else ["--standalone"]
    runner = [*tethered("torch.distributed.run"), *meeting, f"--nproc-per-node={options.num_gpus}"]
    return [*runner, "--no-python", *python("neuralpower"), "bench", *arguments]


def launch(
    options: Options, arguments: Sequence[str], show: Callable[[str], None], warn: Callable[[str], None]
) -> None:
    """Run the processes and pass on the output of the first; raises the NeuralPowerError that one raised."""
    if options.kind == "gpu" and options.num_gpus > torch.cuda.device_count():
        device_of(options, World())
    if options.master_port:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((ADDRESS, options.master_port))
            except OSError:
                raise DeviceError(TAKEN.format(options.master_port)) from None
    command, pipe = torchrun(options, arguments), subprocess.PIPE
    with tempfile.TemporaryFile("w+") as talk:
        with subprocess.Popen(command, stdout=pipe, stderr=talk, text=True, env=environment()) as process:
            lines = process.stdout or ()
            try:
                for line in lines:
                    show(line.rstrip("\n"))
            except KeyboardInterrupt:
                process.send_signal(signal.SIGTERM)  # a background job ignores SIGINT
                for line in lines:
                    show(line.rstrip("\n"))
                raise
        talk.seek(0)
        said = talk.read()
    for line in said.splitlines():
        if line.startswith("Warning: "):
            warn(line.removeprefix("Warning: "))
    if process.returncode:
        raise failure_of(said, process.returncode)


def failure_of(said: str, code: int) -> NeuralPowerError:
    """The error of the process that failed first, from its output and torchrun's."""
    told = re.findall(r"^(?:\[[^\]]*\]:)?error: (.+)$", said, re.M)
    # the end of the other processes is not its cause
    told.sort(key=lambda line: "Connection closed" in line or "Connection reset" in line)
    found = re.search(r"exitcode\s*:\s*(-?\d+)", said)
    ended = int(found.group(1)) if found else code
    if not told and ended == -signal.SIGKILL:
        return OutOfMemory("a process was killed, probably for lack of memory; choose a smaller batch")
    if not told and ended < 0:
        name = signal.Signals(-ended).name
        return DeviceError(f"a process ended by {name}; run --num-gpus 1 for its message")
    text = told[0] if told else (said.strip().splitlines() or ["torchrun printed nothing"])[-1][:300]
    if "out of memory" in text:
        return OutOfMemory(text)
    return InputError(text) if ended == InputError.exit_code else DeviceError(text)
