"""Trace + Runs -> rows: what each layer call works, moves, keeps and takes; joined by path and call, never by position."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from neuralpower.devices.hardware import Hardware
from neuralpower.layers import BY_OPERATOR, Layer
from neuralpower.predict.prediction import ranges
from neuralpower.profiling.conventions import PRODUCTS, layer_flops, product_flops
from neuralpower.profiling.steps import Runs
from neuralpower.profiling.stopwatch import ACCUMULATE
from neuralpower.trace.recorder import FREE
from neuralpower.trace.records import LayerCall, Shapes, Trace, UnmodelledCall, pattern

REMAINDER = "(between operators)"  # Python, dispatch and instrumentation, while the timed runs ran
OVERHEAD = "(instrumentation)"  # what the timed runs took longer than the clean ones: taken out again
VIEW = "view"
WEIGHTS = (
    "weights"  # a module whose parameters are used, though no operator is called in its name, or are not used
)

WEIGHTED = (*PRODUCTS, "norm", "embedding")  # kinds that read weights of their own

# What PyTorch calls below autograd where the trace has one composite operator.
LEAVES = {
    "aten.mm": "linear",
    "aten.convolution": "conv2d",
    "aten.native_batch_norm": "norm",
    "aten.cudnn_batch_norm": "norm",
    "aten.miopen_batch_norm": "norm",
    "aten._native_batch_norm_legit": "norm",
    "aten._batch_norm_with_update": "norm",
    "aten.native_layer_norm": "norm",
    "aten.native_group_norm": "norm",
    "aten._fused_rms_norm": "norm",
    "aten.mkldnn_rnn_layer": "recurrent",
    "aten._cudnn_rnn": "recurrent",
    "aten.max_pool2d_with_indices": "pool2d",
    "aten._adaptive_avg_pool2d": "pool2d",
    "aten._softmax": "softmax",
    "aten._log_softmax": "softmax",
    "aten._to_copy": "movement",
    "aten.clone": "movement",
}


@dataclass(frozen=True)
class Row:
    """`count` equal calls of one layer in one phase; figures are those of all of them together, None where not known."""

    path: str
    kind: str
    operator: str
    phase: str
    count: int
    flops: int | None = 0  # by the profile's convention
    matmul_flops: int | None = 0
    elementwise_flops: int | None = 0
    bytes_read: int | None = None
    bytes_written: int | None = None
    runtime_s: float | None = None
    q25_s: float | None = None
    q75_s: float | None = None
    host_s: float | None = None  # on the CPU, where another device does the work
    share: float | None = None  # of the whole's time
    activation_bytes: int | None = None  # tensors that the calls return and that take memory of their own
    peak_memory_bytes: int | None = (
        None  # all live tensors, weights and inputs among them, at most, during these calls
    )
    parameters: int = 0
    trainable_parameters: int = 0
    bound: str | None = (
        None  # compute or memory, by the data sheet; launch: the host took longer than the device
    )
    share_of_peak: float | None = None
    type: str = ""  # class of the module
    dtype: str = ""
    inputs: Shapes = ()
    outputs: Shapes = ()
    config: Mapping[str, Any] = field(default_factory=dict)  # the layer's fields

    @property
    def macs(self) -> float | None:
        """Multiply-adds: half the FLOP."""
        return None if self.flops is None else self.flops / 2

    @property
    def flops_per_s(self) -> float | None:
        """Achieved."""
        return self.flops / self.runtime_s if self.flops and self.runtime_s and self.runtime_s > 0 else None

    @property
    def intensity(self) -> float | None:
        """FLOP per byte moved."""
        if self.flops is None or self.bytes_read is None or self.bytes_written is None:
            return None
        moved = self.bytes_read + self.bytes_written
        return self.flops / moved if moved else None

    @property
    def explains(self) -> bool:
        """Whether the row stands for work rather than for what lies between operators."""
        return self.path not in (REMAINDER, OVERHEAD)


@dataclass(frozen=True)
class ModuleRow:
    """A module with all that runs inside it; `self_s` is what runs in no module below it."""

    path: str
    type: str
    depth: int
    count: int  # calls of its forward; 0: never called
    flops: int | None
    runtime_s: float | None
    self_s: float | None
    share: float | None
    parameters: int
    trainable_parameters: int
    bytes_read: int | None
    bytes_written: int | None
    activation_bytes: int | None
    peak_memory_bytes: int | None

    @property
    def macs(self) -> float | None:
        """Multiply-adds: half the FLOP."""
        return None if self.flops is None else self.flops / 2


def total(values: Iterable[float | int | None]) -> Any:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def most(values: Iterable[int | None]) -> int | None:
    """The largest of what is known; None where nothing is."""
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True)
class _Times:
    """Of all calls of one key in a repeat; `host_s` where another device does the work."""

    runtime_s: float
    q25_s: float
    q75_s: float
    host_s: float | None
    count: int


@dataclass
class Builder:
    """Makes the rows of one profile."""

    model: nn.Module
    trace: Trace
    runs: Runs | None
    convention: str
    modules: Mapping[str, int] | None = None  # FLOP by module, where the convention counts by modules
    rules: tuple[Mapping[str, int], Callable[[Any], int | None]] = (
        {},
        lambda call: None,
    )  # of modules, of operators
    hardware: Hardware | None = None
    training: bool = False
    optimizer: Layer | None = None
    host: bool = False  # whether another device than the CPU does the work

    def __post_init__(self) -> None:
        """Look up what every row needs."""
        self.by_module = None if self.modules is None else dict(self.modules)
        self.module_rules, self.operator_rule = dict(self.rules[0]), self.rules[1]
        self.types = {name: type(m).__name__ for name, m in self.model.named_modules(remove_duplicate=False)}
        self._sums: dict[int, dict[tuple[Any, ...], int]] = {}
        self.kinds: dict[str, list[str]] = {}
        for call in self.trace.every_call:
            kinds = self.kinds.setdefault(call.path, [])
            if (kind := _kind(call)) not in kinds:
                kinds.append(kind)

    def rows(self) -> list[Row]:
        """Every row, in the order of the trace, then what only the run saw, then what is left."""
        times = self._times()
        rows = self._joined(times) if self.training else self._called(times)
        rows += [self._unlisted(key, found) for key, found in times.items()]
        if self.optimizer is not None and self.runs is None:
            rows.append(self._optimizer_row())
        rows = self._with_own_rules(rows)
        rows = self._with_parameters(rows)
        rows = self._with_memory(rows)
        rows += self._rest(rows)
        whole = self.runs.clean[""].runtime_s if self.runs else None
        return [self._finished(row, whole) for row in rows]

    # ---- what the trace says ----

    def _row(self, call: LayerCall | UnmodelledCall, count: int = 1) -> Row:
        base = Row(
            path=call.path,
            kind=_kind(call),
            operator=call.operator,
            phase="forward",
            count=count,
            type=self.types.get(call.path, ""),
            inputs=call.inputs,
            outputs=call.outputs,
        )
        own = self.operator_rule(call)
        if isinstance(call, UnmodelledCall):
            return dataclasses.replace(
                base,
                dtype=call.dtype,
                flops=own,
                matmul_flops=own,
                elementwise_flops=None if own is None else 0,
            )
        layer = call.layer
        products, everything = product_flops(layer), int(layer.flops())
        flops = 0 if self.by_module is not None else layer_flops(layer, self.convention)
        moved = layer.bytes()
        return dataclasses.replace(
            base,
            flops=flops if own is None else own,
            matmul_flops=products,
            elementwise_flops=everything - products,
            bytes_read=int(moved.input + moved.weights),
            bytes_written=int(moved.output),
            dtype=layer.dtype,
            config={k: v for k, v in layer.to_row().items() if k not in ("dtype", "phase")},
        )

    def _called(self, times: dict[tuple[Any, ...], _Times]) -> list[Row]:
        """Forward: a row per call."""
        seen: dict[tuple[str, str], int] = {}
        rows = []
        for call in self.trace.every_call:
            key = (call.path, call.operator)
            seen[key] = seen.get(key, 0) + 1
            rows.append(_timed(self._row(call), times.pop(("forward", *key, seen[key]), None)))
        return rows

    def _joined(self, times: dict[tuple[Any, ...], _Times]) -> list[Row]:
        """Training: a row per module, kind and phase; below autograd a layer is several operators."""
        groups: dict[tuple[str, str], list[LayerCall | UnmodelledCall]] = {}
        for call in self.trace.every_call:
            groups.setdefault((call.path, _kind(call)), []).append(call)
        rows, backward = [], []
        for (path, kind), calls in groups.items():
            made = [self._row(call) for call in calls]
            forward = _summed(made, path=path, operator=made[0].operator, config=made[0].config)
            rows.append(_timed(forward, times.pop(("forward", path, kind), None)))
            found = times.pop(("backward", path, kind), None)
            if found is not None or self.runs is None:
                backward.append(_timed(self._backward(forward, calls), found))
        return rows + backward[::-1]

    def _backward(self, forward: Row, calls: Sequence[LayerCall | UnmodelledCall]) -> Row:
        """What the gradients of some calls take: products as they ran, the rest by the layers' own account."""
        layers = [call.layer for call in calls if isinstance(call, LayerCall)]
        instead = {one.at: [own.layer for own in one.calls] for one in self.trace.own_backward}
        asking = [c for c in calls if isinstance(c, LayerCall) and (c.gradient or c.at in instead)]
        parts = [part for call in asking for part in instead.get(call.at, call.layer.backward_of(call.asked))]
        moved = [part.bytes() for part in parts]
        products: int | None = sum(product_flops(part) for part in parts)
        account = self.runs.account if self.runs else None
        if account is not None and forward.kind != "recurrent":
            products = self._gathered(account.flops).get(("backward", forward.path, forward.kind), 0)
        rest: int | None = sum(int(part.flops()) - product_flops(part) for part in parts)
        if not layers:
            products = rest = None
        flops = None if products is None or rest is None else products + rest * (self.convention == "all-ops")
        return dataclasses.replace(
            forward,
            phase="backward",
            flops=flops,
            matmul_flops=products,
            elementwise_flops=rest,
            bytes_read=int(sum(m.input + m.weights for m in moved)) if layers else None,
            bytes_written=int(sum(m.output for m in moved)) if layers else None,
            inputs=forward.outputs,
            outputs=forward.inputs,
        )

    def _optimizer_row(self) -> Row:
        row, layer = Row("", "optimizer", "optimizer.step", "optimizer", 1), self.optimizer
        if layer is None:
            return dataclasses.replace(row, flops=None, matmul_flops=None, elementwise_flops=None)
        moved, flops = layer.bytes(), int(layer.flops())
        return dataclasses.replace(
            row,
            flops=flops if self.convention == "all-ops" else 0,
            elementwise_flops=flops,
            bytes_read=int(moved.input + moved.weights),
            bytes_written=int(moved.output),
            dtype=layer.dtype,
        )

    # ---- what the runs say ----

    def _key(self, phase: str, path: str, operator: str) -> tuple[str, str, str]:
        """(phase, path, kind) of an operator of a training step."""
        if phase == "optimizer":
            return phase, "", "optimizer"
        kinds, kind = self.kinds.get(path, []), guessed(operator)
        if kind not in kinds:
            product = next((k for k in kinds if k in PRODUCTS), None)
            if len(kinds) == 1 or operator == ACCUMULATE and kinds:
                kind = kinds[0]
            elif kind in PRODUCTS and product is not None:
                kind = product
        return phase, path, kind

    def _times(self) -> dict[tuple[Any, ...], _Times]:
        """Times by call: (phase, path, operator, which) forward, (phase, path, kind) in training."""
        if self.runs is None:
            return {}
        repeats, middle = self.runs.repeats, self.runs.timed.middle
        taken: dict[tuple[Any, ...], Any] = defaultdict(lambda: np.zeros(len(repeats)))
        host: dict[tuple[Any, ...], Any] = defaultdict(lambda: np.zeros(len(repeats)))
        counts: Counter[tuple[Any, ...]] = Counter()
        for number, run in enumerate(repeats):
            seen: Counter[tuple[str, str]] = Counter()
            for event, seconds in zip(run.events, run.seconds, strict=True):
                key: tuple[Any, ...]
                if self.training:
                    key = self._key(event.phase, event.path, event.origin)
                else:
                    call = (event.path, event.operator)
                    seen[call] += 1
                    key = (event.phase, *call, seen[call])
                taken[key][number] += seconds
                host[key][number] += (event.host_end_ns - event.host_start_ns) / 1e9
                counts[key] += number == 0
        return {
            key: _Times(
                runtime_s=float(
                    np.mean(times[middle])
                ),  # over the same repeats for every row, so that they add up
                q25_s=float(np.quantile(times, 0.25)),
                q75_s=float(np.quantile(times, 0.75)),
                host_s=float(np.mean(host[key][middle])) if self.host else None,
                count=counts[key],
            )
            for key, times in taken.items()
        }

    def _unlisted(self, key: tuple[Any, ...], times: _Times) -> Row:
        """An operator that the trace does not list: a view, the loss, the optimizer, or another way of doing the same."""
        phase, path, name = key[:3]
        if phase == "optimizer":
            return _timed(self._optimizer_row(), times)
        kind = name if self.training else guessed(name)
        free = kind in (VIEW, ACCUMULATE, "movement")
        work = 0 if free else None
        account = self.runs.account if self.runs else None
        if account is not None and kind in ("elementwise", "reduction", "activation"):
            work = self._gathered(account.elements).get(key[:3], 0)  # one FLOP for each element
        row = Row(
            path,
            kind,
            name if not self.training else kind,
            phase,
            times.count,
            flops=work if self.convention == "all-ops" or work is None else 0,
            matmul_flops=None if work is None else 0,
            elementwise_flops=work,
            bytes_read=0 if free else None,
            bytes_written=0 if free else None,
            type=self.types.get(path, ""),
        )
        return _timed(row, times)

    def _gathered(self, accounted: Mapping[tuple[str, str, str], int]) -> dict[tuple[Any, ...], int]:
        """Sums by the keys of `_times`, without the call's number."""
        if id(accounted) not in self._sums:
            sums = self._sums[id(accounted)] = {}
            for caller, value in accounted.items():
                key = self._key(*caller) if self.training else caller
                sums[key] = sums.get(key, 0) + value
        return self._sums[id(accounted)]

    def _rest(self, rows: Sequence[Row]) -> list[Row]:
        """The whole less the rows, in two: what the timed runs took besides, and what they took longer."""
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
        """FLOP that are counted by module: the first row of the module has them, the others none."""
        counts, inside = dict(self.by_module or {}), dict(self.module_rules)
        changed: list[Row] = []
        for row in rows:
            over = next((p for p in inside if _within(row.path, p)), None) if row.phase == "forward" else None
            if over is not None:
                row = dataclasses.replace(row, flops=0)
                counts.pop(row.path, None)
            elif row.phase == "forward" and row.path in counts:
                row = dataclasses.replace(row, flops=(row.flops or 0) + counts.pop(row.path))
            changed.append(row)
        left = {**{p: f for p, f in counts.items() if f}, **inside}
        return changed + [self._module_row(path, flops) for path, flops in left.items()]

    def _module_row(self, path: str, flops: int | None = 0) -> Row:
        return Row(
            path, WEIGHTS if not flops else "module", "", "forward", 0, flops=flops, bytes_read=0, bytes_written=0,
            type=self.types.get(path, ""),
        )  # fmt: skip

    def _with_parameters(self, rows: list[Row]) -> list[Row]:
        """Every parameter once: in the first row that reads weights of the first module that holds it."""
        held: dict[str, tuple[int, int]] = {}
        for name, parameter in self.model.named_parameters():
            path = name.rpartition(".")[0]
            all_, trainable = held.get(path, (0, 0))
            held[path] = all_ + parameter.numel(), trainable + parameter.numel() * parameter.requires_grad
        readers: dict[str, int] = {}
        for number, row in enumerate(rows):
            if row.phase == "forward" and row.path in held:
                before = readers.setdefault(row.path, number)
                if row.kind in WEIGHTED and rows[before].kind not in WEIGHTED:
                    readers[row.path] = number
        changed = list(rows)
        for path, (all_, trainable) in held.items():
            if path not in readers:
                changed.append(self._module_row(path))
            number = readers.get(path, len(changed) - 1)
            changed[number] = dataclasses.replace(
                changed[number], parameters=all_, trainable_parameters=trainable
            )
        return changed

    def _with_memory(self, rows: list[Row]) -> list[Row]:
        """Bytes that were accounted, by (phase, path, operator) or (phase, path, kind): in the first such row."""
        account = self.runs.account if self.runs else None
        if account is None:
            return rows
        outputs = self._gathered(account.outputs)
        peaks: dict[tuple[str, ...], int] = {}
        for caller, size in account.peaks.items():
            key = self._key(*caller) if self.training else caller
            peaks[key] = max(peaks.get(key, 0), size)
        changed: list[Row] = []
        keys = [(row.phase, row.path, row.kind if self.training else row.operator) for row in rows]
        counts: dict[tuple[str, ...], int] = {}
        for key, row in zip(keys, rows, strict=True):
            counts[key] = counts.get(key, 0) + row.count
        for key, row in zip(keys, rows, strict=True):
            if row.count and key in outputs:
                size = outputs[key] * row.count // counts[key]
                row = dataclasses.replace(row, activation_bytes=size, peak_memory_bytes=peaks[key])
            changed.append(row)
        return changed

    def _finished(self, row: Row, whole: float | None) -> Row:
        """Shares of the whole and of the data sheet's peak."""
        if whole and row.runtime_s is not None:
            row = dataclasses.replace(row, share=row.runtime_s / whole)
        hardware = self.hardware
        if hardware is None or not row.matmul_flops and not row.elementwise_flops or row.bytes_read is None:
            return row
        work = (row.matmul_flops or 0) + (row.elementwise_flops or 0)
        compute_s = work / hardware.peak(row.dtype)
        memory_s = (row.bytes_read + (row.bytes_written or 0)) / hardware.memory_bytes_per_s
        bound = "compute" if compute_s > memory_s else "memory"
        if row.host_s is not None and row.runtime_s is not None and row.host_s > row.runtime_s:
            bound = "launch"
        return dataclasses.replace(
            row, bound=bound, share_of_peak=compute_s / row.runtime_s if row.runtime_s else None
        )


