"""Measure a network: work, traffic, memory and time of every layer call, as the counterpart of `predict`.

    trace          shapes, FLOP, bytes and parameters, on meta tensors
    clean runs     the network without instrumentation: the total time
    timed runs     between the clean ones, every operator with the module that called it: the rows
    one more run   with every tensor accounted: memory

Rows of the trace and of the runs are joined by path, operator and call. One more row is the time that they do
not explain, another by how much the timed runs took longer than the clean ones: shares add up to 100 %.
"""

from __future__ import annotations

import contextlib
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from typing_extensions import Unpack

from neuralpower.devices.host import clock_hz, read_cpu
from neuralpower.devices.spec import known_hardware
from neuralpower.errors import InputError, NeuralPowerError
from neuralpower.layers import Layer
from neuralpower.layers.optimizer import CLASSES, Optimizer
from neuralpower.measure.meters import open_meter
from neuralpower.networks.inputs.promised_values import tensors_of
from neuralpower.networks.users_code import users_code
from neuralpower.profiling.conventions import (
    Rules,
    flop_counter_total,
    module_counts,
    product_flops,
    ruled,
)
from neuralpower.profiling.result import Check, NetworkProfile, Unmodelled
from neuralpower.profiling.row_builder import Builder
from neuralpower.profiling.rows import ModuleRow, Row, Total, sums, whole
from neuralpower.profiling.steps import Runs, Settings, Step, clock_of, prepared, repeat, title_of
from neuralpower.trace.operators.undisturbed import unwrapped
from neuralpower.trace.recipe import Loss
from neuralpower.trace.records import Trace
from neuralpower.trace.steps.sparse_gradients import Rows
from neuralpower.trace.tracer import trace

__all__ = ["Check", "ModuleRow", "NetworkProfile", "Row", "Total", "Unmodelled", "profile"]


def profile(
    model: nn.Module, args: Any = (), kwargs: Mapping[str, Any] | None = None, **settings: Unpack[Keywords]
) -> NetworkProfile:
    """Profile `model(*args, **kwargs)` on the device where its weights are.

    The model runs in its modules' modes and is left as it was, also after an exception: weights, buffers,
    gradients, modes, hooks, random state. With `runtime=False` nothing runs; only the trace is reported.

    Args:
        model: the network; DataParallel, DistributedDataParallel and torch.compile are unwrapped.
        args: positional arguments in a tuple or list, or the only one.
        kwargs: keyword arguments.
        device: where the model is expected to be; None takes it as it is.
        phase: "forward", or "training": forward, loss, backward and optimizer step.
        loss: of the output, for training; by default `output.loss`, or the mean square of the first output.
        optimizer: for training; by default SGD on all trainable parameters.
        warmup: untimed runs.
        repeat: runs without instrumentation; half as many with it, between them.
        time_limit_s: after it no further repeat begins.
        runtime: whether to run the network.
        memory: whether to account tensors.
        power: "auto": by a meter that works, if there is one; a meter's name; or "none".
        flop_unit: "flop" or "mac" (2 FLOP), in tables and files.
        convention: what counts as work: see `neuralpower.profiling.conventions`.
        custom: own rules, by operator name ("aten.fft_fft": f(inputs, outputs)) or module class
            (f(module, inputs, outputs)), from shapes to FLOP.
        seed: of the random numbers that the model draws.
        name: shown for the model.

    Raises:
        InputError: no module, or an unknown or impossible option.
        ModelError: the forward or backward raises.
        DeviceError: no clock for the device, or out of memory.
    """
    return _profiled(model, args, kwargs, Settings(**settings))


def _profiled(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, asked: Settings
) -> NetworkProfile:
    if not isinstance(model, nn.Module):
        raise InputError(f"{model!r:.40} is not a network that can be run; give an nn.Module")
    model = unwrapped(model)
    arguments = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    asked.check()
    place = _place(model, asked.device, asked.runtime)

    def moved(value: Any) -> Any:  # a tensor without values stays, as for a model without weights
        return value.to(place) if isinstance(value, Tensor) and not value.is_meta else value

    arguments, kwargs = tree_map(moved, (arguments, dict(kwargs or {})))
    with torch.set_grad_enabled(asked.training):
        traced = trace(model, arguments, kwargs, training=None)
    by_module = module_counts(model, traced, asked.convention, arguments, kwargs)
    rules = ruled(asked.custom, model, traced)
    step = Step(model, arguments, kwargs, asked.phase, asked.loss, asked.optimizer)
    runs, stepped = _measured(step, traced, place, asked)
    device_name = title_of(place)
    counted: dict[str, Any] = {"modules": by_module, "rules": rules, "optimizer": stepped}
    counted |= {"hardware": known_hardware(device_name), "host": place.type != "cpu"}
    builder = Builder(model, traced, runs, asked.convention, training=asked.training, **counted)
    rows = tuple(builder.rows())
    parameters = list(model.parameters())
    how = f"traced on {traced.method} tensors ({'; '.join(traced.notes)})"
    return NetworkProfile(
        model=asked.name or type(model).__name__,
        device=device_name,
        dtype=_dtype(parameters),
        phase=asked.phase,
        convention=asked.convention,
        flop_unit=asked.flop_unit,
        total=whole(rows, runs, parameters, traced.parameters),
        rows=rows,
        unmodelled=_unmodelled(traced, rows),
        types={path: type(module).__name__ for path, module in model.named_modules(remove_duplicate=False)},
        calls=Counter(call.path for call in traced.modules),
        environment=_environment(place, runs),
        input_shape=next((tuple(t.shape) for t in tensors_of((arguments, kwargs)) if t.dim()), ()),
        notes=() if traced.method == "meta" else (how,),
        power_reason="" if runs is None or asked.power == "none" else runs.window.reason or "",
        runs=runs,
        recount=lambda: _recount(model, traced, arguments, kwargs),
    )


