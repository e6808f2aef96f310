"""Measure a network where it is: work, traffic, memory and time of every layer call, as a counterpart of `predict`.

    trace          shapes, FLOP, bytes and parameters, on meta tensors
    clean runs     the network as it is, without instrumentation: the whole
    timed runs     between the clean ones, every operator with the module that called it: the rows
    one run more   with every tensor accounted: memory

Rows of the trace and of the runs are joined by path, operator and call. What the rows do not explain is a row, and what
the timed runs took longer than the clean ones is another, so that shares add up to 100 %.
"""

from __future__ import annotations

import contextlib
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

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
from neuralpower.networks.promised_values import tensors_of
from neuralpower.networks.users_code import users_code
from neuralpower.profiling.conventions import PRODUCTS, flop_counter_total, module_counts, ruled
from neuralpower.profiling.result import Check, NetworkProfile, Total, Unmodelled, whole
from neuralpower.profiling.rows import Builder, ModuleRow, Row, total
from neuralpower.profiling.settings import Keywords, Settings
from neuralpower.profiling.steps import Runs, Step, clock_of, prepared, repeat, title_of
from neuralpower.trace.records import Trace
from neuralpower.trace.sparse_gradients import Rows
from neuralpower.trace.tracer import trace
from neuralpower.trace.undisturbed import unwrapped

__all__ = ["Check", "ModuleRow", "NetworkProfile", "Row", "Total", "Unmodelled", "profile"]


def profile(
    model: nn.Module, args: Any = (), kwargs: Mapping[str, Any] | None = None, **settings: Unpack[Keywords]
) -> NetworkProfile:
    """Profile `model(*args, **kwargs)` on the device where its weights are.

    The model runs in the modes its modules are in, and is left as it was: weights, buffers, gradients, modes, hooks,
    random state, also after an exception. With `runtime=False` nothing runs and nothing but the trace is reported.

    Args:
        model: the network; DataParallel, DistributedDataParallel and torch.compile are looked through.
        args: positional arguments in a tuple or list, or the only one.
        kwargs: keyword arguments.
        device: where the model is expected to be; None takes it as it is.
        phase: "forward", or "training": forward, loss, backward and optimizer step.
        loss: of the output, for training; by default `output.loss`, or the mean square of the first output.
        optimizer: for training; by default SGD on all trainable parameters.
        warmup: runs that are not looked at.
        repeat: runs without instrumentation; half as many with it, between them.
        time_limit_s: after which no further repeat begins.
        runtime: whether to run the network.
        memory: whether to account tensors.
        power: "auto": with a meter that works, if there is one; a meter's name; or "none".
        flop_unit: "flop" or "mac" (2 FLOP), in tables and files.
        convention: what counts as work: see `neuralpower.profiling.conventions`.
        custom: own rules, by operator name ("aten.fft_fft": f(inputs, outputs)) or module class
            (f(module, inputs, outputs)), from shapes to FLOP.
        seed: of the random numbers that the model draws.
        name: shown for the model.

    Raises:
        InputError: no module, or an option that is not known or not possible.
        ModelError: the forward or backward raises.
        DeviceError: no clock for the device, or out of memory.
    """
    return _profiled(model, args, kwargs, Settings(**settings))


def _profiled(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, asked: Settings
) -> NetworkProfile:
    """The profile, as `profile` says."""
    if not isinstance(model, nn.Module):
        raise InputError(f"{model!r:.40} is no network that runs here; give an nn.Module")
    model = unwrapped(model)
    given = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    asked.check()
    place = _place(model, asked.device, asked.runtime)
    given, kwargs = tree_map(
        lambda v: _moved(v, place) if isinstance(v, Tensor) else v, (given, dict(kwargs or {}))
    )
    with torch.set_grad_enabled(asked.training):
        traced = trace(model, given, kwargs, training=None)
    by_module = module_counts(model, traced, asked.convention, given, kwargs)
    rules = ruled(asked.custom, model, traced)
    step = Step(model, given, kwargs, asked.phase, asked.loss, asked.optimizer)
    runs, stepped = _measured(step, traced, place, asked)
    device_name = title_of(place)
    builder = Builder(
        model,
        traced,
        runs,
        asked.convention,
        modules=by_module,
        rules=rules,
        hardware=known_hardware(device_name),
        training=asked.training,
        optimizer=stepped,
        host=place.type != "cpu",
    )
    rows = tuple(builder.rows())
    parameters = list(model.parameters())
    return NetworkProfile(
        model=asked.name or type(model).__name__,
        device=device_name,
        dtype=_dtype(parameters),
        phase=asked.phase,
        convention=asked.convention,
        flop_unit=asked.flop_unit,
        total=whole(rows, runs, _counts(traced, parameters)),
        rows=rows,
        unmodelled=_unmodelled(traced, rows),
        types={path: type(module).__name__ for path, module in model.named_modules(remove_duplicate=False)},
        calls=Counter(call.path for call in traced.modules),
        environment=_environment(place, runs),
        input_shape=next((tuple(t.shape) for t in tensors_of((given, kwargs)) if t.dim()), ()),
        notes=()
        if traced.method == "meta"
        else (f"traced on {traced.method} tensors ({'; '.join(traced.notes)})",),
        power_reason="" if runs is None or asked.power == "none" else runs.window.reason or "",
        runs=runs,
        recount=lambda: _recount(model, traced, given, kwargs),
    )


