"""Settings of a process that runs steps; they must be made before torch starts its threads."""

from __future__ import annotations

import os
import sys

KMP = {"KMP_BLOCKTIME": "30", "KMP_AFFINITY": "granularity=fine,compact,1,0"}


def intel_openmp() -> bool:
    """Set Intel OpenMP's blocking time and affinity where the user has not; False where torch is loaded already.

    They are what ParaDnn ran TensorFlow with; a torch that is built with GNU's OpenMP takes no notice.
    """
    if "torch" in sys.modules:
        return False
    for name, value in KMP.items():
        os.environ.setdefault(name, value)
    return True
