"""The request for a collection, its progress, and presets of its size; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralpower.errors import InputError, unknown
from neuralpower.measure.collect.schedule import REPLICATES, Estimate


@dataclass(frozen=True)
class Request:
    preset: str
    kinds: tuple[str, ...] | None
    models: tuple[str, ...] | None
    dtypes: tuple[str, ...]
    seed: int
    budget_s: float
    out: Path
    phases: tuple[str, ...] = ("forward",)
    power: str = "auto"
    shard: tuple[int, int] = (1, 1)
    replicates: float = REPLICATES

    @property
    def folder(self) -> Path:
        """The folder of this shard: each of several has its own folder, journal and lock."""
        number, shards = self.shard
        return self.out if shards == 1 else self.out / f"shard-{number}-of-{shards}"

    def plan_key(self) -> dict[str, Any]:
        """All that the plan depends on; a resumed collection with an equal key continues the plan."""
        names = ("preset", "kinds", "models", "dtypes", "phases", "seed")
        return {name: getattr(self, name) for name in names}


@dataclass
class Progress:
    """Progress of a collection; passed to the display after every batch."""

    planned: int  # configurations to be timed by this shard
    done: int
    estimate: Estimate  # of the remaining tasks
    measured: int = 0
    powered: int = 0
    failed: int = 0
    noisy: int = 0  # rows whose times are too far apart, which are measured again as long as that may help
    spent_s: float = 0.0
    budget_s: float = 0.0
    kept: int = 0  # rows in the folder, those of earlier runs included


# ---- Presets: sizes of collections; needs no torch ----


@dataclass(frozen=True)
class Preset:
    """The size of a collection: how much to measure, and for how long at most."""

    budget_s: float
    sweep: int  # layers drawn, over all kinds
    jitters: int  # changed copies of each network
    power: int  # configurations whose power is measured, too, where there is a meter
    most_flops: float  # of one call
    most_bytes: float  # of one call
    powers_per_kind: int = 60  # at least, as far as the plan has them
    in_turn: bool = False  # each layer in one dtype and phase, so that counts are totals; else in all of them
    scales: tuple[int, ...] = ()  # factors on a CPU's batches, which are measured, too
    loops: bool = True  # also layers that loops repeat, steps of decoders and steps of training
    network_dtypes: tuple[str, ...] = ("float32",)  # of whole networks
    traced: int | None = None  # layers of networks, at most; None: all
    networks: int | None = None  # whole ones, at most; None: all
    gaps: bool = False  # layers of `gaps` alone: `sweep` of them, no networks
    power_s: float = 0.0  # of the budget that runtimes leave to power
    replicates: float = 1.0  # share of the configurations that are measured twice, at most


# A fit of power wants 60 rows of each kind. `full` plans them; the others cannot: 19 kinds with whole
# networks are 1,140 powers of 0.8 s or more, which is 15 minutes in addition to the runtimes. Kinds come in
# turn, and within a kind its dtypes, phases and sizes (schedule.stratified): the 500 of `standard` are 26 of
# each kind, the 100 of `quick` 5. With several dtypes and phases that is not enough for separate fits: the
# kind then has one fit, over all of its rows.
PRESETS = {
    "quick": Preset(
        budget_s=115,
        sweep=900,
        jitters=0,
        power=100,
        most_flops=2e9,
        most_bytes=3e8,
        powers_per_kind=5,
    ),
    "standard": Preset(
        budget_s=1190,
        sweep=6900,
        jitters=2,
        power=500,
        most_flops=1.6e10,
        most_bytes=6e8,
        powers_per_kind=25,
    ),
    "full": Preset(
        budget_s=4 * 3600,
        sweep=30000,
        jitters=8,
        power=5000,
        most_flops=4e10,
        most_bytes=2e9,
    ),
}

# Where kernels run over many cores, batches are larger, and a queue of calls hides the time of a loop of
# Python.
KERNELS: Any = {
    "in_turn": True,
    "scales": (2, 4, 8, 16, 32, 64),
    "loops": False,
    "network_dtypes": ("float32", "bfloat16", "float16", "float64"),  # that a module can be cast to
}
ACCELERATOR_PRESETS = {
    "quick": Preset(
        budget_s=300,
        sweep=400,
        jitters=0,
        power=100,
        most_flops=1e12,
        most_bytes=1e9,
        powers_per_kind=5,
        traced=150,
        networks=10,
        **KERNELS,
    ),
    "standard": Preset(
        budget_s=1500,
        sweep=1250,
        jitters=1,
        power=500,
        most_flops=2e13,
        most_bytes=8e9,
        powers_per_kind=25,
        traced=650,
        networks=50,
        **KERNELS,
    ),
    "full": Preset(
        budget_s=4 * 3600,
        sweep=12000,
        jitters=4,
        power=5000,
        most_flops=4e13,
        most_bytes=1.6e10,
        traced=12000,
        networks=300,
        **KERNELS,
    ),
    # what the others leave out: large batches of vision and language, in both memory formats
    "gaps": Preset(
        budget_s=540,
        sweep=2600,
        jitters=0,
        power=60,
        most_flops=4e13,
        most_bytes=6e9,
        powers_per_kind=2,
        gaps=True,
        power_s=35.0,
        replicates=0.0,
        **KERNELS,
    ),
}


def preset_named(name: str, device_type: str = "cpu") -> Preset:
    """The preset of a type of devices; all but CPUs share theirs.

    Raises InputError for an unknown name, and for a preset of accelerators on a CPU.
    """
    presets = PRESETS if device_type == "cpu" else ACCELERATOR_PRESETS
    if name not in presets and name in ACCELERATOR_PRESETS:
        raise InputError(
            f"preset {name!r}: its batches are an accelerator's, a CPU would take hours; "
            f"add --device cuda:0, or choose one of {', '.join(PRESETS)}"
        )
    if name not in presets:
        raise unknown("preset", name, presets)
    return presets[name]
