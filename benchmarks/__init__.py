"""Accuracy and speed of predictions; each file prints one table: `python -m benchmarks.NAME`.

`train` has the programs that train what is shipped: `python -m benchmarks.train.NAME`.
"""

from pathlib import Path

__path__.append(str(Path(__file__).parent / "train"))  # `benchmarks.prior` is its name of before
