"""What exchanges are to be measured; needs no torch."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from neuralpower.errors import InputError, is_count, unknown

BACKENDS = ("gloo", "nccl")
FUNCTIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
LEAST_BYTES = 1024
LARGEST_BYTES = {"gloo": 2**26, "nccl": 2**30}
USUAL_RANKS = (2, 4, 8)


@dataclass(frozen=True)
class Exchanges:
    """Exchanges between `ranks` processes: each function at sizes of half an octave's distance."""

    backend: str
    ranks: int
    budget_s: float
    functions: tuple[str, ...] = FUNCTIONS
    largest_bytes: int | None = None  # None: as usual for the backend
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError for a backend that there is not, or ranks that exchange nothing."""
        if self.backend not in BACKENDS:
            raise unknown("backend", self.backend, BACKENDS)
        if not is_count(self.ranks) or self.ranks < 2:
            raise InputError(f"ranks {self.ranks!r}: an exchange takes 2 or more; choose 2")

    def order(self) -> list[tuple[str, int]]:
        """(Function, elements of float32), shuffled: a run that is cut off measures less of everything.

        The elements of the whole buffer are a multiple of the ranks.
        """
        largest = self.largest_bytes or LARGEST_BYTES[self.backend]
        found: dict[tuple[str, int], None] = {}
        for function in self.functions:
            size = float(LEAST_BYTES)
            while size <= largest:
                elements = max(round(size / 4 / self.ranks), 1) * self.ranks
                found[function, elements] = None
                size *= 2**0.5
        order = list(found)
        random.Random(self.seed).shuffle(order)
        return [one for one in order if one[0] != "send_recv" or self.ranks == 2]

    def to_json(self) -> dict[str, Any]:
        """For the processes."""
        return asdict(self)
