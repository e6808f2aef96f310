"""NVIDIA's GPUs, by CUDA."""

from dataclasses import replace

from neuralpower.platforms import accelerator

PLATFORM = replace(accelerator.PLATFORM, name="nvidia", torch_type="cuda", rig="neuralpower.measure.cuda.rig")
