"""A measuring process that fails on request: dies, hangs, runs out of memory, loses its device or meter.

It stands for `python -m neuralpower.measure.collect`, answers the same requests, and starts in milliseconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from neuralpower.data.dataset import read_dataset
from neuralpower.measure.collect.collection import collect
from neuralpower.measure.collect.process import Local, Worker
from neuralpower.measure.collect.request import Progress, Request

SCRIPT = r"""
import json, os, signal, sys, time

settings = json.loads(sys.argv[1])
taken = {}
poisoned = False
TESTED = {"update_period_s": 0.1}  # as below


def note(word):
    with open(settings["log"], "a") as file:
        file.write(word + "\n")


def item(number):
    row = {"dtype": "float32", "phase": "forward", "rows": number + 1, "width": 8, "strided": False}
    name = "c%04d" % number
    size = settings.get("bytes", 1000)
    return {
        "kind": "softmax",
        "config_id": name,
        "source": "sweep",
        "flops": 40 * number,
        "bytes": size,
        "row": row,
    }


def noted_before(name):
    with open(settings["log"]) as file:
        return file.read().split().count(name)


def measured(name, alone):
    global poisoned
    note(name)
    taken[name] = taken.get(name, 0) + 1
    if name in settings.get("dies", ()) or (name in settings.get("dies_in_company", ()) and not alone):
        os.kill(os.getpid(), 9)
    if name in settings.get("aborts", ()):
        os.abort()
    if name in settings.get("kills_its_parent", ()) and noted_before(name) <= settings.get("kills", 99):
        os.kill(os.getppid(), 9)
        os._exit(1)
    if name in settings.get("hangs", ()):
        if settings.get("ignores_term"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    time.sleep(settings.get("item_s", 0))
    if name in settings.get("fails", {}):
        return {"config_id": name, "status": settings["fails"][name], "error_msg": "as told"}
    if name in settings.get("oom_once", ()) and noted_before(name) == 1:
        return {
            "config_id": name,
            "status": "oom",
            "error_class": "OutOfMemoryError",
            "error_msg": "no memory",
        }
    if name in settings.get("poisons", ()):  # the error is asynchronous: it shows at the next call
        poisoned = True
    elif poisoned or name in settings.get("poisons_at_once", ()):
        return {
            "config_id": name,
            "status": "poisoned",
            "error_class": "AcceleratorError",
            "error_msg": "CUDA error",
        }
    status = "noisy" if taken[name] <= settings.get("noisy", {}).get(name, 0) else "ok"
    runtime_s = 1e-5 * (
        1 + (int(name[1:]) / 1e5 if settings.get("exact") else int.from_bytes(os.urandom(6), "big") / 2**48)
    )
    odd = float(settings.get("odd", {}).get(name, 0))
    return {
        "config_id": name,
        "status": status,
        "runtime_s": runtime_s + odd,
        "steal": odd,
        "samples_s": [runtime_s, 3e-5],
    }


def powered_before(name):
    return open(settings["log"]).read().splitlines().count("power " + name)


def meter_reason():
    starts = [word for word in open(settings["log"]).read().splitlines() if word.startswith("start ")]
    if settings.get("shared_after_start") and len(starts) > settings["shared_after_start"]:
        return "shared"
    return None if settings.get("meter") else "no meter was read"


def metered(name):
    note("power " + name)
    if name in settings.get("dies_powered", ()):
        os.kill(os.getpid(), 9)
    if name in settings.get("kills_its_parent_powered", ()):
        os.kill(os.getppid(), 9)
        os._exit(1)
    if meter_reason():
        return {"config_id": name, "power_source": "none", "power_reason": meter_reason(), "power_w": None}
    if name in settings.get("busy_once", ()) and powered_before(name) == 1:
        return {"config_id": name, "power_source": "none", "power_reason": "nvml_error", "power_w": None}
    if name in settings.get("resets", ()):
        reason = "counter_reset"
        return {
            "config_id": name,
            "power_source": "nvml_energy_counter",
            "power_reason": reason,
            "power_w": None,
        }
    if name in settings.get("host_bound", ()):
        return {"config_id": name, "power_source": "none", "power_reason": "host_bound", "power_w": None}
    if name in settings.get("fails_powered", {}):
        return {
            "config_id": name,
            "status": settings["fails_powered"][name],
            "error_class": "E",
            "error_msg": "as told",
        }
    if name in settings.get("loses_meter", ()):
        return {"config_id": name, "power_source": "none", "power_reason": "meter_lost", "power_w": None}
    window = {"window_runtime_s": settings["window_s"][name]} if name in settings.get("window_s", {}) else {}
    return {
        "config_id": name,
        "power_source": "nvml_energy_counter",
        "power_reason": None,
        "power_w": 100.0,
        **window,
    }


note("start %d" % os.getpid())
for line in sys.stdin:
    request = json.loads(line)
    do = request["do"]
    if do == "open":
        if settings.get("no_start_after") and set(settings["no_start_after"]) & set(
            open(settings["log"]).read().split()
        ):
            os._exit(1)
        time.sleep(settings.get("open_s", 0))
        hardware = {"type": "cpu", "name": "Fake CPU", "cores": 2, **settings.get("hardware", {})}
        reason = meter_reason()
        answer = {"hardware": hardware, "block": settings.get("block", 60), "power_reason": reason}
        answer["versions"] = {"torch": "2.13.0", **settings.get("versions", {})}
        if "tested" in request:
            note("resumed" if request["tested"] else "tested")
            answer["self_test"] = request["tested"] or TESTED
    elif do == "self_test":
        note("tested")
        time.sleep(settings.get("test_s", 0))
        answer = {"self_test": TESTED}
    elif do == "plan":
        note("plan")
        time.sleep(settings.get("plan_s", 0))
        if settings.get("dies_planning"):
            os.kill(os.getpid(), 9)
        answer = settings.get("answer") or {"plan": [item(number) for number in range(settings["count"])]}
    elif do == "power":
        answer = {"results": [metered(item["config_id"]) for item in request["items"]]}
    else:
        names = [item["config_id"] for item in request["items"]]
        note("batch %d" % len(names))
        answer = {"results": [measured(name, len(names) == 1) for name in names]}
        answer["lost"] = bool(set(names) & set(settings.get("loses_device", ())))
        if set(names) & set(settings.get("half", ())):
            sys.stdout.write(json.dumps(answer)[:40])
            sys.stdout.flush()
            os.kill(os.getpid(), 9)
    try:
        print(json.dumps(answer), flush=True)
    except BrokenPipeError:  # the supervisor was killed
        os._exit(0)
"""


TESTED = {"update_period_s": 0.1}  # what its self-test says


@dataclass
class Fake:
    """The command of a fake worker, and what it has been asked so far."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        """Starts in a few milliseconds: no site packages."""
        file = self.folder / "fake.py"
        file.write_text(SCRIPT)
        return [
            sys.executable,
            "-I",
            "-S",
            str(file),
            json.dumps({"log": str(self.folder / "log"), **self.settings}),
        ]

    def executor(self, term_s: float = 2.0) -> Local:
        """To give to `collect`."""
        return Local(Worker(1, self.command, term_s=term_s))

    def log(self, start: str = "c") -> list[str]:
        """The words noted that begin like this; configurations by default."""
        file = self.folder / "log"
        return (
            [word for word in file.read_text().splitlines() if word.startswith(start)]
            if file.exists()
            else []
        )


def waited(condition: Callable[[], bool], limit_s: float = 20) -> None:
    """Wait until it holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s} s"
        time.sleep(0.01)


