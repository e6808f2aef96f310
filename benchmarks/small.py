"""Small networks of families that appear nowhere in what is collected, one sample at a time: predicted beside measured, here.

python -m benchmarks.small [RESULT.json]      # measures (2 minutes), or shows what `evaluate --json` has written
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.heldout import result, show

LIST = Path(__file__).with_suffix(".txt")


if __name__ == "__main__":
    show(result(LIST, "--rounds", "21"))
