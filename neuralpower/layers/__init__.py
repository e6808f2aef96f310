"""Layer kinds, one file each; every file in this folder is imported, so adding a kind touches one file."""

import importlib
import pkgutil

from neuralpower.devices.hardware import Hardware
from neuralpower.layers.base import BY_OPERATOR, KINDS, Call, Draw, Layer, layer_kind
from neuralpower.layers.columns import columns_of
from neuralpower.layers.operands import OWN, Bytes
from neuralpower.layers.training import Training
from neuralpower.layers.traits import KindLaw
from neuralpower.layers.views import Described, View, Views

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
for _name in sorted(KINDS):  # whichever file imports which
    KINDS[_name] = KINDS.pop(_name)

__all__ = [
    "BY_OPERATOR",
    "KINDS",
    "OWN",
    "Bytes",
    "Call",
    "Described",
    "Draw",
    "Hardware",
    "KindLaw",
    "Layer",
    "Training",
    "View",
    "Views",
    "columns_of",
    "layer_kind",
]
