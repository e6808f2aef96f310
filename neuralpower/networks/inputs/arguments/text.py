"""Arguments that hold text, a series in time, or what Perceiver reads of either."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError
from neuralpower.networks.inputs.arguments.forward import Forward, Makers
from neuralpower.networks.inputs.arguments.images import SIDE
from neuralpower.networks.inputs.known_values import RANDOM, say_made_up
from neuralpower.networks.inputs.size_limits import TOKENS

POSITIONS = "max_position_embeddings max_encoder_position_embeddings n_positions max_sequence_length".split()
DECODER_POSITIONS = ("max_decoder_position_embeddings", "max_target_positions")
VOCABULARY = 30_000  # where neither the configuration nor an embedding says


def positions(forward: Forward) -> int | None:
    """Longest text that the model has positions for, or None."""
    for path, module in forward.model.named_modules():
        if path.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            rows = getattr(module, "num_embeddings", None) or module.weight.shape[0]
            return int(rows) - int(module.padding_idx) - 1  # RoBERTa counts from padding_idx + 1
    values = (getattr(forward.text, name, None) for name in POSITIONS)
    return next((v for v in values if isinstance(v, int) and v > 0), None)


def decoder_positions(forward: Forward) -> int | None:
    """Longest text that the decoder of a pair has positions for, or None."""
    decoder = getattr(forward.config, "decoder", None)
    return _own_positions(forward) or getattr(decoder, "max_position_embeddings", None) or positions(forward)


def _own_positions(forward: Forward) -> int | None:
    """Positions of the decoder, from the configuration of the pair itself."""
    values = (getattr(forward.config, name, None) for name in DECODER_POSITIONS)
    return next((v for v in values if isinstance(v, int)), None)


def length(forward: Forward) -> int:
    """Tokens per text; raises InputError past the model's last position."""
    most, asked = positions(forward), forward.request.seq_len
    if asked is None:
        return TOKENS if most is None else min(TOKENS, most)
    return _fitting(asked, most, forward.name)


def _fitting(asked: int, most: int | None, whose: str) -> int:
    """`asked`; raises InputError where it is more than the model or its decoder has positions for."""
    if most is not None and asked > most:
        raise InputError(
            f"seq_len is {asked}, but {whose} has {most} positions; give at most {most}, "
            "or override the configuration's number of positions (MODEL?field=value)"
        )
    return asked


def ids(forward: Forward, length: int, choices: tuple[int, ...] = (), rows: int = 1) -> Tensor:
    """Random ids without the special ones: a padding or end token in the middle changes some models' work."""
    vocabulary = _vocabulary(forward)
    special = sorted(i for i in _special_ids(forward.config, forward.text) if 0 <= i < vocabulary)
    special = special if vocabulary > 2 * len(special) else []
    shape = (forward.batch * rows, *choices, length)
    drawn = torch.randint(0, vocabulary - len(special), shape, generator=forward.generator)
    for token in special:
        drawn += drawn >= token
    return say_made_up(drawn, RANDOM)


def _vocabulary(forward: Forward) -> int:
    sizes = [s for s in (getattr(forward.text, "vocab_size", None), forward.integer("vocab_size")) if s]
    try:
        embedding = forward.model.get_input_embeddings()  # type: ignore[operator]  # of PreTrainedModel
    except (NotImplementedError, AttributeError):
        embedding = None
    if isinstance(embedding, nn.Embedding):
        sizes = [min(embedding.num_embeddings, *sizes[:1])] if sizes else [embedding.num_embeddings]
    return int(sizes[0]) if sizes else VOCABULARY


def _special_ids(*configs: Any) -> set[int]:
    """Ids that a configuration gives a meaning to: padding, start, end, mask, image and the like."""
    ids_taken: set[int] = set()
    for config in configs:
        for name, value in vars(config).items():
            if name.endswith(("_token_id", "_token_index")):
                values = value if isinstance(value, (list, tuple)) else (value,)
                ids_taken.update(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    return ids_taken


def _codebooks(forward: Forward) -> int:
    """Rows of ids that MusicGen's decoder reads of one sound."""
    return forward.integer("num_codebooks") or 1 if forward.config.model_type.startswith("musicgen") else 1


def input_ids(forward: Forward) -> Tensor:
    """Token ids [batch, tokens] or [batch, choices, tokens]; for sounds [batch * codebooks, tokens]."""
    rows = 1 if "decoder_input_ids" in forward.parameters else _codebooks(forward)
    made = ids(forward, length(forward), forward.choices, rows)
    end = getattr(forward.config, "eos_token_id", None)
    classifies = "SequenceClassification" in forward.name
    if classifies and isinstance(end, int) and forward.config.is_encoder_decoder:
        made[..., -1] = end  # BART and its kin classify from the end token, one per text
    return made


def decoder_input_ids(forward: Forward) -> Tensor:
    """Token ids [batch (* codebooks), tokens] of the decoder, clipped to its last position."""
    limit, asked = _own_positions(forward), forward.request.seq_len
    if "input_ids" in forward.parameters:
        tokens = length(forward)
    else:
        decoder = getattr(forward.config, "decoder", None) or forward.text
        limit = getattr(decoder, "max_position_embeddings", None) if limit is None else limit
        tokens = TOKENS if asked is None else _fitting(asked, limit, f"the decoder of {forward.name}")
    return ids(forward, min(tokens, limit) if limit else tokens, rows=_codebooks(forward))


def bbox(forward: Forward) -> Tensor:
    """Boxes [batch, tokens, 4] as (left, top, right, bottom), ordered, below the last 2-d position."""
    last = min(forward.integer("max_2d_position_embeddings") or 1024, 1001)
    corners = forward.below(last, length(forward), 2, 2)
    return torch.cat((corners.amin(-1), corners.amax(-1)), dim=-1)


def qformer_input_ids(forward: Forward) -> Tensor:
    """InstructBLIP's text [batch, tokens] once more, for the vocabulary of its query transformer."""
    return forward.below(int(forward.config.qformer_config.vocab_size), length(forward))


def task_inputs(forward: Forward) -> Tensor:
    """OneFormer's task as text [batch, tokens]."""
    vocabulary = forward.integer("text_encoder_vocab_size") or 49_408
    return forward.below(vocabulary, forward.integer("task_seq_len") or 77)


def image_embeds_position_mask(forward: Forward) -> Tensor:
    """Which tokens [batch, tokens] stand for the image in Kosmos-2: the first ones."""
    of_image = forward.integer("latent_query_num") or 64
    return (torch.arange(length(forward)) < of_image).repeat(forward.batch, 1)


MAKERS: Makers = {
    "input_ids": input_ids,
    "decoder_input_ids": decoder_input_ids,
    "bbox": bbox,
    "qformer_input_ids": qformer_input_ids,
    "task_inputs": task_inputs,
    "image_embeds_position_mask": image_embeds_position_mask,
}


# Arguments that hold a series: its past and what is known of it, or a history for decision transformers.


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


SERIES: Makers = {
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


# The one argument of Perceiver, which its heads read as text, an image or features.


def inputs(forward: Forward) -> Tensor:
    """Token ids for text heads, pixels for image heads, else features [batch, n, width]."""
    if "MaskedLM" in forward.name or "SequenceClassification" in forward.name:
        return ids(forward, length(forward))
    if "ImageClassification" in forward.name:
        return forward.shaped(3, SIDE, SIDE)
    return forward.floats(forward.tokens, forward.integer("d_model") or 768)


PERCEIVER: Makers = {"inputs": inputs}
