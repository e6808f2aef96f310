"""Other arguments: regions of images, time series, a decision transformer's history, Perceiver's inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from neuralpower.networks.arguments.forward import Forward, Makers
from neuralpower.networks.arguments.images import SIDE
from neuralpower.networks.arguments.text import ids, length
from neuralpower.networks.inputs import TOKENS

STEPS = 20  # of states, actions and rewards: K in OpenAI Gym (arXiv 2106.01345)
REGIONS = 36  # detected regions that LXMERT and VisualBERT read beside the text


def inputs(forward: Forward) -> Tensor:
    """Perceiver's: token ids for text heads, pixels for image heads, else features [batch, n, width]."""
    if "MaskedLM" in forward.name or "SequenceClassification" in forward.name:
        return ids(forward, length(forward))
    if "ImageClassification" in forward.name:
        return forward.shaped(3, SIDE, SIDE)
    return forward.floats(forward.tokens, forward.integer("d_model") or 768)


def past_values(forward: Forward) -> Tensor:
    """A time series [batch, steps] or [batch, steps, channels]."""
    channels, steps = forward.integer("num_input_channels", "input_size") or 1, _history(forward)
    several = channels > 1 or "Patch" in forward.name
    return forward.floats(steps, channels) if several else forward.floats(steps)


def _history(forward: Forward) -> int:
    lags = getattr(forward.config, "lags_sequence", None) or [0]
    return int(forward.integer("context_length") or TOKENS) + int(max(lags))


def _steps(forward: Forward) -> int:
    return forward.request.seq_len or STEPS


MAKERS: Makers = {
    "inputs": inputs,
    "past_values": past_values,
    # LXMERT's region features [batch, regions, width] and boxes [batch, regions, 4]
    "visual_feats": lambda f: f.floats(REGIONS, f.integer("visual_feat_dim") or 2048),
    "visual_pos": lambda f: f.floats(REGIONS, f.integer("visual_pos_dim") or 4),
    # VisualBERT's region embeddings [batch, (choices,) regions, width]
    "visual_embeds": lambda f: f.floats(*f.choices, REGIONS, f.integer("visual_embedding_dim") or 512),
    # what a decision transformer saw and did [batch, steps, width], what it was or is to be given, and when
    "states": lambda f: f.floats(_steps(f), f.integer("state_dim") or 17),
    "actions": lambda f: f.floats(_steps(f), f.integer("act_dim") or 4),
    "rewards": lambda f: f.floats(_steps(f), 1),
    "returns_to_go": lambda f: f.floats(_steps(f), 1),
    "timesteps": lambda f: torch.arange(_steps(f)).repeat(f.batch, 1),
    # time features [batch, steps, features] of the past, all of which was observed
    "past_time_features": lambda f: f.floats(_history(f), f.integer("num_time_features") or 1),
    "past_observed_mask": lambda f: torch.ones_like(past_values(f)),
    # TimesFM: nothing of the past [batch, steps] is missing, sampled [batch, 1] daily or more often
    "past_values_padding": lambda f: torch.zeros(past_values(f).shape, dtype=torch.long),
    "freq": lambda f: torch.zeros(f.batch, 1, dtype=torch.long),
}
