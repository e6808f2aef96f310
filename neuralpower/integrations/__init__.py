"""For other libraries' training loops: the largest batch size that fits, before anything runs.

    batch_size_callback   a callback for Lightning's Trainer
    fitting_batch_size    a context manager and decorator, for Accelerate's loops and others
    largest_batch         the number alone

    pytest_plugin         a marker for pytest: limits of what is predicted

None of these libraries has to be installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuralpower.integrations.batch_size import FittingBatchSize as FittingBatchSize
    from neuralpower.integrations.batch_size import fitting_batch_size as fitting_batch_size
    from neuralpower.integrations.batch_size import largest_batch as largest_batch
    from neuralpower.integrations.lightning import batch_size_callback as batch_size_callback

_HOMES = {
    "FittingBatchSize": "batch_size",
    "batch_size_callback": "lightning",
    "fitting_batch_size": "batch_size",
    "largest_batch": "batch_size",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch on demand (PEP 562): pytest loads its plug-in from here in every run."""
    if name not in _HOMES:
        raise AttributeError(f"module 'neuralpower.integrations' has no attribute {name!r}")
    return getattr(importlib.import_module(f"neuralpower.integrations.{_HOMES[name]}"), name)
