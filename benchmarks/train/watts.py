"""Fit the law of watts by kind of work (neuralpower/learn/watts.json), with networks and devices left out.

    python -m benchmarks.train.watts PATH [--runs FILE] [--out FILE]

PATH is a folder of other projects' measurements with power/, served/ and aiconfigurator2/. A run's watts are
the mean of its calls', weighed by their predicted times, and idle power while it waits. Runs whose predicted
time is WRONG_TIME off are left out: other calls ran. Calls whose watts a regressor says keep these.

Prints the errors of watts with each network left out of all sources, each source, and each device; then the
doubts that follow from them. `--out` writes the constants. `--runs` keeps the predicted calls of runs, which
take minutes. diffusers must be installed for its runs.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
import typer
from scipy.optimize import least_squares

from benchmarks import energy
from benchmarks.gpu_tables import SYSTEMS
from benchmarks.teachers.diffusion import BATCHES
from benchmarks.train import gpu_power
from neuralpower.data.dataset import read_dataset
from neuralpower.data.screening import Rows, metered, screen
from neuralpower.devices.spec import find_spec, known_specs
from neuralpower.errors import ModelError
from neuralpower.layers import KINDS, columns_of
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.regressor import NINETY
from neuralpower.learn.watts import (
    WORKS,
    Board,
    Demand,
    Watts,
    drawn_at,
    idle_falls,
    longer,
    shipped_watts,
    unlimited_w,
)
from neuralpower.prediction.rows import Row

SOURCE = (
    "python -m benchmarks.watts: calls of 0.2 ms and more (AIConfigurator at 095f58a5, vLLM 0.22.0), "
    "networks (EnergAIzer at cd607491), generations (LLM-Inference-Bench at 4211f5d4), served steps and "
    "diffusion (ML.ENERGY v3), passes of datasets/nvidia-h200-sxm-141gb, by NVML; voltage: EnergAIzer's "
    "sweep of an A100-PCIE's clock; idle power by clock: its A100-PCIE and H100; idle power: the sheets"
)
LEAST_SHARE, DIGITS = 0.1, 3
TABLES = "tables"  # the source of single calls
FIELDS = ("busy", "compute", "compute_power", "memory", "memory_power")
USUAL = {"busy": 0.2, "compute": 0.6, "compute_power": 0.5, "memory": 5e-11, "memory_power": 0.5}
USUAL_DRAM = 0.5  # of a byte's joules: HBM2 takes 3.9 pJ per bit (O'Connor et al., MICRO 2017)
USUAL_DOUBT = 0.7  # standard deviation of a constant's logarithm around its usual value
THINNED = {"EnergAIzer A10, 900 MHz": 3, "EnergAIzer A100, 900 MHz": 4}  # of so many runs one is taken
DEVICE_DOUBT = 0.1  # of the logarithm of a device's factor around 0
NOISE = {TABLES: 0.3, "EnergAIzer": 0.1, "Argonne": 0.1, "served": 0.1, "diffusion": 0.1}
# Errors count by their square up to so many deviations, by their size above: the meter of the tables says the
# limit for one call, and a third less for the next of the same shape.
ROBUST = 0.3
EACH = 40  # calls of a table that are drawn
SHORTEST_S = 2e-4  # of these: a meter that is read every 100 ms shows little of shorter ones
HOST_S = {"h200_sxm": 56e-6, "b200_sxm": 151e-6, "gb200": 418e-6}  # of a product of fp8_block
TIMES_FLOOR = 2.0
HELD = 0.88  # of runs in their 90 % bounds
HELD_DEVICES = 0.8  # the same in the mean of devices left out: of seven, an A10 is out of reach
DEVIATION = 0.68  # of errors within a standard deviation
PASSES_OF = Path(__file__).parents[2] / "datasets/nvidia-h200-sxm-141gb"  # torch's, metered one by one
SWEEP_NOISE = 0.05  # of the logarithm of a ratio to the anchor
LOWEST_MHZ = 510  # below, an H100's idle power is that of another state


@dataclass(frozen=True)
class Sample:
    """A run or a single call: measured watts, and its calls on the device at the highest clock."""

    source: str
    device: str
    network: str
    watts: float
    clock: float  # share of the highest
    waiting: float  # share of the time without any call
    took: float  # time measured over that predicted at the highest clock
    demand: Demand
    seconds: Array  # [calls] of each
    share: Array  # [calls] of the time of all
    said_w: Array  # [calls] watts that a regressor says; NaN where the law does

    @property
    def stretched(self) -> float:
        """Time of its calls relative to the highest clock."""
        return float(self.share @ longer(self.demand, shipped_watts())(self.clock))

    @property
    def late(self) -> float:
        """Time measured over predicted."""
        return self.took / self.stretched


@dataclass(frozen=True)
class Swept:
    """A run of a sweep of clocks, and the same at the anchor's."""

    run: Sample
    anchor: Sample


