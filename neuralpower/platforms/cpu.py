"""Processors: the host computes itself, with torch, oneDNN and glibc's heap."""

from neuralpower.platforms.base import Framework, Platform
from neuralpower.platforms.views import CpuView, PooledView

# Code that is paged in, libraries' and threads' buffers, in a process with torch and the network's classes.
# What glibc's heap keeps is above what was seen, and no less than the 64 MiB that it leaves at its end; a
# small heap has a small end. Chosen over the first table of benchmarks/memory.py; Python, torch and
# transformers took 381 MB.
FRAMEWORK = Framework(16_000_000, 30_000_000, 3.0, 1.25, 400_000_000, 64 << 20, 8_000_000, 72_000_000)

# Medians of 2,000 recurrent layers on two EPYCs: with these and a roofline, GRUs are predicted 5 to 40 % too
# fast, LSTMs and plain cells within 25 %; by the roofline alone all take 70 to 94 % less than measured.
STEP_S, AGAIN_BYTES_PER_S = 1e-5, 4e10

PLATFORM = Platform(
    name="cpu",
    called="a CPU",
    plural="CPUs",
    torch_type="cpu",
    family="cpu",
    alone=CpuView(),
    pooled=PooledView(),
    framework=FRAMEWORK,
    allocator="glibc",
    library="onednn",
    keeps_weights=True,
    step_s=STEP_S,
    again_bytes_per_s=AGAIN_BYTES_PER_S,
    rig="neuralpower.measure.cpu.rig",
)
