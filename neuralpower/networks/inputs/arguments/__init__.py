"""Seeded inputs for any model of transformers: what its forward is called with, made argument by argument.

Token ids are drawn from the whole vocabulary (a batch of one repeated id would keep a single embedding row
warm), floating inputs from a normal distribution. No attention mask is made: a full batch needs none.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch import Tensor, nn

from neuralpower.errors import InputError, ModelError
from neuralpower.networks.inputs.arguments import images, sound, text
from neuralpower.networks.inputs.arguments.forward import NOTE, Forward, Makers, labels_of
from neuralpower.networks.inputs.inputs import Inputs
from neuralpower.networks.inputs.size_limits import InputRequest

MAKERS: Makers = {
    **text.MAKERS,
    **images.MAKERS,
    **sound.MAKERS,
    **text.SERIES,
    **text.PERCEIVER,
}
SOUND = {"input_values", "input_features", "spectrogram"}
WITH_LENGTH = {"input_ids", "decoder_input_ids", "inputs", "states", *SOUND}
WITH_SHAPE = {"pixel_values", "pixel_values_videos", "flattened_patches", "inputs", *SOUND}
# these read text and images
WITH_BOTH = frozenset("vilt bridgetower flava layoutlmv3 git tvp udop instructblip".split())
# tokens of a text that images and sounds replace: without them the text is read alone
PLACEHOLDERS = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")


def transformers_inputs(model: nn.Module, request: InputRequest) -> Inputs:
    """Keywords for a `transformers` model of any modality; raises InputError or ModelError."""
    forward = Forward(model, request)
    if type(model).forward is nn.Module.forward:
        parts = ", ".join(dict.fromkeys(type(part).__name__ for part in model.children()))
        raise ModelError(f"{forward.name} has no forward pass itself; choose one of its parts: {parts}")
    made: dict[str, Tensor] = {}
    for name in _wanted(forward):
        if name not in MAKERS or (name == "hidden_states" and not forward.tiled):
            raise ModelError(
                f"{forward.name} needs {name!r}, for which no input can be made from a configuration; "
                "give a file.py:function whose file has an example_inputs(batch_size)"
            )
        made[name] = MAKERS[name](forward)
    if request.seq_len is not None and not made.keys() & WITH_LENGTH:
        raise InputError(
            f"seq_len is {request.seq_len}, but {forward.name} reads no tokens; leave seq_len out"
        )
    if request.input_shape is not None and not made.keys() & WITH_SHAPE:
        raise InputError(
            f"input_shape is {request.input_shape}, but {forward.name} reads tokens; give seq_len instead"
        )
    labels = labels_of(forward, made) if request.labels else {}
    return Inputs(kwargs={**made, **labels}, note=NOTE if labels else "", labelled=bool(labels))


def _wanted(forward: Forward) -> list[str]:
    """Names of the arguments to make: the main input, those without a default, and their companions."""
    parameters = forward.parameters
    main = getattr(forward.model, "main_input_name", "input_ids")
    main = main if isinstance(main, str) else main[0]
    inner = getattr(getattr(forward.model, "encoder", None), "main_input_name", main)
    if main == "inputs" and inner in parameters:
        main = inner  # the encoder of a pair
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [name for name, parameter in parameters.items() if parameter.kind in kinds]
    if main not in parameters and positional:
        main = positional[0]
    needed = (name for name in positional if parameters[name].default is inspect.Parameter.empty)
    return list(dict.fromkeys((main, *needed, *filter(parameters.__contains__, _companions(forward)))))


def _companions(forward: Forward) -> Iterator[str]:
    """Optional arguments without which the forward fails or skips half of the network."""
    config, parameters = forward.config, forward.parameters
    if getattr(config, "is_encoder_decoder", False):
        yield "decoder_input_ids"
        if "decoder_input_ids" not in parameters:
            yield "decoder_input_values"
    yield from ("bbox", "visual_embeds", "visual_feats", "visual_pos")
    if hasattr(config, "text_config") and forward.integer(*PLACEHOLDERS) is None:
        yield from ("input_ids", "pixel_values", "input_features")
    if config.model_type in WITH_BOTH:
        yield from ("input_ids", "pixel_values")
    if getattr(forward.model, "main_input_name", "") == "input_features":
        yield "input_features_mask"
    if forward.patched:
        yield from ("pixel_attention_mask", "spatial_shapes")
    if "states" in parameters:
        yield from ("actions", "rewards", "returns_to_go", "timesteps")
    if config.model_type == "kosmos-2":
        yield "image_embeds_position_mask"
