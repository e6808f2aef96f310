"""Watts and joules of whole runs, predicted and measured: tables of docs/accuracy-energy.md.

    python -m benchmarks.energy PATH [--only NAME]

PATH is a folder of other projects' measurements with power/ and served/ (no measurement is shipped). Watts
and joules of each run are compared with the predicted ones: median and mean error, and how many lie in the
90 % bounds, whose high / low is said in the median.
Sweeps of clocks and limits are judged as ratios to an anchor, a run of the same network at another setting,
whose watts and time are measured; the clock and the limit of the others alone are given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from benchmarks.gpu_runs import predictor_of
from benchmarks.teachers import diffusion
from neuralpower.api.loaded import LoadedPredictor
from neuralpower.devices.spec import find_spec
from neuralpower.errors import ModelError, NeuralPowerError
from neuralpower.layers import Layer
from neuralpower.learn.estimates import Estimates
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.watts import drawn_at, idle_power, shipped_watts
from neuralpower.networks.phases import Phase
from neuralpower.prediction.costs.energy import energy_of
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.rows import Interval, Row

EAGER = "&attn_implementation=eager"
LARGE = "hidden_size=1024&num_hidden_layers=24&num_attention_heads=16&intermediate_size=4096"
ENERGAIZER: Mapping[str, str] = {
    "bertmodel": f"transformers:BertModel?{LARGE}{EAGER}",
    "gpt2model": "transformers:GPT2Model?attn_implementation=eager",
    "optmodel": "transformers:OPTModel?hidden_size=2048&num_hidden_layers=24&num_attention_heads=32"
    f"&ffn_dim=8192&max_position_embeddings=2048{EAGER}",
    "qwen2model": "transformers:Qwen2Model?hidden_size=1536&intermediate_size=8960&num_hidden_layers=28"
    f"&num_attention_heads=12&num_key_value_heads=2&max_position_embeddings=8192{EAGER}",
    "resnet101": "zoo:resnet101",
    "mobilevitmodel": "transformers:MobileViTModel?attn_implementation=eager",
    "vitmodel": f"transformers:ViTModel?{LARGE}{EAGER}",
}
ARGONNE: Mapping[str, str] = {
    "meta-llama/Llama-2-7b-hf": "transformers:LlamaForCausalLM?hidden_size=4096&intermediate_size=11008"
    "&num_hidden_layers=32&num_attention_heads=32&vocab_size=32000&max_position_embeddings=4096",
    "meta-llama/Meta-Llama-3-8B": "llama-3.1-8b",
}
DEVICES: Mapping[str, str] = {
    "NVIDIA A10": "nvidia-a10",
    "NVIDIA A100-PCIE-40GB": "nvidia-a100-pcie-40gb",
    "NVIDIA H100-SXM5-80GB": "nvidia-h100-sxm5-80gb",
    "Nvidia A100 GPU": "nvidia-a100-sxm4-40gb",  # no cache of 80 GB: a batch of 32 takes twice that of 16
    "Nvidia H100 GPU": "nvidia-h100-sxm5-80gb",
    "Nvidia GH200 GPU": "nvidia-gh200-96gb",
    "H100": "nvidia-h100-sxm5-80gb",
    "B200": "nvidia-b200",
}
SERVED: Mapping[str, str] = {
    "Qwen/Qwen3-14B": "qwen3-14b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.3-70b",
}
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
FAULTY = {
    ("dvfs", "qwen2model", 8, 4096),
    ("a100", "qwen2model", 8, 4096),
    ("a10", "qwen2model", 4, 4096),
    ("a10", "optmodel", 8, 2048),
}
LONG_S = 0.012  # of a run on an H100: shorter ones wait for their host
UNBOUND_MHZ = 1230  # the highest clock of the sweep that the A100's limit does not cut
LEAST_KERNELS = 0.25  # of a served step: below, the host sets its pace
WRONG_TIME = 1.5  # measured over predicted: a run waits for its host, or makes other calls
PROMPT = 200  # tokens of a served request, about: lengths are not recorded
FEWEST_LIMIT = {"caps": 0.6, "zeus": 0.5}  # of the board's limit, from which on a limit is judged
TRT_LIMIT_W = 455  # of the H100 under TensorRT-LLM, whose runs of batch 16 and more all draw 449 W


@dataclass(frozen=True)
class Run:
    """A measured run, and how it is predicted."""

    source: str
    device: str
    network: str
    seconds: float
    watts: float
    options: Mapping[str, Any]  # of `predict`, but the clock
    clock: str | None = None  # None: the highest

    @property
    def joules(self) -> float:
        """Measured."""
        return self.seconds * self.watts

    @property
    def clock_share(self) -> float:
        """Its clock over the highest."""
        clock = find_spec(self.device).hardware().clock()
        return 1.0 if self.clock is None else float(self.clock[:-3]) * 1e6 / clock

    @property
    def said(self) -> Prediction:
        """The prediction at its clock."""
        return self.unlocked if self.clock is None else self._predicted(clock=self.clock)

    @property
    def unlocked(self) -> Prediction:
        """The prediction at the highest clock."""
        return self._predicted()

    def _predicted(self, **more: Any) -> Prediction:
        return _predicted(self.device, self.network, tuple(sorted({**self.options, **more}.items())))


def rows_of(table: pd.DataFrame) -> Iterator[Any]:
    """The rows, with their columns as attributes."""
    yield from table.itertuples()


def wrong(row: Any) -> bool:
    """Whether a row is known to be faulty: in less than half the time of a smaller batch, at 49 to 93 W."""
    return bool((row.set, row.model, row.batch, row.seq_len) in FAULTY)


@functools.cache
def _predictor(device: str) -> LoadedPredictor:
    return predictor_of(device)


@functools.cache
def _predicted(device: str, model: str, options: tuple[tuple[str, Any], ...]) -> Prediction:
    return _predictor(device).predict(model, **dict(options))


def energaizer(path: Path, chosen: Callable[[Any], bool], *, clocked: bool) -> Iterator[Run]:
    """Its forward passes that `chosen` wants; `clocked` at the clock that they were locked to."""
    for row in rows_of(pd.read_csv(path / "power/energaizer/networks_time_energy_power.csv")):
        if not chosen(row) or wrong(row):
            continue
        options: dict[str, Any] = {
            "batch_size": int(row.batch),
            "dtype": DTYPES[row.precision],
            "run": "eager",
        }
        if row.seq_len == row.seq_len:
            options["seq_len"] = int(row.seq_len)
        clock = f"{row.locked_clock_mhz}MHz" if clocked else None
        network, took = ENERGAIZER[row.model], row.time_ms / 1e3
        yield Run("EnergAIzer", DEVICES[row.device], network, took, row.power_w, options, clock)


def argonne(path: Path, device: str) -> Iterator[Run]:
    """Generations of 1,024 tokens after 1,024."""
    table = pd.read_csv(path / "power/argonne/generation_power.csv")
    phase = Phase.generate(prompt=1024, new_tokens=1024)
    for row in rows_of(table[table.device == device]):
        options: dict[str, Any] = {"batch_size": int(row.batch), "dtype": "bfloat16", "run": "engine"}
        if device == "Nvidia H100 GPU" and row.engine == "TensorRT-LLM":
            options["power_limit"] = f"{TRT_LIMIT_W}W"
        options["phase"] = phase
        yield Run("Argonne", DEVICES[device], ARGONNE[row.model], row.latency_s, row.power_w, options)


def served(path: Path, architecture: str) -> Iterator[Run]:
    """Decode steps of served models on one GPU whose kernels take LEAST_KERNELS of the step or more."""
    table = pd.read_csv(path / "served/energy_of_served_models.csv")
    for row in rows_of(table[(table.architecture == architecture) & (table.num_gpus == 1)]):
        phase = Phase.decode(context=int(row.avg_output_len / 2) + PROMPT)
        options: dict[str, Any] = {"batch_size": max(round(row.avg_batch_size), 1), "run": "engine"}
        if row.weight_precision == "bfloat16":
            options["dtype"] = "bfloat16"
        options["phase"], took = phase, row.median_itl_ms / 1e3
        run = Run("served", DEVICES[row.gpu_model], SERVED[row.model_id], took, row.avg_power_watts, options)
        if run.said.runtime_s.value >= LEAST_KERNELS * took:
            yield run


def diffusion_calls(
    path: Path, batches: Sequence[int] = ()
) -> Iterator[tuple[Mapping[str, str], Mapping[Layer, int], Estimates]]:
    """(Row of an image or video made on one GPU, its calls, their estimates); needs diffusers.

    Of `batches` alone, where some are named.
    """
    known: dict[tuple[str, str], Mapping[Layer, int]] = {}
    for row in diffusion.rows(path):
        if batches and int(row["batch_size"]) not in batches:
            continue
        name = row["model_id"], row["batch_size"]
        calls = known[name] = known.get(name) or diffusion.layers_of(row)
        yield row, calls, _predictor(DEVICES[row["gpu_model"]]).predictor.estimate([*calls])


def diffusion_line(path: Path) -> str:
    """The row of diffusion: watts alone, of kernels one after the other."""
    pairs: list[tuple[float, Interval]] = []
    try:
        for row, calls, found in diffusion_calls(path):
            said = energy_of(*busy_rows(calls, found), find_spec(DEVICES[row["gpu_model"]]).hardware())[0]
            pairs.append((float(row["avg_power_watts"]), said or Interval(0, 0, 0)))
    except ModelError:
        return "| diffusion | needs diffusers |"
    return f"| diffusion, one GPU | {len(pairs)} | - | {_cell(pairs)} | - |"


def busy_rows(calls: Mapping[Layer, int], found: Estimates) -> tuple[list[Row], Interval, Interval]:
    """Rows of calls that come one after the other, their time, and the same again: nothing waits."""
    rows, power = [], (found.power_w, found.power_low_w, found.power_high_w)
    for i, (layer, count) in enumerate(calls.items()):
        took, low, high = (count * float(one[i]) for one in (found.runtime_s, found.low_s, found.high_s))
        watts, trained = Interval(*(float(one[i]) for one in power)), bool(found.power_trained[i])
        rows.append(
            Row(
                "",
                layer.kind,
                round(count),
                took,
                low,
                high,
                0,
                0,
                "",
                "",
                power_w=watts,
                power_trained=trained,
                layer=layer,
            )
        )
    whole = Interval(*(sum(getattr(row, name) for row in rows) for name in ("runtime_s", "low_s", "high_s")))
    return rows, whole, whole


def line(name: str, runs: Sequence[Run]) -> str:
    """A row of the table of errors."""
    cells = []
    for measured, said in (("seconds", "runtime_s"), ("watts", "power_w"), ("joules", "energy_j")):
        cells.append(_cell([(getattr(run, measured), getattr(run.said, said)) for run in runs]))
    return f"| {name} | {len(runs)} | {' | '.join(cells)} |"


def _cell(pairs: Sequence[tuple[float, Interval]]) -> str:
    errors = np.abs([bounds.value / value - 1 for value, bounds in pairs])
    held = np.mean([bounds.low <= value <= bounds.high for value, bounds in pairs])
    wide = np.median([bounds.high / bounds.low for _, bounds in pairs])
    return f"{np.median(errors):.1%} / {errors.mean():.1%}, {held:.0%} in x{wide:.2f}"


def whole_runs(path: Path) -> Iterator[tuple[str, Callable[[], Iterator[Run]]]]:
    """The tables of whole runs, by name."""
    h100 = functools.partial(energaizer, path, lambda row: row.set == "h100" and row.time_ms > LONG_S * 1e3)
    limit = functools.partial(
        energaizer, path, lambda row: row.set == "dvfs" and row.locked_clock_mhz >= 1320
    )
    yield "EnergAIzer H100, above 12 ms", functools.partial(h100, clocked=True)
    yield "EnergAIzer A100-PCIE, at the limit", functools.partial(limit, clocked=False)
    for name in ("a100", "a10"):
        chosen = functools.partial(lambda row, name: row.set == name, name=name)
        yield f"EnergAIzer {name.upper()}, 900 MHz", functools.partial(energaizer, path, chosen, clocked=True)
    for device in ("Nvidia A100 GPU", "Nvidia H100 GPU", "Nvidia GH200 GPU"):
        yield f"Argonne {device.split()[1]}", functools.partial(argonne, path, device)
    for architecture in ("Dense Transformer", "MoE"):
        yield f"served, {architecture.split()[0]}", functools.partial(served, path, architecture)


def clocks(path: Path) -> Iterator[str]:
    """The sweep of an A100's clock: ratios to the run at UNBOUND_MHZ, of watts and time."""
    runs: dict[Any, dict[str, Run]] = {}
    for run in energaizer(path, lambda row: row.set == "dvfs", clocked=True):
        runs.setdefault((run.network, *sorted(run.options.items())), {})[str(run.clock)] = run
    errors = []
    for at in runs.values():
        anchor = at.pop(f"{UNBOUND_MHZ}MHz")
        took = anchor.said.runtime_s.value
        host = anchor.seconds if anchor.seconds > WRONG_TIME * took else 0.0
        before = beside_host(anchor, host)
        for run in at.values():
            time, watts = np.array(beside_host(run, host)) / before
            time, watts = time / (run.seconds / anchor.seconds), watts / (run.watts / anchor.watts)
            errors.append((time - 1, watts - 1, time * watts - 1))
    for name, found in zip(("time", "watts", "joules"), np.abs(errors).T, strict=True):
        text = f"{np.median(found):.1%} / {found.mean():.1%}"
        yield f"| clock sweep, ratio to {UNBOUND_MHZ} MHz, {name} | {len(found)} | {text} |"


