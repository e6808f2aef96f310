"""A collection, from the lock to the sealed tables: one run resumes the last, and keeps its time."""

from __future__ import annotations

import contextlib
import datetime
import platform
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

from neuralpower.data.journal import Journal
from neuralpower.data.schema import MEASURED, write_meta
from neuralpower.data.sealing import kept_rows, seal
from neuralpower.devices.machine import read_machine, up_since
from neuralpower.errors import DeviceError, LostDeviceError, NeuralPowerError
from neuralpower.measure import ROUNDS
from neuralpower.measure.collect.process import Executor
from neuralpower.measure.collect.request import Progress, Request, preset_named
from neuralpower.measure.collect.resume import (
    Unfinished,
    checkout,
    description,
    planned,
    row_key,
    sessions,
    unfinished,
)
from neuralpower.measure.collect.schedule import (
    POWER,
    PROTOCOL_VERSION,
    RUNTIME,
    Batch,
    BatchSizes,
    Costs,
    Schedule,
    Task,
    batched,
    device_key,
    estimate,
    make_schedule,
    margin_s,
    plan_hash,
    software_key,
)
from neuralpower.measure.meters.base import no_power

ATTEMPTS = 3  # of a noisy configuration
ENDED = "the machine went down twice while only this was measured"
MISMATCH = 0.1  # of the runtime
NOT_MEASURED = "not measured"  # the power_reason of a row whose turn has not come
OF_THE_CALL = (  # reasons of the call, whose power is not tried again; all others are the meter's
    *("host_bound", "too_few_ticks", "no_readings", "no_counter", "counter_anomaly", "power_anomaly"),
    *("oom", "crashed", "timeout", "error", "unsupported"),
)
METER_LOST = ("meter_lost", "gpu_lost", "reset_required")  # reasons after which a meter is not asked again

Taken = tuple[Task, dict[str, Any], float]  # a measured task, its columns, its time (s)


