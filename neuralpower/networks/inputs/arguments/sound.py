"""Arguments that hold sound: raw samples and spectrograms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neuralpower.errors import InputError
from neuralpower.networks.inputs.arguments.forward import Forward, Makers
from neuralpower.networks.inputs.size_limits import TOKENS

SAMPLES = 16_000  # default raw audio: one second at 16 kHz
RESAMPLING = ("downsampling_ratios", "upsampling_ratios")  # of codecs, which read [batch, channels, samples]
BETWEEN = "SpeechT5Model"  # without the layers before encoder and decoder, it reads hidden states


def input_values(forward: Forward) -> Tensor:
    """Samples [batch, (channels,) samples]; for the spectrogram transformer [batch, frames, mel bins]."""
    if forward.request.input_shape is not None:
        return forward.shaped()
    if forward.name == BETWEEN:
        return forward.floats(forward.tokens, forward.integer("hidden_size") or 768)
    if forward.integer("frequency_stride") is not None:
        return forward.floats(forward.integer("max_length") or 1024, forward.integer("num_mel_bins") or 128)
    channels, samples = forward.integer("audio_channels"), _samples(forward)
    is_codec = channels is not None or _resampling(forward) is not None
    return forward.floats(channels or 1, samples) if is_codec else forward.floats(samples)


def _resampling(forward: Forward) -> int | None:
    """Samples that a codec takes for one frame."""
    return next((math.prod(ratios) for ratios in forward.fields(*RESAMPLING) if ratios), None)


def _samples(forward: Forward) -> int:
    """Samples from which the convolutional front end makes `seq_len` frames."""
    strides = getattr(forward.config, "conv_stride", None)
    kernels = getattr(forward.config, "conv_kernel", None)
    length = forward.request.seq_len
    if length is None:
        return SAMPLES
    if not strides or not kernels:
        raise InputError(
            f"seq_len is {length}, but {forward.name} reads raw samples; "
            "give their number as input_shape instead"
        )
    for stride, kernel in zip(reversed(strides), reversed(kernels), strict=True):
        length = (length - 1) * int(stride) + int(kernel)
    return length


def input_features(forward: Forward) -> Tensor:
    """Spectrogram in the layout of the model: Whisper's [batch, mel bins, frames] is of fixed length."""
    return forward.floats(*_features_shape(forward))


def input_features_mask(forward: Forward) -> Tensor:
    """Every frame [batch, frames] is of the sound."""
    first, *_, last = _features_shape(forward)
    frames = last if first == forward.integer("num_mel_bins") else first
    return torch.ones(forward.batch, frames, dtype=torch.long)


def _features_shape(forward: Forward) -> tuple[int, ...]:
    config, asked = forward.config, forward.request.input_shape
    positions, bins = getattr(config, "max_source_positions", None), forward.integer("num_mel_bins")
    fixed = (bins, 2 * positions) if bins and positions else None
    if asked is not None:
        if config.model_type == "whisper" and fixed and asked != fixed:
            raise InputError(
                f"input_shape is {asked}, but {forward.name} always reads {fixed[0]} mel bins x "
                f"{fixed[1]} frames; leave it out, or override max_source_positions"
            )
        return asked
    if config.model_type in ("clap", "clap_audio_model"):
        return 1, 1001, bins or 64
    if getattr(config, "input_feat_per_channel", None):
        frames = forward.request.seq_len or 4 * TOKENS
        return frames, config.input_feat_per_channel * config.input_channels
    if fixed:
        return fixed
    # a part's features are preferred to the whole's states
    width = forward.integer("feature_projection_input_dim", "num_mel_bins", "input_dim")
    width = width or forward.integer("hidden_size") or 80
    stacked = forward.integer("num_stacked_frames") or 1
    # the same number of frames as the sound
    resampling = _resampling(forward) if "input_values" in forward.parameters else None
    return _samples(forward) // resampling if resampling else forward.tokens, width * stacked


def decoder_input_values(forward: Forward) -> Tensor:
    """Spectrogram frames [batch, frames, mel bins] that a speech decoder has made so far."""
    width = forward.integer("hidden_size" if forward.name == BETWEEN else "num_mel_bins")
    return forward.floats(TOKENS, width or 80)


def spectrogram(forward: Forward) -> Tensor:
    """Spectrogram frames [batch, frames, mel bins], a vocoder's input."""
    return forward.shaped(forward.tokens, forward.integer("model_in_dim") or 80)


MAKERS: Makers = {
    "input_values": input_values,
    "input_features": input_features,
    "input_features_mask": input_features_mask,
    "decoder_input_values": decoder_input_values,
    "spectrogram": spectrogram,
}