def beside_host(run: Run, host_s: float) -> tuple[float, float]:
    """(s, W) predicted of a run whose host takes `host_s`: for the rest of it the device waits."""
    said, hardware = run.said, find_spec(run.device).hardware()
    drawn: Any = said.power_w
    working, took = said.runtime_s.value, max(said.runtime_s.value, host_s)
    idle, _, _ = idle_power(hardware, run.clock_share)
    return took, (working * drawn.value + (took - working) * idle) / took


def held(watts: float, idle: float, cores: float, limit: float) -> tuple[float, float]:
    """(Clock, time relative to full clock) of work of measured watts under a limit, as the law has them.

    `cores`: their share of the watts above idle, and of the time.
    """
    law = shipped_watts()
    tried = np.linspace(1.0, 0.1, 901)
    shares = np.full(len(tried), watts), np.full(len(tried), cores)

    def longer(clock: Array | float) -> Array:
        return np.asarray(cores / clock + (1 - cores))

    drawn = drawn_at(*shares, longer, idle, law)(tried)
    fits = np.flatnonzero(drawn <= max(limit, drawn.min()))[0]
    return float(tried[fits]), float(longer(tried[fits]))


def limits(path: Path) -> Iterator[str]:
    """Sweeps of power limits: ratios to the run at the highest, of watts and of tokens/s or time."""
    caps = pd.read_csv(path / "power/club3090/power_and_clock_sweeps.csv").dropna(subset="power_cap_w")
    columns = {"power_cap_w": "limit", "power_w": "watts"}
    caps = caps.rename(columns=columns).assign(seconds=1 / caps.tokens_per_s)
    yield from _limited("caps, LLM", caps, ["sweep"], FEWEST_LIMIT["caps"])
    zeus = pd.read_csv(path / "power/zeus/power_limit_sweeps.csv")
    columns = {"power_limit_w": "limit", "average_power_w": "watts", "time_per_epoch_s": "seconds"}
    by = ["device", "dataset", "network", "batch_size", "optimizer"]
    yield from _limited("limits, Zeus", zeus.rename(columns=columns), by, FEWEST_LIMIT["zeus"])


