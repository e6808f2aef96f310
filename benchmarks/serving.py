"""Served requests against simulations: logs of vLLM, and rows of public closed loops.

    python -m benchmarks.serving PATH [--rows 40] [--link 14] [--laws] [--model qwen3-32b]

PATH is a folder of other projects' measurements with llmservingsim/requests_*.csv and served/closed_loop.csv;
nothing of them trains a predictor. Lengths of single requests of the closed loops are not known: vLLM's are
drawn from 0.8 to 1 of the nominal ones, SGLang's are nominal, since their first tokens come in waves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import typer

import neuralpower
from neuralpower.devices.cluster import cluster_of
from neuralpower.devices.layout import Layout
from neuralpower.errors import NeuralPowerError
from neuralpower.prediction import beside
from neuralpower.serving import step_times
from neuralpower.serving.deployment import Deployment, deployed
from neuralpower.serving.workload import Workload, drawn, read

LOGS = {
    "RTX4090_Llama-3.1-8B": ("llama-3.1-8b", "rtx-4090", 1, 256),
    "RTXPRO6000_Qwen3-32B": ("qwen3-32b", "nvidia-rtx-pro-6000-server", 2, 128),
}
"""Model, device, tensor ranks and most requests of each log."""
MODELS = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
}
DEVICES = {"h100_sxm": "h100-sxm", "h200_sxm": "h200"}
SYNCHRONOUS = ("0.11.", "0.12.", "0.13.")  # versions of vLLM whose host plans between two steps
SHORT = ("openai/gpt-oss-120b",)  # published with weights of fewer bits
OFF: Mapping[str, Callable[[], Any]] = {
    "cold caches": partial(patch.object, beside, "COLD", np.inf),
    "decodes next to prompts": partial(
        patch.object, beside.Beside, "mixed_s", lambda _, contexts, reads, decodes, ratio=1.0: reads + decodes
    ),
    "the slowest rank": partial(patch.object, step_times, "SKEW", 0.0),
}
"""Laws, and what switches each off."""
LONGEST = 16_384  # tokens of a request of the closed loops
ENGINES = {"vllm": "vllm", "sglang": "sglang"}  # of TensorRT-LLM no policy is known


def main(
    path: Annotated[Path | None, typer.Argument(help="Folder of the measurements.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of the closed loops, drawn.")] = 40,
    link: Annotated[float, typer.Option(help="GB/s between cards without a link of their own.")] = 14.0,
    laws: Annotated[bool, typer.Option(help="Also logs with each law switched off.")] = False,
    model: Annotated[str | None, typer.Option(help="Closed loops of this model alone.")] = None,
) -> None:
    """Print logs, then closed loops."""
    if path is None or not (folder := path / "llmservingsim").is_dir():
        print("benchmarks.serving needs a folder that holds llmservingsim/: skipped")
        return
    print(f"{'log':28}{'TTFT':>20}{'TPOT':>20}{'latency':>20}   simulated mean, off by")
    for name, about in LOGS.items():
        file = folder / f"requests_{name}.csv"
        if not file.is_file():
            continue
        print(f"{name:28}" + "".join(f"{text:>20}" for text in _log(file, *about, link)))
        for law, without in OFF.items() if laws else ():
            with without():
                cells = _log(file, *about, link)
            print(f"{'  without ' + law:28}" + "".join(f"{text:>20}" for text in cells))
    loops = path / "served" / "closed_loop.csv"
    if loops.is_file() and rows:
        _loops(pd.read_csv(loops), rows, model)


def _deployed(model: str, device: str, ranks: int, **how: Any) -> Deployment:
    predictor = neuralpower.load(device).predictor
    layout = Layout(tensor=ranks)
    cluster = None if layout.alone else cluster_of(f"{ranks}x{device}")
    return deployed(model, predictor, layout=layout, cluster=cluster, **how)


def _log(file: Path, model: str, device: str, ranks: int, most: int, link: float) -> list[str]:
    """Mean waiting times of a log, and how far off the simulated ones are."""
    workload, measured = read(file), pd.read_csv(file)
    how = {"link_bytes_per_s": link * 1e9} if ranks > 1 else {}
    longest = int((workload.prompt + workload.output).max())
    deployment = _deployed(model, device, ranks, requests=most, budget=2_048, longest=longest, **how)
    (found,) = deployment.serves(workload)
    several = measured.output_toks > 1
    pairs = (
        (found.ttft_s, measured.ttft_ms),
        (found.tpot_s, measured.tpot_ms[several]),
        (found.latency_s, measured.latency_ms),
    )
    return [f"{said.mean():.4g} s, {said.mean() / (real.mean() / 1e3) - 1:+.1%}" for said, real in pairs]


def _loops(table: pd.DataFrame, rows: int, model: str | None) -> None:
    """TPOT of closed loops, by model and engine."""
    known = table[table.model_path.isin(MODELS) & table.backend.isin(ENGINES) & table.system.isin(DEVICES)]
    plain = known.precision.isna() & known.gemm_quant_mode.isna() | known.model_path.isin(SHORT)
    known = known[plain & (known.moe_ep_size <= 1)]
    if model is not None:
        known = known[known.model_path.map(MODELS) == model]
    chosen = known.sample(min(rows, len(known)), random_state=0).sort_values(["model_path", "tp_size"])
    errors: dict[tuple[str, str], list[float]] = {}
    kept: dict[tuple[Any, ...], Deployment] = {}
    for row in chosen.itertuples():
        model, engine = MODELS[str(row.model_path)], ENGINES[str(row.backend)]
        late = engine == "sglang" or not str(row.backend_version).startswith(SYNCHRONOUS)
        key = (model, DEVICES[str(row.system)], int(str(row.tp_size)), engine, late)
        try:
            if key not in kept:
                kept[key] = _deployed(*key[:3], engine=engine, overlaps=late, longest=LONGEST)
            (found,) = kept[key].serves(_closed(row))
        except NeuralPowerError as error:
            print(f"{key}: {error}")
            continue
        off = float(found.tpot_s.mean() * 1e3 / float(str(row.tpot_ms)) - 1)
        errors.setdefault((model, engine), []).append(off)
        print(f"{model:18}{engine:8} tp{row.tp_size} {row.isl}+{row.osl} x {row.concurrency}: {off:+.1%}")
    for (model, engine), some in errors.items():
        size = np.abs(some)
        said = f"{np.median(size):.1%} median, {size.mean():.1%} mean"
        print(f"{model:18}{engine:8}{len(some):4} rows, TPOT off by {said}")


def _closed(row: Any) -> Workload:
    """Requests of a closed loop, four of each user."""
    users = int(row.concurrency)
    mean, spread = (1.0, 0.0) if row.backend == "sglang" else (0.9, 0.11)
    return drawn(max(4 * users, 16), round(mean * row.isl), round(mean * row.osl), users=users, spread=spread)


if __name__ == "__main__":
    typer.run(main)
