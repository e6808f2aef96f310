"""Start the ranks of an exchange, read what rank 0 measures, and end them all, however it goes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuralpower.devices.host import worker_environment
from neuralpower.errors import DeviceError
from neuralpower.files.json_files import json_text
from neuralpower.measure.exchanges.request import Exchanges
from neuralpower.processes.tether import environment, python

MODULE = "neuralpower.measure.exchanges.ranks"
START_S, PATIENCE_S = 120.0, 60.0  # longest times to import torch and meet, and of one exchange's rounds
LOOK_S = 0.1  # between two looks at processes that say nothing


@dataclass
class Measured:
    """Rows in a dataset's columns, and functions that the backend lacks."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    unsupported: set[str] = field(default_factory=set)


def measured(
    asked: Exchanges,
    show: Callable[[int, int], None] = lambda done, planned: None,
    patience_s: float = PATIENCE_S,
    module: str = MODULE,
) -> Measured:
    """Measure; `show` gets the number of exchanges done, and of all.

    Raises:
        DeviceError: a rank ended or hangs; one line that names it and the exchange.
    """
    order, found = asked.order(), Measured()
    request = {**asked.to_json(), "order": order, "patience_s": patience_s}
    with (
        tempfile.TemporaryDirectory() as folder,
        _started(asked.ranks, Path(folder), request, module) as ranks,
    ):
        now = _Now()
        for line in _lines(ranks, now):
            if "begun" in line:
                function, elements = line["begun"]
                now.doing = f"they exchanged {4 * elements:,} bytes by {function}"
                now.patience_s = patience_s
            elif "unsupported" in line:
                found.unsupported.add(line["unsupported"])
            else:
                fixed = {"dtype": "float32", "phase": "forward", "nodes": 1}
                found.rows.append({**fixed, **line, "ranks": asked.ranks, "library": asked.backend})
                show(len(found.rows), len(order))
    return found


@dataclass
class _Now:
    """What the ranks do, and how long they may."""

    doing: str = "they met"
    patience_s: float = START_S


@contextlib.contextmanager
def _started(
    ranks: int, folder: Path, request: dict[str, Any], module: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes; none is left at the end."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(ranks):
            errors = (folder / f"errors-{rank}").open("w")
            with errors:
                processes.append(
                    subprocess.Popen(
                        [*python(module), str(folder / "store"), str(rank), json_text(request)],
                        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                        stderr=errors,
                        text=True,
                        env=environment(worker_environment(1)),
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _lines(ranks: Sequence[subprocess.Popen[str]], now: _Now) -> Iterator[dict[str, Any]]:
    """What rank 0 prints, until all have ended well; raises DeviceError."""
    output = ranks[0].stdout
    assert output is not None
    last = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            if selector.select(LOOK_S):
                line = output.readline()
                if not line:
                    break
                last = time.monotonic()
                yield json.loads(line)
                continue
            _check_alive(ranks, now.doing)
            if time.monotonic() - last > now.patience_s:
                raise DeviceError(
                    f"{len(ranks)} ranks gave no answer for {now.patience_s:g} s while {now.doing}; "
                    "choose another --backend, or fewer --ranks"
                )
    for process in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(now.patience_s)
    _check_alive(ranks, now.doing)


def _check_alive(ranks: Sequence[subprocess.Popen[str]], doing: str) -> None:
    """Raise DeviceError where a rank has ended, unless it did all its work."""
    for rank, process in enumerate(ranks):
        if process.poll():
            code = process.returncode
            how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
            raise DeviceError(
                f"rank {rank} of {len(ranks)} {how} while {doing}; run the same command again, "
                "or choose fewer --ranks"
            )
