"""Served requests against simulations: logs of vLLM, and rows of public closed loops.

    python -m benchmarks.serving PATH [--rows 40] [--link 14] [--laws] [--model qwen3-32b]

PATH is a folder of other projects' measurements with llmservingsim/requests_*.csv, served/closed_loop.csv and
pipeweave/runs_dev.csv; nothing of them trains a predictor. Lengths of single requests of the closed loops are
not known: vLLM's are drawn from 0.8 to 1 of the nominal ones, SGLang's are nominal, since their first tokens
come in waves. The last line says how many of all means lie within their bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import typer

import neuralpower
from neuralpower.devices.cluster import Layout, cluster_of
from neuralpower.errors import NeuralPowerError
from neuralpower.networks.phases import Step
from neuralpower.prediction import beside
from neuralpower.serving import step_times
from neuralpower.serving.deployment import Deployment, Setup
from neuralpower.serving.policies import Host, host_of
from neuralpower.serving.simulator import Served
from neuralpower.serving.step_times import StepTimes
from neuralpower.serving.workload import Workload, looped, read

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
SHORT = ("openai/gpt-oss-120b",)  # published with weights of fewer bits
OFF: Mapping[str, Callable[[], Any]] = {
    "cold caches": partial(patch.object, beside, "COLD", np.inf),
    "decodes next to prompts": partial(
        patch.object,
        beside.Beside,
        "mixed_s",
        lambda _, contexts, chunks, reads, decodes, ratio=1.0: reads + decodes,
    ),
    "the slowest rank": partial(patch.object, step_times, "SKEW", 0.0),
    "launches": partial(patch.object, StepTimes, "calls_s", 0.0),
    "host": partial(patch.object, Host, "seconds", property(lambda _: (0.0, 0.0)), create=True),
    "the engine's own host (the other engine's)": lambda: patch.dict(globals(), host_of=_of_the_other),
}
"""Laws, and what switches each off; the last one holds the rows out that have taught an engine's host."""
GPUS = {
    "A100": "nvidia-a100-sxm4-80gb",
    "H100": "h100-sxm",
    "H200": "h200",
    "RTX_PRO_6000_S": "nvidia-rtx-pro-6000-server",
}
STATIC = {"Qwen2.5-14B": "qwen2.5-14b", "Qwen3-32B": "qwen3-32b", "Llama-3.1-70B": "llama-3.1-70b"}
"""Devices and models of the static batches."""
RIVALS = ("pipeweave", "neusight", "habitat", "linear", "roofline")
PARTS = ("prefill", "decode_step", "total")
LONGEST = 16_384  # tokens of a request of the closed loops
ENGINES = {"vllm": "vllm", "sglang": "sglang"}  # of TensorRT-LLM no policy is known


def main(
    path: Annotated[Path | None, typer.Argument(help="Folder of the measurements.")] = None,
    rows: Annotated[int, typer.Option(help="Rows of the closed loops, drawn.")] = 40,
    link: Annotated[float, typer.Option(help="GB/s between cards without a link of their own.")] = 14.0,
    laws: Annotated[bool, typer.Option(help="Also with each law switched off.")] = False,
    model: Annotated[str | None, typer.Option(help="Closed loops of this model alone.")] = None,
) -> None:
    """Print logs, then closed loops."""
    if path is None or not (folder := path / "llmservingsim").is_dir():
        print("benchmarks.serving needs a folder that holds llmservingsim/: skipped")
        return
    within = Within()
    print(f"{'log':28}{'TTFT':>20}{'TPOT':>20}{'latency':>20}   simulated mean, off by")
    for name, about in LOGS.items():
        file = folder / f"requests_{name}.csv"
        if not file.is_file():
            continue
        print(f"{name:28}" + "".join(f"{text:>20}" for text in _log(file, *about, link, within)))
        for law, without in OFF.items() if laws else ():
            with without():
                cells = _log(file, *about, link)
            print(f"{'  without ' + law:28}" + "".join(f"{text:>20}" for text in cells))
    loops = path / "served" / "closed_loop.csv"
    if loops.is_file() and rows:
        chosen = _chosen(pd.read_csv(loops), rows, model)
        _print_loops(_loops(chosen, within, said=True))
        for law, without in OFF.items() if laws else ():
            with without():
                _print_loops(_loops(chosen), f"  without {law}")
    runs = path / "pipeweave" / "runs_dev.csv"
    if runs.is_file():
        _runs(pd.read_csv(runs), pd.read_csv(path / "pipeweave" / "requests.csv"))
    within.show()


