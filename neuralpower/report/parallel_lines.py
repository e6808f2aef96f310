"""What a prediction of several devices says above its table."""

from __future__ import annotations

from collections.abc import Iterator

from neuralpower.files.terminal import styled, visible
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.several_devices import Parallel
from neuralpower.report.number_format import binary, bounded, counted, plain, quantity, share
from neuralpower.trace.recipe import TRAINING


def parallel_lines(prediction: Prediction) -> Iterator[str]:
    """The layout and the whole batch, exchanges and waits, then all devices together; none for one device."""
    p = prediction.parallel
    if p is None:
        return
    yield visible(f"{placed(p)}: {_batch(p, prediction)}")
    yield f"exchanges {quantity(p.communication_s, 's')}, {share(p.exposed_share)} of the time{_waits(p)}"
    yield styled(f"all devices: {', '.join(_rates(p))}", "bold")
    if len(p.stages) > 1:
        yield _stages(p)


def placed(p: Parallel) -> str:
    """The layout, and the devices that it takes: `tensor 8 on 8 of 16 devices`."""
    if p.cluster is None or p.cluster.devices == p.ranks:
        return f"{p.layout} on {counted(p.ranks, 'device')}"
    return f"{p.layout} on {p.ranks} of {p.cluster.devices} devices"


def _batch(p: Parallel, prediction: Prediction) -> str:
    """The batch of all replicas and micro-batches."""
    factors = [str(prediction.batch_size)]
    if p.micro_batches > 1:
        what = "micro-batches" if prediction.phase == TRAINING else "batches in flight"
        factors.append(f"{p.micro_batches} {what}")
    if p.layout.data > 1:
        factors.append(f"{p.layout.data} replicas")
    made = f" ({' x '.join(factors)})" if len(factors) > 1 else ""
    return f"whole batch {p.samples}{made}"


def _waits(p: Parallel) -> str:
    return f"; pipeline bubble {share(p.bubble_share)}" if p.layout.pipeline > 1 else ""


def _rates(p: Parallel) -> Iterator[str]:
    """Throughput, energy and utilisation of all."""
    if p.tokens_per_s is not None and p.tokens != p.samples:
        yield f"{plain(p.tokens_per_s.value)} tokens/s"
    yield f"{plain(p.samples_per_s.value)} samples/s"
    if p.energy_j is not None:
        yield f"energy {bounded(p.energy_j, 'J')}"
    if p.utilisation is not None:
        yield f"{p.utilisation:.1%} of the dense peak (MFU)"


def _stages(p: Parallel) -> str:
    """Work and memory of a device of each stage."""
    blocks = ", ".join(str(len(stage.blocks)) for stage in p.stages)
    times = ", ".join(quantity(stage.busy_s, "s") for stage in p.stages)
    text = f"stages of {blocks} blocks: {times}"
    known = [stage.memory for stage in p.stages if stage.memory is not None]
    if len(known) < len(p.stages):
        return text
    return f"{text}; memory of a device {', '.join(binary(one.value_bytes) for one in known)}"
