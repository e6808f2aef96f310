"""Measurements of a device: what to measure, a process that measures, one that survives it."""