class Within:
    """How many means lie within their bounds, and how wide these are, by measure."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, bool, float, float]] = []

    def add(
        self, about: Deployment, workload: Workload, found: list[Served], real: Mapping[str, float]
    ) -> None:
        """Count the measured means, in seconds."""
        ends = [bound.serves(workload) for bound in about.bounds(found)]
        for name, seconds in real.items():
            value = _mean(found, name)
            low, high = sorted(_mean(end, name) for end in ends)
            self.rows.append((name, low <= seconds <= high, low / value - 1, high / value - 1))

    def show(self) -> None:
        """A line for each measure."""
        table = pd.DataFrame(self.rows, columns=["measure", "inside", "low", "high"])
        for name, some in [*table.groupby("measure"), ("all", table)]:
            width = f"bounds {some.low.median():+.0%} {some.high.median():+.0%} in the median, "
            width += f"widest {some.low.min():+.0%} {some.high.max():+.0%}"
            print(f"{name:12}{some.inside.mean():.0%} of {len(some)} means within their bounds; {width}")


def _mean(found: list[Served], name: str) -> float:
    return float(np.concatenate([getattr(one, name) for one in found]).mean())


def _deployed(model: str, device: str, ranks: int, **how: Any) -> Deployment:
    predictor = neuralpower.load(device).predictor
    layout = Layout(tensor=ranks)
    cluster = None if layout.alone else cluster_of(f"{ranks}x{device}")
    return Setup(model, predictor, layout=layout, cluster=cluster, **how).deployed()


def _log(
    file: Path, model: str, device: str, ranks: int, most: int, link: float, within: Within | None = None
) -> list[str]:
    """Mean waiting times of a log, and how far off the simulated ones are."""
    workload, measured = read(file), pd.read_csv(file)
    how = {"link_bytes_per_s": link * 1e9} if ranks > 1 else {}
    longest = int((workload.prompt + workload.output).max())
    about = _deployed(model, device, ranks, requests=most, budget=2_048, longest=longest, **how)
    found = about.serves(workload)
    several = measured.output_toks > 1
    real = {
        "ttft_s": measured.ttft_ms.mean() / 1e3,
        "tpot_s": measured.tpot_ms[several].mean() / 1e3,
        "latency_s": measured.latency_ms.mean() / 1e3,
    }
    if within is not None:
        within.add(about, workload, found, real)
    return [f"{_mean(found, n):.4g} s, {_mean(found, n) / seconds - 1:+.1%}" for n, seconds in real.items()]


def _chosen(table: pd.DataFrame, rows: int, model: str | None) -> pd.DataFrame:
    """Rows of the closed loops, drawn; not those without a version, or with 512 users as fast as with 4."""
    known = table[table.model_path.isin(MODELS) & table.backend.isin(ENGINES) & table.system.isin(DEVICES)]
    plain = known.precision.isna() & known.gemm_quant_mode.isna() | known.model_path.isin(SHORT)
    fault = known.backend_version.isna() | known.backend_version.eq("0.11.2") & (known.concurrency > 256)
    known = known[plain & ~fault & (known.moe_ep_size <= 1)]
    if model is not None:
        known = known[known.model_path.map(MODELS) == model]
    return known.sample(min(rows, len(known)), random_state=0).sort_values(["model_path", "tp_size"])


def _of_the_other(engine: str, version: str | None, of: Callable[..., Host] = host_of) -> Host:
    """The host of an engine's version with the times that the other engine has taught."""
    (other,) = ENGINES.keys() - {engine}
    return replace(of(engine, version), seconds=of(other, None).seconds)


