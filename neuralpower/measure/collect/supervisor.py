"""Collect a dataset: plan, measure batch by batch in other processes, write every result to the journal.

    session     who measures, on what, with which software; what the meter can do
    start       the configurations of a batch, before it is measured
    result      a row, as soon as it is there; only then it counts as measured
    event       stop, device_lost, meter_lost

The supervisor holds the journal and never imports torch. A resumed run measures the plan minus the results.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from neuralpower.data.journal import Journal
from neuralpower.data.schema import write_meta
from neuralpower.data.sealing import seal
from neuralpower.devices.machine import up_since
from neuralpower.errors import DeviceError, LostDeviceError, NeuralPowerError
from neuralpower.measure.collect.collection import Collection
from neuralpower.measure.collect.recover import Executor
from neuralpower.measure.collect.request import Progress, Request
from neuralpower.measure.collect.resume import description, planned, sessions, unfinished


def collect(
    request: Request,
    show: Callable[[Progress], None],
    executor: Executor,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, int]:
    """Measure what the dataset lacks of the plan, within the budget; rows per kind in the sealed dataset.

    Raises:
        DatasetError: the folder cannot be written, is written by another, or holds another device's dataset.
        InputError: another collection measures on the device.
        DeviceError: no process measures; the device, the disk, or the requested meter is lost.
    """
    folder = request.folder
    with Journal(folder) as journal:
        with contextlib.closing(executor):
            executor.hold()
            started = clock()  # the time that others have the device is not the collection's
            opened = executor.ask({"do": "open"})
            records = journal.records()
            meta = description(folder, opened, records)
            if request.power not in ("auto", "none") and opened["power_reason"]:
                raise DeviceError(
                    f"power {request.power}: {opened['power_reason']}; "
                    "correct that, or give --power auto for runtime alone"
                )
            plan = planned(folder, request.plan_key(), executor)
            if not (folder / "dataset.json").exists():  # whatever is refused so far leaves no file behind
                write_meta(folder, meta)
            left, before = unfinished(records, up_since()), sessions(meta, records)
            collection = Collection(
                request, journal, executor, opened, plan, left, before, show, clock, started
            )
            with _noted(journal):
                answer = executor.ask({"do": "self_test"})
                tested = answer["self_test"]
                collection.begin(answer)
                collection.run()
            if tested.get("idle_w") is not None:
                meta["hardware"] = {**meta["hardware"], "idle_w": tested["idle_w"]}
        meta["sessions"] = sessions(meta, journal.records())
        write_meta(folder, meta)  # before the journal, which holds the new ones, is put away
        counts = seal(folder)
        write_meta(folder, {**meta, "rows": counts})
    if collection.meter_lost and request.power not in ("auto", "none"):
        raise DeviceError(
            f"power {request.power}: the meter has stopped answering; runtimes are kept in {folder}, "
            "check the meter, then run the same command again"
        )
    return counts


@contextlib.contextmanager
def _noted(journal: Journal) -> Iterator[None]:
    """Write how the run ended, also where it ended badly."""
    try:
        yield
        journal.append({"type": "event", "event": "stop", "reason": "finished or out of time"})
    except BaseException as error:
        event = "device_lost" if isinstance(error, LostDeviceError) else "stop"
        with contextlib.suppress(NeuralPowerError):  # the disk is full: the error itself says so
            journal.append({"type": "event", "event": event, "reason": str(error) or type(error).__name__})
        raise
