"""NVIDIA's GPUs, by CUDA.

What a process takes besides its tensors depends on how CUDA loads its kernels. PyTorch loads them when they
are first used since 2.0; older ones load all at once, and `CUDA_MODULE_LOADING=EAGER` does still.
"""

from dataclasses import replace

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.base import FORWARD
from neuralpower.platforms import accelerator
from neuralpower.platforms.base import Framework, Overhead, Platform

MIB = 2**20
CONTEXT, KERNELS = "CUDA context", "CUDA kernels"
# Measured on an H200 (driver 580.159, torch 2.11 for CUDA 13.0) by the driver's count, less PyTorch's own:
# 527 MiB after the first tensor, 770 in training steps of 60 networks (767 to 774); all at once 1,259 and
# 1,985.
MEASURED = "H200, driver 580, torch 2.11"
USUAL = (
    Overhead(CONTEXT, 527 * MIB, 527 * MIB, MEASURED),
    Overhead(KERNELS, 243 * MIB, 1458 * MIB, f"{MEASURED}; upper value: all kernels loaded at once"),
)
# Sixteen training steps of ten networks on an A100 of 40 GB leave 1,690 to 2,100 MiB besides what PyTorch's
# allocator reserves in a replay (VGG-16 at batch 128 aside): kernels loaded at once.
LOADED = "16 training steps on an A100, all kernels loaded at once"
AMPERE = (
    Overhead(CONTEXT, 527 * MIB, 527 * MIB, MEASURED),
    Overhead(KERNELS, 1303 * MIB, 1573 * MIB, LOADED),
)
# cuBLAS's work space for each thread that multiplies (at::cuda::getChosenWorkspaceSize): 32 MiB where the
# compute capability is 9.0 or 10.0, else 2 x 4 MiB + 16 x 8 KiB.
WIDE_PRODUCTS, PRODUCTS = 32 * MIB, 8 * MIB + 128 * 2**10
# H100, H200 and B200 do 4,096 FLOP in bfloat16 a core and cycle, or more; A100 and A30 2,048. The bound lies
# between, for sheets whose clock is not the tensor cores'.
WIDTH_HOPPER = 3000
# Since 2020, GPUs of compute capability 8.0 alone, A100 and A30, feed 16 lanes from a scheduler; others 32.
LANES_A100, YEAR_A100 = 16, 2020
# The allocator kept up to 8 % more than its replay in nine of ten of 60 steps on an H200.
KEPT = 0.1


def _framework(overheads: tuple[Overhead, ...]) -> Framework:
    """The sum of the lines, and what the allocator may keep besides what its replay does."""
    taken = sum(one.value_bytes for one in overheads)
    return Framework(taken, taken, KEPT, KEPT, 0)


def _specialised(platform: Platform, hardware: Hardware) -> Platform:
    """The platform of GPUs of this one's architecture."""
    if hardware.width("bfloat16") > WIDTH_HOPPER:
        return _HOPPER
    narrow = hardware.lanes_per_scheduler == LANES_A100
    return _AMPERE if narrow and (hardware.year or 0) >= YEAR_A100 else platform


PLATFORM = replace(
    accelerator.PLATFORM,
    name="nvidia",
    called="an NVIDIA GPU",
    plural="NVIDIA GPUs",
    torch_type="cuda",
    rig="neuralpower.measure.cuda.rig",
    framework=_framework(USUAL),
    overheads=USUAL,
    product_bytes=PRODUCTS,
    allocator="cuda",
    library="cudnn",
    margins={},
    memory_notes={FORWARD: ""},
    specialised=_specialised,
)
_HOPPER = replace(PLATFORM, product_bytes=WIDE_PRODUCTS)
_AMPERE = replace(PLATFORM, framework=_framework(AMPERE), overheads=AMPERE)
