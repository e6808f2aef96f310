"""The speed of neuralpower itself: start, tracing, prediction, fitting, candidates. Prints one table.

python -m benchmarks.speed [DATASET]
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from neuralpower.devices.host import read_cpu
from neuralpower.layers import KINDS, columns_of
from neuralpower.layers.columns import take
from neuralpower.layers.rows import to_row
from neuralpower.learn.files.predictor_lookup import default_predictor
from neuralpower.learn.network_estimates import predict_many
from neuralpower.learn.predictor import Predictor
from neuralpower.measure.collect.plan import draw
from neuralpower.prediction.explore.score import score
from neuralpower.prediction.explore.space import Point, explore

PYTHON = sys.executable
LLAMA_70B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
IN_PROCESS = """
import json, resource, sys, time
start = time.perf_counter()
from neuralpower.learn.files.predictor_lookup import default_predictor
from neuralpower.devices.host import read_cpu
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.request import Request
from neuralpower.networks.phases import Phase
case = Request(sys.argv[1], 1, int(sys.argv[2]))
if len(sys.argv) > 4:
    case = Request(sys.argv[1], 1, phase=Phase.decode(context=int(sys.argv[4])))
from transformers import AutoModelForCausalLM, BertModel, LlamaForCausalLM
predictor = default_predictor(read_cpu())
times = [time.perf_counter() - start]
for _ in range(int(sys.argv[3])):
    start = time.perf_counter()
    predict_request(case, predictor)
    times.append(time.perf_counter() - start)
