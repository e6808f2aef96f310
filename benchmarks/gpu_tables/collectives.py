"""Exchanges between GPUs: nccl.parquet, oneccl.parquet, custom_allreduce.parquet and PipeWeave's.

NCCL is the median of the versions 2.26 to 2.29 (nccl-tests); what names no version inside is left out. An
engine's all-reduce is vLLM's newest, as it runs in a CUDA graph, with what it leaves to NCCL. Sends between
two GPUs are PipeWeave's alone (zksainx/pipeweave at 55e03178, Apache-2.0), by torch.distributed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.gpu_tables import Part
from neuralpower.data.dataset import Dataset
from neuralpower.dtypes import DTYPES

KIND = "collective"
FUNCTIONS = {"alltoall": "all_to_all"}  # others are called alike
TYPES = {"half": "float16", "int8": "int8", "bfloat16": "bfloat16"}
ENGINE, GRAPH = "vllm", "vllm_graph"
SENT = {"a100_sxm": "A100"}  # systems of PipeWeave's, where they are those of the tables
OTHERS = {  # of PipeWeave's alone, by their spec sheets
    "H20": "nvidia-h20",
    "H800": "nvidia-h800-sxm5-80gb",
    "RTX_6000_Ada": "nvidia-rtx-6000-ada",
}
ACROSS = "l40s"  # a system whose four GPUs lie on two sockets
LEAST = 2**20  # bytes: below, few repeats lie up to six times apart
LARGE = 16 * 2**20  # bytes of a message that are predicted from smaller ones
OCTAVE = 8  # sizes of PipeWeave's in an octave: it has thousands
FIELDS = ["dtype", "phase", "function", "elements", "ranks", "nodes", "library"]


def parts(tables: Path, system: str) -> Iterator[Part]:
    """A part for each library, and one of sends."""
    for library, table in {"nccl": nccl(tables, system), "engine": custom(tables, system)}.items():
        if len(table):
            yield part(table, f"by {library}", "NCCL and oneCCL" if library == "nccl" else "vLLM")
    sent = pipeweave(tables.parent, SENT[system], "send_recv") if system in SENT else None
    if sent is not None and len(sent):
        yield part(sent, "sends", "NCCL by torch.distributed")


def part(table: pd.DataFrame, name: str, engine: str) -> Part:
    """All rows are learnt from: they are few."""
    return Part(
        kind=KIND,
        name=name,
        engine=engine,
        table=table,
        shape=("function", "elements", "dtype"),
        draw=len(table),
        beyond={
            "8 GPUs from 2 and 4": (lambda c: c.ranks < 8, lambda c: c.ranks == 8),
            "above 16 MiB": (
                lambda c: c.itemsize * c.elements <= LARGE,
                lambda c: c.itemsize * c.elements > LARGE,
            ),
        },
    )


def nccl(tables: Path, system: str) -> pd.DataFrame:
    """The maker's library, in the columns of a dataset."""
    where = [("system", "==", system)]
    files = [tables / f"{name}.parquet" for name in ("nccl", "oneccl")]
    rows = pd.concat([pd.read_parquet(file, filters=where) for file in files if file.exists()])
    return table_of(rows[rows.recorded_version.notna()], "nccl")


def custom(tables: Path, system: str) -> pd.DataFrame:
    """An engine's own all-reduce, and NCCL's where it takes that, in the columns of a dataset."""
    where = [("system", "==", system), ("engine", "==", ENGINE), ("backend", "==", GRAPH)]
    rows = pd.read_parquet(tables / "custom_allreduce.parquet", filters=where)
    if not len(rows):
        return pd.DataFrame()
    versions = rows.version.astype(str)
    newest = max(versions.unique(), key=lambda text: [int(part) for part in text.split(".")])
    return table_of(rows[versions == newest].assign(function="all_reduce"), "engine")


def others(root: Path) -> Iterator[Dataset]:
    """A dataset of each GPU that PipeWeave's tables alone have."""
    for gpu, slug in OTHERS.items():
        tables = [pipeweave(root, gpu, function) for function in ("all_reduce", "send_recv")]
        tables[0] = tables[0][_size(tables[0]) >= LEAST]
        meta = {"schema": 1, "device": slug, "source": "zksainx/pipeweave at 55e03178 (Apache-2.0)"}
        yield Dataset(Path(slug), meta, {KIND: pd.concat(tables, ignore_index=True)})


def table_of(rows: pd.DataFrame, library: str) -> pd.DataFrame:
    """AIConfigurator's rows; repeats as their median."""
    table = pd.DataFrame(
        {
            "dtype": rows.dtype.astype(str).map(TYPES),
            "phase": "forward",
            "function": rows.function.astype(str).replace(FUNCTIONS),
            "elements": rows.elements.astype(int),
            "ranks": rows.gpus.astype(int),
            "nodes": 1,
            "library": library,
            "runtime_s": rows.latency_ms.astype(float) / 1000,
        }
    )
    return table.groupby(FIELDS).runtime_s.median().reset_index()


def pipeweave(root: Path, gpu: str, function: str) -> pd.DataFrame:
    """Exchanges of one of PipeWeave's GPUs: medians of the sizes of an eighth of an octave each."""
    file = root / "pipeweave" / "collectives.parquet"
    if not file.exists():
        return pd.DataFrame()
    rows = pd.read_parquet(file, filters=[("gpu", "==", gpu), ("collective", "==", function)])
    step = np.round(OCTAVE * np.log2(rows["size"])).astype(int)
    few = rows.groupby([step.rename("step"), "num_workers"], as_index=False)[["size", "median_ms"]].median()
    table = pd.DataFrame(
        {
            "elements": (few["size"] // 2).astype(int),
            "ranks": few.num_workers,
            "runtime_s": few.median_ms / 1e3,
        }
    )
    table = table.assign(dtype="bfloat16", phase="forward", function=function, nodes=1, library="nccl")
    return table[[*FIELDS, "runtime_s"]]


def _size(table: pd.DataFrame) -> pd.Series:
    """Bytes of the whole buffer."""
    return table.elements * table.dtype.map(lambda name: DTYPES[name].itemsize)