@functools.cache
def guessed(operator: str) -> str:
    """The kind of an operator by its name alone; its own name where no kind knows it."""
    kind = BY_OPERATOR.get(operator)
    if operator in LEAVES:
        return LEAVES[operator]
    if kind is not None:
        return kind.kind
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
    if torch.Tag.inplace_view in tags:
        return VIEW
    if torch.Tag.pointwise in tags:
        return "elementwise"
    return "reduction" if torch.Tag.reduction in tags else operator


def _kind(call: LayerCall | UnmodelledCall) -> str:
    return call.layer.kind if isinstance(call, LayerCall) else call.operator


def _within(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(module + ".")


def _timed(row: Row, times: _Times | None) -> Row:
    if times is None:
        return row
    return dataclasses.replace(
        row, runtime_s=times.runtime_s, q25_s=times.q25_s, q75_s=times.q75_s, host_s=times.host_s
    )


def _summed(rows: Sequence[Row], **named: Any) -> Row:
    """One row for several; what they do not share is left open."""
    first = rows[0]
    known = [row for row in rows if row.path not in (REMAINDER, OVERHEAD)]
    unknown = any(row.flops is None for row in known)
    words = {
        name: getattr(first, name) if len({getattr(row, name) for row in rows}) == 1 else ""
        for name in ("path", "kind", "operator", "phase", "type", "dtype")
    }
    bounds = [row for row in rows if row.bound]
    values: dict[str, Any] = {
        name: total(getattr(row, name) for row in rows)
        for name in (
            *("matmul_flops", "elementwise_flops", "bytes_read", "bytes_written", "runtime_s", "host_s"),
            *("share", "activation_bytes"),
        )
    }
    return dataclasses.replace(
        first,
        **{
            **words,
            **values,
            "count": sum(row.count for row in rows),
            "flops": None if unknown and len(known) == 1 else total(row.flops for row in rows),
            "q25_s": first.q25_s if len(rows) == 1 else None,
            "q75_s": first.q75_s if len(rows) == 1 else None,
            "peak_memory_bytes": most(row.peak_memory_bytes for row in rows),
            "parameters": sum(row.parameters for row in rows),
            "trainable_parameters": sum(row.trainable_parameters for row in rows),
            "bound": max(bounds, key=lambda row: row.runtime_s or 0).bound if bounds else None,
            "share_of_peak": first.share_of_peak if len(rows) == 1 else None,
            "inputs": first.inputs if len({row.inputs for row in rows}) == 1 else (),
            "outputs": first.outputs if len({row.outputs for row in rows}) == 1 else (),
            "config": first.config if all(row.config == first.config for row in rows) else {},
            **named,
        },
    )


def merged(rows: Sequence[Row], key: Callable[[Row], Any]) -> list[Row]:
    """One row per value of `key`, in the order of their first."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [_summed(some) for some in groups.values()]


def folded(rows: Sequence[Row]) -> list[Row]:
    """Equal calls in repeated blocks as one row; its path has the blocks' numbers in brackets."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        config = tuple(sorted(row.config.items()))
        shapes = (row.inputs, row.outputs)
        key = (pattern(row.path), row.type, row.kind, row.operator, row.phase, shapes, config, row.count > 0)
        groups.setdefault(key, []).append(row)
    return [_summed(some, path=ranges([row.path for row in some])) for some in groups.values()]


def module_rows(
    rows: Sequence[Row], model_types: Mapping[str, str], calls: Mapping[str, int], depth: int | None
) -> list[ModuleRow]:
    """One row per module down to `depth` names of its path, each with all that runs inside, then what is in no module."""
    inside: dict[str, list[Row]] = {path: [] for path in model_types}
    apart: dict[str, list[Row]] = {}
    for row in rows:
        if row.path not in model_types:
            apart.setdefault(row.path, []).append(row)
            continue
        parts = row.path.split(".") if row.path else []
        for end in range(len(parts) + 1):
            inside.setdefault(".".join(parts[:end]), []).append(row)
    made = []
    for path, some in inside.items():
        level = len(path.split(".")) if path else 0
        if depth is None or level <= depth:
            own = [row for row in some if row.path == path]
            made.append(_module_row(path, model_types.get(path, ""), level, calls.get(path, 0), some, own))
    return made + [
        _module_row(path, "", 0, sum(r.count for r in some), some, some) for path, some in apart.items()
    ]


def _module_row(
    path: str, type_: str, depth: int, count: int, rows: Sequence[Row], own: Sequence[Row]
) -> ModuleRow:
    return ModuleRow(
        path=path,
        type=type_,
        depth=depth,
        count=count,
        flops=total(row.flops for row in rows) if rows else 0,
        runtime_s=total(row.runtime_s for row in rows),
        self_s=total(
            (*(row.runtime_s for row in own), None if total(r.runtime_s for r in rows) is None else 0.0)
        ),
        share=total(row.share for row in rows),
        parameters=sum(row.parameters for row in rows),
        trainable_parameters=sum(row.trainable_parameters for row in rows),
        bytes_read=total(row.bytes_read for row in rows),
        bytes_written=total(row.bytes_written for row in rows),
        activation_bytes=total(row.activation_bytes for row in rows),
        peak_memory_bytes=most(row.peak_memory_bytes for row in rows),
    )
