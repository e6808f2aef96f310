"""What a device can do at most: peaks, bandwidth, cores and power, and the times that follow from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neuralpower.dtypes import peaks_of

# What a FLOP takes in float32 without tensor cores falls by half in 3 years (Epoch AI, "Trends in Machine Learning Hardware",
# 2023); what it took in 2016 is chosen on T4 and P4, each left out.
ENERGY_HALVES, FLOP_J = 3.0, 18e-12
TERM_HALVES, TERM_J = (
    3.5,
    20e-12,
)  # in a term that one device's rows weigh: any factor will do, as long as it stays
BOARD_W = 15.0  # what memory, fans and leakage take of the power limit
WARP = 32  # threads of an instruction; a scheduler issues one per clock, Pascal's at times two
# Instructions beside each multiply-add of a product: a thread that holds 8 x 8 results reads 16 numbers in 4 loads for 64 of
# them, and issues about 4 more for addresses, copies and loops.
BESIDE = 1 / 8
# Faster memories reach more of what their sheets say: 75 % at 200 GB/s, 86 to 91 % at 900 to 1,600. The share grows with this
# power of the bandwidth; what it is at any one bandwidth is learnt.
REACHED_POWER, REACHED_AT_BYTES_PER_S = 0.06, 1e12


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What the special terms need to know of a device; a peak that is not known is 1: terms then have another scale."""

    cores: int = 1  # of a CPU; streaming multiprocessors or compute units of another device
    l2_bytes: int = 2**20  # of one core of a CPU, of the whole of another device
    llc_bytes: int = 32 * 2**20
    platform: str = "cpu"  # the family of devices that it is of, or its maker: names in neuralpower.platforms
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)  # by dtype, dense
    memory_bytes_per_s: float = 1.0
    base_clock: float = (
        1.0  # that the power limit always allows, as a share of the clock at which the peaks hold
    )
    limit_w: float | None = None
    idle_w: float | None = None
    year: int | None = None  # when it came out: what an operation costs in energy falls with the years
    lanes_per_scheduler: float | None = None  # float32 lanes that one warp scheduler of an NVIDIA GPU feeds

    def peak(self, dtype: str) -> float:
        """FLOP/s of a dtype; of the slowest known where no peak holds for it; 1 where none is known."""
        known = peaks_of(self.peak_flops_per_s, dtype)
        return min(self.peak_flops_per_s.values(), default=1.0) if known is None else known

    def flops_at_power_limit(self, flops: Any) -> Any:
        """Seconds that so many FLOP take where the power limit sets the pace, up to a factor; 0 where it is not known.

        Energy per FLOP is taken to halve every TERM_HALVES years.
        """
        if self.limit_w is None or self.year is None:
            return 0.0 * flops
        return flops * 2 ** ((2016 - self.year) / TERM_HALVES) * TERM_J / self.limit_w

    def issued(self) -> float:
        """The share of its float32 peak that its schedulers can issue in a product, which has other instructions, too."""
        return min(1.0, WARP / self.lanes_per_scheduler / (1 + BESIDE)) if self.lanes_per_scheduler else 1.0

    def allowed(self) -> float:
        """FLOP/s in float32 that its power limit allows for long; endless where limit or year is not known."""
        if self.limit_w is None or self.year is None:
            return math.inf
        return max(self.limit_w - BOARD_W, self.limit_w / 2) / (
            FLOP_J * 2 ** ((2016 - self.year) / ENERGY_HALVES)
        )

    @property
    def held_by_power(self) -> bool:
        """Whether the power limit, rather than its units, sets its pace in float32."""
        return self.allowed() < self.issued() * self.peak_flops_per_s.get("float32", 0.0)

    def sustained(self) -> Hardware:
        """With the float32 peak that it sustains in products, and the bandwidth that its memory reaches, up to a factor.

        The peak is less than the sheet's where a scheduler has as many lanes as an instruction has threads, and for boards of
        little power. Tensor cores take far less of either, so other peaks stay.
        """
        share = (self.memory_bytes_per_s / REACHED_AT_BYTES_PER_S) ** REACHED_POWER
        reached = dataclasses.replace(self, memory_bytes_per_s=self.memory_bytes_per_s * share)
        peak = self.peak_flops_per_s.get("float32")
        if peak is None:
            return reached
        allowed = self.allowed()
        peaks = {**self.peak_flops_per_s, "float32": min(peak * self.issued(), allowed)}
        clock = self.base_clock if math.isinf(allowed) else 1.0  # else the limit is told by the peak
        return dataclasses.replace(reached, peak_flops_per_s=peaks, base_clock=clock)
