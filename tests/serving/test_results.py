"""Results of benchmarks are read with each tool's own definitions, and unknown ones refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralpower.errors import InputError
from neuralpower.serving.results import OF_ALL, WITHOUT_FIRST, Load, Result, read_result
from neuralpower.serving.simulator import Served

VLLM = {
    "request_throughput": 2.0,
    "output_throughput": 512.0,
    "mean_ttft_ms": 100.0,
    "median_ttft_ms": 90.0,
    "p99_ttft_ms": 300.0,
    "mean_tpot_ms": 20.0,
    "mean_itl_ms": 21.0,
    "mean_e2el_ms": 5_000.0,
}
SGLANG = {"mean_ttft_ms": 100.0, "mean_tpot_ms": 20.0, "mean_e2e_latency_ms": 5_000.0}
POINTS = {"mean": 20.0, "median": 19.0, "percentiles": {"p90": 25.0, "p99": 30.0}}
GUIDELLM = {
    "metadata": {"version": 1},
    "benchmarks": [
        {
            "metrics": {
                "time_to_first_token_ms": {"successful": {"mean": 100.0}},
                "time_per_output_token_ms": {"successful": POINTS},
                "inter_token_latency_ms": {"successful": {"mean": 19.0}},
                "request_latency": {"successful": {"mean": 5.0}},
                "requests_per_second": {"successful": {"mean": 2.0}},
            }
        }
    ],
}
AIPERF = {
    "request_latency": {"unit": "ms", "avg": 5_000.0, "p99": 6_000.0},
    "time_to_first_token": {"unit": "ms", "avg": 100.0},
    "inter_token_latency": {"unit": "ms", "avg": 20.0},
    "request_throughput": {"unit": "requests/sec", "avg": 2.0},
}


def read(data: Any, folder: Path) -> Result:
    file = folder / "result.json"
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return read_result(file)


@pytest.mark.parametrize(
    ("tool", "data"), [("vLLM", VLLM), ("SGLang", SGLANG), ("guidellm", GUIDELLM), ("aiperf", AIPERF)]
)
def test_each_tools_result_is_read(tool: str, data: dict[str, Any], tmp_path: Path) -> None:
    found = read(data, tmp_path)
    assert found.tool == tool
    assert found.measures["ttft_s"]["mean"] == pytest.approx(0.1)
    assert found.measures["latency_s"]["mean"] == pytest.approx(5.0)


def test_each_tool_is_compared_by_its_own_time_per_token(tmp_path: Path) -> None:
    numbers = {"steps": 5, "busy_s": 3.0, "reading_s": 1.0, "tokens": 15, "preemptions": 0, "recomputed": 0}
    times = {"arrival_s": np.zeros(1), "first_s": np.array([1.0]), "last_s": np.array([3.0])}
    served = Served(
        prompt=np.array([10]), output=np.array([5]), cache_share=0.1, batch=1.0, **times, **numbers
    )
    compared = read(GUIDELLM, tmp_path).against(Load.of([served], 1.0))
    rows = {(one.measure, one.point): one for one in compared if one.definition}
    assert rows["per_token_s", "mean"].definition == OF_ALL
    assert rows["per_token_s", "mean"].predicted == pytest.approx(3.0 / 5)
    assert rows["tpot_s", "mean"].definition == WITHOUT_FIRST
    assert rows["tpot_s", "mean"].predicted == pytest.approx(2.0 / 4)
    assert rows["per_token_s", "p99"].measured == pytest.approx(0.03)
    assert rows["tpot_s", "mean"].off == pytest.approx(0.5 / 0.019 - 1)


def test_the_requests_that_a_result_lists_are_served(tmp_path: Path) -> None:
    lists = {"start_times": [5.0, 4.0, 6.5], "input_lens": [10, 20, 30], "output_lens": [5, 6, 0]}
    workload = read({**VLLM, **lists}, tmp_path).workload
    assert workload is not None
    assert workload.arrival_s.tolist() == [0.0, 1.0]
    assert workload.prompt.tolist() == [20, 10] and workload.output.tolist() == [6, 5]
    assert read(VLLM, tmp_path).workload is None


def test_the_last_of_json_lines_counts(tmp_path: Path) -> None:
    found = read(json.dumps(VLLM) + "\n" + json.dumps({**SGLANG, "mean_ttft_ms": 50.0}), tmp_path)
    assert found.tool == "SGLang" and found.measures["ttft_s"]["mean"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ([1], "it is not an object"),
        ({"latency": 5}, "none of their fields"),
        ({**GUIDELLM, "metadata": {"version": 7}}, "version 7"),
        ({**AIPERF, "schema_version": "2.0"}, "version 2.0"),
        ({"benchmarks": [1, 2]}, "2 benchmarks"),
        ({"benchmarks": [{"metrics": {"request_latency": {}}}]}, "successful"),
        ({**AIPERF, "time_to_first_token": {"unit": "days", "avg": 1}}, "days"),
    ],
)
def test_results_that_are_not_known_are_refused(data: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        read(data, tmp_path)


def test_a_result_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_result(tmp_path / "nothing.json")
