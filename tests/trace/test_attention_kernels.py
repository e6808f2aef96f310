"""Which kernel of attention a GPU runs in training, by what a step keeps."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neuralpower.platforms import PLATFORMS
from neuralpower.trace.steps.step_lifetimes import training_lifetimes

ROWS = 20


class Attention(nn.Module):
    """Attention of 4 query heads."""

    def __init__(self, heads: int, size: int, masked: bool) -> None:
        super().__init__()
        self.heads, self.size, self.masked = heads, size, masked
        self.query, self.key, self.value = (
            nn.Linear(8, width) for width in (4 * 32, heads * 32, heads * size)
        )

    def forward(self, x: Tensor) -> Tensor:
        def split(one: Tensor, heads: int) -> Tensor:
            return one.unflatten(-1, (heads, -1)).transpose(1, 2)

        q, k, v = split(self.query(x), 4), split(self.key(x), self.heads), split(self.value(x), self.heads)
        mask = torch.ones(ROWS, ROWS, dtype=torch.bool) if self.masked else None
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("heads", "size", "masked", "dtype", "kernel", "scores"),
    [
        (2, 32, False, torch.bfloat16, "_scaled_dot_product_flash_attention", False),
        (4, 16, False, torch.bfloat16, "_scaled_dot_product_efficient_attention", False),  # values of 16
        (4, 32, True, torch.bfloat16, "_scaled_dot_product_efficient_attention", False),
        (4, 32, False, torch.float32, "_scaled_dot_product_efficient_attention", False),
        (2, 32, False, torch.float32, "_safe_softmax", True),  # fewer heads of keys: all scores are kept
    ],
)
def test_the_kernel_that_cuda_would_run(
    heads: int, size: int, masked: bool, dtype: torch.dtype, kernel: str, scores: bool
) -> None:
    module = Attention(heads, size, masked).to(dtype)
    step = training_lifetimes(
        module, (torch.zeros(3, ROWS, 8, dtype=dtype),), stepped=False, platform=PLATFORMS["nvidia"]
    )
    forward = step.passes[0]
    kept = [one for one in step.storages if 0 < one.birth <= forward and (one.death or forward + 1) > forward]
    assert any(one.origin[1] == f"aten.{kernel}" for one in kept)
    assert any(one.bytes == 3 * 4 * ROWS * ROWS * dtype.itemsize for one in kept) == scores
