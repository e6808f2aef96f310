"""Traces of PyTorch's profiler (JSON of Kineto): their calls as layers, with the time of their kernels."""