Errors = dict[tuple[str, str], list[float]]


def _loops(chosen: pd.DataFrame, within: Within | None = None, *, said: bool = False) -> Errors:
    """How far TPOT of closed loops is off, by model and engine."""
    errors: Errors = {}
    known: dict[tuple[Any, ...], Deployment] = {}
    for row in chosen.itertuples():
        model, engine, version = (
            MODELS[str(row.model_path)],
            ENGINES[str(row.backend)],
            str(row.backend_version),
        )
        key = (model, DEVICES[str(row.system)], int(str(row.tp_size)), engine, version)
        try:
            if key not in known:
                host = host_of(engine, version)
                how = {"host_s": host.seconds, "overlaps": host.overlaps, "longest": LONGEST}
                known[key] = _deployed(model, key[1], key[2], engine=engine, **how)
            workload = _closed(row)
            found = known[key].serves(workload)
        except NeuralPowerError as error:
            print(f"{key}: {error}")
            continue
        real = float(str(row.tpot_ms)) / 1e3
        if within is not None:
            within.add(known[key], workload, found, {"tpot_s": real})
        off = _mean(found, "tpot_s") / real - 1
        errors.setdefault((model, engine), []).append(off)
        if said:
            about = f"{version:12} tp{row.tp_size} {row.isl}+{row.osl} x {row.concurrency:g}"
            print(f"{model:18}{engine:8}{about}: {off:+.1%}")
    return errors


def _print_loops(errors: Errors, without: str = "") -> None:
    for (model, engine), some in errors.items():
        size = np.abs(some)
        about = f"{np.median(size):.1%} median, {size.mean():.1%} mean"
        print(f"{model:18}{engine:8}{len(some):4} rows, TPOT off by {about}{without}")


def _runs(runs: pd.DataFrame, requests: pd.DataFrame) -> None:
    """Static batches of SGLang by PipeWeave: mean absolute errors, beside those of other predictors."""
    errors: dict[str, list[list[float]]] = {}
    for run in runs.dropna(subset=["pipeweave_total_s"]).itertuples():
        device, ranks = GPUS[str(run.gpu)], int(str(run.tp))
        about = _deployed(STATIC[str(run.model)], device, ranks, engine="sglang", longest=LONGEST)
        lengths = requests[requests.workload == run.workload].input_tokens
        middle = int(str(run.output_tokens_each)) // 2
        steps = [
            Step(chunks=tuple((int(n), 0) for n in lengths)),
            Step(tuple(int(n) + middle for n in lengths)),
        ]
        prefill, step = about.surface.at(steps).runtime_s
        ours = (prefill, step, prefill + (int(str(run.output_tokens_each)) - 1) * step)
        for name in ("neuralpower", *RIVALS):
            values = [
                float(ours[i]) if name == "neuralpower" else getattr(run, f"{name}_{part}_s")
                for i, part in enumerate(PARTS)
            ]
            real = [float(getattr(run, f"{part}_s_median")) for part in PARTS]
            errors.setdefault(name, []).append(
                [abs(said / seconds - 1) for said, seconds in zip(values, real, strict=True)]
            )
    print(f"{'static batches, mean error':28}{'prefill':>12}{'decode step':>14}{'whole run':>12}")
    for name, some in errors.items():
        cells = [f"{value:.1%}" for value in np.mean(some, axis=0)]
        print(f"{name:28}{cells[0]:>12}{cells[1]:>14}{cells[2]:>12}")


def _closed(row: Any) -> Workload:
    """Requests of a closed loop, four of each user."""
    users = int(row.concurrency)
    mean, spread = (1.0, 0.0) if row.backend == "sglang" else (0.9, 0.11)
    return looped(
        max(4 * users, 16), round(mean * row.isl), round(mean * row.osl), users=users, spread=spread
    )


if __name__ == "__main__":
    typer.run(main)
