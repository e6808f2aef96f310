"""Training steps of families that no dataset contains, predicted and measured here. Prints Markdown tables.

python -m benchmarks.training [RESULT.json]  # measures (10 minutes), or shows that of `evaluate --json`
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.heldout import name, result

LIST = Path(__file__).with_suffix(".txt")
STEPS = ("forward", "backward", "optimizer")


def ratio(parts: dict[str, float]) -> float:
    """How many times as long backward takes as forward."""
    return parts["backward"] / parts["forward"]


def main() -> None:
    """Print the networks, then the medians of their errors."""
    networks = result(LIST, "--phase", "training", "--rounds", "15")["networks"]
    print(
        "| network | batch | length | step predicted, ms | measured, ms | error | backward : forward | "
        "measured | error |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for n in networks:
        predicted = ratio({step: n["training"][f"{step}_s"]["value"] for step in STEPS})
        measured = ratio(n["measured_parts_s"])
        ratios.append(predicted / measured - 1)
        print(
            f"| {name(n)} | {n['batch_size']} | {n['seq_len'] or '-'} | "
            f"{n['predicted_s']['value'] * 1e3:.1f} | {n['measured_s'] * 1e3:.1f} | {n['error']:+.1%} | "
            f"{predicted:.2f} | {measured:.2f} | {ratios[-1]:+.1%} |"
        )
    errors = [abs(n["error"]) for n in networks]
    print(
        f"\n{len(networks)} networks: step {median(errors):.1%} median, {sum(errors) / len(errors):.1%} "
        "mean;",
        end=" ",
    )
    print(f"backward : forward {median(map(abs, ratios)):.1%} median, {max(map(abs, ratios)):.1%} at most\n")
    print("| part | median error | mean error | bias |\n|---|---|---|---|")
    for step in STEPS:
        off = [
            n["training"][f"{step}_s"]["value"] / n["measured_parts_s"][step] * n["slowdown"] - 1
            for n in networks
        ]
        size = [abs(value) for value in off]
        print(f"| {step} | {median(size):.1%} | {sum(size) / len(size):.1%} | {sum(off) / len(off):+.1%} |")


if __name__ == "__main__":
    main()
