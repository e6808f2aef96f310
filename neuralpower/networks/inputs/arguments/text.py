"""Arguments that hold text: token ids, and the boxes of words on a page."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError
from neuralpower.networks.inputs.arguments.forward import Forward, Makers
from neuralpower.networks.inputs.input_request import TOKENS
from neuralpower.networks.inputs.promised_values import RANDOM, say_made_up

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
