"""The one argument of Perceiver, which its heads read as text, an image or features."""

from __future__ import annotations

from torch import Tensor

from neuralpower.networks.inputs.arguments.forward import Forward, Makers
from neuralpower.networks.inputs.arguments.images import SIDE
from neuralpower.networks.inputs.arguments.text import ids, length


def inputs(forward: Forward) -> Tensor:
    """Token ids for text heads, pixels for image heads, else features [batch, n, width]."""
    if "MaskedLM" in forward.name or "SequenceClassification" in forward.name:
        return ids(forward, length(forward))
    if "ImageClassification" in forward.name:
        return forward.shaped(3, SIDE, SIDE)
    return forward.floats(forward.tokens, forward.integer("d_model") or 768)


MAKERS: Makers = {"inputs": inputs}
