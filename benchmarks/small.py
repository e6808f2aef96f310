"""Small networks of families that no dataset contains, one sample at a time, predicted and measured here.

python -m benchmarks.small [RESULT.json]  # measures (2 minutes), or shows what `evaluate --json` wrote
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.heldout import result, show

LIST = Path(__file__).with_suffix(".txt")


if __name__ == "__main__":
    show(result(LIST, "--rounds", "21"))