def idle_constants() -> dict[str, float]:
    """Shares of the limit that awake GPUs draw, of the sheets that state it: geometric mean, least, most."""
    sheets = [find_spec(slug).hardware() for slug in known_specs()]
    known = [
        one.idle_w / one.board_w for one in sheets if one.idle_w and one.board_w and one.platform == "nvidia"
    ]
    return {"idle": float(np.exp(np.mean(np.log(known)))), "least_idle": min(known), "most_idle": max(known)}


def fitted_clocks(path: Path, swept: Sequence[Swept], law: Watts) -> Watts:
    """The law with the voltage that suits the ratios of a sweep best, and idle power by clock with it."""
    runs, anchors = (Stack.of([getattr(one, name) for one in swept]) for name in ("run", "anchor"))
    measured = np.log([one.run.watts / one.anchor.watts for one in swept])

    def made(x: Array) -> Watts:
        falls, least, dram = map(float, x)
        return msgspec.structs.replace(law, voltage_falls=falls, least_voltage=least, dram=dram)

    def residuals(x: Array) -> Array:
        said = np.log(runs.watts(made(x)) / anchors.watts(made(x)))
        return np.asarray((said - measured) / SWEEP_NOISE)

    start, most = [law.voltage_falls, law.least_voltage, USUAL_DRAM], [np.inf, 1.0, 1.0]
    found = made(least_squares(residuals, start, bounds=(0, most), loss="soft_l1", diff_step=0.01).x)
    table = pd.read_csv(path / "power/energaizer/idle_and_voltage_by_clock.csv").sort_values("clock_mhz")
    table = table[table.clock_mhz >= LOWEST_MHZ]
    highest = table.groupby("host").transform("last")
    share, idle = ((table[name] / highest[name]).to_numpy(dtype=float) for name in ("clock_mhz", "idle_w"))
    (steady,) = least_squares(
        lambda x: idle_falls(share, msgspec.structs.replace(found, idle_steady=float(x[0]))) - idle, [0.3]
    ).x
    return msgspec.structs.replace(found, idle_steady=float(steady))


def runs(path: Path) -> Iterator[Sample]:
    """The whole runs of `benchmarks.energy`, but those that an unknown limit cut."""
    for name, found in energy.whole_runs(path):
        for run in itertools.islice(found(), None, None, THINNED.get(name, 1)):
            if "power_limit" in run.options:
                continue
            yield of_run(run)
    try:
        for row, calls, estimates in energy.diffusion_calls(path, BATCHES):
            rows, _, _ = energy.busy_rows(calls, estimates)
            device, watts = energy.DEVICES[row["gpu_model"]], float(row["avg_power_watts"])
            took = float(row["batch_latency_s"]) / sum(one.runtime_s for one in rows)
            yield sample("diffusion", device, row["model_id"], watts, rows, took=took)
    except ModelError:
        print("diffusion: left out, it needs diffusers")


