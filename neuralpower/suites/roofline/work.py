"""FLOP, traffic and memory of a network, from a pass over meta tensors: needs no weights and no device."""

from __future__ import annotations

from collections import Counter

import torch

from neuralpower.layers import KINDS
from neuralpower.networks.inputs import InputRequest, Inputs
from neuralpower.networks.promised_values import tensors_of
from neuralpower.networks.sources import resolve
from neuralpower.prediction.memory.peak import peak
from neuralpower.profiling import profile
from neuralpower.profiling.result import NetworkProfile
from neuralpower.suites.roofline.records import Calls, Kind, Network, Work
from neuralpower.trace.lifetimes import WORKSPACE
from neuralpower.trace.records import Trace
from neuralpower.trace.tracer import trace


class Sketch:
    """One network on the meta device, traced at any batch size."""

    def __init__(self, model: str, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self.source = resolve(model)
        self.module = self.source.build("meta", dtype)

    def inputs(self, batch_size: int) -> Inputs:
        """Inputs of a batch on the meta device."""
        return self.source.inputs(self.module, InputRequest(batch_size, dtype=self.dtype), "meta")

    def trace(self, batch_size: int) -> Trace:
        """Trace of a forward pass."""
        inputs = self.inputs(batch_size)
        return trace(self.module, inputs.args, inputs.kwargs)

    def network(self, label: str) -> Network:
        """Name, input of one sample, parameters."""
        inputs = self.inputs(1)
        first = next(iter(tensors_of((inputs.args, inputs.kwargs))), None)
        shape = "" if first is None else "x".join(map(str, first.shape[1:]))
        tokens = "tokens" if first is not None and not first.is_floating_point() else ""
        parameters = list(self.module.parameters())
        return Network(
            self.model,
            label,
            f"{shape} {tokens}".strip(),
            sum(p.numel() for p in parameters),
            sum(p.numel() * p.element_size() for p in parameters),
        )

    def work(self, batch_size: int, traced: Trace) -> Work:
        """Work of a traced forward pass; its memory is unknown if meta tensors fail."""
        calls = [
            Calls(la.kind, n, n * int(la.flops()), n * int(sum(la.bytes())))
            for la, n in Counter(traced.layers).items()
        ]
        calls += [Calls("unmodelled", 1, 0, u.bytes) for u in traced.unmodelled]
        flops, moved = sum(c.flops for c in calls), sum(c.bytes for c in calls)
        tensors = [storage for storage in traced.storages if storage.part != WORKSPACE]
        most = peak(tensors)[0] if traced.method == "meta" else None
        return Work(self.model, batch_size, flops, moved, most, tuple(calls))

    def training(self, batch_size: int) -> NetworkProfile:
        """A training step, counted and not run."""
        inputs = self.inputs(batch_size)
        module = self.source.build("meta", self.dtype).train()
        return profile(module, inputs.args, inputs.kwargs, phase="training", runtime=False, name=self.model)


def kinds_of(profile: NetworkProfile) -> tuple[Kind, ...]:
    """FLOP, time and memory by phase and kind; operators that are not layers are "other"."""
    timed = profile.runs is not None
    found: dict[tuple[str, str], Kind] = {}
    for row in profile.rows:
        if row.phase not in ("forward", "backward") or not row.explains:
            continue
        key = (row.phase, row.kind if row.kind in KINDS else "other")
        known = found.get(key, Kind(*key, 0.0 if timed else None, 0, 0))
        found[key] = Kind(
            *key,
            (known.runtime_s or 0.0) + max(row.runtime_s or 0.0, 0.0) if timed else None,
            known.flops + (row.matmul_flops or 0) + (row.elementwise_flops or 0),
            known.memory_bytes + ((row.activation_bytes if timed else row.bytes_written) or 0),
        )
    return tuple(found.values())
