"""The memory of a GPU as an engine finds it: what the driver gives, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from neuralpower.devices.spec import DeviceSpec

GIB, MIB = 2**30, 2**20
# The driver keeps some memory for itself. CUDA reports 25,250,627,584 B on a GeForce RTX 4090 (2.0 % less
# than 24 GiB), 94.97 of 96 GiB on an RTX PRO 6000, and 79.19 of 80 GiB on an H100.
DRIVER_SHARE, DRIVER_MOST = 0.0201, {False: 1.03 * GIB, True: 0.81 * GIB}  # by whether it has NVLink
# What CUDA reports where public logs of engines name it, in GiB.
REPORTED = {
    "NVIDIA GeForce RTX 3090": 23.56,
    "NVIDIA GeForce RTX 4090": 23.516,
    "NVIDIA GeForce RTX 5090": 31.36,
    "NVIDIA L40S": 44.39,
    "NVIDIA A100-SXM4-40GB": 39.49,
    "NVIDIA A100-SXM4-80GB": 79.25,
    "NVIDIA H100-SXM5-80GB": 79.19,
}
# Error correction takes one part in 16 of GDDR6 on professional boards, which ship with it turned on:
# 44.3 GiB on an L40S, 22.0 on an L4 and an A10G, 14.6 on a T4.
CORRECTED = ("L40S", "L40", "L4", "L20", "A10", "A10G", "A40", "T4")
CORRECTION_SHARE = 1 / 16
# Hopper and later servers' GPUs: cuBLAS 32 MiB and cuBLASLt; others two buffers of 4 MiB and eight of 16 KiB
# (PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp).
LARGE_WORKSPACE, WORKSPACE = 40 * MIB, 2 * 4 * MIB + 8 * 16 * 2**10
LARGE_SINCE = 2022
# CUDA's context, before a kernel is loaded: 527 MiB on an H200 with CUDA 12.8.
CONTEXT = 527 * MIB
# NCCL's buffers with several ranks: 1.8 GiB over NVLink (2.06 to 2.21 GiB outside PyTorch in 12 runs of vLLM
# 0.19.0 on 2 and 4 H100). Over PCI Express none are seen: 0.23 GiB in all outside PyTorch on 4 L40S.
EXCHANGE = {True: 1.83 * GIB, False: 0.0}
GAMING = "GeForce"  # boards whose driver keeps more outside PyTorch


@dataclass(frozen=True)
class Board:
    """One GPU."""

    name: str
    sheet_bytes: int  # on the sheet, as nvidia-smi shows about
    total_bytes: int  # that CUDA reports
    cores: int = 128  # streaming multiprocessors
    linked: bool = False  # whether it has links of its own to others: NVLink
    year: int = LARGE_SINCE
    gaming: bool = False

    def free_bytes(self, ranks: int) -> int:
        """What is left when CUDA and NCCL have started."""
        return self.total_bytes - CONTEXT - self.exchange_bytes(ranks)

    def exchange_bytes(self, ranks: int) -> int:
        """What NCCL takes on one of several ranks."""
        return int(EXCHANGE[self.linked]) if ranks > 1 else 0

    @property
    def workspace_bytes(self) -> int:
        """The work space of cuBLAS, which PyTorch's allocator holds from the first product on."""
        return LARGE_WORKSPACE if self.linked and self.year >= LARGE_SINCE else WORKSPACE


def board_of(spec: DeviceSpec | None, memory_bytes: float, name: str = "") -> Board:
    """The board of a spec sheet, or of a memory alone."""
    size = int(memory_bytes)
    if spec is None:
        return Board(name, size, _given(size, corrected=False, linked=False))
    models = spec.name.replace("-", " ").split()
    corrected = spec.platform == "nvidia" and any(word in CORRECTED for word in models)
    linked = spec.get("link_bytes_per_s") is not None
    reported = REPORTED.get(spec.name) if size == spec.get("memory_bytes") else None
    return Board(
        spec.name,
        size,
        _given(size, corrected, linked) if reported is None else int(reported * GIB),
        int(spec.get("cores") or Board.cores),
        linked,
        spec.year or LARGE_SINCE,
        GAMING in spec.name,
    )


def _given(size: int, corrected: bool, linked: bool) -> int:
    """Bytes that CUDA reports of a memory of this size."""
    left = size * (1 - CORRECTION_SHARE) if corrected else size
    return int(left - min(DRIVER_SHARE * left, DRIVER_MOST[linked]))
