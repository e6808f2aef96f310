"""Collect a dataset: plan, measure batch by batch in a worker process, write every result to the journal.

The supervisor holds the journal and never imports torch. A worker that crashes or hangs takes its batch with it: the batch
is then measured one configuration at a time, and the one that does it again is recorded as the culprit.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import selectors
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from neuralpower import __version__
from neuralpower.collect.presets import BLOCK
from neuralpower.dataset import Journal, finished_ids, read_meta, replace_file, seal, write_meta
from neuralpower.devices.host import Cpu, read_cpu, software, worker_environment
from neuralpower.errors import DatasetError, DeviceError, InputError

PROTOCOL_VERSION = 1
BATCH_BYTES = 3 * 2**30  # of memory for them together
ROUNDS = 9
ATTEMPTS = 3  # of a noisy configuration
HANG_S = 120.0  # a batch that takes so much longer than its calls at SLOWEST_FLOPS hangs
SLOWEST_FLOPS = 1e9  # FLOP/s: what a CPU does that has to emulate a dtype
LIBRARIES = ("torch", "transformers", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Request:
    """What the user asked to collect."""

    preset: str
    kinds: tuple[str, ...] | None
    models: tuple[str, ...] | None
    dtypes: tuple[str, ...]
    seed: int
    budget_s: float
    out: Path

    def plan_key(self) -> dict[str, Any]:
        """What the plan depends on; a resumed collection with the same key does the plan minus the results."""
        settings = asdict(self)
        return {name: settings[name] for name in ("preset", "kinds", "models", "dtypes", "seed")}


@dataclass
class Progress:
    """Where a collection stands; handed to the display after every batch."""

    planned: int
    done: int
    measured: int = 0
    failed: int = 0
    spent_s: float = 0.0
    budget_s: float = 0.0


class Worker:
    """The measuring process, started again where it died."""

    def __init__(self, threads: int, command: Sequence[str] | None = None) -> None:
        self.threads = threads
        self.command = list(command or (sys.executable, "-m", "neuralpower.collect.worker"))
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any] | None:
        """The worker's answer; None if it died or gave none in `timeout_s` (it is killed then)."""
        process = self._process if self._process and self._process.poll() is None else self._start()
        if process.stdin is None or process.stdout is None:
            raise DeviceError("the measuring process has no pipes; this is a fault of neuralpower")
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            return None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                self.stop()
                return None
        line = process.stdout.readline()
        if not line.endswith("\n"):  # it died, maybe in the middle of its answer
            self.stop()
            return None
        answer = json.loads(line)
        if "error" in answer:
            raise InputError(answer["error"])
        return dict(answer)

    def _start(self) -> subprocess.Popen[str]:
        self.stop()
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=worker_environment(self.threads),
            start_new_session=True,  # Ctrl-C is for the supervisor, which ends the worker itself
        )
        return self._process

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError), self._process:  # waits, and closes the pipes
                pass
            self._process = None


def collect(
    request: Request, show: Callable[[Progress], None], worker: Worker | None = None, cpu: Cpu | None = None
) -> dict[str, int]:
    """Measure what the plan has and the dataset lacks, within the budget; rows per kind in the sealed dataset.

    Raises:
        DatasetError: the folder cannot be written, is being written by another, or is another device's dataset.
        DeviceError: the worker does not start.
    """
    started = time.monotonic()
    cpu = cpu or read_cpu()
    worker = worker or Worker(cpu.cores)
    with Journal(request.out) as journal:
        meta = _open_meta(request.out, cpu)
        try:
            plan = _plan(request, worker)
            done = finished_ids(request.out)
            items = [item for item in plan if item["config_id"] not in done]
            session = uuid.uuid4().hex[:12]
            journal.append({"type": "session", "session_id": session, **_session(request, cpu)})
            progress = Progress(len(plan), len(plan) - len(items), budget_s=request.budget_s)
            show(progress)
            for results in _measured(items, worker, lambda: time.monotonic() - started > request.budget_s):
                for item, result in results:
                    row = {**item["row"], "source": item["source"], "session_id": session, **result}
                    journal.append({"type": "result", "kind": item["kind"], "row": row})
                    progress.failed += result["status"] != "ok"
                progress.measured += len(results)
                progress.done += len(results)
                progress.spent_s = time.monotonic() - started
                show(progress)
        finally:
            worker.stop()
        meta["sessions"] = _sessions(meta, journal.records())
        write_meta(request.out, meta)  # before the journal, which holds the new ones, is put away
        counts = seal(request.out)
        write_meta(request.out, {**meta, "rows": counts})
    return counts