@dataclass(eq=False)
class Collection:
    """One run: its finished tasks, its remaining tasks, and their times."""

    request: Request
    journal: Journal
    executor: Executor
    opened: Mapping[str, Any]
    plan: InitVar[Sequence[dict[str, Any]]]
    unfinished: Unfinished
    earlier: InitVar[Sequence[Mapping[str, Any]]]  # sessions of the folder
    show: Callable[[Progress], None]
    clock: Callable[[], float]
    started: float

    def __post_init__(self, plan: Sequence[dict[str, Any]], earlier: Sequence[Mapping[str, Any]]) -> None:
        request = self.request
        self.session = uuid.uuid4().hex[:12]
        self.attempts: Counter[tuple[str, int]] = Counter()  # at a runtime, also those of earlier runs
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}  # that wait for their power
        self.kept: set[tuple[str, int]] = set()  # that have a row in the folder
        self.owed_s = 0.0  # put aside for the replicates
        self.begun = self.meter_lost = False
        self.plan_hash = plan_hash(plan)
        hardware = self.opened["hardware"]
        self.stamp = {
            "session_id": self.session,
            "device_key": device_key(hardware),
            "software_key": software_key(hardware, self.opened["versions"]),
            "protocol_version": PROTOCOL_VERSION,
        }
        self.costs = Costs.planned_for(hardware.get("type", ""))
        self.sizes = BatchSizes(self.opened["block"])
        preset = preset_named(request.preset, hardware.get("type", ""))
        power = preset.power if self.opened["power_reason"] is None else 0
        if starts := [s["start_s"] for s in earlier if s.get("start_s")]:
            self.costs.start_s = starts[-1]
        replicates = min(request.replicates, preset.replicates)
        schedule = make_schedule(plan, power, request.shard, replicates, preset.powers_per_kind)
        self.todo = self._without_finished(schedule).last(self.attempts)
        self.power_s = min(preset.power_s, self.costs.of(self.todo.power))
        count, left = (len(s.runtime) + len(s.runtime_again) for s in (schedule, self.todo))
        outlook = estimate(self.todo.tasks, self.costs, request.budget_s, self.executor.lanes)
        self.progress = Progress(count, count - left, outlook, budget_s=request.budget_s, kept=len(self.kept))

    def _without_finished(self, schedule: Schedule) -> Schedule:
        """The tasks without a result in the folder; its rows update the expected time of tasks."""
        tasks = {(task.tier, task.key): task for task in schedule.tasks}
        timed: set[tuple[str, int]] = set()
        metered: set[tuple[str, int]] = set()
        columns = "config_id replicate status attempt power_w power_reason wall_s power_wall_s".split()
        for _, row in kept_rows(self.request.folder, columns):
            key = row_key(row)
            self.kept.add(key)
            if row.get("status") == "noisy" and (row.get("attempt") or ATTEMPTS) < ATTEMPTS:
                self.attempts[key] = int(row["attempt"])
                continue
            for tier, seen, seconds in ((RUNTIME, timed, "wall_s"), (POWER, metered, "power_wall_s")):
                if (tier == RUNTIME or _power_settled(row)) and key not in seen:
                    seen.add(key)
                    if row.get(seconds) and row.get("status") == "ok" and (tier, key) in tasks:
                        self.costs.add([tasks[tier, key]], row[seconds])
        power = {key for tier, key in tasks if tier == POWER}
        self.pending = power - metered
        waiting = {name for name, _ in self.pending & timed}
        for _, row in kept_rows(self.request.folder, ids=waiting) if waiting else ():
            self._remember(row)
        return schedule.without(timed, metered)

    def _remember(self, row: dict[str, Any]) -> None:
        """Keep a row whose power is still to be measured."""
        if row_key(row) in self.pending and row.get("status") == "ok":
            self.rows[row_key(row)] = row

    def begin(self, answer: Mapping[str, Any]) -> None:
        """Write a session: who measures, on what, and the `answer` of its process to `self_test`."""
        self.costs.start_s = self.clock() - self.started
        self.journal.append(
            {
                "type": "session",
                **self.stamp,
                "utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "rounds": ROUNDS,
                "threads": self.opened["hardware"].get("cores"),
                "shard": list(self.request.shard),
                "start_s": self.costs.start_s,
                "power": self.request.power,
                "power_reason": self.opened["power_reason"],
                "self_test": answer["self_test"],
                "lanes": answer.get("lanes"),
                **self.request.plan_key(),
                "plan_hash": self.plan_hash,
                "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
                **checkout(),
                "python": platform.python_version(),
                **self.opened["versions"],
                "up": up_since(),
                "settings": self.opened.get("settings"),
                "machine": self.opened.get("machine") or read_machine(),
            }
        )
        self._tell()

    def run(self) -> None:
        """Measure what fits the budget, and at least one task: repeated runs then come to an end."""
        self._keep_all([(task, {"status": "crashed", "error_msg": ENDED}, 0.0) for task in self._culprits()])
        for task in (*self.todo.power, *self.todo.power_again):
            if task.key in self.unfinished.power_culprits & self.rows.keys():
                self._powered(task, {"status": "crashed"}, 0.0)
        again, power_again = self.todo.runtime_again, self.todo.power_again
        self.owed_s = self.power_s
        self._runtimes(self.todo.runtime)
        self.owed_s = 0.0
        self._powers(self._affordable(again, power_again))
        self._runtimes(again, fresh=True)
        waiting = {name for name, replicate in self.rows if not replicate}  # there was no time for its power
        self._powers([task for task in power_again if task.key[0] not in waiting])

    def _affordable(self, again: Sequence[Task], power_again: Sequence[Task]) -> Iterator[Task]:
        """Tasks of power; time is put aside for replicates, of power for those whose first task has begun."""
        twice = {task.key[0]: task for task in power_again}
        first = [task for task in self.todo.power if task.key in self.rows]
        waiting = {task.key[0] for task in first}
        begun = [task for name, task in twice.items() if name not in waiting]
        self.owed_s = self.costs.of([*again, *begun]) + self.costs.restart_s * bool(again or twice)
        for task in first:
            self.owed_s += self.costs.of([twice[task.key[0]]] if task.key[0] in twice else [])
            yield task
        self.owed_s = 0.0

    def _powers(self, tasks: Iterable[Task]) -> None:
        for batch, results, seconds in self.executor.run(self._issued(tasks, 1, fresh=False)):
            self._powered(batch.tasks[0], results[0], seconds)
        self.owed_s = 0.0

    def _culprits(self) -> list[Task]:
        """Take out the tasks that the machine went down with twice: they are not measured a third time."""
        culprits = self.unfinished.culprits
        tasks = [*self.todo.runtime, *self.todo.runtime_again]
        self.todo = self.todo.without(culprits, set())
        return [task for task in tasks if task.key in culprits]

    def _runtimes(self, tasks: Sequence[Task], fresh: bool = False) -> None:
        """Time them; noisy ones are repeated at the end, or by a later run."""
        noisy: dict[tuple[str, int], Task] = {}
        for attempt in range(1, ATTEMPTS + 1):
            again: dict[tuple[str, int], Task] = {}
            for batch, results, seconds in self.executor.run(self._issued(tasks, attempt, fresh)):
                if batch.fresh:  # its time is a process's start more than anything else
                    self.costs.restart_s = seconds
                    seconds = self.costs.of(batch.tasks)
                elif all(result["status"] in ("ok", "noisy") for result in results):
                    self.costs.add(batch.tasks, seconds)
                if not batch.fresh:
                    self.sizes.add(batch.tasks, seconds)
                finished, unsettled = [], []
                parts = self.costs.parts(batch.tasks, seconds)
                for task, result, part in zip(batch.tasks, results, parts, strict=True):
                    noisy.pop(task.key, None)
                    self.attempts[task.key] += 1
                    taken = task, {**result, "attempt": self.attempts[task.key]}, part
                    if result["status"] == "noisy" and self.attempts[task.key] < ATTEMPTS:
                        again[task.key] = task
                        unsettled.append(taken)
                    else:
                        finished.append(taken)
                self._keep_all(unsettled, settled=False)  # a killed run keeps them, and their attempt counts
                self._keep_all(finished)
            self.progress.measured += len(noisy)  # there is no time left to repeat these
            self.progress.noisy += len(noisy)
            tasks, noisy, fresh = list(again.values()), again, False

    def _issued(self, tasks: Iterable[Task], attempt: int, fresh: bool) -> Iterator[Batch]:
        """Batches, each announced in the journal, as long as there is time."""
        for number, batch in enumerate(batched(tasks, self.sizes, self.unfinished.suspects)):
            anew = fresh and number < self.executor.lanes
            left_s = self._left_s() - self.owed_s - self.costs.restart_s * anew
            if self.begun and left_s < self.costs.of(batch):
                return
            if batch[0].tier == POWER and (self.meter_lost or batch[0].key not in self.rows):
                continue
            issued = batch
            # as much of the first batch as fits, to within a factor of 2, and one task in any case
            while not self.begun and len(issued) > 1 and self.costs.of(issued) > left_s:
                issued = issued[: len(issued) // 2]
            self.begun = True
            names = [list(task.key) for task in issued]
            self.journal.append(
                {"type": "start", "tier": batch[0].tier, "attempt": attempt, "tasks": names}, sync=False
            )
            yield Batch(tuple(issued), self.costs.patience(issued), anew)
            if len(issued) < len(batch):
                return

    def _left_s(self) -> float:
        budget_s = self.request.budget_s
        return budget_s - margin_s(budget_s) - (self.clock() - self.started)

    def _keep_all(self, finished: Sequence[Taken], settled: bool = True) -> None:
        """Write rows; those that are not `settled` are measured again, and count as measured then."""
        records = []
        for task, result, seconds in finished:
            reason = self.opened["power_reason"] or NOT_MEASURED
            row = {
                **task.item["row"],
                "source": task.item["source"],
                "config_id": task.item["config_id"],
                **self.stamp,
                "replicate": task.replicate,
                **no_power(reason),
                "wall_s": seconds,
                **result,
            }
            records.append({"type": "result", "kind": task.item["kind"], "row": row})
            self._remember(row)
            self.kept.add(task.key)
            self.progress.noisy += settled and result["status"] == "noisy"
            self.progress.failed += result["status"] not in ("ok", "noisy")
        if not records:
            return
        self.journal.append(*records)
        self.progress.measured += len(records) * settled
        self.progress.done += len(records) * settled
        self.progress.kept = len(self.kept)
        self._tell()

    def _powered(self, task: Task, result: dict[str, Any], seconds: float) -> None:
        """Write the task's row again, with its power; its runtime stands, whatever became of that."""
        row = self.rows.pop(task.key)
        if "status" in result:  # the process ended, or the call failed
            columns: dict[str, Any] = {"power_reason": result["status"]}
        else:
            columns = dict(result)
            self.costs.add([task], seconds)
        flags = [*(row.get("flags") or ()), *columns.get("flags", ()), *_mismatch(row, columns)]
        columns["flags"] = list(dict.fromkeys(flags)) or None
        known = {name: value for name, value in row.items() if value is not None}
        how = {"power_session_id": self.session, "power_wall_s": seconds}
        row = {**self.stamp, **known, **no_power(), **columns, **how}
        self.journal.append({"type": "result", "kind": task.item["kind"], "row": row})
        self.progress.powered += row["power_w"] is not None
        if columns.get("power_reason") in METER_LOST and not self.meter_lost:
            self.meter_lost = True
            self.journal.append({"type": "event", "event": "meter_lost", "config_id": task.key[0]})
        self._tell()

    def _tell(self) -> None:
        self.progress.spent_s = self.clock() - self.started
        self.show(self.progress)


def _mismatch(row: Mapping[str, Any], columns: Mapping[str, Any]) -> tuple[str, ...]:
    """A flag for a call whose time in its power window differs from its runtime."""
    seconds = columns.get("window_runtime_s")
    known = seconds and row.get("runtime_s")
    return ("window_mismatch",) if known and abs(seconds / row["runtime_s"] - 1) > MISMATCH else ()


def _power_settled(row: Mapping[str, Any]) -> bool:
    """Whether a row's power needs no further turn: it is known, was tried, or the call fails."""
    reason = row.get("power_reason") or OF_THE_CALL[0]
    tried = row.get("power_wall_s") is not None and reason.partition(":")[0] in OF_THE_CALL
    return row.get("power_w") is not None or tried or row.get("status") != "ok"


# ---- Collect a dataset ----
#     session     who measures, on what, with which software; what the meter can do
#     start       the configurations of a batch, before it is measured
#     result      a row, as soon as it is there; only then it counts as measured
#     event       stop, device_lost, meter_lost
#
# The supervisor holds the journal and never imports torch. A resumed run measures the plan minus the
# results.


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
            new = {name: {**opened["hardware"], **tested}.get(name) for name in MEASURED}
            meta["hardware"] |= {name: value for name, value in new.items() if value is not None}
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
