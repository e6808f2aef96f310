"""One forward call of a network, as a phase makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neuralpower.networks.phases import Step, mean_length
from neuralpower.quantisation.schemes import Scheme

if TYPE_CHECKING:
    from torch import nn

    from neuralpower.networks.inputs.inputs import Inputs
    from neuralpower.networks.sharding import Sharding


@dataclass(frozen=True)
class Pass:
    """One forward call: a module and inputs, which a caller must not change; `cache` is among the inputs."""

    name: str
    module: nn.Module = field(repr=False)
    inputs: Inputs = field(repr=False)
    context: int = 0  # tokens in the cache before it
    tokens: int = 0  # new ones per sample
    cache: Any = field(default=None, repr=False)
    batch_size: int = 1  # samples
    weights: Scheme | None = None  # how a checkpoint's weights are quantised
    lengths: tuple[int, ...] = ()  # of the samples, where they differ; `context` and `tokens` are their mean
    sharding: Sharding | None = None  # how the network was sharded; None on one device
    longer: Pass | None = field(default=None, repr=False)  # then: the same pass one token longer
    step: Step | None = None  # of an engine, which stands for one prompt of all its tokens
    decodes: Pass | None = field(default=None, repr=False)  # then: of the requests that get their next token
    held: int = 0  # then: bytes of all caches before it

    @property
    def cache_bytes(self) -> int:
        """Bytes that the cache holds before the pass."""
        own = self.held or (0 if self.cache is None else _bytes_of(self.cache))
        if self.longer is None:
            return own
        return round(own + self.share * (_bytes_of(self.longer.cache) - own))

    @property
    def share(self) -> float:
        """Where the mean of the lengths lies between this pass and the longer one."""
        return sum(self.lengths) / len(self.lengths) - mean_length(self.lengths) if self.lengths else 0.0


def _bytes_of(cache: Any) -> int:
    from neuralpower.networks.caches import cache_bytes

    return cache_bytes(cache)
