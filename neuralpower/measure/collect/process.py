"""The measuring process as its owner sees it: ask, wait for the answer, end it for good."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from neuralpower.devices.host import worker_environment
from neuralpower.errors import DeviceError, InputError, LostDeviceError
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
