"""FLOP of a point: by the paper's formula, and as counted from its network.

    Phi = D_H^2 (H - 1) + D_H (D_in + D_out)      weights of a fully connected network, without biases
    FLOP of a step = 6 Phi bs in training (2 forward, 4 backward), 2 Phi bs in inference

Counted FLOP are from products (1 multiply-add = 2 FLOP) in the network's trace. A backward pass has twice the
FLOP of the forward pass, less the gradient of the network's own floating input.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from neuralpower.dtypes import FLOATING
from neuralpower.layers import Layer
from neuralpower.layers.recurrent import Recurrent
from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.profiling.conventions import PRODUCTS, product_flops
from neuralpower.suites.paradnn.points import Point
from neuralpower.trace.tracer import trace

TRAIN, INFER = "train", "infer"
MODES = (TRAIN, INFER)
FLOP_PER_WEIGHT = {TRAIN: 6, INFER: 2}
PER_STEP = ("forward_flops", "activation_bytes", "widest_bytes")  # of a recurrent network
IN_PLACE = ("activation",)  # kinds whose output replaces their input in these networks


def phi(layers: int, nodes: int, input_size: int, output_size: int) -> int:
    """Weights by the paper's formula, which has layers - 1 square matrices."""
    return nodes**2 * (layers - 1) + nodes * (input_size + output_size)


@dataclass(frozen=True)
class Counted:
    """A network's numbers of parameters; FLOP of products and bytes of float32 activations for one sample."""

    parameters: int
    weights: int  # in matrices, kernels and tables: without biases and norms
    tensors: int
    forward_flops: int
    input_gradient_flops: int
    activation_bytes: int  # of all outputs, as training keeps them
    widest_bytes: int  # of the largest call's input and output

    def flops(self, mode: str, batch_size: int) -> int:
        """FLOP of one step."""
        training = 3 * self.forward_flops - self.input_gradient_flops
        return batch_size * (training if mode == TRAIN else self.forward_flops)


def described(point: Point, mode: str) -> dict[str, int | None]:
    """Facts of a point without running it; FLOP are for one step."""
    work = counted(point)
    weights = phi(**point.network_sizes) if point.family == "fc" else None
    return {
        "parameters": work.parameters,
        "phi": weights,
        "formula_flops": weights and FLOP_PER_WEIGHT[mode] * weights * point.batch_size,
        "counted_flops": work.flops(mode, point.batch_size),
    }


def counted(point: Point) -> Counted:
    """The counts of the point's network; raises ModelError if it cannot be built."""
    if point.family != "rnn":
        return counted_model(point.model)
    # all work of a recurrent network is per step, and a trace of many steps takes long
    one = counted_model(point.replaced(length=1).model)
    work: dict[str, int] = {name: getattr(one, name) * point.named["length"] for name in PER_STEP}
    return replace(one, **work)


@functools.lru_cache(maxsize=512)
def counted_model(model: str) -> Counted:
    """The same for a MODEL."""
    source = resolve(model)
    module = source.build("meta")
    inputs = source.inputs(module, InputRequest(batch_size=1))
    layers = trace(module, inputs.args, inputs.kwargs).layers
    products = [product_flops(layer) for layer in layers if layer.kind in PRODUCTS]
    floating = [layer for layer in layers if layer.dtype in FLOATING]
    return Counted(
        parameters=sum(p.numel() for p in module.parameters()),
        weights=sum(p.numel() for p in module.parameters() if p.dim() > 1),
        tensors=sum(1 for _ in module.parameters()),
        forward_flops=sum(map(product_flops, layers)),
        input_gradient_flops=products[0] if products and inputs.args[0].is_floating_point() else 0,
        activation_bytes=sum(_kept_bytes(layer) for layer in floating if layer.kind not in IN_PLACE),
        widest_bytes=max((int(layer.bytes().input + layer.bytes().output) for layer in floating), default=0),
    )


def _kept_bytes(layer: Layer) -> int:
    """Bytes that a call keeps for its backward pass: its output, and gates and states of recurrent cells."""
    if isinstance(layer, Recurrent):
        cells = layer.sequence_steps * layer.num_layers * layer.directions
        return int(layer.itemsize * cells * layer.hidden_size * (layer.gates + 2))
    return int(layer.bytes().output)
