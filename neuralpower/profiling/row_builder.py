"""How the rows of a profile are made, from a trace and from runs.

Calls of the trace and of the runs are joined by path and operator, never by position.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from neuralpower.devices.hardware import Hardware
from neuralpower.layers import BY_OPERATOR, Layer
from neuralpower.layers.rows import to_row
from neuralpower.layers.training import backward_of
from neuralpower.profiling.conventions import PRODUCTS, layer_flops, product_flops
from neuralpower.profiling.rows import OVERHEAD, REMAINDER, VIEW, WEIGHTS, Row, grouped, summed
from neuralpower.profiling.steps import Runs
from neuralpower.profiling.stopwatch import ACCUMULATE
from neuralpower.trace.recorder import FREE
from neuralpower.trace.records import LayerCall, Trace, UnmodelledCall

WEIGHTED = (*PRODUCTS, "norm", "embedding")  # kinds that read weights of their own

# Kinds of operators that PyTorch calls below autograd where the trace has one composite operator.
NORMS = """
    native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_with_update
    native_layer_norm native_group_norm _fused_rms_norm
"""
LEAVES = {
    f"aten.{name}": kind
    for kind, names in {
        "linear": "mm",
        "conv2d": "convolution",
        "norm": NORMS,
        "recurrent": "mkldnn_rnn_layer _cudnn_rnn",
        "pool2d": "max_pool2d_with_indices _adaptive_avg_pool2d",
        "softmax": "_softmax _log_softmax",
        "movement": "_to_copy clone",
    }.items()
    for name in names.split()
}
UNKNOWN: dict[str, Any] = dict.fromkeys(("flops", "matmul_flops", "elementwise_flops"))
Key = tuple[Any, ...]  # (phase, path, operator, number of the call) forward, (phase, path, kind) in training


def _traffic(layers: Iterable[Layer]) -> dict[str, Any]:
    """The bytes that layers must read and write, as fields of a row."""
    moved = [layer.bytes() for layer in layers]
    read, written = sum(m.input + m.weights for m in moved), sum(m.output for m in moved)
    return {"bytes_read": int(read), "bytes_written": int(written)}


@dataclass
class Builder:
    model: nn.Module
    trace: Trace
    runs: Runs | None
    convention: str
    modules: Mapping[str, int] | None = None  # FLOP by module, where the convention counts by modules
    rules: tuple[Mapping[str, int], Callable[[Any], int | None]] = ({}, lambda call: None)  # users' own
    hardware: Hardware | None = None
    training: bool = False
    optimizer: Layer | None = None
    host: bool = False  # whether another device than the CPU does the work

    def __post_init__(self) -> None:
        self.types = {name: type(m).__name__ for name, m in self.model.named_modules(remove_duplicate=False)}
        self.kinds: dict[str, dict[str, None]] = {}  # by path, in the order of the trace
        for call in self.trace.every_call:
            self.kinds.setdefault(call.path, {})[_kind(call)] = None
        self.account = self.runs.account if self.runs else None
        if self.account is not None:
            self.flops, self.elements = self._joined(self.account.flops), self._joined(self.account.elements)

    def rows(self) -> list[Row]:
        """Every row, in the order of the trace, then what only the run saw, then the remainder."""
        times, counts = self._times()
        rows = self._training_rows(times) if self.training else self._forward_rows(times)
        rows += [self._unlisted(key, found, counts[key]) for key, found in times.items()]
        if self.optimizer is not None and self.runs is None:
            rows.append(self._optimizer_row())
        rows = self._with_memory(self._with_parameters(self._with_own_rules(rows)))
        rows += self._rest(rows)
        whole = self.runs.clean[""].runtime_s if self.runs else None
        return [self._finished(row, whole) for row in rows]

    # ---- what the trace says ----

    def _row(self, call: LayerCall | UnmodelledCall) -> Row:
        row = Row(call.path, _kind(call), call.operator, "forward", 1, type=self.types.get(call.path, ""))
        row = replace(row, inputs=call.inputs, outputs=call.outputs)
        ruled = self.rules[1](call)
        if isinstance(call, UnmodelledCall):
            rest = None if ruled is None else 0
            return replace(row, dtype=call.dtype, flops=ruled, matmul_flops=ruled, elementwise_flops=rest)
        layer = call.layer
        products = product_flops(layer)
        flops = 0 if self.modules is not None else layer_flops(layer, self.convention)
        return replace(
            row,
            flops=flops if ruled is None else ruled,
            matmul_flops=products,
            elementwise_flops=int(layer.flops()) - products,
            **_traffic([layer]),
            dtype=layer.dtype,
            config={k: v for k, v in to_row(layer).items() if k not in ("dtype", "phase")},
        )

    def _forward_rows(self, times: dict[Key, dict[str, Any]]) -> list[Row]:
        seen: Counter[tuple[str, str]] = Counter()
        rows = []
        for call in self.trace.every_call:
            key = (call.path, call.operator)
            seen[key] += 1
            rows.append(replace(self._row(call), **times.pop(("forward", *key, seen[key]), {})))
        return rows

    def _training_rows(self, times: dict[Key, dict[str, Any]]) -> list[Row]:
        """A row per module, kind and phase: below autograd a layer is several operators."""
        rows, backward = [], []
        for calls in grouped(self.trace.every_call, lambda call: (call.path, _kind(call))):
            made = [self._row(call) for call in calls]
            key = made[0].path, made[0].kind
            forward = summed(made, operator=made[0].operator, config=made[0].config)
            rows.append(replace(forward, **times.pop(("forward", *key), {})))
            found = times.pop(("backward", *key), {})
            if found or self.runs is None:
                backward.append(replace(self._backward(forward, calls), **found))
        return rows + backward[::-1]

    def _backward(self, forward: Row, calls: Sequence[LayerCall | UnmodelledCall]) -> Row:
        """The gradients of some calls: products as they ran, others by the layers' formulas."""
        layers = [call.layer for call in calls if isinstance(call, LayerCall)]
        instead = {one.at: [own.layer for own in one.calls] for one in self.trace.own_backward}
        asking = [c for c in calls if isinstance(c, LayerCall) and (c.gradient or c.at in instead)]
        made = (instead.get(call.at, backward_of(call.layer, call.asked)) for call in asking)
        parts = list(itertools.chain.from_iterable(made))
        row = replace(forward, phase="backward", inputs=forward.outputs, outputs=forward.inputs)
        if not layers:
            return replace(row, **UNKNOWN, bytes_read=None, bytes_written=None)
        products = sum(product_flops(part) for part in parts)
        if self.account is not None and forward.kind != "recurrent":
            products = self.flops.get(("backward", forward.path, forward.kind), 0)
        rest = sum(int(part.flops()) - product_flops(part) for part in parts)
        flops = products + rest * (self.convention == "all-ops")
        moved = _traffic(parts)
        return replace(row, flops=flops, matmul_flops=products, elementwise_flops=rest, **moved)

    def _optimizer_row(self) -> Row:
        row, layer = Row("", "optimizer", "optimizer.step", "optimizer", 1), self.optimizer
        if layer is None:
            return replace(row, **UNKNOWN)
        work = int(layer.flops())
        flops = work if self.convention == "all-ops" else 0
        return replace(row, flops=flops, elementwise_flops=work, dtype=layer.dtype, **_traffic([layer]))

    # ---- what the runs say ----

    def _key(self, phase: str, path: str, operator: str) -> tuple[str, str, str]:
        """(phase, path, kind) of an operator of a training step."""
        if phase == "optimizer":
            return phase, "", "optimizer"
        kinds, kind = [*self.kinds.get(path, ())], guessed(operator)
        if kind not in kinds:
            product = next((k for k in kinds if k in PRODUCTS), None)
            if len(kinds) == 1 or operator == ACCUMULATE and kinds:
                kind = kinds[0]
            elif kind in PRODUCTS and product is not None:
                kind = product
        return phase, path, kind

    def _times(self) -> tuple[dict[Key, dict[str, Any]], Counter[Key]]:
        """The times of each key, as fields of a row, and the number of its calls in one run."""
        if self.runs is None:
            return {}, Counter()
        repeats, middle = self.runs.repeats, self.runs.timed.middle
        taken: dict[Key, Any] = defaultdict(lambda: np.zeros(len(repeats)))
        host: dict[Key, Any] = defaultdict(lambda: np.zeros(len(repeats)))
        counts: Counter[Key] = Counter()
        for number, run in enumerate(repeats):
            seen: Counter[tuple[str, str]] = Counter()
            for event, seconds in zip(run.events, run.seconds, strict=True):
                key: Key
                if self.training:
                    key = self._key(event.phase, event.path, event.origin)
                else:
                    call = (event.path, event.operator)
                    seen[call] += 1
                    key = (event.phase, *call, seen[call])
                taken[key][number] += seconds
                host[key][number] += (event.host_end_ns - event.host_start_ns) / 1e9
                counts[key] += number == 0
        fields = {
            key: {
                "runtime_s": float(np.mean(times[middle])),  # of the same repeats in every row: they add up
                "q25_s": float(np.quantile(times, 0.25)),
                "q75_s": float(np.quantile(times, 0.75)),
                "host_s": float(np.mean(host[key][middle])) if self.host else None,
            }
            for key, times in taken.items()
        }
        return fields, counts

    def _unlisted(self, key: Key, times: Mapping[str, Any], count: int) -> Row:
        """An operator that the trace does not list, such as a view, the loss or the optimizer."""
        phase, path, name = key[:3]
        if phase == "optimizer":
            return replace(self._optimizer_row(), **times)
        kind = name if self.training else guessed(name)
        work = traffic = 0 if kind in (VIEW, ACCUMULATE, "movement") else None
        if self.account is not None and kind in ("elementwise", "reduction", "activation"):
            work = self.elements.get(key[:3], 0)  # one FLOP for each element
        row = Row(path, kind, name, phase, count, type=self.types.get(path, ""), **times)
        return replace(
            row,
            flops=work if self.convention == "all-ops" or work is None else 0,
            matmul_flops=None if work is None else 0,
            elementwise_flops=work,
            bytes_read=traffic,
            bytes_written=traffic,
        )

    def _joined(
        self, accounted: Mapping[tuple[str, str, str], int], join: Callable[[int, int], int] = operator.add
    ) -> dict[Key, int]:
        """Accounted numbers by key, without the call's place."""
        found: dict[Key, int] = {}
        for caller, value in accounted.items():
            key = self._key(*caller) if self.training else caller
            found[key] = join(found[key], value) if key in found else value
        return found

    def _rest(self, rows: Sequence[Row]) -> list[Row]:
        """The remaining time of the timed runs, and by how much they took longer than the clean ones."""
        if self.runs is None:
            return []
        timed = self.runs.timed.runtime_s
        between = timed - sum(row.runtime_s or 0.0 for row in rows)
        longer = self.runs.clean[""].runtime_s - timed
        nothing: dict[str, Any] = {"bytes_read": 0, "bytes_written": 0}
        return [
            Row(REMAINDER, "remainder", "", "", 0, runtime_s=between, **nothing),
            Row(OVERHEAD, "overhead", "", "", 0, runtime_s=longer, **nothing),
        ]

    # ---- what is known of modules ----

    def _with_own_rules(self, rows: list[Row]) -> list[Row]:
        """Put the FLOP that are counted by module into the first row of the module."""
        counts, inside = dict(self.modules or {}), self.rules[0]
        changed: list[Row] = []
        for row in rows:
            if row.phase == "forward" and any(_within(row.path, path) for path in inside):
                row = replace(row, flops=0)
                counts.pop(row.path, None)
            elif row.phase == "forward" and row.path in counts:
                row = replace(row, flops=(row.flops or 0) + counts.pop(row.path))
            changed.append(row)
        left = {**{p: f for p, f in counts.items() if f}, **inside}
        return changed + [self._module_row(path, flops) for path, flops in left.items()]

    def _module_row(self, path: str, flops: int = 0) -> Row:
        row = Row(path, "module" if flops else WEIGHTS, "", "forward", 0, type=self.types.get(path, ""))
        return replace(row, flops=flops, bytes_read=0, bytes_written=0)

    def _with_parameters(self, rows: list[Row]) -> list[Row]:
        """Count each parameter once: in the first row that reads weights, of the first module that has it."""
        held: dict[str, list[nn.Parameter]] = defaultdict(list)
        for name, parameter in self.model.named_parameters():
            held[name.rpartition(".")[0]].append(parameter)
        readers: dict[str, int] = {}
        for number, row in sorted(enumerate(rows), key=lambda one: one[1].kind not in WEIGHTED):
            if row.phase == "forward" and row.path in held:
                readers.setdefault(row.path, number)
        changed = list(rows)
        for path, parameters in held.items():
            if path not in readers:
                changed.append(self._module_row(path))
            number, trained = readers.get(path, len(changed) - 1), [p for p in parameters if p.requires_grad]
            all_, trainable = (sum(p.numel() for p in some) for some in (parameters, trained))
            changed[number] = replace(changed[number], parameters=all_, trainable_parameters=trainable)
        return changed

    def _with_memory(self, rows: list[Row]) -> list[Row]:
        """Share the accounted bytes among the rows of one key, by their calls."""
        if self.account is None:
            return rows
        outputs, peaks = self._joined(self.account.outputs), self._joined(self.account.peaks, max)
        keys = [(row.phase, row.path, row.kind if self.training else row.operator) for row in rows]
        counts: Counter[Key] = Counter()
        for key, row in zip(keys, rows, strict=True):
            counts[key] += row.count
        changed: list[Row] = []
        for key, row in zip(keys, rows, strict=True):
            if row.count and key in outputs:
                size = outputs[key] * row.count // counts[key]
                row = replace(row, activation_bytes=size, peak_memory_bytes=peaks[key])
            changed.append(row)
        return changed

    def _finished(self, row: Row, whole: float | None) -> Row:
        """The row with its shares of the whole and of the data sheet's peak."""
        if whole and row.runtime_s is not None:
            row = replace(row, share=row.runtime_s / whole)
        hardware = self.hardware
        if hardware is None or not row.matmul_flops and not row.elementwise_flops or row.bytes_read is None:
            return row
        work = (row.matmul_flops or 0) + (row.elementwise_flops or 0)
        compute_s = work / hardware.peak(row.dtype)
        memory_s = (row.bytes_read + (row.bytes_written or 0)) / hardware.memory_bytes_per_s
        bound = "compute" if compute_s > memory_s else "memory"
        if row.host_s is not None and row.runtime_s is not None and row.host_s > row.runtime_s:
            bound = "launch"
        return replace(row, bound=bound, share_of_peak=compute_s / row.runtime_s if row.runtime_s else None)


@functools.cache
def guessed(operator: str) -> str:
    """The kind of an operator by its name alone; its own name where no kind knows it."""
    if operator in LEAVES:
        return LEAVES[operator]
    if operator in BY_OPERATOR:
        return BY_OPERATOR[operator].kind
    if operator.startswith("aten._scaled_dot_product"):
        return "attention"
    if operator == ACCUMULATE or operator.split(".")[-1] in FREE:
        return operator if operator == ACCUMULATE else VIEW
    packet: Any = torch.ops
    for part in operator.split("."):
        packet = getattr(packet, part, None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if hasattr(packet, "overloads") else []
    if any(getattr(overload, "is_view", False) for overload in overloads):
        return VIEW
    tags = {tag for overload in overloads for tag in overload.tags}
    kinds = {
        torch.Tag.inplace_view: VIEW,
        torch.Tag.pointwise: "elementwise",
        torch.Tag.reduction: "reduction",
    }
    return next((kind for tag, kind in kinds.items() if tag in tags), operator)


def _kind(call: LayerCall | UnmodelledCall) -> str:
    return call.layer.kind if isinstance(call, LayerCall) else call.operator


def _within(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(module + ".")
