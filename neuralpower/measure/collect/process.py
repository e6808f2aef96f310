"""The measuring process as its owner sees it: its device, its answers, its end, and its results."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from neuralpower.devices.host import card_uuid, index_of, worker_environment
from neuralpower.errors import DeviceError, InputError, LostDeviceError
from neuralpower.files import locks
from neuralpower.measure import NETWORK_ROUNDS, ROUNDS
from neuralpower.measure.collect.schedule import NETWORK, POWER, Batch, Task
from neuralpower.measure.meters.base import no_power
from neuralpower.processes.tether import environment, python

START_S = 120.0  # the longest time to import torch and open the device
SELF_TEST_S, PLAN_S = 120.0, 1200.0  # the longest times of these requests
TERM_S, KILL_S = 2.0, 10.0  # from a polite end to a hard one, and from that to giving up


def command(device: str = "cpu", power: str = "auto") -> list[str]:
    """The command that starts a measuring process for a device and its meter."""
    return [*python("neuralpower.measure.collect"), "--device", device, "--power", power]


class Ended(Exception):  # noqa: N818  # what happened, not yet a fault
    """The process gave no answer; `status` is crashed or timeout."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class Worker:
    """The measuring process, started again where it died."""

    def __init__(
        self, threads: int, command: Sequence[str], term_s: float = TERM_S, kill_s: float = KILL_S
    ) -> None:
        self.threads = threads
        self.command = list(command)
        self.term_s, self.kill_s = term_s, kill_s
        self.tested: dict[str, Any] | None = None  # what the meter's self-test found, for later processes
        self.meter_lost = False  # an earlier process had a meter, and this one has none
        self._metered = False
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any], patience_s: float | None = None) -> dict[str, Any]:
        """The worker's answer; a process without one after `patience_s` (or the usual time) is ended.

        Raises:
            Ended: it died, or gave no answer in time.
            InputError, DeviceError: the worker's message to the user.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
            # opening the device has a time of its own
            if self.tested is not None or self._metered or "items" in request:
                self._told({"do": "open", "tested": self.tested})
        return self._told(request, patience_s)

    def _told(self, request: dict[str, Any], patience_s: float | None = None) -> dict[str, Any]:
        """The answer; what later processes need of it is kept."""
        answer = self._exchange(request, _longest_s(request) if patience_s is None else patience_s)
        self.tested = answer.get("self_test", self.tested)
        if "power_reason" in answer:
            self.meter_lost = self._metered and answer["power_reason"] is not None
            self._metered |= answer["power_reason"] is None
        return answer

    def _exchange(self, request: dict[str, Any], patience_s: float) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise DeviceError("the measuring process has no pipes; this is a fault of neuralpower")
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            raise Ended("crashed") from None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(patience_s):
                self.stop()
                raise Ended("timeout")
        line = process.stdout.readline()
        if not line.endswith("\n"):  # it died, maybe in the middle of its answer
            self.stop()
            raise Ended("crashed")
        answer = json.loads(line, parse_constant=lambda _: None)  # NaN and infinity are no JSON
        if "error" in answer:
            lost = answer.get("exit_code") == DeviceError.exit_code
            raise (DeviceError if lost else InputError)(answer["error"])
        return dict(answer)

    def _start(self) -> None:
        self.stop()
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(worker_environment(self.threads)),
            start_new_session=True,  # Ctrl-C is for the supervisor, which ends the worker itself
        )

    def stop(self) -> None:
        """End the process and its children: TERM, later KILL; raises LostDeviceError if it survives both."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            for number, patience_s in ((signal.SIGTERM, self.term_s), (signal.SIGKILL, self.kill_s)):
                if _ended(process, number, patience_s):
                    return
            raise LostDeviceError(
                f"the measuring process {process.pid} cannot be ended, the device hangs in it; "
                "reset the device, and run the same command again"
            )
        finally:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # unread data
                        pipe.close()


def _longest_s(request: dict[str, Any]) -> float:
    """Seconds that a request may take in a process that has just been started."""
    testing = request["do"] == "self_test" or ("tested" in request and request["tested"] is None)
    return START_S + (SELF_TEST_S if testing else PLAN_S if request["do"] == "plan" else 0.0)


def _ended(process: subprocess.Popen[str], number: signal.Signals, patience_s: float) -> bool:
    """Whether the process is reaped within `patience_s` of the signal to its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return False
    return True


# ---- One collection per device of a host, whatever folders they write to ----
# A GPU is known by its UUID. A processor is one device per host: measurements on its other cores share its
# memory and its power. The lock belongs to the process (flock) and vanishes with it, however it ends; the
# empty
# file stays. Collections see each other if they share TMPDIR.


def lock_name(device: str, uuid_of: Callable[[str], str | None] = card_uuid) -> str:
    """The host's name of "cpu" or "cuda:0": its UUID, else its place in CUDA_VISIBLE_DEVICES."""
    if device == "cpu":
        return device
    index = index_of(device)
    visible = [place for place in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if place]
    return uuid_of(device) or f"cuda-{visible[index] if index < len(visible) else index}"


