"""Memory of training steps under torch.compile, held against what a compiled network saves on this CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neuralpower.platforms import platform_named
from neuralpower.prediction.fits.fit import fit, memory
from neuralpower.trace.lifetimes import ACTIVATIONS, GRADIENTS, OPTIMIZER, StepLifetimes, Storage
from neuralpower.trace.recipe import TRAINING
from neuralpower.trace.steps.compiled_step import NOTE, without_fused
from neuralpower.trace.steps.step_lifetimes import training_lifetimes
from tests.asking import requested

NVIDIA = platform_named("nvidia")


class Block(nn.Module):
    """A convolution with a batch norm, then a gated product with a layer norm and a residual addition."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.batch = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.up, self.gate, self.down = nn.Linear(8, 32), nn.Linear(8, 32), nn.Linear(32, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.batch(self.convolution(x))).mean((2, 3))
        return self.norm(x + self.down(F.silu(self.gate(x)) * self.up(x)))


def kept(step: StepLifetimes) -> int:
    """Bytes that the forward pass leaves for the backward pass, the loss's own numbers aside."""
    end = step.passes[0]
    alive = [one for one in step.storages if one.birth <= end and (one.death is None or one.death > end)]
    return sum(one.bytes for one in alive if one.part == ACTIVATIONS and one.bytes > 4)


def saved(model: nn.Module, run: Any, x: Tensor) -> int:
    """Bytes that a real forward pass saves besides weights and inputs."""
    own = {one.untyped_storage()._cdata for one in (*model.parameters(), *model.buffers(), x)}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            found[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(x).square().mean()
    return sum(found.values())


@pytest.mark.full  # torch's compiler takes seconds to import
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules
def test_a_compiled_step_keeps_what_torch_compile_saves() -> None:
    model, x = Block(), torch.randn(4, 3, 16, 16)
    steps = [training_lifetimes(model, (x,), compiled=one, optimizer="sgd") for one in (False, True)]
    real = torch.compile(model, backend="aot_eager_decomp_partition")  # all of torch.compile but its kernels
    assert [kept(one) for one in steps] == [saved(model, model, x), saved(model, real, x)]
    assert kept(steps[1]) < kept(steps[0])
    gradients = [sum(s.bytes for s in one.storages if s.part == GRADIENTS) for one in steps]
    assert gradients[0] == gradients[1] == sum(one.nbytes for one in model.parameters())
    assert not steps[1].note
    assert all(one.grad is None for one in model.parameters())


def test_results_within_one_kernel_take_nothing() -> None:
    inside, across = Storage(1, 2, 10, ACTIVATIONS), Storage(1, 3, 20, ACTIVATIONS)  # call 3 is a product
    to_backward = Storage(4, 5, 30, ACTIVATIONS)  # the forward pass ends with call 4
    others = [Storage(1, 2, 40, OPTIMIZER), Storage(3, 3, 50, ACTIVATIONS), Storage(7, 7, 60, ACTIVATIONS)]
    found = without_fused([inside, across, to_backward, *others], [1, 2, 4, 5, 6, 7], (4, 6))
    assert found == (across, to_backward, *others)


class Asking(nn.Module):
    """A network whose path depends on values, which is no single graph."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 8)

    def activation_checkpointing_enable(self) -> None:
        """Nothing to run again."""

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x) if (x > 0).all() else x


@pytest.mark.parametrize(
    ("how", "reason"), [({}, "the network is not one graph"), ({"checkpointing": True}, "is not modelled")]
)
def test_what_cannot_be_compiled_is_an_eager_step_and_says_so(how: dict[str, Any], reason: str) -> None:
    eager, found = (
        training_lifetimes(Asking(), (torch.zeros(4, 8),), compiled=one, **how) for one in (False, True)
    )
    assert found.note.startswith(NOTE)
    assert reason in found.note
    assert found._replace(note="") == eager


def test_fit_answers_for_compiled_steps_and_keeps_the_note() -> None:
    request = requested(Block(), input_shape=(3, 16, 16), phase=TRAINING, platform=NVIDIA, run="compile")
    found, eager = memory(request), memory(replace(request, run="eager"))
    # the result of the batch norm is made again, and that of the activation is its own
    assert eager.activations_bytes - found.activations_bytes >= 4 * 8 * 16 * 16
    asking = replace(request, model=Asking(), input_shape=(8,), remedies=False)
    assert any(note.startswith(NOTE) for note in fit(asking, 1e9).notes)
