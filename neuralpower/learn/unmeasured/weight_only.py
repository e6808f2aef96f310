"""Products whose weights alone are quantised, without trained data: a law of bytes.

    t = max(1.3 t(a product of the inputs' type that reads as many bytes of weights), compute)

`compute` is the part of the plain product's time that its FLOP take by its roofline: multiplication is in the
inputs' type either way. The other term comes from trained regressors, so small products keep their launch
overhead and large ones the bandwidth that the device's products reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from neuralpower.dtypes import DTYPES, FEWEST_NETWORK_BITS
from neuralpower.layers import Layer
from neuralpower.layers.base import QUANTISED
from neuralpower.layers.columns import of_one_type
from neuralpower.layers.rows import field_names
from neuralpower.layers.terms import ceil_to
from neuralpower.learn.estimates import BASES, BY_WEIGHTS, WEIGHTS_LAW, Estimates, Roofline
from neuralpower.learn.fitting.problem import Array
from neuralpower.learn.keys import Key, once
from neuralpower.learn.regressor import NINETY

# Widening weights costs time in addition to reading them. Measured: 25,788 products of TensorRT-LLM's kernels
# for int4 and int8 weights (A100, H200, L40S; 1,024 inputs and outputs and more; ai-dynamo/aiconfigurator's
# tables, Apache-2.0), 90 % took between 0.76 and 2.8 times the law's time, int4 ones on the H200
# between 0.8 and 3.4: kernels differ most for 16 to 256 rows.
WIDENED, LOW, HIGH = 1.3, 0.75, 3.4
INNER = ("in_features", "inner", "intermediate")  # names of a side that the weights grow with
WHOLE = 64  # inner sides are rounded to multiples of this: odd ones run other code
Predicts = Callable[[Layer], Estimates]  # of a table's columns


def is_weight_only(columns: Layer) -> bool:
    """Whether each row of a table's columns has quantised weights, and inputs of the layer's dtype."""
    own = getattr(columns, "weights_dtype", None)
    if own is None or not np.all(np.asarray(own) != ""):
        return False
    inputs = np.asarray(getattr(columns, "input_dtype", ""))
    return bool(np.all(inputs == "")) and all(map(_wide, np.unique(np.asarray(columns.dtype))))


def _wide(dtype: Any) -> bool:
    return DTYPES[str(dtype)].bits >= FEWEST_NETWORK_BITS


def said(key: Key) -> str:
    """A note on how products of such a key are estimated without trained data; "" for other keys."""
    kind, dtype, phase, group = key
    if not once(group).endswith(QUANTISED) or not _wide(dtype):
        return ""
    return (
        f"{kind} ({dtype}, {phase}) with quantised weights was not measured here: {WIDENED:g} times the time "
        f"of its bytes, or its compute where that is longer, within {LOW:g} to {HIGH:g} times"
    )


def weights_law(columns: Layer, predicts: Predicts, roof: Roofline) -> Estimates:
    """The law's estimates of a table's columns for which `is_weight_only` holds.

    Args:
        columns: the products.
        predicts: estimates products of one type.
        roof: of their dtype.
    """
    plain = of_one_type(columns)
    whole, part = predicts(plain), predicts(_shrunk(plain, _share(columns, plain)))
    compute, memory = plain.flops() / roof.flops_per_s, sum(plain.bytes()) / roof.bytes_per_s
    compute_s = whole.runtime_s * compute / np.maximum(np.maximum(compute, memory), 1e-30)
    reading_s = WIDENED * part.runtime_s
    t = np.maximum(reading_s, compute_s)
    reads = reading_s >= compute_s
    watts = ("power_w", "power_low_w", "power_high_w")
    own = NINETY * np.where(reads, part.deviation, whole.deviation)  # of the regressors that the law uses
    below, above = np.hypot(np.log(LOW), own), np.hypot(np.log(HIGH), own)
    return replace(
        whole,
        runtime_s=t,
        low_s=t * np.exp(-below),
        high_s=t * np.exp(above),
        shared=(below + above) / 2 / NINETY,
        hidden_s=np.minimum(part.hidden_s, t),
        held_bytes=np.minimum(np.asarray(columns.bytes().weights, dtype=float), whole.held_bytes),
        regressor=np.full(len(t), BY_WEIGHTS),
        basis_code=np.maximum(whole.basis_code, BASES.index(WEIGHTS_LAW)),
        **{name: np.where(reads, getattr(part, name), getattr(whole, name)) for name in watts},
    )


def _share(columns: Any, plain: Any) -> Array:
    """Bytes of the weights over those in the product's own type [rows]."""
    batch, _, outputs, inputs = columns.sides()
    own, usual = (one.operand_types.weights.bytes(batch * outputs, inputs) for one in (columns, plain))
    return np.asarray(own / np.maximum(usual, 1), dtype=float)


def _shrunk(plain: Layer, share: Array) -> Layer:
    """Products whose inner side is that share of the own one."""
    name = next(name for name in INNER if name in field_names(type(plain)))
    inner = np.asarray(getattr(plain, name), dtype=float)
    return replace(plain, **{name: np.minimum(ceil_to(np.ceil(inner * share), WHOLE), inner)})