class DeviceLock:
    """A device to oneself, from `acquire` to `release`."""

    def __init__(
        self,
        device: str,
        wait: bool = False,
        folder: Path | None = None,
        say: Callable[[str], None] = lambda line: None,
        uuid_of: Callable[[str], str | None] = card_uuid,
    ) -> None:
        self.device, self.wait, self.say, self.uuid_of = device, wait, say, uuid_of
        self.folder = folder or Path(tempfile.gettempdir())
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the device; with `wait` as soon as another collection has given it back.

        Raises:
            InputError: another collection has it, or no lock can be kept in the folder.
        """
        name = re.sub(r"[^A-Za-z0-9]+", "-", lock_name(self.device, self.uuid_of))
        path = self.folder / f"neuralpower-{name}.lock"
        try:
            descriptor = _opened(path)
        except OSError as error:
            raise InputError(
                f"{path}: no lock can be kept there ({error.strerror}); "
                "set TMPDIR to a folder that can be written"
            ) from None
        try:
            self._locked(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _locked(self, descriptor: int) -> None:
        where = f"host {socket.gethostname()}, device {self.device}"
        try:
            locks.take(descriptor)
        except BlockingIOError:
            if not self.wait:
                raise InputError(
                    f"{where}: another collection is measuring on it; wait for it, or add --wait-for-device"
                ) from None
            self.say(f"{where}: waiting for another collection to end")
            locks.take(descriptor, wait=True)


def _opened(path: Path) -> int:
    """The file, also another user's: to read it is enough to lock it. Raises OSError."""
    no_link = getattr(os, "O_NOFOLLOW", 0)
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | no_link)
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | no_link, 0o644)
    with contextlib.suppress(OSError):  # another made it in between
        path.chmod(0o644)  # whatever the umask
    return descriptor


# ---- Results of a batch, whatever it does to the process that measures it ----
# A process that dies or hangs takes its batch with it: the batch is then measured one by one, and a task
# that
# ends the process alone is the culprit. A task that ran out of memory, or left the device unusable, is
# tried
# once more, alone, in a fresh process.


Results = list[dict[str, Any]]  # in the order of the batch's tasks
SUSPECT = ("oom", "poisoned")  # after which a process is not trusted
TRIED_TWICE = (*SUSPECT, "crashed")


class Executor(Protocol):
    @property
    def lanes(self) -> int:
        """Batches that are measured at the same time."""

    def hold(self) -> None:
        """Take the devices until `close`; raises InputError where another collection measures on one."""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One process's answer to a request that measures nothing; raises DeviceError where there is none."""

    def run(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Results, float]]:
        """Batches as they are done, their results, and the seconds that each took; raises LostDeviceError."""

    def close(self) -> None:
        """End the processes, and give the devices back."""


class Local:
    """One measuring process on this machine."""

    lanes = 1

    def __init__(self, worker: Worker, lock: DeviceLock | None = None) -> None:
        self.worker, self.lock = worker, lock

    def hold(self) -> None:
        """As in the protocol; without a lock nobody is kept out."""
        if self.lock is not None:
            self.lock.acquire()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.worker.ask(request)
        except Ended as end:
            how = "gave no answer" if end.status == "timeout" else "died"
            raise DeviceError(
                f"the measuring process {how} at {request['do']!r}; "
                "run `neuralpower devices` to see what works here"
            ) from None

    def run(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Results, float]]:
        """As in the protocol, one after the other."""
        for batch in batches:
            start = time.monotonic()
            results = self.measure(batch)
            yield batch, results, time.monotonic() - start

    def close(self) -> None:
        try:
            self.worker.stop()
        finally:
            if self.lock is not None:
                self.lock.release()

    def measure(self, batch: Batch) -> Results:
        """A result with a `status`, or the columns of power, per task; raises LostDeviceError."""
        if batch.fresh:
            self.worker.stop()
        alone = len(batch.tasks) == 1
        again = TRIED_TWICE if alone else (*TRIED_TWICE, "timeout")
        results = [
            self._once(batch, (task,))[0] if result.get("status") in again else result
            for task, result in zip(batch.tasks, self._once(batch, batch.tasks), strict=True)
        ]
        if any(result.get("status") in ("crashed", "timeout") for result in results):
            self._probe()
        return [
            {**result, "status": "crashed"} if result.get("status") == "poisoned" else result
            for result in results
        ]

    def _once(self, batch: Batch, tasks: tuple[Task, ...]) -> Results:
        """The answer for some of a batch's tasks, or for each of them how the process ended."""
        items = [task.item for task in tasks]
        rounds = NETWORK_ROUNDS if items[0]["kind"] == NETWORK else ROUNDS  # these come apart
        request = {"do": batch.tier, "items": items, "rounds": rounds}
        try:
            answer = self.worker.ask(request, batch.patience_s)
        except Ended as end:
            return [{"config_id": task.item["config_id"], "status": end.status} for task in tasks]
        if answer.get("lost"):
            raise LostDeviceError(
                "the device has stopped answering; check it, then run the same command again"
            )
        results: Results = answer["results"]
        if any(result.get("status") in SUSPECT for result in results):
            self.worker.stop()
        if self.worker.meter_lost and batch.tier == POWER:  # whatever the rig calls it
            return [{**result, **no_power("meter_lost")} for result in results]
        return results

    def _probe(self) -> None:
        """Raise LostDeviceError unless the device works in a fresh process."""
        try:
            self.worker.ask({"do": "open"})
        except Ended as end:
            raise LostDeviceError(
                f"no measuring process starts any more ({end.status}); "
                "run `neuralpower devices` to see what works here"
            ) from None
