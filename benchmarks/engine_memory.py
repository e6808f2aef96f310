"""vLLM's blocks, predicted and logged.

python -m benchmarks.engine_memory PATH

PATH is a folder with `*.meta.json` of runs, or one such file. A file names the GPU (`gpu`), the model
(`model`) and the engine's arguments (`engine_kwargs`). Some have the logged `kv_cache.num_gpu_blocks`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralpower.devices.layout import Layout
from neuralpower.devices.spec import DeviceSpec, find_spec
from neuralpower.errors import InputError
from neuralpower.platforms import platform_of
from neuralpower.predict.explore.fit import fit
from neuralpower.predict.explore.fit_request import Request
from neuralpower.predict.memory.engines import EngineMemory, EngineRequest, board_of
from neuralpower.report.grid import grid

SERVERS = {"RTXPRO6000": "rtx-pro-6000-server"}  # what files call a GPU, if no sheet does
PASSED = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "block_size")


@dataclass(frozen=True)
class Run:
    """One file: what was asked, and the blocks that the engine logged."""

    name: str
    model: str
    device: DeviceSpec
    options: dict[str, Any]
    tensor: int
    dtype: str
    blocks: int | None

    @classmethod
    def read(cls, file: Path) -> Run:
        """The run of a file."""
        told = json.loads(file.read_text(encoding="utf-8"))
        asked, cache = told["engine_kwargs"], told.get("kv_cache") or {}
        options = {name: asked[name] for name in PASSED if asked.get(name) is not None}
        if "gpu_memory_utilization" in cache:
            options.setdefault("gpu_memory_utilization", cache["gpu_memory_utilization"])
        options["cache_dtype"] = asked.get("kv_cache_dtype") or "auto"
        return cls(
            file.name.removesuffix(".meta.json"),
            told["model"],
            find_spec(SERVERS.get(told["gpu"], told["gpu"])),
            options,
            asked.get("tensor_parallel_size") or 1,
            asked.get("dtype") or "bfloat16",
            cache.get("num_gpu_blocks"),
        )

    def predicted(self) -> EngineMemory:
        """The memory under vLLM."""
        size = float(self.device.get("memory_bytes") or 0)
        engine = EngineRequest("vllm", self.options, board=board_of(self.device, size))
        platform = platform_of(self.device.hardware())
        layout = Layout(tensor=self.tensor)
        request = Request(self.model, dtype=self.dtype, platform=platform, layout=layout, engine=engine)
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
    blocks = found.pool.blocks
    error = "-" if run.blocks is None else f"{blocks / run.blocks - 1:+.1%}"
    pool = f"{found.pool_bytes / 2**30:.2f} GiB"
    return [run.name, pool, str(blocks), "-" if run.blocks is None else str(run.blocks), error]


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    rows = [row(run) for run in runs(parser.parse_args().path)]
    print(grid(["run", "pool", "blocks", "logged", "error"], rows))


if __name__ == "__main__":
    main()
