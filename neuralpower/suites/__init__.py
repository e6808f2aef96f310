"""Whole networks measured: the model benchmark, parameterised networks, the roofline report, the lab."""
