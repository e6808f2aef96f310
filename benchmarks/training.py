"""Training steps of networks of families that are in no collection: predicted beside measured, here. Prints Markdown tables.

python -m benchmarks.training [RESULT.json]      # measures (10 minutes), or shows what `evaluate --json` has written
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.heldout import name

LIST = Path(__file__).with_suffix(".txt")
STEPS = ("forward", "backward", "optimizer")


def result() -> dict[str, Any]:
    """The figures of `neuralpower evaluate --phase training --json`."""
    if len(sys.argv) > 1:
        text = Path(sys.argv[1]).read_text()
    else:
        command = [sys.executable, "-m", "neuralpower", "evaluate", f"@{LIST}", "--phase", "training", "--rounds", "15"]
        text = subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(text))


def ratio(parts: dict[str, float]) -> float:
    """How many times as long backward takes as forward."""
    return parts["backward"] / parts["forward"]


def main() -> None:
    """Print the networks, then the medians of their errors."""
    networks = result()["networks"]
    print(
        "| network | batch | length | step predicted, ms | measured, ms | error | backward : forward | measured | error |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for n in networks:
        predicted = ratio({step: n["training"][f"{step}_s"]["value"] for step in STEPS})
        measured = ratio(n["measured_parts_s"])
        ratios.append(predicted / measured - 1)
        print(
            f"| {name(n)} | {n['batch_size']} | {n['seq_len'] or '-'} | {n['predicted_s']['value'] * 1e3:.1f} "
            f"| {n['measured_s'] * 1e3:.1f} | {n['error']:+.1%} | {predicted:.2f} | {measured:.2f} | {ratios[-1]:+.1%} |"
        )
    errors = [abs(n["error"]) for n in networks]
    print(
        f"\n{len(networks)} networks: step {median(errors):.1%} median, {sum(errors) / len(errors):.1%} mean;", end=" "
    )
    print(f"backward : forward {median(map(abs, ratios)):.1%} median, {max(map(abs, ratios)):.1%} at most\n")
    print("| part | median error | mean error | bias |\n|---|---|---|---|")
    for step in STEPS:
        off = [n["training"][f"{step}_s"]["value"] / n["measured_parts_s"][step] * n["slowdown"] - 1 for n in networks]
        size = [abs(value) for value in off]
        print(f"| {step} | {median(size):.1%} | {sum(size) / len(size):.1%} | {sum(off) / len(off):+.1%} |")


if __name__ == "__main__":
    main()
