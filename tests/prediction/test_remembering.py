"""A predictor that remembers says what the plain one says, and computes each layer once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from neuralpower.layers import Layer
from neuralpower.layers.linear import Linear
from neuralpower.learn.estimates import Estimates
from neuralpower.learn.files.predictor_lookup import chosen
from neuralpower.learn.predictor import Predictor
from neuralpower.prediction.explore.remembering import remembering

PLAIN = chosen(None, "h100-sxm", "bfloat16")


def layers(*widths: int) -> list[Layer]:
    return [
        Linear(dtype="bfloat16", rows=64, in_features=width, out_features=256, bias=False) for width in widths
    ]


def test_it_says_the_same_in_any_order() -> None:
    one = remembering(PLAIN)
    one.estimate(layers(64, 128))
    for asked in (layers(128, 64, 128), layers(512, 128), []):
        ours, plain = one.estimate(asked), PLAIN.estimate(asked)
        for name in ("runtime_s", "low_s", "high_s", "power_w"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(plain, name))


def test_no_layer_is_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Layer] = []
    estimate = Predictor.estimate

    def counted(self: Predictor, some: Sequence[Layer]) -> Estimates:
        computed.extend(some)
        return estimate(self, some)

    monkeypatch.setattr(Predictor, "estimate", counted)
    one = remembering(PLAIN)
    one.estimate_network(layers(64, 128, 64), np.ones(3))
    one.estimate_network(layers(128, 512), np.ones(2))
    assert computed == layers(64, 128, 512)
