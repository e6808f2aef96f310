"""How good and how fast the predictions are; each file prints one table: `python -m benchmarks.NAME`."""
