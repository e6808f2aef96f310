"""What a load's users wait for, and results of benchmarks of served models next to it.

Each tool has names of its own, and its own time per output token:

    vLLM's and SGLang's benchmarks, aiperf    (latency - TTFT) / (tokens - 1)
    guidellm's `time_per_output_token_ms`     latency / tokens; its `inter_token_latency_ms` is the former
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.errors import InputError
from neuralpower.serving.simulator import Served
from neuralpower.serving.workload import Workload

# What users see of a workload, and what it takes: waiting times, throughput, energy and price.

Array = np.ndarray
POINTS = ("mean", "p50", "p90", "p95", "p99")  # that are shown of each measure
MEASURES = ("ttft_s", "tpot_s", "per_token_s", "itl_s", "latency_s")
SHOWN = ("ttft_s", "tpot_s", "itl_s", "latency_s")  # of these: what promises and tables name


@dataclass(frozen=True)
class Target:
    """A promise to users: a measure's percentile stays below a time."""

    measure: str  # one of MEASURES
    seconds: float
    percentile: int = 95

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.measure.removesuffix('_s')}={self.seconds * 1e3:g}ms@p{self.percentile}"


def targets_of(text: str) -> tuple[Target, ...]:
    """Targets as text: `ttft=500ms,tpot=30ms@p95`; without a percentile the 95th.

    Raises InputError.
    """
    found = []
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        number, at, percentile = value.partition("@")
        measure, unit = f"{name.lower()}_s", 1e-3 if number.endswith("ms") else 1.0
        try:
            seconds = float(number.removesuffix("ms").removesuffix("s")) * unit
            rank = int(percentile.removeprefix("p")) if at else 95
        except ValueError:
            seconds, rank = -1.0, 0
        known = measure in SHOWN and equals and number.endswith("s")
        if not known or not (np.isfinite(seconds) and seconds > 0) or not 1 <= rank <= 99:
            raise InputError(
                f"target {part.strip()!r}: write ttft, tpot, itl or latency with a time and a percentile, "
                "such as ttft=500ms,tpot=30ms@p95"
            )
        found.append(Target(measure, seconds, rank))
    return tuple(found)


@dataclass(frozen=True)
class Drawn:
    """What the devices draw, while they work and while they wait."""

    energy_j: float
    duration_s: float
    tokens: int  # made

    @property
    def power_w(self) -> float:
        """Watts of all devices together."""
        return self.energy_j / self.duration_s

    @property
    def per_token_j(self) -> float:
        """Joules of a token that is made."""
        return self.energy_j / self.tokens


