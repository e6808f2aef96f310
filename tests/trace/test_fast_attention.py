"""nn.MultiheadAttention's fused operator, as the operators that it is made of."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuralpower.layers.attention import Attention
from neuralpower.layers.reduction import Reduction
from neuralpower.layers.softmax import Softmax
from neuralpower.trace.operators.fast_attention import attention_in_parts
from neuralpower.trace.tracer import trace

BATCH, TOKENS, WIDTH, HEADS = 2, 64, 32, 4
SCORES = 4 * BATCH * HEADS * TOKENS**2  # bytes


class Attentive(nn.Module):
    """Attention of tokens to themselves, or to a copy of them."""

    def __init__(self, itself: bool = True, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.itself, self.options = itself, options

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x, x if self.itself else x.clone(), x, **self.options)[0]
        return y


def inputs() -> Tensor:
    return torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("masked", [False, True])
def test_the_parts_make_what_the_fused_operator_does(masked: bool) -> None:
    made = []
    for device in ("cpu", "meta"):
        model = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, device=device).eval()
        x = inputs().to(device)
        mask = torch.ones(BATCH, TOKENS, dtype=torch.bool, device=device) if masked else None
        with torch.inference_mode(), attention_in_parts() if device == "meta" else nullcontext():
            made.append([one.shape for one in model(x, x, x, key_padding_mask=mask)])
    assert made[0] == made[1]
    assert torch.backends.mha.get_fastpath_enabled()


def test_scores_become_weights_in_place_and_the_heads_are_averaged() -> None:
    found = trace(Attentive(), (inputs(),))
    assert [one.bytes for one in found.storages if one.bytes >= SCORES] == [SCORES]
    sums = [task.layer for task in found.calls if isinstance(task.layer, Reduction)]
    assert [(one.function, one.elements, one.last) for one in sums] == [("sum", SCORES // 4, False)]


@pytest.mark.parametrize(
    ("model", "training"),
    [(Attentive(itself=False), False), (Attentive(), True)],
    ids=["another source", "training"],
)
def test_where_torch_takes_no_fast_path_the_modules_own_forward_is_followed(
    model: Attentive, training: bool
) -> None:
    found = trace(model, (inputs(),), training=training)
    assert len([one for one in found.storages if one.bytes == SCORES]) >= 2
    assert any(isinstance(task.layer, Softmax) for task in found.calls)


def test_attention_without_weights_is_one_call() -> None:
    found = trace(Attentive(need_weights=False), (inputs(),))
    assert [type(task.layer) for task in found.calls].count(Attention) == 1