def is_gone(process: str, folder: str) -> bool:
    """Whether no process of that number was started from the folder."""
    try:
        return folder.encode() not in (Path("/proc") / process / "cmdline").read_bytes()
    except OSError:
        return True


def asked(out: Path, seed: int = 0, budget_s: float = 600, **changes: Any) -> Request:
    """A request that is not looked at by a fake worker; nothing is measured twice unless it says so."""
    request = Request("quick", ("softmax",), ("none",), ("float32",), seed, budget_s, out, replicates=0.0)
    return replace(request, **changes)


def run(
    fake: Fake,
    out: Path,
    seed: int = 0,
    budget_s: float = 600,
    show: Callable[[Progress], None] = lambda progress: None,
    **changes: Any,
) -> list[Progress]:
    """Collect with a fake worker; what was displayed."""
    seen: list[Progress] = []

    def both(progress: Progress) -> None:
        seen.append(replace(progress))
        show(progress)

    collect(asked(out, seed, budget_s, **changes), both, fake.executor(term_s=0.2))
    return seen


def statuses(out: Path) -> dict[str, str]:
    """Status by configuration; each must be there once, replicates apart."""
    table = read_dataset(out).tables["softmax"]
    table = table[table["replicate"].fillna(0) == 0] if "replicate" in table else table
    assert not table["config_id"].duplicated().any()
    return dict(zip(table["config_id"], table["status"], strict=True))


def names(count: int) -> list[str]:
    return [f"c{number:04}" for number in range(count)]


def rows(out: Path) -> Iterator[dict[str, Any]]:
    """The rows of softmax, with None for missing values."""
    table = read_dataset(out).tables["softmax"].astype(object)
    yield from table.where(table.notna(), None).to_dict("records")  # type: ignore[misc]  # names are text