def of_run(run: energy.Run) -> Sample:
    """A whole run with the calls of its prediction."""
    full = run.unlocked
    busy = sum(row.runtime_s for row in full.rows)
    waiting = max(1 - busy / full.runtime_s.value, 0.0)
    took = run.seconds / full.runtime_s.value
    return sample(run.source, run.device, run.network, run.watts, full.rows, run.clock_share, waiting, took)


def sample(
    source: str,
    device: str,
    network: str,
    watts: float,
    rows: Sequence[Row],
    clock: float = 1.0,
    waiting: float = 0.0,
    took: float = 1.0,
) -> Sample:
    """A run of the rows of a prediction at the highest clock; `took`: measured time over that."""
    hardware = find_spec(device).hardware()
    known = [(row, row.layer, row.power_w) for row in rows if row.layer and row.power_w and row.runtime_s > 0]
    parts = [Demand.of(columns_of(KINDS[row.kind], [layer]), hardware) for row, layer, _ in known]
    seconds = np.array([row.runtime_s for row, _, _ in known])
    said = np.array([drawn.value if row.power_trained else np.nan for row, _, drawn in known])
    demand = Demand(*(np.concatenate(one) for one in zip(*map(dataclasses.astuple, parts), strict=True)))
    calls = seconds / [row.count for row, _, _ in known]
    share = seconds / seconds.sum()
    return Sample(source, device, network, watts, clock, waiting, took, demand, calls, share, said)


def sweep(path: Path) -> list[Swept]:
    """The sweep of a clock by `benchmarks.energy`, each run with its anchor."""
    by: dict[Any, dict[str, Sample]] = {}
    for run in energy.energaizer(path, lambda row: row.set == "dvfs", clocked=True):
        by.setdefault((run.network, *sorted(run.options.items())), {})[str(run.clock)] = of_run(run)
    anchored = [(at.pop(f"{energy.UNBOUND_MHZ}MHz"), at) for at in by.values()]
    return [
        Swept(beside_host(one, anchor), beside_host(anchor, anchor))
        for anchor, at in anchored
        for one in at.values()
    ]


def beside_host(one: Sample, anchor: Sample) -> Sample:
    """A run that also waits for the host, if its anchor's measured time says that it did."""
    if anchor.late < energy.WRONG_TIME:
        return one
    busy = (1 - one.waiting) * one.stretched / max(anchor.took, one.stretched)
    return dataclasses.replace(one, waiting=1 - busy)


def single_calls(path: Path) -> Iterator[Sample]:
    """Some of each table that has watts, and torch's passes."""
    for system in gpu_power.POWERED:
        slug = SYSTEMS[system].slug
        hardware = find_spec(slug).hardware()
        for part in gpu_power.parts(path, system):
            long = part.table[part.table.runtime_s >= SHORTEST_S]
            if "fp8_block" in part.name:  # without a graph: short ones take the host's time
                long = long[long.runtime_s >= TIMES_FLOOR * HOST_S[system]]
            table = long.sample(min(EACH, len(long)), random_state=0).reset_index(drop=True)
            if len(table):
                yield from calls(slug, part.name, screen(part.kind, table, hardware=hardware))
    dataset, slug = read_dataset(PASSES_OF, samples=False), PASSES_OF.name
    for kind, table in dataset.tables.items():
        rows = screen(kind, table, dataset.sentinel_s, find_spec(slug).hardware()) if kind in KINDS else None
        if rows and not (rows.layer.multiplies or "key_length" in rows.layer.dimensions):
            yield from calls(slug, "torch", rows.at(np.flatnonzero(metered(rows))))


def calls(device: str, name: str, rows: Rows) -> Iterator[Sample]:
    """Each row of a kind's table as a sample."""
    demand = Demand.of(rows.layer, find_spec(device).hardware())
    for i in range(len(rows)):
        picked = Demand(*(values[i : i + 1] for values in dataclasses.astuple(demand)))
        network, watts = f"{rows.kind} {name}", float(rows.power_w[i])
        seconds, all_of_it, law = rows.runtime_s[i : i + 1], np.ones(1), np.full(1, np.nan)
        yield Sample(TABLES, device, network, watts, 1.0, 0.0, 1.0, picked, seconds, all_of_it, law)