def _place(model: nn.Module, device: str | torch.device | None, runtime: bool) -> torch.device:
    """The weights' device; raises InputError where they are on several devices, elsewhere, or on meta."""
    places, name = {t.device for t in (*model.parameters(), *model.buffers())}, type(model).__name__
    if len(places) > 1 and runtime:
        text = "one device can be profiled; move the model to one"
        raise InputError(f"{name} is spread over {', '.join(sorted(map(str, places)))}: {text}")
    place = places.pop() if places else torch.device(device or "cpu")
    wanted = place if device is None else torch.device(device)
    if wanted.type != place.type or wanted.index not in (None, place.index):
        raise InputError(f"{name} is on {place}, not on {wanted}; move it there with .to({str(wanted)!r})")
    if runtime and place.type == "meta":
        raise InputError(f"{name} is on meta and cannot run; choose runtime=False, or give it weights")
    return place


def _measured(
    step: Step, traced: Trace, place: torch.device, asked: Settings
) -> tuple[Runs | None, Layer | None]:
    """All runs, None where nothing is to run, and the optimizer's step as a layer, if there is one."""
    if not asked.runtime:
        return None, _optimizer_layer(step.model, step.optimizer) if asked.training else None
    listed = frozenset((call.path, call.operator) for call in traced.every_call)
    with contextlib.closing(open_meter(asked.power, str(place))) as meter, prepared(step, place, asked.seed):
        layer = _optimizer_layer(step.model, step.optimizer, traced.sparse) if asked.training else None
        runs = repeat(step, clock_of(place), None if asked.training else listed, asked, meter)
    return runs, layer


def _optimizer_layer(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, sparse: Sequence[tuple[str, Rows]] = ()
) -> Layer | None:
    """A step of the optimizer, None if no kind describes it; `sparse` gradients update their rows alone."""
    weights, function = [p for p in model.parameters() if p.requires_grad], "sgd"
    if optimizer is not None:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        function = type(optimizer).__name__.lower()
    if function not in CLASSES:
        return None
    touched = {id(model.get_parameter(name)): rows.elements for name, rows in sparse}
    elements = sum(touched.get(id(p), p.numel()) for p in weights)
    return Optimizer(function=function, tensors=len(weights), elements=elements)


def _unmodelled(traced: Trace, rows: Sequence[Row]) -> tuple[Unmodelled, ...]:
    """Operators whose work is not counted, those of the trace with its reason."""
    reasons = {call.operator: call.reason for call in traced.unmodelled}
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.explains and row.flops is None and row.count:
            found.setdefault(row.operator or row.kind, []).append(row)
    unlisted = "it ran, but the trace does not list it"
    figures = {operator: sums(some, "count", "runtime_s", "share") for operator, some in found.items()}
    return tuple(Unmodelled(name, reasons.get(name, unlisted), **sum_) for name, sum_ in figures.items())


def _recount(model: nn.Module, traced: Trace, args: Any, kwargs: Any) -> tuple[int, int | None]:
    """Products of the forward pass by us and by PyTorch's counter, which does not know recurrent layers."""
    ours = sum(product_flops(layer) for layer in traced.layers if layer.kind != "recurrent")
    if any(layer.kind == "recurrent" for layer in traced.layers):
        return ours, None
    try:
        with users_code(type(model).__name__):
            return ours, flop_counter_total(model, args, kwargs)
    except NeuralPowerError:  # the counter cannot run this forward pass
        return ours, None


def _dtype(parameters: Sequence[Tensor]) -> str:
    floating = [p for p in parameters if p.is_floating_point()] or list(parameters)
    return str(floating[0].dtype).removeprefix("torch.") if floating else "float32"


def _gpu_clock_hz(place: torch.device) -> float | None:
    """The multiprocessors' clock now; None where the driver's library is missing or silent."""
    try:
        return torch.cuda.clock_rate(place) * 1e6
    except Exception:  # that library's own errors, whose classes it alone defines
        return None


def _environment(place: torch.device, runs: Runs | None) -> dict[str, Any]:
    environment: dict[str, Any] = {
        "device": str(place),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cores": read_cpu().cores,
        "clock_hz": clock_hz() if place.type == "cpu" else _gpu_clock_hz(place),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if place.type == "cuda":
        environment |= {"cuda": torch.version.cuda, "tf32": torch.backends.cuda.matmul.allow_tf32}
    if runs is not None:
        environment |= {"wall_s": runs.wall_s, "clean_wall_s": runs.clean_wall_s}
        environment["timed"] = runs.timed.to_json()
    return environment


# ---- How a network is profiled: the keywords of `neuralpower.profile` ----


class Keywords(TypedDict, total=False):
    device: str | torch.device | None
    phase: str
    loss: Loss | None
    optimizer: torch.optim.Optimizer | None
    warmup: int
    repeat: int
    time_limit_s: float | None
    runtime: bool
    memory: bool
    power: str
    flop_unit: str
    convention: str
    custom: Rules | None
    seed: int
    name: str | None
