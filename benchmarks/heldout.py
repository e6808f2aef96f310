"""Networks of families that no dataset contains, predicted and measured here. Prints a Markdown table.

python -m benchmarks.heldout [RESULT.json]  # measures (5 minutes), or shows what `evaluate --json` wrote
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_suffix(".txt")


def result(cases: Path, *options: str) -> dict[str, Any]:
    """The numbers of `neuralpower evaluate @CASES --json`, or of the file in the first argument."""
    if len(sys.argv) > 1:
        text = Path(sys.argv[1]).read_text()
    else:
        command = [sys.executable, "-m", "neuralpower", "evaluate", f"@{cases}", *options, "--json"]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(text))


def name(network: dict[str, Any]) -> str:
    """The model without its overrides, which the list has."""
    return str(network["model"]).split("?")[0].removeprefix("transformers:")


def show(data: dict[str, Any]) -> None:
    """Print the summary, then the networks."""
    print(
        "| predictor | networks | median | MAPE | RMSPE | worst | Spearman |\n|---|---|---|---|---|---|---|"
    )
    for predictor, s in data["summary"].items():
        errors = " | ".join(f"{s[key]:.1%}" for key in ("median", "mape", "rmspe"))
        rank = "-" if s["spearman"] is None else f"{s['spearman']:.3f}"  # unknown of two networks
        print(f"| {predictor} | {s['networks']} | {errors} | {s['worst']:+.1%} | {rank} |")
    print(f"\n{data['inside_bounds']} of {len(data['networks'])} lie within their 90 % bounds.\n")
    print("| network | batch | length | predicted, ms | measured, ms | slow-down | error raw | error |")
    print("|---|---|---|---|---|---|---|---|")
    for n in data["networks"]:
        print(
            f"| {name(n)} | {n['batch_size']} | {n['seq_len'] or '-'} | "
            f"{n['predicted_s']['value'] * 1e3:.2f} | {n['measured_s'] * 1e3:.2f} | {n['slowdown']:.2f} | "
            f"{n['error_raw']:+.1%} | {n['error']:+.1%} |"
        )


if __name__ == "__main__":
    show(result(LIST, "--rounds", "21"))