@dataclass(frozen=True)
class Stack:
    """The calls of many samples one after the other; what is a sample's is repeated for each of its calls."""

    samples: Sequence[Sample]
    demand: Demand
    seconds: Array
    share: Array
    said_w: Array
    starts: Array  # [samples] of the first call of each
    limit_w: Array
    bytes_per_s: Array
    idle_w: Array  # NaN where no sheet states it
    clock: Array

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Stack:
        """Of samples on devices with sheets."""
        counts = np.array([len(one.seconds) for one in samples])
        hardware = [find_spec(one.device).hardware() for one in samples]
        law = shipped_watts()
        boards = [Board.of(each, one.device, law) for each, one in zip(hardware, samples, strict=True)]
        demands = [dataclasses.astuple(one.demand) for one in samples]

        def repeated(values: Sequence[Any]) -> Array:
            return np.repeat(np.array([np.nan if value is None else value for value in values]), counts)

        return cls(
            samples,
            Demand(*(np.concatenate(one) for one in zip(*demands, strict=True))),
            np.concatenate([one.seconds for one in samples]),
            np.concatenate([one.share for one in samples]),
            np.concatenate([one.said_w for one in samples]),
            np.cumsum(counts) - counts,
            repeated([one.limit_w for one in boards]),
            repeated([one.bytes_per_s for one in boards]),
            repeated([one.idle_w for one in hardware]),
            repeated([one.clock for one in samples]),
        )

    def watts(self, law: Watts) -> Array:
        """The watts of each sample by a law."""
        factors = {name: np.exp(law.devices.get(name, 0.0)) for name in {one.device for one in self.samples}}
        counts = np.diff([*self.starts, len(self.seconds)])
        factor = np.repeat([factors[one.device] for one in self.samples], counts)
        board = Board(self.limit_w, self.bytes_per_s, factor)
        by_law, cores = unlimited_w(self.demand, self.seconds, board, law)
        full = np.where(np.isnan(self.said_w), by_law, self.said_w)
        idle = np.where(np.isnan(self.idle_w), law.idle * self.limit_w, self.idle_w)
        stretched_at = longer(self.demand, law)
        drawn = np.minimum(drawn_at(full, cores, stretched_at, idle, law)(self.clock), self.limit_w)
        weights = self.share * stretched_at(self.clock)
        working = np.add.reduceat(weights * drawn, self.starts) / np.add.reduceat(weights, self.starts)
        waiting = np.array([one.waiting for one in self.samples])
        return np.asarray(
            working * (1 - waiting) + waiting * (idle * idle_falls(self.clock, law))[self.starts]
        )


def on_time(one: Sample) -> bool:
    """Whether it took about the predicted time."""
    return 1 / energy.WRONG_TIME < one.late < energy.WRONG_TIME


def doubtful(one: Sample) -> bool:
    """Whether its watts contradict those of the same chip: reading a cache, a GB200 draws half a B200's."""
    return one.source == TABLES and one.device == "nvidia-gb200" and "generation" in one.network


