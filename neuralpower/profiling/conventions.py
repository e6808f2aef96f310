"""What counts as work: the conventions by which profilers count, and users' own rules.

    matmul       2 FLOP per multiply-add of products, convolutions, attention and recurrent layers; nothing else.
                 Biases do not count, padding and causal masks do not halve anything: PyTorch's FlopCounterMode,
                 with attention, grouped convolutions' backward pass and recurrent layers counted everywhere.
    all-ops      as matmul, and every other kind by its own formula (five per normalised element, eight per gelu, ...)
    fvcore       what fvcore counts: multiply-adds of linear, matmul and convolution, 2 to 5 per normalised element,
                 one per element that is average-pooled adaptively; no attention, no activations
    thop         what the library thop counts when it is run on the model
    pytorch-api  by module, for comparison only: Linear (2 in - 1 + bias) and Conv (in / groups x kernel + bias) per
                 output; norms 2 per element; Embedding vocabulary x width; AvgPool 1, adaptive kernel + 1 per output;
                 LeakyReLU 1 per element; upsampling 5, 11, 31 or 259 per output; anything else 0

fvcore and thop print multiply-adds: their own figure is the one in the unit `mac`, and twice it in `flop`.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neuralpower.errors import InputError, unknown
from neuralpower.layers import Layer
from neuralpower.trace.records import LayerCall, ModuleCall, Trace
from neuralpower.trace.undisturbed import undisturbed

CONVENTIONS = ("matmul", "all-ops", "thop", "fvcore", "pytorch-api")
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
    """Raise InputError for a convention or unit that is not known, or one that has no backward pass."""
    if convention not in CONVENTIONS:
        raise unknown("convention", convention, CONVENTIONS)
    if unit not in UNITS:
        raise unknown("FLOP unit", unit, UNITS)
    if phase == "training" and convention in FORWARD_ONLY:
        raise InputError(
            f"convention {convention!r} counts no backward pass; choose matmul or all-ops, or phase forward"
        )


def product_flops(layer: Layer) -> int:
    """FLOP of multiply-adds, 0 for a kind that is no product."""
    return int(layer.flops()) if layer.kind in PRODUCTS else 0


def layer_flops(layer: Layer, convention: str) -> int:
    """FLOP of one layer by matmul, all-ops or fvcore."""
    if convention == "all-ops":
        return int(layer.flops())
    return 2 * _fvcore(layer) if convention == "fvcore" else product_flops(layer)


def _fvcore(layer: Layer) -> int:
    """Multiply-adds as fvcore.nn.FlopCountAnalysis has them (fvcore/nn/jit_handles.py and flop_count.py)."""
    fields = layer.to_row()
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
    counts: dict[str, int] = {}
    for call in trace.modules:
        counts[call.path] = counts.get(call.path, 0) + _pytorch_api(model.get_submodule(call.path), call)
    return counts


def _pytorch_api(module: nn.Module, call: ModuleCall) -> int:
    """One call of a module; subclasses count as what they are derived from."""
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
    """A model with its keywords filled in: thop passes positions only."""

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
    """Multiply-adds by module path as thop counts them on a forward pass of `model`, which it leaves marked: undone here."""
    import thop

    with undisturbed(model, None), contextlib.redirect_stdout(io.StringIO()):
        called = _Called(model, kwargs or {})
        _, _, tree = thop.profile(
            called, tuple(args), dict(custom_ops or {}), verbose=False, ret_layer_info=True
        )
    found: dict[str, int] = {}

    def walk(prefix: str, branches: Mapping[str, Any]) -> None:
        for name, (macs, _, inside) in branches.items():
            path = f"{prefix}.{name}" if prefix else name
            if inside:
                walk(path, inside)
            elif macs:
                found[path] = int(macs)

    own, _, inside = tree["model"]
    if inside:
        walk("", inside)
    elif own:
        found[""] = int(own)
    return found


def ruled(
    custom: Rules | None, model: nn.Module, trace: Trace
) -> tuple[dict[str, int], Callable[[LayerCall], int | None]]:
    """Users' own rules: (FLOP by module path, FLOP of an operator call or None).

    A rule by operator name is `rule(inputs, outputs)`, one by module type `rule(module, inputs, outputs)`, both with
    shapes and returning FLOP; that of a module type holds for subclasses, and for all that runs inside the module.
    """
    custom = custom or {}
    by_type = {key: rule for key, rule in custom.items() if isinstance(key, type)}
    by_name = {key: rule for key, rule in custom.items() if isinstance(key, str)}
    modules: dict[str, int] = {}
    for call in trace.modules:
        module = model.get_submodule(call.path)
        rule = next((by_type[base] for base in type(module).__mro__ if base in by_type), None)
        if rule is not None:
            modules[call.path] = modules.get(call.path, 0) + int(rule(module, call.inputs, call.outputs))

    def of_operator(call: Any) -> int | None:
        rule = by_name.get(call.operator)
        return None if rule is None else int(rule(call.inputs, call.outputs))

    return modules, of_operator


def backward_flops(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> int:
    """FLOP of the products in one operator of a backward pass, from its operands; 0 for what is no product.

    A convolution's gradients take the forward pass's multiply-adds each, whatever its groups; attention's four products
    take twice the forward pass, recomputed scores not counted.
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
    """FLOP of one forward pass as torch.utils.flop_counter counts them on meta tensors, attention as its products."""
    from torch.utils._pytree import tree_map
    from torch.utils.flop_counter import FlopCounterMode

    given = tree_map(lambda v: v.to("meta") if isinstance(v, Tensor) else v, (tuple(args), dict(kwargs)))
    state = {name: t.detach().to("meta") for name, t in (*model.named_parameters(), *model.named_buffers())}
    counter = FlopCounterMode(display=False)
    with undisturbed(model, None), torch.no_grad(), counter:
        torch.func.functional_call(model, state, *given)
    return int(counter.get_total_flops())
