"""Limits of a device: peaks, bandwidth, cores and power, and the times that follow from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neuralpower.dtypes import peaks_of

# Energy of a FLOP in float32 without tensor cores halves in 3 years (Epoch AI, "Trends in Machine Learning
# Hardware", 2023); that of 2016 is chosen on T4 and P4, each held out.
ENERGY_HALVES, FLOP_J = 3.0, 18e-12
TERM_HALVES, TERM_J = 3.5, 20e-12  # in a term that one device's rows weigh: any factor will do, if it stays
# Energy of a FLOP of tensor cores, by the FLOP that a core does in a cycle: wide ones read each number less
# often. Power limit over the rate that large bfloat16 products reach: 1.57 and 1.50 pJ at 1,024 (L40S and RTX
# PRO 6000), 0.89 and 0.92 at 4,096 (H100, H200), 0.64 to 0.73 at 8,192 (B200, B300, GB300); on older
# processes more, 1.62 at 2,048 (A100).
TENSOR_J, TENSOR_WIDTH, TENSOR_POWER = 1.5e-12, 1024, 0.385
TENSOR_HALVES, TENSOR_YEAR = 5.0, 2022  # years until then
# The same in prefills of seconds, on boards whose cores do no more than TENSOR_WIDTH: 100 to 114 TFLOP/s of
# bfloat16 at 300 W since Ada (RTX 6000 Ada, L40), 360 at 600 W since Blackwell (RTX PRO 6000). Products that
# are repeated for milliseconds end before the limit acts: an L40S reaches 223 at 350 W. ELSEWHERE_W is what
# memory and leakage then take; a line through prefills of an RTX 3090 at 190 to 250 W meets 0 at 95 W.
LONG_J, ELSEWHERE_W = {2022: 2.0e-12, 2025: 1.47e-12}, 70.0
TENSOR_DTYPES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
USUAL_CLOCK_HZ = 1.8e9  # the median of the sheets' GPUs with tensor cores
BOARD_W = 15.0  # what memory, fans and leakage take of the power limit
WARP = 32  # threads of an instruction; a scheduler issues one per clock, Pascal's at times two
# Further instructions for each multiply-add of a product: for 8 x 8 results a thread reads 16 numbers in 4
# loads, and issues about 4 more for addresses, copies and loops.
BESIDE = 1 / 8
# Faster memories reach more of their sheets' bandwidth: 75 % at 200 GB/s, 86 to 91 % at 900 to 1,600. The
# share grows with this power of the bandwidth; its level is fitted.
REACHED_POWER, REACHED_AT_BYTES_PER_S = 0.06, 1e12
BEYOND_CACHES = 4  # times the last-level cache: passes over more bytes do not find them there
ASSUMED_PCIE = 31.5e9  # B/s of PCI Express 4.0 x16 in one direction, where a sheet names no link
ASSUMED_NETWORK = 12.5e9  # B/s of a card of 100 Gb/s for each device, where a sheet names none
SWITCH_SUMS_SINCE = 2022  # NVIDIA's switches sum what devices send: NVLink SHARP, from Hopper on


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The facts of a device that special terms use; an unknown peak is 1, which only scales terms."""

    cores: int = 1  # of a CPU; streaming multiprocessors or compute units of another device
    l2_bytes: int = 2**20  # of one core of a CPU, of the whole of another device
    llc_bytes: int = 32 * 2**20
    platform: str = "cpu"  # its family of devices, or its maker: names in neuralpower.platforms
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)  # by dtype, dense
    memory_bytes_per_s: float = 1.0
    base_clock: float = 1.0  # that the power limit always allows, as a share of the peaks' clock
    limit_w: float | None = None
    gpu_limit_w: float | None = None  # of the GPU alone, where limit_w is of its module with a CPU
    idle_w: float | None = None  # awake, between calls
    deep_idle_w: float | None = None  # without a process: awake, it draws more
    year: int | None = None  # of its release: the energy of an operation falls with the years
    clock_hz: float | None = None  # boost
    lanes_per_scheduler: float | None = None  # float32 lanes that one warp scheduler of an NVIDIA GPU feeds
    link_bytes_per_s: float | None = None  # to all peers of its node, in one direction; None: they have none
    pcie_bytes_per_s: float | None = None  # in one direction
    network_bytes_per_s: float | None = None  # to other nodes, in one direction
    fresh_s_per_byte: float | None = None  # that memory fresh from the system costs a process; None: unknown
    # What a CPU was seen to reach, and no sheet states: None and none where that was not measured.
    copied_bytes_per_s: float | None = None  # read and written by a copy beyond the last-level cache
    product_flops_per_s: Mapping[str, float] = field(default_factory=dict)  # in large products, by dtype

    @property
    def board_w(self) -> float | None:
        """The most that a meter of the GPU reads: its own limit, apart from its module's."""
        return self.gpu_limit_w or self.limit_w

    def peak(self, dtype: str) -> float:
        """FLOP/s of a dtype; of the slowest known where no peak holds for it; 1 where none is known."""
        known = peaks_of(self.peak_flops_per_s, dtype)
        return min(self.peak_flops_per_s.values(), default=1.0) if known is None else known

    def flops_at_power_limit(self, flops: Any) -> Any:
        """Seconds of `flops` where the power limit sets the pace, up to a factor; 0 where it is unknown.

        Energy per FLOP halves every TERM_HALVES years.
        """
        if self.limit_w is None or self.year is None:
            return 0.0 * flops
        return flops * 2 ** ((2016 - self.year) / TERM_HALVES) * TERM_J / self.limit_w

    def issued(self) -> float:
        """The share of its float32 peak that its schedulers issue in a product, among other instructions."""
        return min(1.0, WARP / self.lanes_per_scheduler / (1 + BESIDE)) if self.lanes_per_scheduler else 1.0

    def allowed(self) -> float:
        """FLOP/s in float32 that its power limit allows for long; infinite where limit or year is unknown."""
        if self.limit_w is None or self.year is None:
            return math.inf
        joules = FLOP_J * 2 ** ((2016 - self.year) / ENERGY_HALVES)
        return max(self.limit_w - BOARD_W, self.limit_w / 2) / joules

    def clock(self) -> float:
        """Cycles per second; a usual value where no sheet states it."""
        return self.clock_hz or USUAL_CLOCK_HZ

    def width(self, dtype: str) -> float:
        """FLOP of a dtype that a core does in a cycle: devices of one width have the same kind of units."""
        return self.peak(dtype) / self.cores / self.clock()

    def on_tensor_cores(self, dtype: str) -> bool:
        """Whether products of a dtype run on units whose width tells their generation.

        Cores without them did 128 FLOP in float32 a cycle from 2016 to 2020, with other kernels each time.
        """
        return dtype in TENSOR_DTYPES and dtype in self.peak_flops_per_s

    def tensor_flops_allowed(self, dtype: str) -> float:
        """FLOP/s of tensor cores that its power limit allows for long; infinite where that is not known."""
        if dtype not in TENSOR_DTYPES or self.limit_w is None or self.year is None:
            return math.inf
        joules = TENSOR_J * (TENSOR_WIDTH / self.width(dtype)) ** TENSOR_POWER
        older = max(TENSOR_YEAR - self.year, 0) / TENSOR_HALVES
        return float(self.limit_w / (joules * 2**older))

    def tensor_flops_for_long(self, dtype: str) -> float:
        """The same for runs of seconds on boards without wide cores; infinite where that was not measured."""
        known = [joules for year, joules in LONG_J.items() if year <= (self.year or 0)]
        narrow = dtype in TENSOR_DTYPES and self.width("bfloat16") < 2 * TENSOR_WIDTH
        if not known or not narrow or not self.limit_w or self.limit_w < 2 * ELSEWHERE_W:
            return math.inf
        share = min((TENSOR_WIDTH / self.width(dtype)) ** TENSOR_POWER, 1.0)
        return float((self.limit_w - ELSEWHERE_W) / (known[-1] * share))

    def _tensor_peak(self, dtype: str) -> float:
        """FLOP/s of tensor cores that they sustain."""
        return min(self.peak_flops_per_s[dtype], self.tensor_flops_allowed(dtype))

    @property
    def peer_bytes_per_s(self) -> float:
        """To all peers of its node, in one direction; of PCI Express where it has no links of its own."""
        return self.link_bytes_per_s or self.pcie_bytes_per_s or ASSUMED_PCIE

    @property
    def between_nodes_bytes_per_s(self) -> float:
        """To other nodes, in one direction."""
        return self.network_bytes_per_s or ASSUMED_NETWORK

    @property
    def switch_sums(self) -> bool:
        """Whether the switch between the devices of a node adds up what they send."""
        linked = self.platform == "nvidia" and self.link_bytes_per_s is not None
        return linked and (self.year or 0) >= SWITCH_SUMS_SINCE

    @property
    def held_by_power(self) -> bool:
        """Whether the power limit, rather than its units, sets its pace in float32."""
        return self.allowed() < self.issued() * self.peak_flops_per_s.get("float32", 0.0)

    def sustained(self) -> Hardware:
        """With the peaks that products sustain, and the bandwidth that it reaches, up to a factor.

        Peaks are below the sheet's for boards of little power; that of float32 also where a scheduler has as
        many lanes as an instruction has threads.
        """
        share = (self.memory_bytes_per_s / REACHED_AT_BYTES_PER_S) ** REACHED_POWER
        peaks = {dtype: self._tensor_peak(dtype) for dtype in self.peak_flops_per_s}
        memory = self.memory_bytes_per_s * share
        reached = dataclasses.replace(self, memory_bytes_per_s=memory, peak_flops_per_s=peaks)
        peak = self.peak_flops_per_s.get("float32")
        if peak is None:
            return reached
        allowed = self.allowed()
        peaks["float32"] = min(peak * self.issued(), allowed)
        clock = self.base_clock if math.isinf(allowed) else 1.0  # else the peak includes the limit
        return dataclasses.replace(reached, peak_flops_per_s=peaks, base_clock=clock)
