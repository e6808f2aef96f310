"""Whole networks measured and told of: the model benchmark, parameterised networks, the roofline report, the lab."""
