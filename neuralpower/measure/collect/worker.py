"""The measuring process: reads requests from stdin, one JSON object a line, and answers on stdout.

The supervisor starts it with its thread environment set, and keeps the journal: whatever kills this process.

    {"do": "open"}                   {"hardware", "block", "power_reason", "versions", "settings", "machine"}
    {"do": "open", "tested": {...}}  the same and {"self_test": {...}}: the one given, or a new one for null
    {"do": "self_test"}              {"self_test": {...}}
    {"do": "plan", ...}              {"plan": [...]}
    {"do": "runtime", "items": ...}  {"results": [{"config_id", "status", columns...}]}
    {"do": "power", "items": ...}    {"results": [{"config_id", "power_source" or "power_reason", ...}]}

An answer with `lost` says that the device no longer answers; one with `error` is for the user.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import threadpoolctl
import torch

from neuralpower.devices.machine import read_machine
from neuralpower.errors import NeuralPowerError
from neuralpower.files.json_files import json_text, nullable
from neuralpower.files.terminal import Visible, quiet
from neuralpower.layers import KINDS, Call
from neuralpower.layers.base import torch_dtype
from neuralpower.layers.rows import from_row
from neuralpower.measure import ROUNDS
from neuralpower.measure.calls import TrainingStep, call_of
from neuralpower.measure.collect.plan import check_dtypes, kinds_named, make_plan
from neuralpower.measure.collect.request import preset_named
from neuralpower.measure.collect.schedule import NETWORK, versions
from neuralpower.measure.rig import Rig, failure, open_rig
from neuralpower.networks.decoder import cached_call
from neuralpower.networks.phases import Phase
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.trace.recipe import RECIPE, TRAINING


def measure_items(
    items: Sequence[dict[str, Any]], rig: Rig, rounds: int = ROUNDS, seed: int = 0
) -> list[dict[str, Any]]:
    """One result per item: status ok, noisy, oom, poisoned or error, and the columns of a row."""
    results: list[dict[str, Any]] = []
    calls: list[Call] = []
    torch.manual_seed(seed)
    for item in items:
        build, work = _prepared(item, rig.device)
        results.append({"config_id": item["config_id"], **work})
        try:
            calls.append(build())
        except Exception as error:  # what a configuration does to torch is its result
            results[-1].update(failure(error))
            calls.append(Call(lambda: None, ()))
    timed = zip(results, rig.time(calls, rounds), strict=True)
    return [result if "status" in result else {**result, **columns} for result, columns in timed]


def measure_power(items: Sequence[dict[str, Any]], rig: Rig) -> list[dict[str, Any]]:
    """One result per item: the columns of its power, or the `status` of its failure; its runtime stands."""
    results = []
    for item in items:
        build, _ = _prepared(item, rig.device)
        try:
            columns = rig.power(build())
        except Exception as error:  # as above
            columns = failure(error)
        results.append({"config_id": item["config_id"], "power_w": None, "energy_j": None, **columns})
    return results


def _prepared(item: dict[str, Any], device: torch.device) -> tuple[Callable[[], Call], dict[str, int]]:
    """The builder of the call, of a layer or a whole network, and how much work it is."""
    row = item["row"]
    if item["kind"] != NETWORK:
        layer = from_row(KINDS[item["kind"]], row)
        return lambda: call_of(layer, device), {"flops": int(layer.flops()), "bytes": int(sum(layer.bytes()))}
    given = json.loads(row["input"])
    request = InputRequest(row["batch"], given.get("seq_len"), None, torch_dtype(row["dtype"]))
    work = {"flops": item["flops"], "bytes": item["bytes"]}
    if "context" in given:
        step = Phase.decode(context=given["context"])
        return lambda: cached_call(resolve(row["model"]), request, step), work

    def build() -> Call:
        call = resolve(row["model"]).call(request, str(device))
        return training_step(call) if row["phase"] == TRAINING else call

    return build, work


def training_step(call: Call) -> Call:
    """A step of training the network that a call runs, by the usual recipe."""
    return Call(TrainingStep(call, RECIPE), (), warm=call.warm)


class Answers:
    """The process's answers; the rig is opened with the first request that needs it.

    `open_it` takes whether the device may be watched for some seconds before it is woken: only the process
    that tests the meter has the time.
    """

    def __init__(self, open_it: Callable[[bool], Rig]) -> None:
        self.open_it = open_it
        self.rig: Rig | None = None
        self.asked = 0

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "plan":
            return {"plan": self._plan(request)}
        rig = self._opened(first=request["do"] == "open" and not request.get("tested"))
        if request["do"] == "open":
            about: dict[str, Any] = {"block": rig.block, "power_reason": rig.power_reason}
            about.update(versions=versions(), settings=read_settings(), machine=read_machine())
            if "tested" in request:
                about["self_test"] = tested = request["tested"] or rig.self_test()
                rig.resume(tested)
            return {**about, "hardware": rig.hardware()}
        if request["do"] == "self_test":
            return {"self_test": rig.self_test()}
        self.asked += 1
        if request["do"] == "power":
            results = measure_power(request["items"], rig)
        else:
            results = measure_items(request["items"], rig, request["rounds"], self.asked)
        failed = any(result.get("error_class") for result in results)
        return {"results": results, "lost": failed and rig.is_lost()}

    def _opened(self, first: bool = False) -> Rig:
        self.rig = self.rig or self.open_it(first)
        return self.rig

    def _plan(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        device = self._opened().device
        check_dtypes(request["dtypes"], device)
        preset = preset_named(request["preset"], device.type)
        kinds = kinds_named(request["kinds"], request["phases"])
        whole = request["kinds"] is None or NETWORK in request["kinds"]
        models, dtypes, seed = request["models"], request["dtypes"], request["seed"]
        return make_plan(preset, kinds, models, dtypes, seed, whole, request["phases"])


def main() -> None:
    """Answer until stdin ends; this process is tied to its supervisor by then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--power", default="auto")
    parser.add_argument("--rig", help="module:class of another rig, made without arguments")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr: stdout is the answers'
    # a closed terminal must not fail a measurement
    sys.stdout, sys.stderr = Visible(quiet(1)), Visible(quiet(2))

    def opened(first: bool) -> Rig:
        if options.rig:
            module, _, name = options.rig.partition(":")
            rig: Rig = getattr(importlib.import_module(module), name)()
            return rig
        return open_rig(options.device, options.power, int(os.environ["OMP_NUM_THREADS"]), first)

    answer_to = Answers(opened)
    for line in sys.stdin:
        try:
            answer = answer_to(json.loads(line))
        except NeuralPowerError as error:
            answer = {"error": str(error), "exit_code": error.exit_code}
        try:
            print(json_text(nullable(answer)), file=answers, flush=True)
        except BrokenPipeError:  # the supervisor has ended: nobody waits for an answer
            os._exit(1)


# ---- How the measuring process is set up, for a session record ----


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
