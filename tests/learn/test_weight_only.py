"""The law of bytes for products with quantised weights only, if no predictor was trained on them."""

from dataclasses import replace

import numpy as np
import pytest

from neuralpower.layers.columns import columns_of
from neuralpower.layers.linear import Linear
from neuralpower.layers.matmul import Matmul
from neuralpower.learn.estimates import WEIGHTS_LAW
from neuralpower.learn.files.predictor_lookup import load
from neuralpower.learn.notes import assumed
from neuralpower.learn.predictor import Predictor
from neuralpower.learn.regressor import NINETY
from neuralpower.learn.unmeasured.weight_only import HIGH, LOW, WIDENED, is_weight_only, said

ONE_ROW = Linear(dtype="float32", rows=1, in_features=8192, out_features=8192, bias=False)
MANY = replace(ONE_ROW, rows=8192)
EXPERTS = Matmul(dtype="float32", batch=8, rows=4, inner=2048, columns=4096)


@pytest.fixture(scope="module", params=["nvidia-t4", "amd-epyc-2c"])
def predictor(request: pytest.FixtureRequest) -> Predictor:
    """One of a GPU, one of a CPU; neither has rows of quantised products."""
    return load(request.param)


def int4(layer: Linear | Matmul) -> Linear | Matmul:
    """With weights of 4 bits in groups of 128."""
    return replace(layer, weights_dtype="int4", weights_group=128)


def test_reading_weights_takes_what_as_many_bytes_take(predictor: Predictor) -> None:
    found = predictor.estimate([int4(ONE_ROW)])
    share = int4(ONE_ROW).bytes().weights / ONE_ROW.bytes().weights
    inner = 64 * int(np.ceil(np.ceil(8192 * share) / 64))
    alike, whole = predictor.estimate([replace(ONE_ROW, in_features=inner)]), predictor.estimate([ONE_ROW])
    if predictor.platform.family == "cpu":  # where one row may take longer to multiply than to read
        assert found.runtime_s >= WIDENED * alike.runtime_s
    else:
        assert found.runtime_s == pytest.approx(WIDENED * alike.runtime_s)
    assert found.basis == (WEIGHTS_LAW,)
    own = NINETY * (alike if found.runtime_s == WIDENED * alike.runtime_s else whole).deviation
    assert np.log(found.runtime_s / found.low_s) == pytest.approx(np.hypot(np.log(LOW), own))
    assert np.log(found.high_s / found.runtime_s) == pytest.approx(np.hypot(np.log(HIGH), own))
    assert found.runtime_s < 0.5 * whole.runtime_s


def test_many_rows_take_what_the_plain_product_computes(predictor: Predictor) -> None:
    quantised, plain = predictor.estimate([int4(MANY)]), predictor.estimate([MANY])
    assert quantised.runtime_s == pytest.approx(plain.runtime_s, rel=0.01)
    assert quantised.high_s / quantised.low_s > plain.high_s / plain.low_s
    assert quantised.high_s / quantised.low_s > HIGH / LOW


def test_experts_and_fewer_bits_are_priced_alike(predictor: Predictor) -> None:
    eight = replace(EXPERTS, weights_dtype="int8")
    times = predictor.estimate([int4(EXPERTS), eight, EXPERTS]).runtime_s
    assert times[0] <= times[1]
    assert times[0] < times[2] * WIDENED
    mixed = predictor.estimate([ONE_ROW, int4(ONE_ROW), MANY, int4(MANY)])
    alone = [predictor.estimate([layer]).runtime_s[0] for layer in (ONE_ROW, int4(ONE_ROW), MANY, int4(MANY))]
    assert mixed.runtime_s == pytest.approx(alone)


def test_what_the_law_speaks_of() -> None:
    both = replace(ONE_ROW, dtype="int8", output_dtype="bfloat16")
    for layers, holds in (
        ([int4(MANY)], True),
        ([MANY], False),
        ([both], False),
        ([MANY, int4(MANY)], False),
    ):
        assert is_weight_only(columns_of(Linear, layers)) == holds
    assert "1.3 times the time of its bytes" in said(("linear", "float32", "forward", "vector quantised"))
    assert said(("linear", "float32", "forward", "vector")) == ""
    assert said(("linear", "int8", "forward", "vector quantised")) == ""


def test_a_remark_says_that_the_law_was_taken(predictor: Predictor) -> None:
    texts = assumed(predictor, [int4(ONE_ROW)])
    assert any("with quantised weights was not measured here" in text for text in texts)
    assert not any("with quantised weights" in text for text in assumed(predictor, [ONE_ROW]))