def _place(model: nn.Module, device: str | torch.device | None, runtime: bool) -> torch.device:
    """Where the weights are; raises InputError where they are on several devices, elsewhere, or on meta."""
    places = {t.device for t in (*model.parameters(), *model.buffers())}
    if len(places) > 1 and runtime:
        raise InputError(
            f"{type(model).__name__} is spread over {', '.join(sorted(map(str, places)))}: one device can be profiled; "
            "move the model to one"
        )
    place = places.pop() if places else torch.device(device or "cpu")
    wanted = place if device is None else torch.device(device)
    if wanted.type != place.type or wanted.index not in (None, place.index):
        raise InputError(
            f"{type(model).__name__} is on {place}, not on {wanted}; move it there with .to({str(wanted)!r})"
        )
    if runtime and place.type == "meta":
        raise InputError(
            f"{type(model).__name__} is on meta and cannot run; choose runtime=False, or give it weights"
        )
    return place


def _moved(tensor: Tensor, place: torch.device) -> Tensor:
    """`tensor` on the device; one without values stays, as beside a model without weights that is counted and not run."""
    return tensor if tensor.is_meta else tensor.to(place)


def _measured(
    step: Step, traced: Trace, place: torch.device, asked: Settings
) -> tuple[Runs | None, Layer | None]:
    """All runs, None where nothing is to run, and the layer that the optimizer's step is, None where there is none."""
    if not asked.runtime:
        return None, _optimizer_layer(step.model, step.optimizer) if asked.training else None
    listed = frozenset((call.path, call.operator) for call in traced.every_call)
    with contextlib.closing(open_meter(asked.power, str(place))) as meter, prepared(step, place, asked.seed):
        layer = _optimizer_layer(step.model, step.optimizer, traced.sparse) if asked.training else None
        runs = repeat(
            step,
            clock_of(place),
            None if asked.training else listed,
            warmup=asked.warmup,
            repeats=asked.repeat,
            time_limit_s=asked.time_limit_s,
            memory=asked.memory,
            meter=meter,
        )
    return runs, layer


def _counts(traced: Trace, parameters: Sequence[Tensor]) -> tuple[int, int, int]:
    """Parameters: all, those that are trained, and the bytes of all."""
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    return traced.parameters, trained, sum(p.numel() * p.element_size() for p in parameters)


def _optimizer_layer(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, sparse: Sequence[tuple[str, Rows]] = ()
) -> Layer | None:
    """What a step of the optimizer does, None for one that no kind describes; of a sparse gradient it goes over the rows."""
    trained = [p for p in model.parameters() if p.requires_grad]
    given = (
        [p for group in optimizer.param_groups for p in group["params"]] if optimizer is not None else trained
    )
    function = type(optimizer).__name__.lower() if optimizer is not None else "sgd"
    if function not in CLASSES:
        return None
    touched = {id(model.get_parameter(name)): rows.elements for name, rows in sparse}
    return Optimizer(
        function=function, tensors=len(given), elements=sum(touched.get(id(p), p.numel()) for p in given)
    )


def _unmodelled(traced: Trace, rows: Sequence[Row]) -> tuple[Unmodelled, ...]:
    """Operators whose work is not counted: those of the trace with its reason, those that only the run saw."""
    reasons = {call.operator: call.reason for call in traced.unmodelled}
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.explains and row.flops is None and row.count:
            found.setdefault(row.operator or row.kind, []).append(row)
    return tuple(
        Unmodelled(
            operator,
            reasons.get(operator, "it ran, but the trace does not list it"),
            sum(row.count for row in some),
            total(row.runtime_s for row in some),
            total(row.share for row in some),
        )
        for operator, some in found.items()
    )


def _recount(model: nn.Module, traced: Trace, args: Any, kwargs: Any) -> tuple[int, int | None]:
    """Products of the forward pass by us and by PyTorch's counter, without recurrent layers, which that does not know."""
    ours = sum(
        layer.flops() for layer in traced.layers if layer.kind in PRODUCTS and layer.kind != "recurrent"
    )
    if any(layer.kind == "recurrent" for layer in traced.layers):
        return int(ours), None
    try:
        with users_code(type(model).__name__):
            return int(ours), flop_counter_total(model, args, kwargs)
    except (
        NeuralPowerError
    ):  # whatever a forward does to PyTorch's counter: there is nothing to compare with then
        return int(ours), None


def _dtype(parameters: Sequence[Tensor]) -> str:
    floating = [p for p in parameters if p.is_floating_point()] or list(parameters)
    return str(floating[0].dtype).removeprefix("torch.") if floating else "float32"


def _gpu_clock_hz(place: torch.device) -> float | None:
    """Of the multiprocessors, now; None where the driver's library does not say, or is not there."""
    try:
        return torch.cuda.clock_rate(place) * 1e6
    except Exception:  # that library's own errors, which are known only where it is installed
        return None


def _environment(place: torch.device, runs: Runs | None) -> dict[str, Any]:
    """What a time holds for."""
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
        environment |= {
            "wall_s": runs.wall_s,
            "clean_wall_s": runs.clean_wall_s,
            "timed": runs.timed.to_json(),
        }
    return environment
