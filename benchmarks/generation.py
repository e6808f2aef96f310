"""Prefill and decode steps of families that no dataset contains, predicted and measured here.

python -m benchmarks.generation [RESULT.json]  # measures (10 minutes), or shows what `evaluate --json` wrote
"""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.heldout import name, result

LIST = Path(__file__).with_suffix(".txt")


def main() -> None:
    """Print one line per model and phase, then the errors of each phase."""
    networks = result(LIST, "--rounds", "21")["networks"]
    print(
        "| model | phase | batch | tokens | predicted, ms | measured p10, ms | slow-down | error raw | "
        "error |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for n in networks:
        tokens = n["context"] if n["phase"] == "decode" else n["prompt"]
        print(
            f"| {name(n)} | {n['phase']} | {n['batch_size']} | {tokens} | "
            f"{n['predicted_s']['value'] * 1e3:.1f} | {n['measured_s'] * 1e3:.1f} | {n['slowdown']:.2f} | "
            f"{n['error_raw']:+.1%} | {n['error']:+.1%} |"
        )
    print("\n| phase | models | median | mean | worst | bias |\n|---|---|---|---|---|---|")
    for phase in ("prefill", "decode"):
        errors = [n["error"] for n in networks if n["phase"] == phase]
        sizes = [abs(error) for error in errors]
        print(
            f"| {phase} | {len(errors)} | {statistics.median(sizes):.1%} | {statistics.mean(sizes):.1%} "
            f"| {max(errors, key=abs):+.1%} | {statistics.median(errors):+.1%} |"
        )


if __name__ == "__main__":
    main()
