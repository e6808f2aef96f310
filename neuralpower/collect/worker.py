"""The measuring process: reads requests from stdin, one JSON object a line, and answers on stdout; imports torch.

Started by the supervisor with its thread environment set; whatever kills it, the journal is not its own.

    {"do": "plan", ...}                      -> {"plan": [...]}
    {"do": "measure", "items": [...]}        -> {"results": [{"config_id", "status", columns...}]}
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from neuralpower.collect.plan import NETWORK, check_dtypes, kinds_named, make_plan
from neuralpower.collect.presets import PRESETS
from neuralpower.errors import NeuralPowerError
from neuralpower.layers import KINDS, Call
from neuralpower.layers.base import torch_dtype
from neuralpower.measure import ROUNDS, Sentinel, prepare_process, time_calls
from neuralpower.sources import InputRequest, resolve

CPU = torch.device("cpu")


def measure_items(
    items: Sequence[dict[str, Any]], sentinel: Sentinel, generator: random.Random, rounds: int = ROUNDS
) -> list[dict[str, Any]]:
    """One result per item: status ok, noisy, oom or error, and the columns of a row."""
    results: list[dict[str, Any]] = []
    calls: list[Call] = []
    torch.manual_seed(generator.randrange(2**31))
    for item in items:
        build, work = _prepared(item)
        result = {"config_id": item["config_id"], **work}
        results.append(result)
        try:
            calls.append(build())
        except Exception as error:  # what a configuration does to torch is its result
            result.update(_failure(error))
            calls.append(Call(lambda: None, ()))
    for result, timing in zip(results, time_calls(calls, sentinel, generator, rounds=rounds), strict=True):
        if "status" in result:
            continue
        if isinstance(timing, Exception):
            result.update(_failure(timing))
        else:
            result.update(timing.to_row(), status="noisy" if timing.noisy else "ok")
    return results


def _prepared(item: dict[str, Any]) -> tuple[Callable[[], Call], dict[str, int]]:
    """What makes the call, of a layer or a whole network, and how much work it is."""
    row = item["row"]
    if item["kind"] != NETWORK:
        layer = KINDS[item["kind"]].from_row(row)
        return lambda: layer.build(CPU), {"flops": int(layer.flops()), "bytes": int(sum(layer.bytes()))}
    request = InputRequest(row["batch"], json.loads(row["input"]).get("seq_len"), None, torch_dtype(row["dtype"]))
    return lambda: resolve(row["model"]).call(request), {"flops": item["flops"], "bytes": item["bytes"]}


def _failure(error: Exception) -> dict[str, Any]:
    text = str(error).strip()
    memory = isinstance(error, MemoryError) or "allocate" in text
    return {"status": "oom" if memory else "error", "error_class": type(error).__name__, "error_msg": text[:500]}


def main() -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr: stdout is the answers'
    prepare_process(int(os.environ["OMP_NUM_THREADS"]))
    sentinel, generator = Sentinel().settle(), random.Random(0)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "plan":
                check_dtypes(request["dtypes"])
                preset, kinds = PRESETS[request["preset"]], kinds_named(request["kinds"])
                whole = request["kinds"] is None or NETWORK in request["kinds"]
                plan = make_plan(preset, kinds, request["models"], request["dtypes"], request["seed"], whole)
                answer: dict[str, Any] = {"plan": plan}
            else:
                answer = {"results": measure_items(request["items"], sentinel, generator, request["rounds"])}
        except NeuralPowerError as error:
            answer = {"error": str(error), "exit_code": error.exit_code}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