def _sessions(meta: dict[str, Any], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sessions that are described already, then those of the journal, each once."""
    fresh = ({k: v for k, v in record.items() if k != "type"} for record in records if record["type"] == "session")
    everything = (*meta.get("sessions", []), *fresh)
    return list({str(session.get("session_id", session)): session for session in everything}.values())


def _open_meta(folder: Path, cpu: Cpu) -> dict[str, Any]:
    """The dataset's description, new or as it stands; raises DatasetError for another device's."""
    if (folder / "dataset.json").exists():
        meta = read_meta(folder)
        if meta.get("device") != cpu.name or meta.get("hardware", {}).get("cores") != cpu.cores:
            raise DatasetError(
                f"{folder}: holds measurements of {meta.get('device')!r}, this is {cpu.name!r} with {cpu.cores} cores; "
                "choose another --out"
            )
        return {name: value for name, value in meta.items() if name != "schema"}
    meta = {
        "device": cpu.name,
        "hardware": {"type": "cpu", "l2_bytes": cpu.l2_bytes, **cpu.to_json()},
        "protocol_version": PROTOCOL_VERSION,
        "power_reason": "runtime only: no meter was read",
    }
    write_meta(folder, meta)
    return meta


def _plan(request: Request, worker: Worker) -> list[dict[str, Any]]:
    """The plan, from the folder where an interrupted collection with the same settings left it."""
    file = request.out / "plan.json"
    key = json.loads(json.dumps(request.plan_key()))
    if file.exists():
        try:
            kept = json.loads(file.read_text())
        except ValueError:
            kept = {}
        if isinstance(kept, dict) and kept.get("key") == key and kept.get("version") == __version__:
            return list(kept["plan"])
    answer = worker.ask({"do": "plan", **key})
    if answer is None:
        raise DeviceError("the measuring process died while planning; run `neuralpower devices` to see what works here")
    replace_file(file, json.dumps({"key": key, "version": __version__, "plan": answer["plan"]}))
    return list(answer["plan"])


def _batches(items: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """In order, BLOCK at a time, fewer where their memory would exceed BATCH_BYTES; whole networks apart from layers."""
    batch: list[dict[str, Any]] = []
    size = 0
    for item in items:
        need = item["bytes"]
        mixed = bool(batch) and (item["kind"] == "network") != (batch[-1]["kind"] == "network")
        if batch and (len(batch) == BLOCK or size + need > BATCH_BYTES or mixed):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += need
    if batch:
        yield batch


def _measured(
    items: Sequence[dict[str, Any]], worker: Worker, spent: Callable[[], bool]
) -> Iterator[list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Results batch by batch until all are there or the budget is spent; noisy ones are taken again at the end.

    One batch is measured in any case: the same command, given often enough, comes to an end.
    """
    again: list[dict[str, Any]] = []
    begun = False
    for attempt in range(1, ATTEMPTS + 1):
        todo, again = (list(items), []) if attempt == 1 else (again, [])
        for batch in _batches(todo):
            if begun and spent():
                return
            begun = True
            answers = _ask(batch, worker)
            finished = []
            for item, result in zip(batch, answers, strict=True):
                if result["status"] == "noisy" and attempt < ATTEMPTS:
                    again.append(item)
                else:
                    finished.append((item, {**result, "attempt": attempt, "protocol_version": PROTOCOL_VERSION}))
            yield finished


def _ask(batch: list[dict[str, Any]], worker: Worker) -> list[dict[str, Any]]:
    """Results of a batch; where the worker dies or hangs, of each alone, the culprit's being its end."""
    answer = worker.ask({"do": "measure", "items": batch, "rounds": ROUNDS}, _patience_s(batch))
    if answer is not None:
        return list(answer["results"])
    results = []
    for item in batch:
        start = time.monotonic()
        answer = worker.ask({"do": "measure", "items": [item], "rounds": ROUNDS}, _patience_s([item]))
        if answer is not None:
            results += answer["results"]
        else:
            hung = time.monotonic() - start >= _patience_s([item])
            results.append({"config_id": item["config_id"], "status": "timeout" if hung else "crashed"})
    return results


def _patience_s(batch: Sequence[dict[str, Any]]) -> float:
    """How long to wait for a batch's answer."""
    return HANG_S + ROUNDS * sum(float(item.get("flops", 0)) for item in batch) / SLOWEST_FLOPS


def _session(request: Request, cpu: Cpu) -> dict[str, Any]:
    versions = {"neuralpower": __version__}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue
    return {
        "utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "rounds": ROUNDS,
        "threads": cpu.cores,
        "flush_denormals": True,
        **request.plan_key(),
        **software(versions),
    }
