"""Arguments that hold a series: its past and what is known of it, or a history for decision transformers."""

from __future__ import annotations

import torch
from torch import Tensor

from neuralpower.networks.inputs.arguments.forward import Forward, Makers
from neuralpower.networks.inputs.input_request import TOKENS


def _history(forward: Forward) -> int:
    """Steps of the past that the model reads."""
    lags = getattr(forward.config, "lags_sequence", None) or [0]
    return int(forward.integer("context_length") or TOKENS) + int(max(lags))


def past_values(forward: Forward) -> Tensor:
    """A time series [batch, steps] or [batch, steps, channels]."""
    channels, steps = forward.integer("num_input_channels", "input_size") or 1, _history(forward)
    several = channels > 1 or "Patch" in forward.name
    return forward.floats(steps, channels) if several else forward.floats(steps)


def past_time_features(forward: Forward) -> Tensor:
    """Features of each step of the past [batch, steps, features]."""
    return forward.floats(_history(forward), forward.integer("num_time_features") or 1)


def past_observed_mask(forward: Forward) -> Tensor:
    """All of the past was observed; of its shape."""
    return torch.ones_like(past_values(forward))


def past_values_padding(forward: Forward) -> Tensor:
    """Nothing of the past [batch, steps] is missing, for TimesFM."""
    return torch.zeros(past_values(forward).shape, dtype=torch.long)


def freq(forward: Forward) -> Tensor:
    """TimesFM's series [batch, 1] are sampled daily or more often."""
    return torch.zeros(forward.batch, 1, dtype=torch.long)


# ---- Arguments of a decision transformer: a history of states, actions and rewards ----


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
    "past_values": past_values,
    "past_time_features": past_time_features,
    "past_observed_mask": past_observed_mask,
    "past_values_padding": past_values_padding,
    "freq": freq,
    "states": states,
    "actions": actions,
    "rewards": rewards,
    "returns_to_go": rewards,
    "timesteps": timesteps,
}
