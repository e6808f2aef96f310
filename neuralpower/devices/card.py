"""The card behind "cuda:0", from NVIDIA's driver, without torch and without a context on the card.

Source: CUDA driver API, "Initialization" and "Device Management".
"""

from __future__ import annotations

import contextlib
import ctypes
import uuid
from typing import Any

LIBRARY = "libcuda.so.1"


def index_of(device: str) -> int:
    """1 of "cuda:1", 0 of "cuda"."""
    return int(device.partition(":")[2] or 0)


def card_uuid(device: str, driver: Any = None) -> str | None:
    """UUID of the card ("GPU-...") behind "cuda:0" under CUDA_VISIBLE_DEVICES; None where no driver answers.

    A part of a split card (MIG) has its card's: parts share power, and more or less the bandwidth.
    """
    with contextlib.suppress(OSError, AttributeError):  # no driver here, or one of another make
        driver = driver or ctypes.CDLL(LIBRARY)
        handle, answer = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if (
            driver.cuInit(0) == 0
            and driver.cuDeviceGet(ctypes.byref(handle), index_of(device)) == 0
            and driver.cuDeviceGetUuid(ctypes.byref(answer), handle) == 0
        ):
            return f"GPU-{uuid.UUID(bytes=bytes(answer))}"
    return None
