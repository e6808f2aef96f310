"""A Beit with relative positions, which transformers caches by image size for the whole process."""

import torch
from torch import Tensor
from transformers import BeitConfig, BeitModel


def small_beit(side: int, blocks: int = 1) -> tuple[BeitModel, Tensor]:
    """With its pixels; tests take sides of their own, as they share the cache."""
    config = BeitConfig(
        hidden_size=32,
        num_hidden_layers=blocks,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=side,
        patch_size=8,
        use_relative_position_bias=True,
    )
    return BeitModel(config), torch.randn(1, 3, side, side)
