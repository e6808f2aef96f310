"""Measure exchanges between ranks: the request, the ranks' processes, and the dataset; needs no torch."""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from neuralpower.data.schema import read_meta, write_meta
from neuralpower.devices.host import read_cpu, worker_environment
from neuralpower.errors import DatasetError, DeviceError, InputError, is_count, unknown
from neuralpower.files.csv_files import write_csv
from neuralpower.files.json_files import json_text
from neuralpower.measure.collect.schedule import versions
from neuralpower.processes.tether import environment, python

BACKENDS = ("gloo", "nccl")
FUNCTIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
LEAST_BYTES = 1024
LARGEST_BYTES = {"gloo": 2**26, "nccl": 2**30}
USUAL_RANKS = (2, 4, 8)


@dataclass(frozen=True)
class Exchanges:
    """Exchanges between `ranks` processes: each function at sizes of half an octave's distance."""

    backend: str
    ranks: int
    budget_s: float
    functions: tuple[str, ...] = FUNCTIONS
    largest_bytes: int | None = None  # None: as usual for the backend
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError for a backend that there is not, or ranks that exchange nothing."""
        if self.backend not in BACKENDS:
            raise unknown("backend", self.backend, BACKENDS)
        if not is_count(self.ranks) or self.ranks < 2:
            raise InputError(f"ranks {self.ranks!r}: an exchange takes 2 or more; choose 2")

    def order(self) -> list[tuple[str, int]]:
        """(Function, elements of float32), shuffled: a run that is cut off measures less of everything.

        The elements of the whole buffer are a multiple of the ranks.
        """
        largest = self.largest_bytes or LARGEST_BYTES[self.backend]
        places: dict[tuple[str, int], None] = {}
        for function in self.functions:
            size = float(LEAST_BYTES)
            while size <= largest:
                elements = max(round(size / 4 / self.ranks), 1) * self.ranks
                places[function, elements] = None
                size *= 2**0.5
        order = list(places)
        random.Random(self.seed).shuffle(order)
        return [one for one in order if one[0] != "send_recv" or self.ranks == 2]


# ---- Start the ranks of an exchange, read what rank 0 measures, and end them all, however it goes ----


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
    order, taken = asked.order(), Measured()
    request = {**asdict(asked), "order": order, "patience_s": patience_s}
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
                taken.unsupported.add(line["unsupported"])
            else:
                fixed = {"dtype": "float32", "phase": "forward", "nodes": 1}
                taken.rows.append({**fixed, **line, "ranks": asked.ranks, "library": asked.backend})
                show(len(taken.rows), len(order))
    return taken


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


# ---- Exchanges between ranks as a dataset: `dataset.json` and one table of kind `collective` ----


FILE = "collective.csv"


def usual_ranks(backend: str) -> tuple[int, ...]:
    """Two processes on a CPU; 2, 4 and 8 of the GPUs that are there; raises InputError for fewer than two."""
    if backend == "gloo":
        return USUAL_RANKS[:1]
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        raise InputError(
            f"backend nccl: needs 2 GPUs or more, and this machine has {count}; choose --backend gloo"
        )
    return tuple(ranks for ranks in USUAL_RANKS if ranks <= count)


def collect_exchanges(
    backend: str,
    ranks: Sequence[int],
    folder: Path,
    budget_s: float,
    seed: int = 0,
    show: Callable[[int, int], None] = lambda done, planned: None,
    largest_bytes: int | None = None,
) -> tuple[int, set[str]]:
    """Measure between each number of ranks, and write the dataset.

    Returns:
        Its rows, and functions that the backend lacks.

    Raises:
        InputError: an unknown backend, or too few ranks or devices.
        DatasetError: the folder holds a dataset already.
        DeviceError: a rank ended or hangs.
    """
    asked = [
        Exchanges(backend, count, budget_s / len(ranks), largest_bytes=largest_bytes, seed=seed)
        for count in ranks
    ]
    most = max(usual_ranks(backend)) if backend == "nccl" else max(ranks)
    if max(ranks) > most:
        raise InputError(f"ranks {max(ranks)}: this machine has GPUs for {most}; choose {most} or fewer")
    if (folder / "dataset.json").exists():
        device = read_meta(folder)["device"]
        raise DatasetError(f"{folder}: holds a dataset of {device!r} already; choose another --out")
    rows: list[dict[str, Any]] = []
    unsupported: set[str] = set()
    for one in asked:
        found = measured(one, show)
        rows += found.rows
        unsupported |= found.unsupported
    hardware = _hardware(backend)
    folder.mkdir(parents=True, exist_ok=True)
    header = [*rows[0]]
    write_csv(folder / FILE, [header, *([row[name] for name in header] for row in rows)])
    write_meta(
        folder,
        {
            "device": hardware["name"],
            "hardware": hardware,
            "source": f"collect-data --backend {backend}, ranks {', '.join(map(str, ranks))}",
            "sessions": [{"argv": ["collect-data"], **versions()}],
            "rows": {"collective": len(rows)},
        },
    )
    return len(rows), unsupported


def _hardware(backend: str) -> dict[str, Any]:
    if backend == "gloo":
        cpu = read_cpu()
        return {"type": "cpu", "l2_bytes": cpu.l2_bytes, **cpu.to_json()}
    import torch

    return {"type": "cuda", "name": torch.cuda.get_device_name(0), "platform": "nvidia"}