print(json.dumps([times, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""
Row = tuple[str, str, str]  # what, what it took, the bound
Rows = list[Row]
WIDTH = 56  # of the first column


def command_s(*arguments: str, runs: int = 3) -> float:
    """Median wall time of a whole process (s)."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([PYTHON, "-m", "neuralpower", *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def predictions(model: str, seq_len: int, runs: int, context: int | None = None) -> tuple[list[float], float]:
    """(seconds of imports and of each prediction in a fresh process, its largest memory in B)."""
    arguments = [model, str(seq_len), str(runs), *([] if context is None else [str(context)])]
    output = subprocess.run(
        [PYTHON, "-c", IN_PROCESS, *arguments], check=True, capture_output=True, text=True
    ).stdout
    times, memory = json.loads(output.splitlines()[-1])
    return times, memory


def commands() -> Iterator[Row]:
    """Start, and a small and a large network in fresh processes."""
    yield "neuralpower --help", f"{command_s('--help', runs=5):.2f} s", "0.5 s"
    yield "predict transformers:bert, cold shell", f"{command_s('predict', 'transformers:bert'):.1f} s", "8 s"
    times, _ = predictions("transformers:bert", 128, 6)
    yield "predict transformers:bert, warm process", f"{statistics.median(times[2:]):.2f} s", "0.5 s"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_70B))
        whole = command_s("predict", folder, "--phase", "decode", "--context", "4096")
        steps, _ = predictions(folder, 512, 3, context=4096)
        times, memory = predictions(folder, 512, 3)
    warm = statistics.median(steps[2:])
    yield "predict Llama-70B, a step with 4,096 in the cache", f"{warm:.1f} s", "3 s"
    yield "... the first in its process", f"{steps[1]:.1f} s", "3 s"
    yield "... the command, with imports", f"{whole:.1f} s", ""
    yield "... imports of torch and transformers alone", f"{steps[0]:.1f} s", ""
    yield "predict Llama-70B, 512 tokens, warm process", f"{statistics.median(times[2:]):.1f} s", "3 s"
    yield "... memory of the process", f"{memory / 1e9:.2f} GB", "1.5 GB"


def training(dataset: Path) -> Rows:
    """A predictor from a dataset."""
    with tempfile.TemporaryDirectory() as folder:
        took = command_s("train-predictor", str(dataset), "--out", str(Path(folder) / "p.json"), runs=1)
    return [(f"train-predictor {dataset}", f"{took:.0f} s", "60 s")]


def throughput() -> Rows:
    """Layers and networks a second, in this process, by this machine's predictor."""
    predictor = default_predictor(read_cpu())
    alone = {key: dataclasses.replace(r, trees=None) for key, r in predictor.regressors.items()}
    rows = []
    for kind in ("linear", "conv2d"):
        columns = columns_of(KINDS[kind], list(draw(KINDS[kind], 2000, 5)))
        for name, trained, count, bound in (
            ("base", dataclasses.replace(predictor, regressors=alone), 1_000_000, "1,000,000"),
            ("base + residual", predictor, 200_000, "50,000"),
        ):
            table = take(columns, np.arange(count) % len(columns.dtype))
            trained.estimate_columns(columns)
            start = time.perf_counter()
            trained.estimate_columns(table)
            rows.append(
                (f"{kind} layers a second, {name}", f"{count / (time.perf_counter() - start):,.0f}", bound)
            )
    cells = [layer for kind in ("conv2d", "activation", "elementwise") for layer in draw(KINDS[kind], 200, 7)]
    generator = random.Random(0)
    networks = [generator.choices(cells, k=100) for _ in range(4000)]
    start = time.perf_counter()
    predict_many(predictor, networks)
    rows.append(
        ("networks of 100 layers a second", f"{len(networks) / (time.perf_counter() - start):,.0f}", "2,000")
    )
    return rows


def exploration() -> Rows:
    """Many configurations from few traces, in this process, by this machine's predictor."""
    predictor = default_predictor(read_cpu())
    points = [Point("transformers:llama", b, s) for b in range(1, 21) for s in range(128, 1408, 128)]
    explore(points[:1], predictor)  # imports
    start = time.perf_counter()
    found = explore(points, predictor)
    took = time.perf_counter() - start
    return [(f"{len(points)} points of 32-layer Llama, {found.traces} traces", f"{took:.1f} s", "20 s")]


def candidates() -> Rows:
    """Candidates a second, here, by this machine's predictor; each batch of them is traced anew."""
    predictor, generator = default_predictor(read_cpu()), random.Random(0)
    score([{"model": "transformers:llama?num_hidden_layers=1", "seq_len": 8}], predictor)  # imports
    rows = []
    for count in (500, 4000):
        changed = [_configuration(generator) for _ in range(count)]
        rows.append(
            (f"changed configurations a second, {count} at once", _a_second(changed, predictor), "500")
        )
    kinds = [KINDS[kind] for kind in ("conv2d", "activation", "elementwise")]
    cells = [layer for kind in kinds for layer in draw(kind, 200, 7)]
    alike = [generator.choices(cells, k=20) for _ in range(6000)]
    pools = [iter(draw(kind, 14_000, 8)) for kind in kinds]
    unlike = [[next(pool) for pool in pools for _ in range(7)] for _ in range(2000)]
    for name, networks in (("of few layers", alike), ("of layers of their own", unlike)):
        listed = [
            {"layers": [{"kind": layer.kind, **to_row(layer)} for layer in network]} for network in networks
        ]
        rows.append((f"lists of 20 layers a second, {name}", _a_second(listed, predictor), "2,000"))
    return rows


def _a_second(found: Sequence[Mapping[str, Any]], predictor: Predictor) -> str:
    lines = [json.dumps(candidate) for candidate in found]
    start = time.perf_counter()
    score(lines, predictor)
    return f"{len(lines) / (time.perf_counter() - start):,.0f}"


def _configuration(generator: random.Random) -> Mapping[str, Any]:
    """A Llama of changed widths, depth and heads."""
    heads = generator.choice((4, 8, 12, 16))
    changes = {
        "hidden_size": heads * generator.choice((32, 64, 128)),
        "num_attention_heads": heads,
        "num_key_value_heads": generator.choice((heads // 4, heads // 2)),
        "intermediate_size": generator.choice((1024, 2048, 2816)),
        "num_hidden_layers": generator.randint(1, 24),
    }
    return {"model": "transformers:llama", "seq_len": 128, "changes": changes}


def main() -> None:
    """Print the table, each row as soon as it is known."""
    given = sys.argv[1] if len(sys.argv) > 1 else sorted(Path("datasets").glob("*/shard-001-*"))[0]
    print(f"{'what':{WIDTH}}  {'took':>9}  {'asked':>9}", flush=True)
    parts = (commands, partial(training, Path(given)), throughput, exploration, candidates)
    for what, took, asked in (row for part in parts for row in part()):
        print(f"{what:{WIDTH}}  {took:>9}  {asked:>9}", flush=True)


if __name__ == "__main__":
    main()
