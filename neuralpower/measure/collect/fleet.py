"""A fleet: the devices of an existing Ray cluster measure one collection, and the driver keeps its journal.

A node offers its devices as a custom resource, one unit each, and has neuralpower installed:

    ray start --address HEAD:6379 --resources '{"neuralpower": 1}'
    neuralpower collect-data --executor ray --address HEAD:6379

Each unit becomes a lane: an actor that holds the unit, its device's lock and a measuring process, and gets
one batch at a time. The batch of a lost node is measured elsewhere; only returned results are in the journal.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from neuralpower.devices.host import read_cpu
from neuralpower.errors import DeviceError, InputError, LostDeviceError, NeuralPowerError, first_line
from neuralpower.measure.collect.process import DeviceLock, Local, Results, Worker
from neuralpower.measure.collect.schedule import Batch, device_key, software_key

RESOURCE = "neuralpower"
CONNECT_S = 5.0


class Lane(Local):
    """One device of the cluster, in an actor of its node, where Ray numbers the actor's devices from 0."""

    def __init__(self, command: Callable[[], list[str]], device: str, wait: bool) -> None:
        lock = DeviceLock("cpu" if device == "cpu" else "cuda:0", wait)
        super().__init__(Worker(read_cpu().cores, command()), lock)

    def timed(self, batch: Batch) -> tuple[Results, float]:
        """The batch's results, and the seconds that they took."""
        ((_, results, seconds),) = self.run([batch])
        return results, seconds


class Fleet:
    """All devices that a Ray cluster offers; they are of one model, with the same software."""

    def __init__(
        self,
        address: str | None,
        command: Callable[[], list[str]],
        device: str = "cpu",
        wait: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`say` gets a line for each device that is lost."""
        self.address, self.command, self.device, self.wait, self.say = address, command, device, wait, say
        self._lanes: list[Any] = []
        self._abouts: list[dict[str, Any]] = []  # what each answered when it was opened
        self._connected = False

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    def hold(self) -> None:
        """Join the cluster, and take every device that it offers."""
        self._connect()
        for reference in [lane.hold.remote() for lane in self._lanes]:
            self._got(reference)
        self._compare()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The first device's answer; to a self-test that of all.

        Each device tests its own meter, since its later processes need the result.
        """
        if request["do"] != "self_test":
            return dict(self._got(self._lanes[0].ask.remote(request)))
        tested = []
        asked = [lane.ask.remote(request) for lane in self._lanes]
        for lane, about, reference in zip([*self._lanes], self._abouts, asked, strict=True):
            try:
                tested.append({**about, **self._got(reference)})
            except LostDeviceError:
                self._lanes.remove(lane)
                if not self._lanes:
                    raise
        return {"self_test": tested[0]["self_test"], "lanes": tested}

    def run(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Results, float]]:
        """Batches as they are done, one at a time per device; raises LostDeviceError if no device is left."""
        import ray

        source, lost = iter(batches), deque[Batch]()
        free, busy = list(self._lanes), dict[Any, tuple[Any, Batch]]()
        while True:
            while free and (batch := lost.popleft() if lost else next(source, None)) is not None:
                lane = free.pop()
                busy[lane.timed.remote(batch)] = lane, batch
            if not busy:
                if lost:
                    raise LostDeviceError(
                        f"Ray cluster {self.address}: all devices are lost; start nodes, then run it again"
                    )
                return
            (done, *_), _ = ray.wait(list(busy))
            lane, batch = busy.pop(done)
            try:
                results, seconds = self._got(done)
            except LostDeviceError as error:
                self._lanes.remove(lane)
                lost.append(batch)
                left = f"{len(self._lanes)} of {len(self._abouts)} devices are left"
                self.say(f"Warning: a device is lost ({error}); its tasks are measured elsewhere, {left}")
                continue
            free.append(lane)
            yield batch, results, seconds

    def close(self) -> None:
        """End the measuring processes, give the devices back, and leave the cluster as it was found."""
        if not self._connected:
            return
        import ray

        closing = [lane.close.remote() for lane in self._lanes] or [ray.put(None)]
        ray.wait(closing, num_returns=len(closing), timeout=5)
        self._connected, self._lanes = False, []
        ray.shutdown()
        _prints(ray, True)

    def _connect(self) -> None:
        """Join the cluster and make a lane of every device that it offers; raises InputError, DeviceError."""
        ray = _ray()
        _reachable(self.address)
        try:
            with _nothing_to_import():
                ray.init(
                    address=self.address, log_to_driver=False, logging_level="error", ignore_reinit_error=True
                )
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            raise _no_cluster(self.address, error) from None
        self._connected = True
        _prints(ray, False)
        deadline = time.monotonic() + CONNECT_S
        while not (count := int(ray.available_resources().get(RESOURCE, 0))):
            if not ray.cluster_resources().get(RESOURCE, 0) or time.monotonic() > deadline:
                break
            time.sleep(0.1)  # what another driver has just given back is free a moment later
        if not count:
            offered = int(ray.cluster_resources().get(RESOURCE, 0))
            raise InputError(
                f"Ray cluster {self.address}: {offered} devices are offered and 0 are free; "
                f"start a node with ray start --resources '{{\"{RESOURCE}\": 1}}'"
            )
        actor = ray.remote(Lane).options(
            resources={RESOURCE: 1}, num_cpus=0, num_gpus=int(self.device != "cpu")
        )
        self._lanes = [actor.remote(self.command, self.device, self.wait) for _ in range(count)]

    def _compare(self) -> None:
        """Open all devices; raises InputError unless they are of one model, with the same software."""
        self._abouts = [self._got(lane.ask.remote({"do": "open"})) for lane in self._lanes]
        names: dict[tuple[str, str], str] = {}
        for about in self._abouts:
            hardware = about["hardware"]
            names[device_key(hardware), software_key(hardware, about["versions"])] = hardware["name"]
        if len(names) > 1:
            raise InputError(
                f"Ray cluster {self.address}: its devices or their software differ "
                f"({', '.join(names.values())}); offer the resource {RESOURCE} on nodes of one kind"
            )

    def _got(self, reference: Any) -> Any:
        """An actor's answer; raises its error, and LostDeviceError if it is gone."""
        import ray

        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, NeuralPowerError) else DeviceError(str(cause))) from None
        except ray.exceptions.RayActorError as error:
            raise LostDeviceError(first_line(error)) from None


def _ray() -> Any:  # its types are incomplete
    try:
        import ray
    except ImportError:
        raise InputError("executor ray: Ray is not installed; pip install ray") from None
    return ray


def _prints(ray: Any, on: bool) -> None:
    """Switch what Ray prints of others' processes, as its debugger does: of a lost node that is 40 lines."""
    ray._private.worker._worker_logs_enabled = on


@contextlib.contextmanager
def _nothing_to_import() -> Iterator[None]:
    """Work within in an empty folder: Ray has its actors import from the driver's working folder first."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        try:
            yield
        finally:
            os.chdir(before)


def _reachable(address: str | None) -> None:
    """Raise InputError unless something listens at HOST:PORT; Ray itself would try for a minute."""
    if address is None:
        raise InputError("executor ray: no cluster is given; add --address auto, or --address HOST:6379")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str | None, error: Exception) -> InputError:
    return InputError(
        f"address {address!r}: no Ray cluster answers ({first_line(error)}); "
        "start one with ray start --head, or remove --executor ray"
    )
