"""Accuracy and speed of predictions; each file prints one table: `python -m benchmarks.NAME`."""
