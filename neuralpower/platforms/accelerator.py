"""Devices of any maker that run kernels over many cores; each maker's special rules are in its own file."""

from neuralpower.layers.base import FORWARD, TRAINING
from neuralpower.optimizers.registry import FOREACH
from neuralpower.platforms.base import Framework, Platform

# A CUDA context with cuBLAS's work space, and the allocator's rounding to 2 MiB: assumed, not measured.
FRAMEWORK = Framework(600_000_000, 600_000_000, 0.1, 0.1, 0)

# So assumed, 72 training steps of 40 networks on an A100, float32, were 30 % below the real peaks in the
# median, and 92 % of the peaks above the upper bound. Language models' servers leave a tenth free.
MARGINS = {FORWARD: 0.1, TRAINING: 0.3}
ASSUMED = {
    FORWARD: "memory on accelerators is an estimate: tensors are exact, the framework's share is assumed",
    TRAINING: "memory of training on accelerators is an estimate: 92 % of 72 steps on an A100 needed more "
    "than the upper value, and the predicted value was 30 % too low in the median",
}

# A step of an untrained recurrent layer is two kernels of 3 to 5 us.
STEP_S = 8e-6

# The shortest kernels of language models take 1.7 to 2.7 us on GPUs of 2022 to 2025 (vLLM's profiler).
LAUNCH_S = 2e-6

PLATFORM = Platform(
    name="accelerator",
    framework=FRAMEWORK,
    margins=MARGINS,
    memory_notes=ASSUMED,
    optimizer=FOREACH,
    launch_s=LAUNCH_S,
    step_s=STEP_S,
    like=("elementwise", "float32", "forward", "cheap"),
)
