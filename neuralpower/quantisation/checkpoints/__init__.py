"""Readers of `quantization_config`, which describes the layout of a checkpoint's weights.

A file in this folder that decorates a function with `checkpoint_reader` is found by itself.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neuralpower.errors import ModelError
from neuralpower.quantisation.checkpoints.fields import READERS, Fields, checkpoint_reader
from neuralpower.quantisation.schemes import Scheme

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")


def scheme_of(name: str, config: Any) -> Scheme:
    """The scheme of a checkpoint.

    Args:
        name: of the model, for messages.
        config: its `quantization_config`, a mapping or an object of transformers.

    Raises:
        ModelError: an unknown method, or a field that is missing or makes no sense.
    """
    values = dict(config) if isinstance(config, Mapping) else dict(vars(config))
    method = _method(values)
    if method not in READERS:
        known = ", ".join(sorted(READERS))
        raise ModelError(
            f"the weights of {name} are quantized by {method!r:.60}, which is not known; known are "
            f"{known}; MODEL?quantization_config=null uses them in --dtype"
        )
    return replace(READERS[method](Fields(name, method, values)), checkpoint=True)


def _method(values: Mapping[str, Any]) -> str:
    """The name of the library that made it; older files of two libraries leave it out."""
    method = values.get("quant_method")
    method = getattr(method, "value", method)
    if method is None and (values.get("load_in_4bit") or values.get("load_in_8bit")):
        method = "bitsandbytes"
    if method is None and ("quantization" in values or "quant_algo" in values):
        method = "modelopt"
    return str(method).lower().replace("_", "-")


__all__ = ["READERS", "Fields", "checkpoint_reader", "scheme_of"]
