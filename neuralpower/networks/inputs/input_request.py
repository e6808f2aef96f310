"""The requested sizes of a network's inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuralpower.errors import InputError, is_count
from neuralpower.late import torch
from neuralpower.networks.diffusion.pictures import NOTHING, PictureRequest

TOKENS = 128  # default text length, clipped to the model's maximum


@dataclass(frozen=True)
class InputRequest:
    """The requested sizes of inputs; `None` leaves one to the model.

    `seq_len` counts tokens of text (128, or the model's maximum if that is less) or frames of audio (one
    second); `input_shape` is without the batch; `dtype` is that of the floating inputs; `labels` asks for
    what the own loss of a network of transformers compares with, for a training step.
    """

    batch_size: int = 1
    seq_len: int | None = None
    input_shape: tuple[int, ...] | None = None
    dtype: torch.dtype = field(default_factory=lambda: torch.float32)
    labels: bool = False
    picture: PictureRequest | None = None  # of a pipeline of diffusion

    @property
    def asked_picture(self) -> PictureRequest:
        return self.picture or NOTHING

    def check(self) -> None:
        """Raise InputError for a size that is not a positive whole number."""
        check_count("batch_size", self.batch_size)
        check_count("seq_len", self.seq_len)
        shape = self.input_shape
        shaped = isinstance(shape, (tuple, list)) and shape and all(map(is_count, shape))
        if shape is not None and not shaped:
            raise InputError(
                f"input_shape is {shape}, but every size must be a whole number from 1 to 2**53; "
                "give it without the batch, as in 3x224x224"
            )


def check_count(name: str, value: object) -> None:
    """Raise InputError for a number that is neither None nor positive and whole."""
    if value is not None and not is_count(value):
        raise InputError(f"{name} is {value}, but must be a whole number from 1 to 2**53")