@dataclass(frozen=True)
class Load:
    """What users see of a workload, in one bound; seconds."""

    rate: float | None  # requests per second that arrive; None: of a closed loop, or all at once
    requests: int
    ttft_s: Mapping[str, float]  # mean, p50, p90, p95, p99
    tpot_s: Mapping[str, float]
    per_token_s: Mapping[str, float]  # latency over tokens
    itl_s: Mapping[str, float]  # gaps between outputs, over all gaps
    latency_s: Mapping[str, float]
    requests_per_s: float
    tokens_per_s: float  # made
    drain_s: float  # from the last arrival to the last token
    goodput_per_s: float | None  # requests per second that hold all targets; None without any
    cache_share: float  # of the pool that is held, over time
    batch: float  # requests in a step, over time
    busy: float  # share of the time in which steps run
    reading: float  # share of the steps' time in which prompts are read
    preemptions: int
    recomputed: int  # tokens
    reused: float  # share of the prompts' tokens that the cache already held
    duration_s: float
    drawn: Drawn | None = None  # None: the power is not known
    price_per_million: float | None = None  # of a million tokens that are made; None: no price is given
    parts: Mapping[str, float] = field(default_factory=dict)  # share of the steps' time by what runs

    @classmethod
    def of(
        cls, served: Sequence[Served], rate: float | None, targets: Sequence[Target] = (), **more: Any
    ) -> Load:
        """From what became of the requests of each engine; `more`: what is drawn, and parts."""
        columns = {name: np.concatenate([getattr(one, name) for one in served]) for name in MEASURES}
        duration = max(one.duration_s for one in served)
        count = sum(len(one.output) for one in served)
        busy = sum(one.busy_s for one in served)

        def mean(name: str) -> float:
            return float(sum(getattr(one, name) * one.busy_s for one in served) / max(busy, 1e-30))

        held = sum(int(_held(one, targets).sum()) for one in served)
        measures: dict[str, Any] = {name: _summary(columns[name]) for name in MEASURES}
        return cls(
            rate=rate,
            requests=count,
            **measures,
            requests_per_s=count / duration,
            tokens_per_s=sum(int(one.output.sum()) for one in served) / duration,
            drain_s=max(one.duration_s - float(one.arrival_s.max()) for one in served),
            goodput_per_s=held / duration if targets else None,
            cache_share=mean("cache_share"),
            batch=mean("batch"),
            busy=busy / duration / sum(one.engines for one in served),
            reading=sum(one.reading_s for one in served) / max(busy, 1e-30),
            preemptions=sum(one.preemptions for one in served),
            recomputed=sum(one.recomputed for one in served),
            reused=sum(one.reused for one in served) / sum(int(one.prompt.sum()) for one in served),
            duration_s=duration,
            **more,
        )

    def holds(self, targets: Sequence[Target]) -> bool:
        """Whether all targets are held, and requests leave as fast as they come."""
        return all(getattr(self, one.measure)[f"p{one.percentile}"] <= one.seconds for one in targets)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; of each measure the points that are shown."""
        drawn = self.drawn
        plain: dict[str, Any] = dict(vars(self))
        del plain["drawn"]
        return {
            **plain,
            **{name: {point: plain[name][point] for point in POINTS} for name in MEASURES},
            "energy_j": drawn and drawn.energy_j,
            "power_w": drawn and drawn.power_w,
            "energy_per_token_j": drawn and drawn.per_token_j,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Load:
        """The load of a JSON object, with the points that it has; raises KeyError and TypeError."""
        found = dict(row)
        energy, _, each = (found.pop(name) for name in ("energy_j", "power_w", "energy_per_token_j"))
        drawn = None if energy is None else Drawn(energy, found["duration_s"], round(energy / each))
        return cls(**found, drawn=drawn)


def _summary(values: Array) -> dict[str, float]:
    """Mean and percentiles; all percentiles from 1 to 99."""
    if not len(values):
        return {"mean": 0.0, **{f"p{point}": 0.0 for point in range(1, 100)}}
    points = np.percentile(values, range(1, 100))
    return {"mean": float(values.mean()), **{f"p{i}": float(v) for i, v in enumerate(points, 1)}}


def _held(part: Served, targets: Sequence[Target]) -> Array:
    """[requests] which hold all targets."""
    held = np.ones(len(part.output), dtype=bool)
    for target in targets:
        if target.measure == "itl_s":  # gaps are of all requests together
            continue
        if target.measure == "tpot_s":
            held[part.output > 1] &= part.tpot_s <= target.seconds
        else:
            held &= getattr(part, target.measure) <= target.seconds
    return held


WITHOUT_FIRST, OF_ALL = "(latency - TTFT) / (tokens - 1)", "latency / tokens"
MS = 1e-3
# measure of a load -> the tool's name for it
FLAT = {
    "vLLM": {"ttft_s": "ttft", "tpot_s": "tpot", "itl_s": "itl", "latency_s": "e2el"},
    "SGLang": {"ttft_s": "ttft", "tpot_s": "tpot", "itl_s": "itl", "latency_s": "e2e_latency"},
}
GUIDELLM = {
    "ttft_s": ("time_to_first_token_ms", MS),
    "tpot_s": ("inter_token_latency_ms", MS),
    "per_token_s": ("time_per_output_token_ms", MS),
    "latency_s": ("request_latency", 1.0),
}
AIPERF = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "inter_token_latency",
    "latency_s": "request_latency",
}
UNITS = {"ms": MS, "s": 1.0, "sec": 1.0, "us": 1e-6}
COMPARED_POINTS = {
    "mean": ("mean", "avg"),
    "p50": ("median", "p50"),
    "p90": ("p90",),
    "p95": ("p95",),
    "p99": ("p99",),
}


@dataclass(frozen=True)
class Compared:
    """One number of a benchmark, and the predicted one."""

    measure: str
    point: str
    measured: float  # seconds, or per second
    predicted: float
    definition: str = ""  # of the benchmark's own, where tools differ

    @property
    def off(self) -> float:
        """How far the prediction lies from it, as a share."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Result:
    """A benchmark's result."""

    tool: str
    measures: Mapping[str, Mapping[str, float]]  # measure of a load -> point -> seconds
    rates: Mapping[str, float]  # field of a load -> per second
    workload: Workload | None = None  # the requests as they came, where the file lists them

    def against(self, load: Load) -> tuple[Compared, ...]:
        """Each number next to the predicted one."""
        own = {"tpot_s": WITHOUT_FIRST, "per_token_s": OF_ALL}
        found = [
            Compared(measure, point, seconds, getattr(load, measure)[point], own.get(measure, ""))
            for measure, points in self.measures.items()
            for point, seconds in points.items()
        ]
        found += [Compared(name, "mean", rate, getattr(load, name)) for name, rate in self.rates.items()]
        return tuple(found)