def fitted(samples: Sequence[Sample], law: Watts) -> Watts:
    """The law with the constants of works and devices that suit samples best."""
    samples = [one for one in samples if on_time(one) and not doubtful(one)]
    stack, devices = Stack.of(samples), sorted({one.device for one in samples})
    measured = np.log([one.watts for one in samples])
    noise = np.array([NOISE[one.source] for one in samples])
    usual = np.log([USUAL[field] for _ in WORKS for field in FIELDS])

    def made(x: Array) -> Watts:
        constants = np.exp(x[: len(usual)]).reshape(len(WORKS), len(FIELDS))
        works = {
            name: msgspec.structs.replace(law.works[name], **dict(zip(FIELDS, map(float, row), strict=True)))
            for name, row in zip(WORKS, constants, strict=True)
        }
        logs = dict(zip(devices, map(float, x[len(usual) :]), strict=True))
        return msgspec.structs.replace(law, works=works, devices=logs)

    def residuals(x: Array) -> Array:
        errors = (np.log(stack.watts(made(x))) - measured) / noise
        usual_off, devices_off = x[: len(usual)] - usual, x[len(usual) :]
        return np.concatenate([errors, usual_off / USUAL_DOUBT, devices_off / DEVICE_DOUBT])

    known = np.log([getattr(law.works[name], field) for name in WORKS for field in FIELDS])
    start = np.concatenate([known, [law.devices.get(name, 0.0) for name in devices]])
    return made(least_squares(residuals, start, loss="soft_l1", f_scale=ROBUST, max_nfev=60).x)


def held_out(samples: Sequence[Sample], law: Watts, by: str) -> Array:
    """Logarithms of watts said over measured, by fits without all that shares a sample's `by`, [samples].

    `law`: a fit of all, where the others begin. A table's calls have no network: they stay.
    """
    errors = np.full(len(samples), np.nan)
    names = np.array([getattr(one, by) for one in samples])
    kept = np.array([by == "network" and one.source == TABLES for one in samples])
    for name in sorted({*names[~kept]}):
        out = np.flatnonzero(names == name)
        rest = [one for one, other in zip(samples, names, strict=True) if other != name]
        devices = {slug: log for slug, log in law.devices.items() if slug != name}
        found = fitted(rest, msgspec.structs.replace(law, devices=devices))
        some = [samples[int(i)] for i in out]
        errors[out] = np.log(Stack.of(some).watts(found) / [one.watts for one in some])
    return errors


def sweep_held_out(path: Path, swept: Sequence[Swept], law: Watts) -> Array:
    """Logarithms of a sweep's ratios said over measured, the voltage fitted without the network's, [runs]."""
    errors, names = np.zeros(len(swept)), np.array([one.run.network for one in swept])
    for name in np.unique(names):
        rest = fitted_clocks(path, [one for one in swept if one.run.network != name], law)
        some = [one for one in swept if one.run.network == name]
        said = Stack.of([one.run for one in some]).watts(rest) / Stack.of([one.anchor for one in some]).watts(
            rest
        )
        errors[names == name] = np.log(said) - np.log([one.run.watts / one.anchor.watts for one in some])
    return errors


def with_doubts(samples: Sequence[Sample], law: Watts, by_device: Array, by_network: Array) -> Watts:
    """The law with its doubts, of errors with each device and each network left out, [samples].

    A work's is that of single calls. What the calls of a run share is as large as HELD of the runs need.
    """
    runs = np.array([one.source != TABLES for one in samples])
    work = np.array([one.demand.work[0] for one in samples])
    told = ~runs & np.array([not doubtful(one) for one in samples])
    works = {}
    for i, name in enumerate(WORKS):
        some = np.abs(by_device[told & (work == i)])
        doubt = float(np.quantile(some, DEVIATION)) if len(some) else law.works[name].doubt
        works[name] = msgspec.structs.replace(law.works[name], doubt=doubt)
    law = msgspec.structs.replace(law, works=works)
    apart = np.array([_apart(one, law) for one in samples])
    network = _needed(apart[runs], by_network[runs], np.zeros(runs.sum()), HELD)
    devices = np.array([one.device for one in samples])[runs]
    device = _needed(np.hypot(apart, network)[runs], by_device[runs], devices, HELD_DEVICES)
    return msgspec.structs.replace(law, network_doubt=network, device_doubt=device)


def _apart(one: Sample, law: Watts) -> float:
    """Standard deviation of a run's logarithm that the works' own doubts make."""
    doubts = [law.works[name].doubt for name in WORKS]
    shares = np.bincount(one.demand.work, weights=one.share, minlength=len(WORKS))
    return float(np.sqrt(np.sum((shares * doubts) ** 2)))


