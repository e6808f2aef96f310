"""Latency, power and energy of neural networks, layer by layer, without running them."""

__version__ = "0.1.0"
