"""The request for a collection, and its progress; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralpower.measure.collect.schedule import REPLICATES, Estimate


@dataclass(frozen=True)
class Request:
    """The user's request."""

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
