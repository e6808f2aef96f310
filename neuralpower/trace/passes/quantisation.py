"""Quantised weights: the bytes that they take, and the types in which products read and multiply them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuralpower.dtypes import DTYPES
from neuralpower.layers import Layer
from neuralpower.layers.matrix_product import MatrixProduct
from neuralpower.quantisation.formats import Format
from neuralpower.quantisation.schemes import Scheme
from neuralpower.quantisation.totals import sizes, totals
from neuralpower.quantisation.weights import Matrices
from neuralpower.trace.passes.base import trace_pass
from neuralpower.trace.question import Question
from neuralpower.trace.records import LayerCall, Trace


@trace_pass(place="weights", applies=lambda _, asked: asked.weights is not None)
def quantisation(trace: Trace, question: Question) -> Trace:
    """Quantise the weights that the scheme covers, and let products take them so.

    Raises:
        InputError: a group does not divide the inputs of a product.
    """
    return trace if question.weights is None else quantised(trace, question.weights)


def quantised(trace: Trace, scheme: Scheme) -> Trace:
    """A trace of the plain network as its quantised weights have it; raises as `quantisation`."""
    matrices = _matrices(trace)
    forms = scheme.forms(trace.weights, matrices)
    bytes_ = sizes(trace.weights, forms, matrices)
    storages = tuple(s._replace(bytes=bytes_[s.name]) if s.name in bytes_ else s for s in trace.storages)
    calls = tuple(_taking(call, forms.get(call.weight)) for call in trace.calls)
    found = totals(scheme, trace.weights, forms, matrices)
    return replace(trace, calls=calls, storages=storages, quantised=found)


def _matrices(trace: Trace) -> dict[str, Matrices]:
    """(matrices, outputs, inputs) of each weight that a product reads: a stack's shape may lie either way."""
    numbers = {weight.name: weight.numbers for weight in trace.weights}
    matrices: dict[str, Matrices] = {}
    for call in trace.calls:
        if call.weight in numbers and isinstance(call.layer, MatrixProduct):
            _, _, outputs, inputs = call.layer.sides()
            count = numbers[call.weight] // max(outputs * inputs, 1)
            if count * outputs * inputs == numbers[call.weight]:
                matrices[call.weight] = (count, outputs, inputs)
    return matrices


def _taking(call: LayerCall, form: Format | None) -> LayerCall:
    """The call with its weights in a format."""
    if form is None or not form.quantises or not isinstance(call.layer, MatrixProduct):
        return call
    return replace(call, layer=product_of(call.layer, form))


def product_of(layer: MatrixProduct, form: Format) -> Layer:
    """A product that takes weights in a format, and rounds its inputs where the format says so."""
    group = form.group if form.group > 0 and form.group != DTYPES[form.dtype].group else 0
    changes: dict[str, Any] = {"weights_dtype": form.dtype, "weights_group": group}
    changes["weights_rows_group"] = form.rows if form.rows > 1 else 0
    if form.activations:
        changes |= {
            "dtype": form.activations,
            "weights_dtype": "" if form.dtype == form.activations else form.dtype,
            "input_group": form.activations_group,
            "output_dtype": layer.dtype,
            # public measurements of int8 products begin with inputs in int8
            "quantises": form.dynamic and not DTYPES[form.activations].integer,
        }
    return replace(layer, **changes)
