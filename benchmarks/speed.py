"""How long neuralpower itself takes: start, tracing, prediction, fitting. Prints one table.

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
from pathlib import Path

import numpy as np

from neuralpower.codec import default_predictor
from neuralpower.collect.plan import draw
from neuralpower.devices.host import read_cpu
from neuralpower.explore.score import score
from neuralpower.explore.space import Point, explore
from neuralpower.layers import KINDS, columns_of
from neuralpower.layers.base import take

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
from neuralpower.devices.host import read_cpu
from neuralpower.explore.score import score
from neuralpower.explore.space import Point, explore
from neuralpower.evaluate import Case, predict_case
from neuralpower.codec import default_predictor
from neuralpower.phases import Phase
phase = Phase.decode(context=int(sys.argv[4])) if len(sys.argv) > 4 else Phase()
predictor = default_predictor(read_cpu().slug)
times = []
for _ in range(int(sys.argv[3])):
    start = time.perf_counter()
    predict_case(Case(sys.argv[1], 1, int(sys.argv[2]), phase=phase), predictor)
    times.append(time.perf_counter() - start)
print(json.dumps([times, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


def command_s(*arguments: str, runs: int = 3) -> float:
    """Median wall time of a whole process (s)."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([PYTHON, "-m", "neuralpower", *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def predictions(model: str, seq_len: int, runs: int, context: int | None = None) -> tuple[list[float], float]:
    """(seconds of each prediction in one fresh process, the process's largest memory in B); of a step with a context."""
    arguments = [model, str(seq_len), str(runs), *([] if context is None else [str(context)])]
    output = subprocess.run([PYTHON, "-c", IN_PROCESS, *arguments], check=True, capture_output=True, text=True).stdout
    times, memory = json.loads(output.splitlines()[-1])
    return times, memory


def throughput() -> list[tuple[str, str, str]]:
    """Layers and networks a second, in this process, by this machine's predictor."""
    predictor = default_predictor(read_cpu().slug)
    alone = {key: dataclasses.replace(r, trees=None) for key, r in predictor.regressors.items()}
    rows = []
    for kind in ("linear", "conv2d"):
        columns = columns_of(KINDS[kind], list(draw(KINDS[kind], 2000, 5)))
        for name, learnt, count, bound in (
            ("base", dataclasses.replace(predictor, regressors=alone), 1_000_000, "1,000,000"),
            ("base + residual", predictor, 200_000, "50,000"),
        ):
            table = take(columns, np.arange(count) % len(columns.dtype))
            learnt.estimate_columns(columns)
            start = time.perf_counter()
            learnt.estimate_columns(table)
            rows.append((f"{kind} layers a second, {name}", f"{count / (time.perf_counter() - start):,.0f}", bound))
    cells = [layer for kind in ("conv2d", "activation", "elementwise") for layer in draw(KINDS[kind], 200, 7)]
    generator = random.Random(0)
    networks = [generator.choices(cells, k=100) for _ in range(4000)]
    start = time.perf_counter()
    predictor.predict_many(networks)
    rows.append(("networks of 100 layers a second", f"{len(networks) / (time.perf_counter() - start):,.0f}", "2,000"))
    return rows


def exploration() -> list[tuple[str, str, str]]:
    """Many configurations from few traces, and candidates a second, in this process, by this machine's predictor."""
    predictor = default_predictor(read_cpu().slug)
    points = [Point("transformers:llama", b, s) for b in range(1, 21) for s in range(128, 1408, 128)]
    explore(points[:1], predictor)  # imports
    start = time.perf_counter()
    found = explore(points, predictor)
    took = time.perf_counter() - start
    rows = [(f"{len(points)} points of 32-layer Llama, {found.traces} traces", f"{took:.1f} s", "20 s")]
    generator = random.Random(0)
    changed = [
        {
            "model": "transformers:llama",
            "seq_len": 128,
            "changes": {
                "hidden_size": 64 * heads,
                "num_attention_heads": heads,
                "num_key_value_heads": heads // 2,
                "intermediate_size": generator.choice((1024, 2048, 2816)),
                "num_hidden_layers": generator.randint(1, 24),
            },
        }
        for heads in generator.choices((4, 8, 12, 16), k=4000)
    ]
    start = time.perf_counter()
    score(changed, predictor)
    rows.append(
        ("changed configurations scored a second", f"{len(changed) / (time.perf_counter() - start):,.0f}", "500")
    )
    cells = [
        {"kind": layer.kind, **layer.to_row()}
        for kind in ("conv2d", "activation", "elementwise")
        for layer in draw(KINDS[kind], 200, 7)
    ]
    networks = [{"layers": generator.choices(cells, k=20)} for _ in range(6000)]
    start = time.perf_counter()
    score(networks, predictor)
    rows.append(
        ("lists of 20 layers scored a second", f"{len(networks) / (time.perf_counter() - start):,.0f}", "2,000")
    )
    return rows


def main() -> None:
    """Print the table."""
    dataset = (
        Path(sys.argv[1]) if len(sys.argv) > 1 else next(iter(sorted(Path("datasets").glob("*/dataset.json")))).parent
    )
    rows: list[tuple[str, str, str]] = [("neuralpower --help", f"{command_s('--help', runs=5):.2f} s", "0.5 s")]
    rows.append(("predict transformers:bert, cold shell", f"{command_s('predict', 'transformers:bert'):.1f} s", "8 s"))
    times, _ = predictions("transformers:bert", 128, 6)
    rows.append(("predict transformers:bert, warm process", f"{statistics.median(times[1:]):.2f} s", "0.5 s"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_70B))
        times, memory = predictions(folder, 512, 3)
        steps, _ = predictions(folder, 512, 3, context=4096)
    rows.append(("predict Llama-70B, 80 layers, warm process", f"{statistics.median(times[1:]):.1f} s", "3 s"))
    rows.append(("... the first in its process", f"{times[0]:.1f} s", ""))
    rows.append(("... a step with 4,096 tokens in the cache", f"{statistics.median(steps[1:]):.1f} s", "3 s"))
    rows.append(("... memory of the process", f"{memory / 1e9:.2f} GB", "1.5 GB"))
    with tempfile.TemporaryDirectory() as folder:
        took = command_s("train-predictor", str(dataset), "--out", str(Path(folder) / "p.json"), runs=1)
    rows.append((f"train-predictor {dataset}", f"{took:.0f} s", "60 s"))
    rows += throughput()
    rows += exploration()
    width = max(len(row[0]) for row in rows)
    print(f"{'what':{width}}  {'took':>8}  {'bound':>8}")
    for row in rows:
        print(f"{row[0]:{width}}  {row[1]:>8}  {row[2]:>8}")


if __name__ == "__main__":
    main()
