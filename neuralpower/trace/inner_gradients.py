"""Gradients that a forward pass takes itself, as forces are of an energy: it then runs with autograd.

Without autograd composite operators stay whole, and a forward pass that asks for gradients fails. So it is
tried without first; `takes_gradients` says where autograd is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad, functional

from neuralpower.errors import said
from neuralpower.trace.undisturbed import swapped

FAILING = ("does not require grad", "Cannot set version_counter for inference tensor")
NOTE = (
    "its forward pass takes gradients itself, or makes jagged tensors: composite operators are followed in "
    "their parts"
)


class GradientsAskedError(Exception):
    """A call that answers zeros or nothing, and no error, where there is no autograd."""


def takes_gradients(error: BaseException) -> bool:
    """Whether a forward pass failed without autograd: it asks for gradients, or makes jagged tensors."""
    text = said(error)
    return isinstance(error, GradientsAskedError) or any(words in text for words in FAILING)


@contextlib.contextmanager
def asking_noticed() -> Iterator[None]:
    """Have `torch.autograd.functional` and dual numbers raise GradientsAskedError.

    `torch.func` has an autograd of its own, which makes dual numbers, too.
    """

    def asked(*_: Any, **__: Any) -> Any:
        raise GradientsAskedError("torch.autograd.functional asks for gradients")

    own: Any = forward_ad.make_dual

    def make_dual(*args: Any, **kwargs: Any) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is None:
            raise GradientsAskedError("torch.autograd.forward_ad asks for gradients")
        return own(*args, **kwargs)

    with swapped(functional, _grad_preprocess=asked), swapped(forward_ad, make_dual=make_dual):
        yield
