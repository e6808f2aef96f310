"""Conventions by which profilers count work, and users' own rules.

    matmul       2 FLOP per multiply-add of products, convolutions, attention and recurrent layers alone;
                 biases do not count, padding and causal masks save nothing: PyTorch's FlopCounterMode, with
                 attention, grouped convolutions' backward pass and recurrent layers counted everywhere
    all-ops      as matmul, and every other kind by its formula (5 per normalised element, 8 per gelu, ...):
                 the default, and what predictions and reports count
    fvcore       multiply-adds of linear, matmul and convolution, 2 to 5 per normalised element, one per
                 element that is average-pooled adaptively; no attention, no activations
    thop         the count of the library thop, which is run on the model
    pytorch-api  by module, for comparison only: per output, Linear 2 in - 1 + bias, Conv in / groups x
                 kernel + bias, AvgPool 1, adaptive kernel + 1, upsampling 5, 11, 31 or 259; per element,
                 norms 2, LeakyReLU 1; Embedding vocabulary x width; anything else 0

fvcore and thop print multiply-adds: their own number is the one in the unit `mac`; in `flop` it is twice
that.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, unknown
from neuralpower.layers import Layer
from neuralpower.layers.rows import to_row
from neuralpower.trace.operators.undisturbed import undisturbed
from neuralpower.trace.records import LayerCall, ModuleCall, Trace

ALL_OPS = "all-ops"  # as `predict` and `report` count
CONVENTIONS = ("matmul", ALL_OPS, "thop", "fvcore", "pytorch-api")
FORWARD_ONLY = ("thop", "fvcore", "pytorch-api")
UNITS = {"flop": 1, "mac": 2}  # FLOP in one
PRODUCTS = ("linear", "matmul", "attention", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "recurrent")

Rules = Mapping[str | type[nn.Module], Callable[..., int]]

UPSAMPLING = {"nearest": 0, "linear": 5, "bilinear": 11, "trilinear": 31, "bicubic": 259}
CONVOLUTIONS = (nn.modules.conv._ConvNd,)
NORMS = (nn.LayerNorm, nn.modules.batchnorm._BatchNorm)
AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)


def check_convention(convention: str, unit: str, phase: str) -> None:
    """Raise InputError for an unknown convention or unit, or a convention without a backward pass."""
    if convention not in CONVENTIONS:
        raise unknown("convention", convention, CONVENTIONS)
    if unit not in UNITS:
        raise unknown("FLOP unit", unit, UNITS)
    if phase == "training" and convention in FORWARD_ONLY:
        text = "counts no backward pass; choose matmul or all-ops, or phase forward"
        raise InputError(f"convention {convention!r} {text}")


def product_flops(layer: Layer) -> int:
    """FLOP of multiply-adds, 0 for a kind without products."""
    return int(layer.flops()) if layer.kind in PRODUCTS else 0


def layer_flops(layer: Layer, convention: str) -> int:
    """FLOP of one layer by matmul, all-ops or fvcore."""
    if convention == "all-ops":
        return int(layer.flops())
    return 2 * _fvcore(layer) if convention == "fvcore" else product_flops(layer)


def _fvcore(layer: Layer) -> int:
    """Multiply-adds as by fvcore.nn.FlopCountAnalysis (fvcore/nn/jit_handles.py and flop_count.py)."""
    fields = to_row(layer)
    if layer.kind == "norm":
        elements = int(fields["rows"] * fields["width"] * fields["spatial"])
        return elements * (2 if fields["function"] == "batch" else 5)
    if layer.kind == "pool2d":
        pixels = int(fields["batch"] * fields["channels"] * fields["in_height"] * fields["in_width"])
        return pixels if fields["function"] == "adaptive_avg" else 0
    return product_flops(layer) // 2 if layer.kind not in ("attention", "recurrent") else 0


def module_counts(
    model: nn.Module, trace: Trace, convention: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, int] | None:
    """FLOP by module path where the convention counts by module; None where it counts by operator."""
    if convention == "thop":
        return {path: 2 * macs for path, macs in thop_macs(model, args, kwargs).items()}
    if convention != "pytorch-api":
        return None
    counts: Counter[str] = Counter()
    for call in trace.modules:
        counts[call.path] += _pytorch_api(model.get_submodule(call.path), call)
    return counts


def _pytorch_api(module: nn.Module, call: ModuleCall) -> int:
    """FLOP of one call of a module; a derived class counts as its base."""
    if not call.outputs:
        return 0
    outputs = math.prod(call.outputs[0])
    inputs = math.prod(call.inputs[0]) if call.inputs else outputs
    if isinstance(module, nn.Linear):
        return outputs * (2 * module.in_features - 1 + (module.bias is not None))
    if isinstance(module, CONVOLUTIONS):
        window = math.prod(module.kernel_size) * module.in_channels // module.groups
        return outputs * (window + (module.bias is not None))
    if isinstance(module, NORMS):
        return 2 * inputs
    if isinstance(module, nn.Embedding):
        return module.num_embeddings * module.embedding_dim
    if isinstance(module, nn.LeakyReLU):
        return inputs
    if isinstance(module, AVERAGES):
        return outputs
    if isinstance(module, ADAPTIVE) and call.inputs:
        axes = zip(call.inputs[0][2:], call.outputs[0][2:], strict=True)
        return outputs * (math.prod(a // b for a, b in axes) + 1)
    if isinstance(module, nn.Upsample):
        return outputs * UPSAMPLING.get(module.mode, 0)
    return 0


class _Called(nn.Module):
    """A model with its keyword arguments: thop passes positional ones only."""

    def __init__(self, model: nn.Module, kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.keywords = model, dict(kwargs)

    def forward(self, *args: Any) -> Any:
        return self.model(*args, **self.keywords)


def thop_macs(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    custom_ops: Mapping[type[nn.Module], Callable[..., None]] | None = None,
) -> dict[str, int]:
    """Multiply-adds by module path as thop counts them on a forward pass; its marks on `model` are undone."""
    import thop

    with undisturbed(model, None), contextlib.redirect_stdout(io.StringIO()):
        given = (_Called(model, kwargs or {}), tuple(args), dict(custom_ops or {}))
        _, _, tree = thop.profile(*given, verbose=False, ret_layer_info=True)
    counted: dict[str, int] = {}

    def walk(path: str, macs: float, _: Any, inside: Mapping[str, Any]) -> None:
        for name, branch in inside.items():
            walk(f"{path}.{name}" if path else name, *branch)
        if macs and not inside:
            counted[path] = int(macs)

    walk("", *tree["model"])
    return counted


def ruled(
    custom: Rules | None, model: nn.Module, trace: Trace
) -> tuple[dict[str, int], Callable[[LayerCall], int | None]]:
    """Users' own rules: (FLOP by module path, FLOP of an operator call or None).

    A rule by operator name is `rule(inputs, outputs)`, one by module type `rule(module, inputs, outputs)`;
    both get shapes and return FLOP. A module type's rule holds for subclasses, and for all that runs inside.
    """
    custom = custom or {}
    by_type = {key: rule for key, rule in custom.items() if isinstance(key, type)}
    by_name = {key: rule for key, rule in custom.items() if isinstance(key, str)}
    modules: Counter[str] = Counter()
    for call in trace.modules:
        module = model.get_submodule(call.path)
        rule = next((by_type[base] for base in type(module).__mro__ if base in by_type), None)
        if rule is not None:
            modules[call.path] += int(rule(module, call.inputs, call.outputs))

    def of_operator(call: Any) -> int | None:
        rule = by_name.get(call.operator)
        return None if rule is None else int(rule(call.inputs, call.outputs))

    return modules, of_operator


def backward_flops(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> int:
    """FLOP of the products in one operator of a backward pass, from its operands; 0 for any other operator.

    Each gradient of a convolution takes the forward pass's multiply-adds, whatever its groups. Attention's
    four products take twice the forward pass; recomputed scores do not count.
    """
    if operator in ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm"):
        left, right = args[-2:] if operator in ("aten.mm", "aten.bmm") else args[1:3]
        return int(2 * left.numel() * right.shape[-1])
    if operator == "aten.convolution_backward":
        grad, x, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
        positions = math.prod(x.shape[2:]) if transposed else math.prod(grad.shape[2:])
        return int(2 * grad.shape[0] * positions * weight.numel() * sum(mask[:2]))
    if operator.startswith("aten._scaled_dot_product") and operator.endswith("_backward"):
        tensors = [a for a in args if isinstance(a, Tensor)]
        query, key = tensors[1], tensors[2]
        return int(8 * query.numel() * key.shape[-2])
    return 0


def flop_counter_total(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """FLOP of one forward pass by torch.utils.flop_counter on meta tensors, with attention's products."""
    from torch.utils._pytree import tree_map
    from torch.utils.flop_counter import FlopCounterMode

    given = tree_map(lambda v: v.to("meta") if isinstance(v, Tensor) else v, (tuple(args), dict(kwargs)))
    state = {name: t.detach().to("meta") for name, t in (*model.named_parameters(), *model.named_buffers())}
    counter = FlopCounterMode(display=False)
    with undisturbed(model, None), torch.no_grad(), counter:
        torch.func.functional_call(model, state, *given)
    return int(counter.get_total_flops())
