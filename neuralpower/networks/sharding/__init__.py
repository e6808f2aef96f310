"""A network becomes that of one rank of several: smaller parameters, and exchanges with the other ranks."""

from neuralpower.networks.sharding.experts import placed_experts
from neuralpower.networks.sharding.plan import ENGINE, INFERENCE, TRAINING, Sharding
from neuralpower.networks.sharding.shard import sharded

__all__ = ["ENGINE", "INFERENCE", "TRAINING", "Sharding", "placed_experts", "sharded"]
