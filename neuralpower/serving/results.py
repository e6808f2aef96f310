"""Results of benchmarks of served models, next to which a prediction stands.

Each tool has names of its own, and its own time per output token:

    vLLM's and SGLang's benchmarks, aiperf    (latency - TTFT) / (tokens - 1)
    guidellm's `time_per_output_token_ms`     latency / tokens; its `inter_token_latency_ms` is the former
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.errors import InputError
from neuralpower.serving.load import Load
from neuralpower.serving.workload import Workload

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
POINTS = {
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
        for point, words in POINTS.items():
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
    for point, words in POINTS.items():
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
