"""The whole of a profile: the sums of its rows, and the times of clean runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from neuralpower.profiling.rows import Row, most, multiply_adds, sums
from neuralpower.profiling.steps import Runs, Spread


@dataclass(frozen=True)
class Total:
    """The whole network."""

    runtime_s: float | None  # of clean runs, without instrumentation
    phases_s: Mapping[str, float]  # the same by phase
    spread: Spread | None
    flops: int | None
    matmul_flops: int | None
    elementwise_flops: int | None
    bytes_read: int | None
    bytes_written: int | None
    parameters: int
    trainable_parameters: int
    parameter_bytes: int
    peak_memory_bytes: int | None
    power_w: float | None = None
    energy_j: float | None = None
    macs = property(multiply_adds)

    @property
    def flops_per_s(self) -> float | None:
        """Achieved."""
        return self.flops / self.runtime_s if self.flops is not None and self.runtime_s else None


def whole(rows: Sequence[Row], runs: Runs | None, parameters: Sequence[Tensor], count: int) -> Total:
    """The total of all rows; `count`: of the trace's parameters."""
    clean = dict(runs.clean) if runs else {}
    spread = clean.pop("", None)
    peak = runs.peak_memory_bytes if runs else None
    names = ("flops", "matmul_flops", "elementwise_flops", "bytes_read", "bytes_written")
    work = sums(rows, *names) if rows else dict.fromkeys(names, 0)  # without operators a network does nothing
    return Total(
        runtime_s=spread.runtime_s if spread else None,
        phases_s={phase: times.runtime_s for phase, times in clean.items()},
        spread=spread,
        **work,
        parameters=count,
        trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        peak_memory_bytes=peak if peak is not None else most(row.peak_memory_bytes for row in rows),
        power_w=runs.window.power_w if runs else None,
        energy_j=runs.window.energy_j if runs else None,
    )