def _limited(name: str, table: pd.DataFrame, by: list[str], least: float) -> Iterator[str]:
    cores = 0.5  # neither compute nor memory alone sets the pace of a whole step
    errors: list[tuple[float, float]] = []
    unchanged, worse = list[float](), list[float]()
    for _, rows in table.groupby(by):
        begun = len(errors)
        top: Any = rows[rows.limit == rows.limit.max()].iloc[0]
        for row in rows_of(rows[(rows.limit < top.limit) & (rows.limit >= least * top.limit)]):
            bound = top.watts > row.limit
            _, longer = (
                held(top.watts, shipped_watts().idle * top.limit, cores, row.limit) if bound else (1.0, 1.0)
            )
            watts = min(top.watts, row.limit) / row.watts
            errors.append((watts - 1, top.seconds * longer / row.seconds - 1))
            unchanged.append(top.seconds / row.seconds - 1)
        if len(errors) > begun:
            said = np.mean([abs(time) for _, time in errors[begun:]])
            worse.append(float(said - np.mean(np.abs(unchanged[begun:]))))
    for what, one in zip(("watts", "time"), np.abs(errors).T, strict=True):
        yield f"| {name}, ratio, {what} | {len(one)} | {np.median(one):.1%} / {one.mean():.1%} |"
    yield f"| {name}, ratio, time unchanged | {len(unchanged)} | {np.mean(np.abs(unchanged)):.1%} mean |"
    yield f"| {name}, sweeps; points of the worst above unchanged | {len(worse)} | {100 * max(worse):+.1f} |"


def main(
    path: Annotated[Path | None, typer.Argument(help="Folder of the measurements.")] = None,
    only: Annotated[str, typer.Option(help="Print tables whose name has this.")] = "",
) -> None:
    """Print the tables."""
    if path is None or not (path / "power").is_dir():
        print("benchmarks.energy needs a folder that holds power/: skipped")
        return
    print("| runs | n | time: median / mean, in bounds | watts | joules |\n|" + "---|" * 5)
    for name, runs in whole_runs(path):
        if only.lower() in name.lower():
            try:
                print(line(name, [*runs()]), flush=True)
            except NeuralPowerError as error:
                print(f"| {name} | {error} |", flush=True)
    if only.lower() in "diffusion":
        print(diffusion_line(path), flush=True)
    print("\n| sweeps | n | error: median / mean |\n|---|---|---|")
    for name, lines in (("sweep of clocks", clocks), ("sweep of limits", limits)):
        if only.lower() in name:
            for text in lines(path):
                print(text, flush=True)


if __name__ == "__main__":
    typer.run(main)
