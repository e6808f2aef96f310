"""Arguments that hold regions of an image, which a detector found, next to a text."""

from __future__ import annotations

from torch import Tensor

from neuralpower.networks.arguments.forward import Forward, Makers

REGIONS = 36  # detected regions that LXMERT and VisualBERT read next to the text


def visual_feats(forward: Forward) -> Tensor:
    """LXMERT's region features [batch, regions, width]."""
    return forward.floats(REGIONS, forward.integer("visual_feat_dim") or 2048)


def visual_pos(forward: Forward) -> Tensor:
    """LXMERT's boxes of the regions [batch, regions, 4]."""
    return forward.floats(REGIONS, forward.integer("visual_pos_dim") or 4)


def visual_embeds(forward: Forward) -> Tensor:
    """VisualBERT's region embeddings [batch, (choices,) regions, width]."""
    return forward.floats(*forward.choices, REGIONS, forward.integer("visual_embedding_dim") or 512)


MAKERS: Makers = {
    "visual_feats": visual_feats,
    "visual_pos": visual_pos,
    "visual_embeds": visual_embeds,
}
