"""Results of a batch, whatever it does to the process that measures it.

A process that dies or hangs takes its batch with it: the batch is then measured one by one, and a task that
ends the process alone is the culprit. A task that ran out of memory, or left the device unusable, is tried
once more, alone, in a fresh process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from neuralpower.errors import DeviceError, LostDeviceError
from neuralpower.measure.collect.lock import DeviceLock
from neuralpower.measure.collect.process import Ended, Worker
from neuralpower.measure.collect.schedule import NETWORK, POWER, Batch, Task
from neuralpower.measure.meters.base import no_power
from neuralpower.measure.rounds import NETWORK_ROUNDS, ROUNDS

Results = list[dict[str, Any]]  # in the order of the batch's tasks
SUSPECT = ("oom", "poisoned")  # after which a process is not trusted
TRIED_TWICE = (*SUSPECT, "crashed")


class Executor(Protocol):
    """The place where measuring processes run."""

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
        """As in the protocol."""
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
        """As in the protocol."""
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
