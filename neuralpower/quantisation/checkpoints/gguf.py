"""Files of llama.cpp: a mixture of types, which `neuralpower.quantisation.gguf` gives to tensors."""

from __future__ import annotations

from neuralpower.quantisation.checkpoints.fields import Fields, checkpoint_reader
from neuralpower.quantisation.gguf import MIXTURES
from neuralpower.quantisation.schemes import Scheme


@checkpoint_reader("gguf")
def gguf(fields: Fields) -> Scheme:
    """The mixture that the file's metadata name, and the types of its tensors."""
    mixture = fields.text("mixture", "q4_k_m", known=tuple(MIXTURES))
    types = fields.values.get("types") or {}
    return Scheme(name=mixture, form=None, mixture=mixture, types=dict(types))
