"""Two laws of an engine's steps, which passes of one phase with one repeated cache do not show.

cold caches         attention reads no cache faster than memory delivers it
decodes next to a   run in the prompt's kernel, which reads the keys of a group once for each query head,
prompt              in a block of threads of its own; the longest block ends last
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuralpower.devices.spec import known_spec
from neuralpower.errors import InputError
from neuralpower.layers.attention import Attention
from neuralpower.layers.rows import field_names
from neuralpower.learn.estimates import ROOFLINE
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import Step
from neuralpower.prediction.prediction import Prediction
from neuralpower.prediction.rows import BOUNDS, Interval, Row, with_shares
from neuralpower.trace.by_request import NEW, SEEN, RequestLayer, by_request
from neuralpower.trace.records import Trace

Array = np.ndarray
COLD = 0.8  # share of memory bandwidth at which a step reads caches that were not read just before
# Fitted to 17,000 mixed calls of FlashAttention-2 under vLLM 0.19 on an RTX 4090 and an RTX PRO 6000 with 4
# and eight query heads a key: errors 12 % in the median, 32 % at the 90th percentile (23 and
# 34 % on the RTX 4090).
BLOCK_S = 3e-6  # of a block of threads, besides reading its keys
SHARED_READS = 2.5  # times memory bandwidth at which blocks read keys that others have brought into the cache
RESIDENT = 1.4  # blocks that a processor runs at once
BESIDE = 1.15  # times as long as alone takes the prompt's part
PACKING = ("GH",)  # chips for which engines' kernel packs the query heads of a key: FlashAttention-3
KIND = "attention next to a prompt"  # of the row of what it takes longer


@dataclass(frozen=True)
class Beside:
    """What attention of decodes takes at least, and next to prompts."""

    heads: tuple[
        tuple[int, float, int, float], ...
    ]  # query heads, bytes of a token's keys and values, window, layers
    cached_bytes: tuple[tuple[float, int], ...]  # bytes of a token's cache in all such layers, window
    bytes_per_s: float  # of memory
    processors: float
    packs: bool  # whether the query heads of a key share its reads

    @classmethod
    def of(
        cls, prompts: Iterable[RequestLayer], decodes: Iterable[RequestLayer], predictor: Predictor
    ) -> Beside:
        """From the layers of a prompt and of a decode step.

        Raises InputError for a device without a sheet.
        """
        spec = predictor.sheet or known_spec(predictor.device)
        if spec is None or spec.get("memory_bytes_per_s") is None:
            raise InputError(f"{predictor.device} has no sheet with its memory bandwidth; add --device-spec")
        heads = []
        for layer in prompts:
            example = layer.example
            if isinstance(example, Attention):
                width = 2.0 * example.operand_types.weights.itemsize * example.head_size
                heads.append((example.query_heads, width, layer.window, layer.count))
        cached = [
            (one.count * (_moved(one, 2_000) - _moved(one, 1_000)) / 1_000, one.window)
            for one in decodes
            if SEEN in field_names(type(one.example))
        ]
        speed, cores = float(spec.get("memory_bytes_per_s") or 0), float(spec.get("cores") or 1)
        return cls(tuple(heads), tuple(cached), speed, cores, str(spec.chip or "").startswith(PACKING))

    def cold_s(self, contexts: Array) -> float:
        """Least time in which memory delivers the caches."""
        size = sum(
            share * float((np.minimum(contexts, window) if window else contexts).sum())
            for share, window in self.cached_bytes
        )
        return size / (COLD * self.bytes_per_s)

    def mixed_s(self, contexts: Array, reading_s: float, decodes_s: float, ratio: float = 1.0) -> float:
        """Attention of prompts and of decodes next to them.

        Args:
            contexts: cached tokens of each decode.
            reading_s: what prompts take alone.
            decodes_s: what decodes take alone.
            ratio: of a bound of decodes to their value.
        """
        if self.packs or not self.heads:
            return reading_s + decodes_s
        total = longest = 0.0
        # Blocks of one head and all decodes run first: with many decodes hardly two heads of a key together.
        shared = float(np.clip(RESIDENT * self.processors / len(contexts), COLD, SHARED_READS))
        for heads, width, window, layers in self.heads:
            held = np.minimum(contexts, window) if window else contexts
            reads = width * held * self.processors / self.bytes_per_s
            total += layers * heads / self.processors * float((BLOCK_S + reads / shared).sum())
            longest += layers * (BLOCK_S + float(reads.max()) / SHARED_READS)
        return max(
            BESIDE * reading_s + total * ratio, longest * ratio, reading_s + self.cold_s(contexts) * ratio
        )


def _moved(layer: RequestLayer, held: int) -> float:
    changes: dict[str, Any] = {"batch": 1, SEEN: held}
    return float(sum(replace(layer.example, **changes).bytes()))


def with_beside(prediction: Prediction, work: Trace, predictor: Predictor, step: Step) -> Prediction:
    """The prediction of a step, with a row for what attention takes longer than its kernels one by one."""
    known = [task for task in work.tasks if by_request(task.layer)]
    layers: dict[bool, dict[str, RequestLayer]] = {True: {}, False: {}}
    for task in known:
        window = work.about.windows.get(task.path, 0)
        layers[_decodes(task.layer)].setdefault(task.path, RequestLayer(task.layer, window, 1.0))
    seconds = {
        decodes: sum(
            row.runtime_s
            for row in prediction.rows
            if row.layer is not None and by_request(row.layer) and _decodes(row.layer) == decodes
        )
        for decodes in layers
    }
    if not step.contexts:
        return prediction
    laws = Beside.of(layers[False].values(), layers[True].values(), predictor)
    contexts = np.array(step.contexts)
    alone = max(seconds[True], laws.cold_s(contexts))
    whole = laws.mixed_s(contexts, seconds[False], alone) if step.chunks else alone
    return _longer(prediction, whole - sum(seconds.values()), len(layers[True]))


def _decodes(layer: Any) -> bool:
    """Whether each request of a kernel has one new token."""
    return all(getattr(layer, name) == 1 for name in NEW if name in field_names(type(layer)))


def _longer(prediction: Prediction, more_s: float, calls: int) -> Prediction:
    """The prediction with that much more time, in a row of its own; with the mean power of the others."""
    if more_s <= 0:
        return prediction
    before, energy = prediction.runtime_s, prediction.energy_j
    runtime = Interval(*(getattr(before, bound) * (1 + more_s / before.value) for bound in BOUNDS))
    low, high = (more_s * getattr(runtime, bound) / runtime.value for bound in ("low", "high"))
    row = Row("", KIND, calls, more_s, low, high, 0, 0, "memory", ROOFLINE, power_w=prediction.power_w)
    if energy is not None:
        energy = Interval(*(getattr(energy, bound) * runtime.value / before.value for bound in BOUNDS))
    rows: Sequence[Row] = (*prediction.rows, row)
    return replace(prediction, runtime_s=runtime, rows=with_shares(rows, runtime), energy_j=energy)
