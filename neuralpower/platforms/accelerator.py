"""Devices of any maker that run kernels over many cores; what only one maker's have is in its own file."""

from neuralpower.layers.base import FORWARD, TRAINING
from neuralpower.layers.optimizer import FOREACH
from neuralpower.platforms.base import Framework, Platform

# A CUDA context with cuBLAS's work space, and the allocator's rounding to 2 MiB: assumed, not measured.
FRAMEWORK = Framework(600_000_000, 600_000_000, 0.1, 0.1, 0)

# 72 training steps of 40 networks on an A100, float32: predictions were 30 % below the real peaks in the
# median, and 92 % of the peaks above the high figure. Language models' servers leave a tenth free.
MARGINS = {FORWARD: 0.1, TRAINING: 0.3}
ASSUMED = (
    "memory beside tensors is assumed on an accelerator, no upper bound: of 72 training steps on an A100, "
    "92 % took more than the high figure, and the median was 30 % too low"
)

# A step of a recurrent layer that was not learnt is two kernels of 3 to 5 us.
STEP_S = 8e-6

# The shortest kernels of language models take 1.7 to 2.7 us on GPUs of 2022 to 2025 (vLLM's profiler).
LAUNCH_S = 2e-6

PLATFORM = Platform(
    name="accelerator",
    framework=FRAMEWORK,
    margins=MARGINS,
    memory_note=ASSUMED,
    optimizer=FOREACH,
    launch_s=LAUNCH_S,
    step_s=STEP_S,
    like=("elementwise", "float32", "forward", "cheap"),
)
