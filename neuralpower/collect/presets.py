"""How much a collection measures; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from neuralpower.errors import unknown


@dataclass(frozen=True)
class Preset:
    """How much to measure, and for how long at most."""

    budget_s: float
    sweep: int  # layers drawn, over all kinds
    jitters: int  # changed copies of each network
    power: int  # configurations whose power is measured, too, where there is a meter
    most_flops: float  # of one call
    most_bytes: float  # of one call


PRESETS = {
    "quick": Preset(budget_s=115, sweep=1000, jitters=0, power=100, most_flops=1.5e9, most_bytes=1e8),
    "standard": Preset(budget_s=1190, sweep=6900, jitters=2, power=500, most_flops=1.6e10, most_bytes=6e8),
    "full": Preset(budget_s=4 * 3600, sweep=30000, jitters=8, power=5000, most_flops=4e10, most_bytes=2e9),
}


def preset_named(name: str) -> Preset:
    """The preset; raises InputError where there is none of that name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