def read_result(path: Path) -> Result:
    """Read a benchmark's result: of `vllm bench serve`, SGLang's bench_serving, guidellm or aiperf.

    Raises:
        InputError: a file that is not there, is not JSON, or is of no version that is known.
    """
    data = _loaded(path)
    try:
        if "benchmarks" in data:
            return _guidellm(data, path)
        if isinstance(data.get("request_latency"), Mapping):
            return _aiperf(data, path)
        for tool, names in FLAT.items():
            if f"mean_{names['ttft_s']}_ms" in data and (
                tool == "vLLM" or f"mean_{names['latency_s']}_ms" in data
            ):
                chosen = "SGLang" if f"mean_{FLAT['SGLang']['latency_s']}_ms" in data else tool
                return _flat(data, chosen)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: {_unknown(error)}") from error
    raise InputError(f"{path}: {_unknown('none of their fields')}")


def _unknown(why: object) -> str:
    return (
        f"no result that is known ({why}); give the JSON of vllm bench serve, SGLang's bench_serving, "
        "guidellm (version 1 of its report) or aiperf"
    )


def _loaded(path: Path) -> dict[str, Any]:
    """The object in a file, the last one of JSON lines; raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}; give the JSON of a benchmark") from error
    try:
        data = json.loads(text)
    except ValueError:
        try:
            data = json.loads(text.strip().splitlines()[-1])
        except (ValueError, IndexError) as error:
            raise InputError(f"{path} is not JSON: {error}; give the JSON of a benchmark") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: {_unknown('it is not an object')}")
    return data


def _flat(data: Mapping[str, Any], tool: str) -> Result:
    """VLLM's and SGLang's: mean_ttft_ms, median_ttft_ms, p99_ttft_ms, ..."""
    measures: dict[str, dict[str, float]] = {}
    for measure, name in FLAT[tool].items():
        for point, words in COMPARED_POINTS.items():
            for word in words:
                if isinstance(value := data.get(f"{word}_{name}_ms"), (int, float)) and value > 0:
                    measures.setdefault(measure, {})[point] = value * MS
    rates = {"requests_per_s": "request_throughput", "tokens_per_s": "output_throughput"}
    return Result(tool, measures, _rates(data, rates), _requests(data))


def _requests(data: Mapping[str, Any]) -> Workload | None:
    """The requests, where a result lists them with their starts."""
    lists = [data.get(name) for name in ("start_times", "input_lens", "output_lens")]
    if not all(isinstance(one, list) and one for one in lists) or len({len(one or ()) for one in lists}) > 1:
        return None
    start, prompt, output = (np.array(one, dtype=float) for one in lists)
    kept = np.flatnonzero((prompt >= 1) & (output >= 1))
    order = kept[np.argsort(start[kept], kind="stable")]
    arrival = start[order] - start[order[0]]
    return Workload(arrival, prompt[order].astype(np.int64), output[order].astype(np.int64))


def _guidellm(data: Mapping[str, Any], path: Path) -> Result:
    """Guidellm's: metrics by successful, with mean, median and percentiles."""
    version = (data.get("metadata") or {}).get("version", 1)
    if version != 1:
        raise InputError(f"{path}: {_unknown(f'version {version}')}")
    if len(data["benchmarks"]) != 1:
        raise InputError(
            f"{path}: {len(data['benchmarks'])} benchmarks, one of each rate; give a file with one of them"
        )
    metrics = data["benchmarks"][0]["metrics"]
    measures = {
        measure: dict(_points(metrics[name]["successful"], unit))
        for measure, (name, unit) in GUIDELLM.items()
        if name in metrics
    }
    rates = {
        field: float(metrics[name]["successful"]["mean"])
        for field, name in (
            ("requests_per_s", "requests_per_second"),
            ("tokens_per_s", "output_tokens_per_second"),
        )
        if name in metrics
    }
    return Result("guidellm", measures, rates)


def _points(found: Mapping[str, Any], unit: float) -> Iterator[tuple[str, float]]:
    known = {**found, **found.get("percentiles", {})}
    for point, words in COMPARED_POINTS.items():
        for word in words:
            if isinstance(value := known.get(word), (int, float)):
                yield point, value * unit


def _aiperf(data: Mapping[str, Any], path: Path) -> Result:
    """Aiperf's and genai-perf's: metric -> unit, avg, p50, ..."""
    version = str(data.get("schema_version", "1"))
    if version.partition(".")[0] != "1":
        raise InputError(f"{path}: {_unknown(f'version {version}')}")
    measures = {
        measure: dict(_points(data[name], UNITS[data[name]["unit"]]))
        for measure, name in AIPERF.items()
        if name in data
    }
    known = {"requests_per_s": "request_throughput", "tokens_per_s": "output_token_throughput"}
    return Result("aiperf", measures, {f: float(data[n]["avg"]) for f, n in known.items() if n in data})


def _rates(data: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    return {field: float(data[name]) for field, name in names.items() if data.get(name)}
