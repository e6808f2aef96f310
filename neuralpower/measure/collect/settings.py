"""How the measuring process is set up, for a session record."""

from __future__ import annotations

import os
import re
from typing import Any

import threadpoolctl
import torch

VARIABLES = r"(OMP|MKL|KMP|GOMP|MALLOC|ONEDNN|DNNL|CUDA|CUBLAS|CUDNN|NVIDIA|PYTORCH|TORCH)_|LD_PRELOAD$"
DENORMAL = 1e-40  # of float32
SDPA = ("flash", "mem_efficient", "math", "cudnn")
POOL = ("user_api", "prefix", "version", "num_threads", "threading_layer")


def read_settings() -> dict[str, Any]:
    """Torch's build and switches, threads, and variables that libraries read; None for a missing library.

    TF32 is as the process starts: each call is timed under the setting of its own dtype.
    """
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    built = torch.__config__.show().splitlines()[1:]
    return {
        "torch_git": torch.version.git_version,
        "torch_build": [line.strip(" -") for line in built if "Build settings" not in line],
        "cudnn": cudnn.version(),  # type: ignore[no-untyped-call]  # torch leaves it untyped
        "tf32_matmul": cuda.matmul.allow_tf32,
        "tf32_cudnn": cudnn.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "sdpa": [name for name in SDPA if getattr(cuda, f"{name}_sdp_enabled")()],
        "compiled": False,  # nothing is measured that torch.compile made
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "flush_denormals": float(torch.tensor(DENORMAL) * 0.5) == 0.0,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "threadpools": [{name: pool.get(name) for name in POOL} for pool in threadpoolctl.threadpool_info()],
        "environment": {name: os.environ[name] for name in sorted(os.environ) if re.match(VARIABLES, name)},
    }
