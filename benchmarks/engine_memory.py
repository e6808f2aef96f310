"""vLLM's memory, predicted and logged.

python -m benchmarks.engine_memory [PATH]

Without PATH, the runs of `engine_logs.csv`: what public logs say of weights, profile runs, memory outside
PyTorch and pools, in GiB. Its sources are public: a capacity planner's accuracy report (planner), a test of
a launcher, posts and lessons on deploying a model, and LLMServingSim's logs.

PATH is a folder with `*.meta.json` of runs, or one such file. A file names the GPU (`gpu`), the model
(`model`) and the engine's arguments (`engine_kwargs`). Some have the logged `kv_cache.num_gpu_blocks`.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from neuralpower.devices.cluster import Layout
from neuralpower.devices.spec import DeviceSpec, find_spec
from neuralpower.errors import InputError
from neuralpower.platforms import platform_of
from neuralpower.prediction.fits.fit import fit
from neuralpower.prediction.memory.engines import (
    ACTIVATIONS,
    IMAGES,
    WEIGHTS,
    EngineMemory,
    EngineRequest,
    board_of,
)
from neuralpower.report.grid import grid
from tests.asking import requested

LOGS = Path(__file__).with_name("engine_logs.csv")
SERVERS = {"RTXPRO6000": "rtx-pro-6000-server"}  # what files call a GPU, if no sheet does
PASSED = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "block_size")
DEGREES = ("tensor", "pipeline", "data")
GIB = 2**30


@dataclass(frozen=True)
class Run:
    """One run: what was asked."""

    name: str
    model: str
    device: DeviceSpec
    options: dict[str, Any]
    layout: Layout
    dtype: str
    weights: str | None = None
    blocks: int | None = None  # that the engine logged

    @classmethod
    def read(cls, file: Path) -> Run:
        """The run of a file."""
        told = json.loads(file.read_text(encoding="utf-8"))
        asked, cache = told["engine_kwargs"], told.get("kv_cache") or {}
        options = {name: asked[name] for name in PASSED if asked.get(name) is not None}
        if "gpu_memory_utilization" in cache:
            options.setdefault("gpu_memory_utilization", cache["gpu_memory_utilization"])
        options["cache_dtype"] = asked.get("kv_cache_dtype") or "auto"
        if told.get("vllm_version"):
            options["engine_version"] = told["vllm_version"]
        degrees: dict[str, Any] = {name: asked.get(f"{name}_parallel_size") or 1 for name in DEGREES}
        every = degrees["tensor"] * degrees["data"]
        return cls(
            file.name.removesuffix(".meta.json"),
            told["model"],
            find_spec(SERVERS.get(told["gpu"], told["gpu"])),
            options,
            Layout(**degrees, expert=every if asked.get("enable_expert_parallel") else 1),
            asked.get("dtype") or "bfloat16",
            blocks=cache.get("num_gpu_blocks"),
        )

    @classmethod
    def of_row(cls, row: dict[str, str]) -> Run:
        """The run of a row of the logs."""
        options = {
            "gpu_memory_utilization": float(row["utilization"]),
            "max_model_len": int(row["length"]),
            "engine_version": row["version"],
        }
        layout = Layout(tensor=int(row["tensor"]), pipeline=int(row["pipeline"]))
        weights = row["weights"] or None
        name = " ".join(filter(None, (row["model"], row["weights"] or row["dtype"])))
        return cls(name, row["model"], find_spec(row["gpu"]), options, layout, row["dtype"], weights)

    def predicted(self) -> EngineMemory:
        """The memory under vLLM."""
        size = float(self.device.get("memory_bytes") or 0)
        engine = EngineRequest("vllm", self.options, board=board_of(self.device, size))
        platform = platform_of(self.device.hardware())
        request = requested(
            self.model,
            dtype=self.dtype,
            platform=platform,
            layout=self.layout,
            engine=engine,
            weights=self.weights,
        )
        found = fit(request, size).engine
        assert found is not None
        return found


def runs(path: Path) -> list[Run]:
    """The runs of a folder or a file."""
    files = [path] if path.is_file() else sorted(path.glob("*.meta.json"))
    if not files:
        raise InputError(f"{path}: has no *.meta.json; give the folder of the logs")
    return [Run.read(file) for file in files]


def row(run: Run) -> list[str]:
    """Predicted and logged blocks of a run, and the error."""
    found = run.predicted()
    blocks = found.replicas * found.pool.blocks  # vLLM logs the sum over its engines
    error = "-" if run.blocks is None else f"{blocks / run.blocks - 1:+.1%}"
    pool = f"{found.pool_bytes / GIB:.2f} GiB"
    return [run.name, pool, str(blocks), "-" if run.blocks is None else str(run.blocks), error]


@dataclass(frozen=True)
class Logged:
    """A row of the logs, beside its prediction; sizes in GiB, None where the log does not say."""

    run: Run
    logged: dict[str, float | None]
    predicted: dict[str, float]

    @classmethod
    def of(cls, row: dict[str, str]) -> Logged:
        """The row, predicted. A pool that is not logged is what logged parts leave of the budget."""
        run = Run.of_row(row)
        found = run.predicted()
        run_bytes = found.part(ACTIVATIONS) + found.part(IMAGES)
        outside = found.used_bytes - found.part(WEIGHTS) - run_bytes - max(found.pool_bytes, 0)
        predicted = {
            "weights": found.part(WEIGHTS) / GIB,
            "activations": run_bytes / GIB,
            "outside": outside / GIB,
            "pool": found.pool_bytes / GIB,
        }
        logged = {name: float(row[f"{name}_gib"]) if row[f"{name}_gib"] else None for name in predicted}
        if logged["pool"] is None and row["tokens"]:
            logged["pool"] = int(row["tokens"]) / found.pool.tokens * predicted["pool"]
        if logged["pool"] is None:
            parts = [logged[name] or predicted[name] for name in ("weights", "activations", "outside")]
            logged["pool"] = found.budget_bytes / GIB - sum(parts)
        return cls(run, logged, predicted)

    @property
    def error(self) -> float:
        """Of the pool, as a share of it."""
        return self.predicted["pool"] / (self.logged["pool"] or 1) - 1

    def cells(self) -> list[str]:
        """As a line of the table: predicted / logged."""
        both = [
            f"{self.predicted[name]:.2f} / {'-' if value is None else f'{value:.2f}'}"
            for name, value in self.logged.items()
        ]
        version = self.run.options["engine_version"]
        return [
            self.run.name,
            self.run.device.name,
            version,
            str(self.run.layout),
            *both,
            f"{self.error:+.1%}",
        ]


def logs() -> Iterator[Logged]:
    """All rows of the logs, predicted."""
    with LOGS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield Logged.of(row)


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, nargs="?")
    path = parser.parse_args().path
    if path is not None:
        print(grid(["run", "pool", "blocks", "logged", "error"], [row(run) for run in runs(path)]))
        return
    found = list(logs())
    header = ["run", "GPU", "version", "layout", "weights", "activations", "outside", "pool", "error"]
    print(grid(header, [one.cells() for one in found]))
    errors = [abs(one.error) for one in found]
    print(f"{len(errors)} pools: {median(errors):.1%} in the median, {max(errors):.1%} at most")


if __name__ == "__main__":
    main()