def _needed(apart: Array, errors: Array, groups: Array, share: float) -> float:
    """The least further deviation with which a share of the errors lies in its bounds, each group alike."""
    tried = np.arange(0.005, 0.6, 0.005)
    inside = [np.abs(errors) <= NINETY * np.hypot(apart, one) for one in tried]
    held = [np.mean([one[groups == name].mean() for name in np.unique(groups)]) for one in inside]
    return float(tried[np.argmax(np.array(held) >= share)])


def with_rows(samples: Sequence[Sample], law: Watts) -> Watts:
    """The law with the rows that it was fitted on: of each work, those of which it is a tenth or more."""
    works = {}
    for i, name in enumerate(WORKS):
        some = Counter(
            (one.source, one.device)
            for one in samples
            if float(one.share @ (one.demand.work == i)) >= LEAST_SHARE and not doubtful(one)
        )
        told: dict[str, list[str]] = {source: [] for source, _ in sorted(some)}
        for (source, device), count in sorted(some.items()):
            told[source].append(f"{count} on {device}")
        rows = "; ".join(f"{source}: {', '.join(each)}" for source, each in told.items())
        works[name] = msgspec.structs.replace(law.works[name], rows=rows)
    return msgspec.structs.replace(law, works=works, source=SOURCE)


def in_json(law: Watts) -> str:
    """The constants, with DIGITS each."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rounded(one) for name, one in value.items()}
        return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value

    return json.dumps(rounded(msgspec.to_builtins(law)), indent=1)


def printed(samples: Sequence[Sample], errors: Array, what: str) -> None:
    """Rows of the table of errors, of each source and device."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i in np.flatnonzero(~np.isnan(errors)).tolist():
        one = samples[i]
        groups.setdefault((one.source, one.device), []).append(i)
    for (source, device), index in sorted(groups.items()):
        off = np.abs(np.exp(errors[index]) - 1)
        print(
            f"| {what} | {source}, {device} | {len(index)} | {np.median(off):.1%} / {off.mean():.1%} |",
            flush=True,
        )


def main(
    path: Annotated[Path | None, typer.Argument(help="Folder of the measurements.")] = None,
    runs_file: Annotated[Path | None, typer.Option("--runs", help="Keep the calls of runs here.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the constants here.")] = None,
) -> None:
    """Fit, and print what is held out."""
    if path is None or not (path / "power").is_dir():
        print("benchmarks.train.watts needs a folder that holds power/: skipped")
        return
    if runs_file is not None and runs_file.exists():
        of_runs, swept = pickle.loads(runs_file.read_bytes())
    else:
        of_runs, swept = [*runs(path)], sweep(path)
        if runs_file is not None:
            runs_file.write_bytes(pickle.dumps((of_runs, swept)))
    samples = [*single_calls(path), *of_runs]
    law = fitted(samples, msgspec.structs.replace(shipped_watts(), **idle_constants()))
    law = fitted_clocks(path, swept, law)
    found = fitted(samples, law)
    print("| left out | rows | n | watts: median / mean |\n|---|---|---|---|")
    stack, measured = Stack.of(samples), [one.watts for one in samples]
    printed(samples, np.log(stack.watts(shipped_watts()) / measured), "as shipped")
    printed(samples, np.log(stack.watts(found) / measured), "nothing")
    off = np.abs(np.exp(sweep_held_out(path, swept, found)) - 1)
    error = f"{np.median(off):.1%} / {off.mean():.1%}"
    print(f"| network, of the voltage | sweep of clocks | {len(off)} | {error} |", flush=True)
    errors = {}
    for by in ("network", "source", "device"):
        errors[by] = held_out(samples, found, by)
        printed(samples, errors[by], by)
    found = with_doubts(samples, found, errors["device"], errors["network"])
    text = in_json(with_rows(samples, found)) + "\n"
    print(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
