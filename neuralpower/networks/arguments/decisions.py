"""Arguments of a decision transformer: a history of states, actions and rewards."""

from __future__ import annotations

import torch
from torch import Tensor

from neuralpower.networks.arguments.forward import Forward, Makers

STEPS = 20  # of states, actions and rewards: K in OpenAI Gym (arXiv 2106.01345)


def _steps(forward: Forward) -> int:
    return forward.request.seq_len or STEPS


def states(forward: Forward) -> Tensor:
    """Observed states [batch, steps, width]."""
    return forward.floats(_steps(forward), forward.integer("state_dim") or 17)


def actions(forward: Forward) -> Tensor:
    """Actions taken [batch, steps, width]."""
    return forward.floats(_steps(forward), forward.integer("act_dim") or 4)


def rewards(forward: Forward) -> Tensor:
    """Rewards, or returns to go [batch, steps, 1]."""
    return forward.floats(_steps(forward), 1)


def timesteps(forward: Forward) -> Tensor:
    """Time steps [batch, steps]."""
    return torch.arange(_steps(forward)).repeat(forward.batch, 1)


MAKERS: Makers = {
    "states": states,
    "actions": actions,
    "rewards": rewards,
    "returns_to_go": rewards,
    "timesteps": timesteps,
}
