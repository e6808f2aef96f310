"""The cost of storing measurements, and of reading a million of them for training. Prints one table.

python -m benchmarks.journal [FOLDER]        the disk that FOLDER is on; /tmp by default
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from neuralpower.data.journal import Journal
from neuralpower.data.schema import write_meta
from neuralpower.data.sealing import seal
from neuralpower.layers import KINDS, columns_of
from neuralpower.layers.rows import field_names, to_row
from neuralpower.measure.collect.plan import draw
from neuralpower.measure.collect.schedule import device_key

ROWS = 1_000_000
SHARES = {"linear": 0.3, "conv2d": 0.3, "matmul": 0.2, "elementwise": 0.2}
DRAWN = 3000  # layers of a kind, whose columns are repeated with other times
BATCH = 60  # configurations that a CPU measures in turn
WIDTH = 48  # of the first column
LOAD = """
import json, resource, sys, time
from neuralpower.data.dataset import read_dataset
start = time.perf_counter()
data = read_dataset(sys.argv[1], samples=False)
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([time.perf_counter() - start, len(data), most]))
"""
SCREEN = """
import json, resource, sys, time
from neuralpower.data.dataset import read_dataset
from neuralpower.data.screening import screen
start = time.perf_counter()
data = read_dataset(sys.argv[1], samples=False)
rows = sum(len(screen(kind, table, data.sentinel_s)) for kind, table in data.tables.items())
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([time.perf_counter() - start, rows, most]))
"""


def result(number: int, samples: int = 9) -> dict[str, object]:
    """A record as a collection writes it, of some 1.2 kB."""
    layer = next(iter(draw(KINDS["linear"], 1, number)))
    about = {
        "config_id": f"{number:016x}",
        "device_key": "d" * 12,
        "software_key": "s" * 12,
        "session_id": "0" * 12,
    }
    times = [1e-5 * (1 + i / 7) for i in range(samples)]
    columns = {f"column_{i}": 1.234567e-5 * i for i in range(18)}
    row = {
        **to_row(layer),
        **about,
        **columns,
        "runtime_s": 1e-5,
        "samples_s": times,
        "status": "ok",
        "replicate": 0,
    }
    return {"type": "result", "kind": "linear", "row": row}


def append_s(folder: Path, together: int, measurements: int = 600) -> float:
    """Seconds in `append` per measurement, fsync and `start` included, for batches of this size."""
    spent = 0.0
    records = [result(number) for number in range(20)]
    with Journal(folder) as journal:
        for number in range(measurements // together):
            some = [records[(number + i) % 20] for i in range(together)]
            begun = time.perf_counter()
            journal.append(
                {"type": "start", "tier": "runtime", "tasks": [["c" * 16, 0]] * together}, sync=False
            )
            journal.append(*some)
            spent += time.perf_counter() - begun
    return spent / measurements


def fsync_s(folder: Path) -> float:
    """Median time to append one result (s)."""
    times = []
    with Journal(folder) as journal:
        for number in range(200):
            begun = time.perf_counter()
            journal.append(result(number % 20))
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def generated(folder: Path) -> Path:
    """A sealed dataset of a million rows, with every column that a collection writes."""
    generator = np.random.default_rng(0)
    folder.mkdir()
    write_meta(folder, {"device": "generated", "hardware": {"type": "cpu", "cores": 2}})
    for kind, share in SHARES.items():
        count = int(ROWS * share)
        layers = list(draw(KINDS[kind], DRAWN, 0))
        index = np.arange(count) % len(layers)
        columns = columns_of(KINDS[kind], layers)
        table: dict[str, Any] = {}
        for name in field_names(KINDS[kind]):
            values = np.asarray(getattr(columns, name))
            table[name] = (
                values if values.dtype == object else values.astype(type(getattr(layers[0], name)))
            )[index]
        runtime = np.exp(generator.normal(-9, 2, count))
        table |= {
            name: runtime * (1 + i / 10)
            for i, name in enumerate(("runtime_s", "runtime_median_s", "first_call_s"))
        }
        table |= {f"runtime_{name}_s": runtime for name in ("q25", "q75", "min")}
        table |= {
            name: generator.random(count, dtype=np.float32)
            for name in ("sentinel_s", "sentinel_slowdown", "steal", "wall_s")
        }
        table |= {name: np.full(count, np.nan) for name in ("power_w", "energy_j")}
        table |= {
            "n": np.full(count, 9),
            "replicate": np.zeros(count, dtype=int),
            "attempt": np.ones(count, dtype=int),
        }
        table |= {"config_id": [f"{kind[:4]}{number:012x}" for number in range(count)]}
        words = {"status": "ok", "source": "sweep", "session_id": "0" * 12, "software_key": "s" * 12}
        words |= {
            "device_key": device_key({"name": "generated"}),
            "power_source": "none",
            "power_reason": "no meter",
        }
        table |= {name: np.full(count, word) for name, word in words.items()}
        frame = pd.DataFrame(table)
        frame["samples_s"] = list((runtime[:, None] * np.linspace(1, 1.2, 9)).astype(np.float32))
        frame.to_parquet(folder / f"{kind}.parquet", index=False, compression="zstd")
    return folder


def in_process(program: str, folder: Path) -> tuple[float, int, float]:
    """(seconds, rows, bytes at most) of a program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], check=True, capture_output=True, text=True
    )
    took, rows, memory = json.loads(done.stdout)
    return took, rows, memory


def timed(call: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def rows(place: Path) -> Iterator[tuple[str, str, str]]:
    """What, what it took, the bound."""
    yield "one append", f"{fsync_s(place / 'alone') * 1e3:.2f} ms", ""
    gpu, cpu = append_s(place / "gpu", 1), append_s(place / "cpu", BATCH)
    yield "journal per measurement, one by one", f"{gpu * 1e3:.2f} ms", "1 ms"
    yield f"journal per measurement, {BATCH} at a time", f"{cpu * 1e3:.2f} ms", "1 ms"
    folder = generated(place / "million")
    took, count, memory = in_process(LOAD, folder)
    yield f"read_dataset, {count:,} rows", f"{took:.1f} s", "10 s"
    yield "... memory of the process", f"{memory / 1e9:.2f} GB", "2 GB"
    took, count, memory = in_process(SCREEN, folder)
    yield f"... read and screened, {count:,} rows", f"{took:.1f} s", ""
    yield "... memory of the process", f"{memory / 1e9:.2f} GB", ""
    (place / "cpu" / "dataset.json").write_text('{"schema": 1, "device": "x"}')
    yield "sealing 600 rows", f"{timed(lambda: seal(place / 'cpu')):.2f} s", ""


def main() -> None:
    """Print the table, each row as soon as it is known."""
    print(f"{'what':{WIDTH}}  {'took':>8}  {'bound':>8}", flush=True)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        for what, value, bound in rows(Path(name)):
            print(f"{what:{WIDTH}}  {value:>8}  {bound:>8}", flush=True)


if __name__ == "__main__":
    main()
