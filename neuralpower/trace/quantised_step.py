"""A training step whose frozen weights are quantised, as QLoRA has them."""

from __future__ import annotations

from collections.abc import Sequence

from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.totals import sizes
from neuralpower.quantisation.weights import Weight
from neuralpower.trace.lifetimes import ACTIVATIONS, StepLifetimes, Storage


def with_quantised(step: StepLifetimes, weights: Sequence[Weight], scheme: Scheme) -> StepLifetimes:
    """The step with frozen weights in a scheme's formats; each product widens its own while it runs.

    Raises InputError where a group does not divide a product's inputs.
    """
    forms = scheme.forms(weights, {})
    found = sizes(weights, forms, {})
    plain = {one.name: one.bytes for one in weights if forms.get(one.name) is not None}
    widened = [Storage(call, call, plain[name], ACTIVATIONS) for call, name in step.products if name in plain]
    storages = [one._replace(bytes=found.get(one.name, one.bytes)) for one in step.storages]
    return step._replace(storages=(*storages, *widened))
