"""Events of made-up traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

BF16, SCALAR, LIST = "c10::BFloat16", "Scalar", "ScalarList"
Inputs = list[tuple[str, Any, Any, str]]  # type, sizes, strides, text
X: tuple[str, Any, Any, str] = (BF16, [4, 8], [8, 1], "")


def operator(name: str, start: float, took: float, inputs: Inputs, thread: int = 1) -> dict[str, Any]:
    names = ("Input type", "Input Dims", "Input Strides", "Concrete Inputs")
    said = {one: [entry[i] for entry in inputs] for i, one in enumerate(names)}
    about = {"cat": "cpu_op", "name": name, "pid": 7, "tid": thread}
    return {"ph": "X", **about, "ts": start, "dur": took, "args": said}


def kernel(number: int, launched: float | None, took: float, **other: Any) -> list[dict[str, Any]]:
    """A launch (None: before the trace begins) and its kernel."""
    about = {"cat": "kernel", "name": "void kernel()", "pid": 0, "tid": 3, **other}
    found = [{"ph": "X", **about, "ts": 1e6, "dur": took, "args": {"correlation": number}}]
    if launched is not None:
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 1, "ts": launched}
        found.append({"ph": "X", **launch, "dur": 1, "args": {"correlation": number}})
    return found


def written(folder: Path, events: list[dict[str, Any]], packed: bool = False) -> Path:
    trace = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": events}
    data = json.dumps(trace).encode()
    file = folder / "trace.json"
    file.write_bytes(gzip.compress(data) if packed else data)
    return file


FALSE: tuple[str, Any, Any, str] = (SCALAR, [], [], "False")
NONE: tuple[str, Any, Any, str] = ("", [], [], "")


def exchanged(number: int, launched: float, start: float, took: float, elements: int) -> list[dict[str, Any]]:
    """A sum over eight ranks as NCCL's kernels and PyTorch's operators are recorded."""
    about = operator("record_param_comms", launched - 2, 10, [X, NONE])
    about["args"] |= {"Collective name": "allreduce", "dtype": "BFloat16", "Group size": 8}
    about["args"] |= {"In msg nelems": elements, "Out msg nelems": elements}
    [run, launch] = kernel(number, launched, took, name="ncclDevKernel_AllReduce_Sum_bf16", tid=9)
    return [about, run | {"ts": start}, launch]
