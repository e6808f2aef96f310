"""Processors: the host computes itself, with torch, oneDNN and glibc's heap."""

from neuralpower.platforms.base import Framework, Platform
from neuralpower.platforms.views import CpuView, PooledView

# Code that is paged in, libraries' and threads' buffers, in a process with torch and the network's classes.
# What glibc's heap keeps is above what was seen, and no less than the 64 MiB that it leaves at its end; a
# small heap has a small end. Chosen over the first table of benchmarks/memory.py; Python, torch and
# transformers took 381 MB.
FRAMEWORK = Framework(16_000_000, 30_000_000, 3.0, 1.25, 400_000_000, 64 << 20, 8_000_000, 72_000_000)

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
    rig="neuralpower.measure.cpu.rig",
)
