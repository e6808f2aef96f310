"""Seeded inputs for a network: what its forward is called with, made from its signature and its configuration.

Token ids are drawn from the whole vocabulary (a batch of one repeated id would keep a single embedding row warm),
floating inputs from a normal distribution. No attention mask is made: a full batch needs none.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, ModelError, is_count
from neuralpower.networks.copies import in_dtype
from neuralpower.networks.promised_values import (
    RANDOM,
    alike,
    map_tensors,
    say_made_up,
    tensors_of,
    with_values,
)

TOKENS = 128  # default text length, clipped to the model's maximum
STEPS = 20  # of states, actions and rewards
CHOICES = 2  # of multiple choice and double heads
SAMPLES = 16_000  # default raw audio: one second at 16 kHz
IMAGE_SIZE = 224  # pixels, where the configuration names none
SOUND = {"input_values", "input_features", "spectrogram"}
WITH_LENGTH = {"input_ids", "decoder_input_ids", "inputs", "states", *SOUND}
WITH_SHAPE = {"pixel_values", "pixel_values_videos", "flattened_patches", "inputs", *SOUND}
WITH_BOTH = frozenset(
    "vilt bridgetower flava layoutlmv3 git tvp udop instructblip".split()
)  # read text and images
# tokens of a text that images and sounds are put in place of: without them it is read alone
PLACEHOLDERS = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
RESAMPLING = ("downsampling_ratios", "upsampling_ratios")  # of codecs, which read [batch, channels, samples]
BETWEEN = "SpeechT5Model"  # without the layers before encoder and decoder, it reads hidden states
IN_A_ROW = "xclip_vision_model"  # reads the frames of all videos as a batch of images
REGIONS = 36  # detected regions that LXMERT and VisualBERT read beside the text


@dataclass(frozen=True)
class Inputs:
    """What one forward is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""  # what was made of given ones, in words

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same with every tensor changed."""
        return Inputs(map_tensors(self.args, change), map_tensors(self.kwargs, change), self.note)


@dataclass(frozen=True)
class InputRequest:
    """What the inputs should look like; `None` leaves it to the model.

    `seq_len` counts tokens of text (128, or the model's maximum if that is less) or frames of audio (one second);
    `input_shape` is without the batch; `dtype` is that of the floating inputs.
    """

    batch_size: int = 1
    seq_len: int | None = None
    input_shape: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32

    def check(self) -> None:
        """Raise InputError for a size that is no positive whole number."""
        for name, value in (("batch_size", self.batch_size), ("seq_len", self.seq_len)):
            if value is not None and not is_count(value):
                raise InputError(
                    f"{name} is {value}, but a whole number of at least 1 is needed, of 2**53 at most"
                )
        shape = self.input_shape
        if shape is not None and not (
            isinstance(shape, (tuple, list)) and shape and all(map(is_count, shape))
        ):
            raise InputError(
                f"input_shape is {shape}, but every size must be a whole number of at least 1, of 2**53 at most; "
                "give it without the batch, as in 3x224x224"
            )


def place(inputs: Inputs, device: str, dtype: torch.dtype) -> Inputs:
    """`inputs` on `device`, floating ones in `dtype`."""

    def move(tensor: Tensor) -> Tensor:
        held = with_values(tensor) if tensor.is_meta and torch.device(device).type != "meta" else tensor
        return alike(in_dtype(held, dtype, torch.device(device)), held)

    return inputs.mapped(move)


def called_with(value: Any) -> Inputs:
    """The call that an `example_inputs` answer stands for: a mapping is keywords, a tuple or list is positions."""
    if isinstance(value, Inputs):
        return value
    if isinstance(value, Mapping):
        return Inputs(kwargs=value)
    return Inputs(args=tuple(value) if isinstance(value, (tuple, list)) else (value,))


def batch_of(inputs: Inputs, without: int | None = None) -> int | None:
    """The first size of the first tensor that has one, or `without` one."""
    return next((t.size(0) for t in tensors_of((inputs.args, inputs.kwargs)) if t.dim()), without)


def in_batches(inputs: Inputs, batch_size: int) -> Inputs:
    """`inputs` with another batch: each tensor whose first size is that of the first tensor gets its own rows, again and again."""
    first = batch_of(inputs)
    if first in (None, 0, batch_size):
        return inputs

    def repeat(tensor: Tensor) -> Tensor:
        if not tensor.dim() or tensor.shape[0] != first:
            return tensor
        rows = torch.arange(batch_size, device=tensor.device) % tensor.shape[0]
        return alike(tensor.detach()[rows], tensor)

    note = f"the first side of the given inputs, {first} long, is taken as a batch and is {batch_size} here"
    return replace(inputs.mapped(repeat), note=f"{note}; batch size {first} leaves them as they are")


def shaped_inputs(model: nn.Module, request: InputRequest, shape: Sequence[int]) -> Inputs:
    """One tensor [batch, *shape]: token ids where the model's first weights are an embedding, else normal floats."""
    generator = torch.Generator().manual_seed(0)
    full = (request.batch_size, *shape)
    weighted = (
        module for module in model.modules() if next(module.parameters(recurse=False), None) is not None
    )
    first = next(weighted, None)
    if isinstance(first, (nn.Embedding, nn.EmbeddingBag)):
        return Inputs(
            (say_made_up(torch.randint(0, first.num_embeddings, full, generator=generator), RANDOM),)
        )
    return Inputs((say_made_up(torch.randn(full, generator=generator).to(request.dtype), RANDOM),))


def transformers_inputs(model: nn.Module, request: InputRequest) -> Inputs:
    """Keywords for a `transformers` model of any modality; raises InputError or ModelError."""
    return Inputs(kwargs=_Maker(model, request).keywords())


def positions(model: nn.Module, decoder: bool = False) -> int | None:
    """Longest text that a `transformers` model has positions for, that of its decoder if asked; None: any."""
    maker = _Maker(model, InputRequest())
    return maker.decoder_limit() if decoder else maker.limit()


def reads_text(model: nn.Module) -> bool:
    """Whether a `transformers` model's main input is token ids."""
    return "input_ids" in inspect.signature(model.forward).parameters


def token_ids(model: nn.Module, request: InputRequest, length: int) -> Tensor:
    """Random token ids [batch, length] of a `transformers` model."""
    return _Maker(model, request).ids(length)


class _Maker:
    """Makes each argument of one model's forward by its name."""

    def __init__(self, model: nn.Module, request: InputRequest) -> None:
        self.model, self.request = model, request
        self.config: Any = model.config
        self.name = type(model).__name__
        self.text: Any = _text_config(self.config)
        self.generator = torch.Generator().manual_seed(0)
        self.parameters = inspect.signature(model.forward).parameters
        # images are read as patches: of each in a row of its own, or, as vision towers do, of all in one row
        self.patched = str(getattr(self.config, "model_type", "")).startswith("siglip2")
        self.tiled = "grid_thw" in self.parameters
        self.choices = (CHOICES,) if "MultipleChoice" in self.name or "DoubleHeads" in self.name else ()

    def keywords(self) -> dict[str, Tensor]:
        """Argument name -> tensor."""
        if type(self.model).forward is nn.Module.forward:
            parts = ", ".join(dict.fromkeys(type(part).__name__ for part in self.model.children()))
            raise ModelError(f"{self.name} has no forward pass of its own; name one of its parts: {parts}")
        wanted = self._wanted()
        made: dict[str, Tensor] = {}
        for name in wanted:
            maker = getattr(self, f"make_{name}", None)
            if maker is None or (name == "hidden_states" and not self.tiled):
                raise ModelError(
                    f"{self.name} needs {name!r}, for which no input can be made from a configuration; "
                    "give a file.py:function with an example_inputs(batch_size) beside it"
                )
            made[name] = maker()
        self._refuse_what_was_not_used(made)
        return made

    def _wanted(self) -> list[str]:
        main = getattr(self.model, "main_input_name", "input_ids")
        main = main if isinstance(main, str) else main[0]
        inner = getattr(getattr(self.model, "encoder", None), "main_input_name", main)
        main = (
            inner if main == "inputs" and inner in self.parameters else main
        )  # whatever encoder a pair is made of
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [name for name, parameter in self.parameters.items() if parameter.kind in kinds]
        if main not in self.parameters:
            main = positional[0] if positional else main
        wanted = [main]
        wanted += [
            n for n in positional if self.parameters[n].default is inspect.Parameter.empty and n != main
        ]
        wanted += [name for name in self._companions() if name in self.parameters and name not in wanted]
        return wanted

    def _companions(self) -> Iterator[str]:
        """Optional arguments without which the forward fails or leaves half of the network out."""
        if getattr(self.config, "is_encoder_decoder", False):
            yield "decoder_input_ids"
            if "decoder_input_ids" not in self.parameters:
                yield "decoder_input_values"
        yield "bbox"
        yield from ("visual_embeds", "visual_feats", "visual_pos")
        if hasattr(self.config, "text_config") and self._integer(*PLACEHOLDERS) is None:
            yield from ("input_ids", "pixel_values", "input_features")
        if self.config.model_type in WITH_BOTH:
            yield from ("input_ids", "pixel_values")
        if getattr(self.model, "main_input_name", "") == "input_features":
            yield "input_features_mask"
        if self.patched:
            yield from ("pixel_attention_mask", "spatial_shapes")
        if "states" in self.parameters:
            yield from ("actions", "rewards", "returns_to_go", "timesteps")
        if self.config.model_type == "kosmos-2":
            yield "image_embeds_position_mask"

    def _refuse_what_was_not_used(self, made: Mapping[str, Tensor]) -> None:
        request = self.request
        if request.seq_len is not None and not made.keys() & WITH_LENGTH:
            raise InputError(
                f"seq_len is {request.seq_len}, but {self.name} reads no tokens; leave seq_len out"
            )
        if request.input_shape is not None and not made.keys() & WITH_SHAPE:
            raise InputError(
                f"input_shape is {request.input_shape}, but {self.name} reads tokens; give seq_len instead"
            )

    # ---- configuration ----

    def _integer(self, *names: str) -> int | None:
        """The first of `names` that the configuration or a nested one sets to a whole number."""
        for config in _nested(self.config):
            for name in names:
                value = getattr(config, name, None)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return None

    def _length(self) -> int:
        """Tokens per text; raises InputError past the model's last position."""
        maximum = self.limit()
        asked = self.request.seq_len
        if asked is None:
            return TOKENS if maximum is None else min(TOKENS, maximum)
        if maximum is not None and asked > maximum:
            raise InputError(
                f"seq_len is {asked}, but {self.name} has {maximum} positions; give at most {maximum}, "
                "or override the configuration's number of positions (MODEL?field=value)"
            )
        return asked

    def limit(self) -> int | None:
        """Longest text that the model has positions for, or None."""
        names = (
            "max_position_embeddings",
            "max_encoder_position_embeddings",
            "n_positions",
            "max_sequence_length",
        )
        maximum = next(
            (v for n in names if isinstance(v := getattr(self.text, n, None), int) and v > 0), None
        )
        for path, module in self.model.named_modules():
            if path.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
                rows = getattr(module, "num_embeddings", None) or module.weight.shape[0]
                return (
                    int(rows) - int(module.padding_idx) - 1
                )  # RoBERTa counts positions from padding_idx + 1
        return maximum

    # ---- text ----

    def ids(self, length: int, choices: tuple[int, ...] = (), rows: int = 1) -> Tensor:
        """Random ids without the special ones: a padding or end token in the middle changes what some models do."""
        vocabulary = self._vocabulary()
        special = sorted(i for i in _special_ids(self.config, self.text) if 0 <= i < vocabulary)
        special = special if vocabulary > 2 * len(special) else []
        shape = (self.request.batch_size * rows, *choices, length)
        ids = torch.randint(0, vocabulary - len(special), shape, generator=self.generator)
        for token in special:
            ids += ids >= token
        return say_made_up(ids, RANDOM)

    def _vocabulary(self) -> int:
        sizes = [
            size for size in (getattr(self.text, "vocab_size", None), self._integer("vocab_size")) if size
        ]
        try:
            embedding = self.model.get_input_embeddings()  # type: ignore[operator]  # every PreTrainedModel has it
        except (NotImplementedError, AttributeError):
            embedding = None
        if isinstance(embedding, nn.Embedding):
            sizes = [min(embedding.num_embeddings, *sizes[:1])] if sizes else [embedding.num_embeddings]
        return int(sizes[0]) if sizes else 30_000

    def make_input_ids(self) -> Tensor:
        """Token ids [batch, tokens] or [batch, choices, tokens]; of sounds [batch * codebooks, tokens]."""
        ids = self.ids(
            self._length(), self.choices, 1 if "decoder_input_ids" in self.parameters else self._codebooks()
        )
        end = getattr(self.config, "eos_token_id", None)
        if "SequenceClassification" in self.name and isinstance(end, int) and self.config.is_encoder_decoder:
            ids[..., -1] = end  # BART and its kin classify from the end token, one per text
        return ids

    def make_qformer_input_ids(self) -> Tensor:
        """InstructBLIP's text [batch, tokens] once more, for the vocabulary of its query transformer."""
        vocabulary = int(self.config.qformer_config.vocab_size)
        return torch.randint(
            0, vocabulary, (self.request.batch_size, self._length()), generator=self.generator
        )

    def make_decoder_input_ids(self) -> Tensor:
        """Token ids [batch (* codebooks), tokens] of the decoder, clipped to its last position."""
        limit = self._decoder_positions()
        reads_text = "input_ids" in self.parameters
        if limit is None and not reads_text:
            limit = getattr(
                getattr(self.config, "decoder", None) or self.text, "max_position_embeddings", None
            )
        length = self.request.seq_len if self.request.seq_len is not None else TOKENS
        if reads_text:
            length = self._length()
        elif self.request.seq_len is not None and limit is not None and length > limit:
            raise InputError(
                f"seq_len is {length}, but the decoder of {self.name} has {limit} positions; give at most {limit}, "
                "or override the configuration's number of positions (MODEL?field=value)"
            )
        return self.ids(min(length, limit) if limit else length, rows=self._codebooks())

    def _codebooks(self) -> int:
        """Rows of ids that MusicGen's decoder reads of one sound."""
        return self._integer("num_codebooks") or 1 if self.config.model_type.startswith("musicgen") else 1

    def _decoder_positions(self) -> int | None:
        names = ("max_decoder_position_embeddings", "max_target_positions")
        return next((v for n in names if isinstance(v := getattr(self.config, n, None), int)), None)

    def decoder_limit(self) -> int | None:
        """Longest text that the decoder of a pair has positions for, or None."""
        limit = self._decoder_positions()
        nested = getattr(getattr(self.config, "decoder", None), "max_position_embeddings", None)
        return limit or nested or self.limit()

    def make_bbox(self) -> Tensor:
        """Boxes [batch, tokens, 4] as (left, top, right, bottom), ordered, below the last 2-d position."""
        last = min(self._integer("max_2d_position_embeddings") or 1024, 1001)
        corners = torch.randint(
            0, last, (self.request.batch_size, self._length(), 2, 2), generator=self.generator
        )
        low, high = corners.amin(-1), corners.amax(-1)
        return torch.cat((low, high), dim=-1)

    # ---- images and video ----

    def _floats(self, *shape: int) -> Tensor:
        drawn = torch.randn((self.request.batch_size, *shape), generator=self.generator).to(
            self.request.dtype
        )
        return say_made_up(drawn, RANDOM)

    def _image_shape(self) -> tuple[int, ...]:
        channels = self._integer("num_channels", "in_channels", "in_chans") or 3
        sizes = (
            getattr(c, name, None) for c in _nested(self.config) for name in ("image_size", "max_img_size")
        )
        natural = next((s for size in sizes if (s := _size(size))), None)
        ratios = getattr(self.config, "scaled_images_ratios", None)
        if ratios:  # at the smallest the image is one patch, as in DepthPro
            natural = _size(round(self._patch() / min(ratios)))
        size = natural or (IMAGE_SIZE, IMAGE_SIZE)
        several = self._several()
        shape = self.request.input_shape
        if shape is None:
            return (*several.values(), channels, *size)
        if len(shape) != len(several) + 3 or shape[-3] != channels:
            example = "x".join(map(str, (*several.values(), channels, *size)))
            raise InputError(
                f"input_shape is {'x'.join(map(str, shape))}, but {self.name} reads "
                f"{' x '.join([*several, 'channels', 'height', 'width'])} with {channels} channels; "
                f"give for example {example}"
            )
        fixed = "interpolate_pos_encoding" in self.parameters and getattr(
            self.config, "use_absolute_embeddings", True
        )
        if fixed and natural and tuple(shape[-2:]) != natural:
            raise InputError(
                f"input_shape is {'x'.join(map(str, shape))}, but {self.name} is made for images of "
                f"{natural[0]}x{natural[1]}; override image_size (MODEL?image_size={shape[-2]})"
            )
        return tuple(shape)

    def _several(self) -> dict[str, int]:
        """What stands in front of an image's shape, by name: a video's frames, the images that are matched, or nothing."""
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES as MATCHING,
        )

        frames, kind = self._integer("num_frames", "frames_per_clip"), self.config.model_type
        if frames is not None or ("video" in kind and "vision" not in kind):  # whose towers read one frame
            return {"frames": frames or 8}
        return {"images": 2} if kind in MATCHING else {}

    def make_pixel_values(self) -> Tensor:
        """Images [batch, channels, height, width]; video has the frames before the channels; patches [batch, patches, pixels]."""
        if self.tiled:
            return self.make_hidden_states()
        if not self.patched:
            images = self._floats(*self._image_shape())
            return images.flatten(0, 1) if self.config.model_type == IN_A_ROW else images
        pixels = (self._integer("num_channels") or 3) * (self._integer("patch_size") or 16) ** 2
        shape = self.request.input_shape or (self._patches(), pixels)
        if shape != (self._patches(), pixels):
            raise InputError(
                f"input_shape is {'x'.join(map(str, shape))}, but {self.name} reads {self._patches()} patches of {pixels} numbers; "
                "leave it out, or override vision_config.num_patches or patch_size"
            )
        return self._floats(*shape)

    make_pixel_values_videos = make_pixel_values

    def make_bool_masked_pos(self) -> Tensor:
        """Which patches [batch, patches] of a video are hidden: nine in ten (VideoMAE, arXiv 2203.12602, section 3.3)."""
        frames, _, height, width = self._image_shape()
        patches = (
            frames
            // (self._integer("tubelet_size") or 1)
            * (height // self._patch())
            * (width // self._patch())
        )
        return (torch.arange(patches) < int(0.9 * patches)).repeat(self.request.batch_size, 1)

    def make_hidden_states(self) -> Tensor:
        """Patches [batch * height * width, pixels] of images of 224 x 224, as `make_grid_thw` says."""
        pixels = (self._integer("num_channels", "in_channels") or 3) * self._patch() ** 2
        patches = self._floats(self._side() ** 2, pixels * (self._integer("temporal_patch_size") or 1))
        return patches.flatten(0, 1)

    def make_grid_thw(self) -> Tensor:
        """(frames, height, width) of each image in patches [batch, 3]."""
        return torch.tensor([[1, self._side(), self._side()]] * self.request.batch_size)

    def make_merge_sizes(self) -> Tensor:
        """How many patches a side become one token, of each image [batch]."""
        return torch.ones(self.request.batch_size, dtype=torch.long)

    def _patch(self) -> int:
        return self._integer("patch_size") or 14

    def _side(self) -> int:
        merged = self._integer("spatial_merge_size") or 1
        return IMAGE_SIZE // self._patch() // merged * merged

    def _patches(self) -> int:
        return self._integer("num_patches") or 256

    def make_pixel_attention_mask(self) -> Tensor:
        """All patches are of the image."""
        return torch.ones(self.request.batch_size, self._patches(), dtype=torch.long)

    def make_spatial_shapes(self) -> Tensor:
        """(height, width) of each image in patches [batch, 2]: squares, as positions are learnt for."""
        return torch.full((self.request.batch_size, 2), math.isqrt(self._patches()))

    def make_task_inputs(self) -> Tensor:
        """OneFormer's task in words [batch, tokens]."""
        shape = (self.request.batch_size, self._integer("task_seq_len") or 77)
        return torch.randint(
            0, self._integer("text_encoder_vocab_size") or 49_408, shape, generator=self.generator
        )

    def make_image_embeds_position_mask(self) -> Tensor:
        """Which tokens [batch, tokens] stand for the image: the first ones."""
        tokens = torch.arange(self._length()) < (self._integer("latent_query_num") or 64)
        return tokens.repeat(self.request.batch_size, 1)

    def make_flattened_patches(self) -> Tensor:
        """Pix2Struct's patches [batch, patches, 2 + pixels], the first two being row and column."""
        patch, channels = self._integer("patch_size") or 16, self._integer("num_channels") or 3
        patches = self._floats(*(self.request.input_shape or (1024, 2 + channels * patch**2)))
        positions = torch.arange(patches.shape[1])
        patches[..., 0], patches[..., 1] = positions // 32 + 1, positions % 32 + 1
        return patches

    # ---- audio ----

    def make_input_values(self) -> Tensor:
        """Raw samples [batch, (channels,) samples], or a spectrogram [batch, frames, mel bins] for the spectrogram transformer."""
        if self.request.input_shape is not None:
            return self._floats(*self.request.input_shape)
        if self.name == BETWEEN:
            return self._floats(self.request.seq_len or TOKENS, self._integer("hidden_size") or 768)
        if self._integer("frequency_stride") is not None:
            return self._floats(self._integer("max_length") or 1024, self._integer("num_mel_bins") or 128)
        channels = self._integer("audio_channels")
        samples = self._samples()
        is_codec = channels is not None or self._resampling() is not None
        return self._floats(channels or 1, samples) if is_codec else self._floats(samples)

    def _resampling(self) -> int | None:
        """Samples that a codec takes for one frame."""
        ratios = (getattr(config, name, None) for config in _nested(self.config) for name in RESAMPLING)
        return next((math.prod(of_each) for of_each in ratios if of_each), None)

    def _samples(self) -> int:
        """Samples from which the convolutional front end makes `seq_len` frames."""
        strides, kernels = (
            getattr(self.config, "conv_stride", None),
            getattr(self.config, "conv_kernel", None),
        )
        if self.request.seq_len is None:
            return SAMPLES
        if not strides or not kernels:
            raise InputError(
                f"seq_len is {self.request.seq_len}, but {self.name} reads raw samples; "
                "give their number as input_shape instead"
            )
        length = self.request.seq_len
        for stride, kernel in zip(reversed(strides), reversed(kernels), strict=True):
            length = (length - 1) * int(stride) + int(kernel)
        return length

    def make_decoder_input_values(self) -> Tensor:
        """Spectrogram frames [batch, frames, mel bins] that a speech decoder has made so far; hidden states of SpeechT5 alone."""
        return self._floats(
            TOKENS, self._integer("hidden_size" if self.name == BETWEEN else "num_mel_bins") or 80
        )

    def make_input_features(self) -> Tensor:
        """Spectrogram in the layout of the model: Whisper's [batch, mel bins, frames] is of fixed length."""
        return self._floats(*self._features_shape())

    def make_input_features_mask(self) -> Tensor:
        """Every frame [batch, frames] is of the sound."""
        first, *_, last = self._features_shape()
        frames = last if first == self._integer("num_mel_bins") else first
        return torch.ones(self.request.batch_size, frames, dtype=torch.long)

    def _features_shape(self) -> tuple[int, ...]:
        positions, bins = getattr(self.config, "max_source_positions", None), self._integer("num_mel_bins")
        if self.request.input_shape is not None:
            natural = (
                (bins, 2 * positions) if self.config.model_type == "whisper" and bins and positions else None
            )
            if natural and self.request.input_shape != natural:
                raise InputError(
                    f"input_shape is {self.request.input_shape}, but {self.name} always reads {natural[0]} mel bins x "
                    f"{natural[1]} frames; leave it out, or override max_source_positions"
                )
            return self.request.input_shape
        if self.config.model_type in ("clap", "clap_audio_model"):
            return 1, 1001, bins or 64
        if getattr(self.config, "input_feat_per_channel", None):
            frames = self.request.seq_len or 4 * TOKENS
            return frames, self.config.input_feat_per_channel * self.config.input_channels
        if bins and positions:
            return bins, 2 * positions
        width = self._integer("feature_projection_input_dim", "num_mel_bins", "input_dim")
        width = (
            width or self._integer("hidden_size") or 80
        )  # of a part's features rather than of the whole's states
        stacked = self._integer("num_stacked_frames") or 1
        resampling = (
            self._resampling() if "input_values" in self.parameters else None
        )  # as many as of the sound beside
        return (
            self._samples() // resampling if resampling else self.request.seq_len or TOKENS,
            width * stacked,
        )

    def make_spectrogram(self) -> Tensor:
        """Spectrogram frames [batch, frames, mel bins] that a vocoder makes a sound of."""
        shape = (self.request.seq_len or TOKENS, self._integer("model_in_dim") or 80)
        return self._floats(*(self.request.input_shape or shape))

    # ---- others ----

    def make_inputs(self) -> Tensor:
        """Perceiver: token ids for its text heads, pixels for its image heads, else preprocessed [batch, n, width]."""
        if "MaskedLM" in self.name or "SequenceClassification" in self.name:
            return self.ids(self._length())
        if "ImageClassification" in self.name:
            return self._floats(*(self.request.input_shape or (3, IMAGE_SIZE, IMAGE_SIZE)))
        return self._floats(self.request.seq_len or TOKENS, self._integer("d_model") or 768)

    def make_visual_feats(self) -> Tensor:
        """LXMERT's region features [batch, regions, width]."""
        return self._floats(REGIONS, self._integer("visual_feat_dim") or 2048)

    def make_visual_pos(self) -> Tensor:
        """LXMERT's region boxes [batch, regions, 4]."""
        return self._floats(REGIONS, self._integer("visual_pos_dim") or 4)

    def make_visual_embeds(self) -> Tensor:
        """VisualBERT's region embeddings [batch, (choices,) regions, width]."""
        return self._floats(*self.choices, REGIONS, self._integer("visual_embedding_dim") or 512)

    def _history(self) -> int:
        lags = getattr(self.config, "lags_sequence", None) or [0]
        return int(self._integer("context_length") or TOKENS) + int(max(lags))

    def make_past_values(self) -> Tensor:
        """A time series [batch, steps] or [batch, steps, channels]."""
        channels = self._integer("num_input_channels", "input_size") or 1
        steps = self._history()
        return self._floats(steps, channels) if channels > 1 or "Patch" in self.name else self._floats(steps)

    def make_past_time_features(self) -> Tensor:
        """Time features [batch, steps, features] of the past."""
        return self._floats(self._history(), self._integer("num_time_features") or 1)

    def make_states(self) -> Tensor:
        """What a decision transformer saw [batch, steps, width]; as many steps as in OpenAI Gym (arXiv 2106.01345, K)."""
        return self._floats(self._steps(), self._integer("state_dim") or 17)

    def make_actions(self) -> Tensor:
        """What it did [batch, steps, width]."""
        return self._floats(self._steps(), self._integer("act_dim") or 4)

    def make_rewards(self) -> Tensor:
        """What it was given for it, or is to be given yet [batch, steps, 1]."""
        return self._floats(self._steps(), 1)

    make_returns_to_go = make_rewards

    def make_timesteps(self) -> Tensor:
        """When [batch, steps]."""
        return torch.arange(self._steps()).repeat(self.request.batch_size, 1)

    def _steps(self) -> int:
        return self.request.seq_len or STEPS

    def make_past_values_padding(self) -> Tensor:
        """TimesFM's [batch, steps]: nothing of the past is missing."""
        return torch.zeros(self.make_past_values().shape, dtype=torch.long)

    def make_freq(self) -> Tensor:
        """How often TimesFM's series are sampled [batch, 1]: the first of its kinds, daily and more often."""
        return torch.zeros(self.request.batch_size, 1, dtype=torch.long)

    def make_past_observed_mask(self) -> Tensor:
        """All observed."""
        return torch.ones_like(self.make_past_values())


def _text_config(config: Any) -> Any:
    """The part of a configuration that describes the text, or the configuration itself."""
    try:
        return config.get_text_config()
    except (AttributeError, ValueError):
        return getattr(config, "text_config", None) or config


def _nested(config: Any, depth: int = 2) -> Iterator[Any]:
    """The configuration, then the ones inside it (vision before the others, text last)."""
    yield config
    if depth == 0:
        return
    names = [name for name in getattr(config, "sub_configs", {}) if getattr(config, name, None) is not None]
    names += [
        name for name in ("vision_config", "encoder", "backbone_config", "text_config") if name not in names
    ]
    for name in sorted(names, key=lambda name: ("vision" not in name, "encoder" not in name, "text" in name)):
        inner = getattr(config, name, None)
        if hasattr(inner, "to_dict"):
            yield from _nested(inner, depth - 1)


def _size(value: Any) -> tuple[int, int] | None:
    """(height, width) from the ways in which configurations write an image size."""
    if isinstance(value, Mapping):
        value = (value.get("height"), value.get("width"))
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(v, int) for v in value):
        return (value[0], value[1])
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _special_ids(*configs: Any) -> set[int]:
    """Ids that a configuration gives a meaning to: padding, start, end, mask, image and the like."""
    found: set[int] = set()
    for config in configs:
        for name, value in vars(config).items():
            if not name.endswith(("_token_id", "_token_index")):
                continue
            values = value if isinstance(value, (list, tuple)) else (value,)
            found.update(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    return found
