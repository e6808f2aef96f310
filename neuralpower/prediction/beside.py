"""Two laws of an engine's steps, which passes of one phase with one repeated cache do not show.

cold caches         attention reads no cache faster than memory delivers it
decodes next to a   run in the prompt's kernel: each query head of each of them takes a whole tile of its new
prompt              tokens, in a block of threads that reads all keys; a processor runs one block at a time
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
from neuralpower.trace.parts.by_request import SEEN, RequestLayer, one_each
from neuralpower.trace.records import Trace

Array = np.ndarray
COLD = 0.8  # share of memory bandwidth at which a step reads caches that were not read just before
TILE = 64  # new tokens of a request in a block (kBlockM of FlashAttention-2's kernel for pages of a cache)
COLUMNS = {64: 256, 128: 128}  # keys of a tile, by the largest size of a head (kBlockN); 64 for larger ones
# Fitted to 17,000 mixed calls of this kernel under vLLM 0.19 on an RTX 4090 and an RTX PRO 6000 with 4 and
# eight query heads a key: errors 6 % in the median, 19 % at the 90th percentile (8 and 24 % on the RTX 4090).
BLOCK_S = 3.5e-6  # of a block, besides its tiles
SOFTMAX_S = 1.1e-6 / 128  # of a tile for each of its keys, besides the products at their peak
FOUND = 0.45  # share of the cache of a device in which the heads of a key find what others have read
RESIDENT = 0.7  # blocks of a processor that read at the same place, where the cache holds less than that
PACKING = ("GH",)  # chips for which engines' kernel packs the query heads of a key: FlashAttention-3
KIND = "attention next to a prompt"  # of the row of what it takes longer


class Heads(NamedTuple):
    """The attention of layers that are alike."""

    query: int
    keys: int
    size: int  # numbers of a head
    width: float  # bytes of a token's keys and values in a head
    window: int  # tokens; 0: none
    layers: float


@dataclass(frozen=True)
class Beside:
    """What attention of decodes takes at least, and next to prompts."""

    heads: tuple[Heads, ...]
    cached_bytes: tuple[tuple[float, int], ...]  # bytes of a token's cache in all such layers, window
    bytes_per_s: float  # of memory
    processors: float
    packs: bool  # whether the query heads of a key share its reads
    flops_per_s: float = 0.0  # of products of 16 bits; 0: not known
    cache_bytes: float = 0.0  # of the device

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
                shape = example.query_heads, example.key_heads, example.head_size
                heads.append(Heads(*shape, width, layer.window, layer.count))
        cached = [
            (one.count * (_moved(one, 2_000) - _moved(one, 1_000)) / 1_000, one.window)
            for one in decodes
            if SEEN in field_names(type(one.example))
        ]
        peak = max(spec.peak_flops.get(name, 0.0) for name in ("bfloat16", "float16"))
        return cls(
            tuple(heads),
            tuple(cached),
            bytes_per_s=float(spec.get("memory_bytes_per_s") or 0),
            processors=float(spec.get("cores") or 1),
            packs=str(spec.chip or "").startswith(PACKING),
            flops_per_s=peak,
            cache_bytes=float(spec.get("l2_bytes") or 0),
        )

    def cold_s(self, contexts: Array) -> float:
        """Least time in which memory delivers the caches."""
        size = sum(
            share * float((np.minimum(contexts, window) if window else contexts).sum())
            for share, window in self.cached_bytes
        )
        return size / (COLD * self.bytes_per_s)

    def mixed_s(
        self,
        contexts: Array,
        chunks: Sequence[tuple[int, int]],
        reading_s: float,
        decodes_s: float,
        ratio: float = 1.0,
    ) -> float:
        """Attention of prompts and of decodes next to them.

        Args:
            contexts: cached tokens of each decode.
            chunks: (new, cached) tokens of each prompt.
            reading_s: what prompts take alone.
            decodes_s: what decodes take alone.
            ratio: of a bound of decodes to their value.
        """
        if self.packs or not self.heads or not self.flops_per_s:
            return reading_s + decodes_s
        reads = np.concatenate(
            [cached + np.minimum(np.arange(TILE, new + TILE, TILE), new) for new, cached in chunks]
        )
        together = alone = delivered = 0.0
        for heads in self.heads:
            read_s, decode_s = self._blocks_s(heads, reads), self._blocks_s(heads, contexts + 1)
            together += heads.layers * self._waves_s(heads, np.concatenate([decode_s, read_s]))
            alone += heads.layers * self._waves_s(heads, read_s)
            delivered += heads.layers * self._delivered_s(heads, contexts)
        return max(
            together * ratio,
            reading_s + (together - alone) * ratio,
            delivered * ratio,
            reading_s,
            self.cold_s(contexts) * ratio,
        )

    def _blocks_s(self, heads: Heads, seen: Array) -> Array:
        """Seconds of blocks whose last tokens attend to `seen` tokens [blocks]."""
        columns = next((keys for size, keys in COLUMNS.items() if heads.size <= size), TILE)
        held = np.minimum(seen, heads.window + TILE) if heads.window else seen
        products_s = 4 * TILE * heads.size * self.processors / self.flops_per_s
        return np.asarray(BLOCK_S + np.ceil(held / columns) * columns * (products_s + SOFTMAX_S))

    def _waves_s(self, heads: Heads, blocks_s: Array) -> float:
        """Seconds until the last of the blocks of all query heads ends; half of the longest is a tail."""
        longest = float(blocks_s.max())
        if heads.query * len(blocks_s) <= self.processors:
            return longest
        return max(longest, heads.query * float(blocks_s.sum()) / self.processors + longest / 2)

    def _delivered_s(self, heads: Heads, contexts: Array) -> float:
        """Seconds in which memory delivers the keys and values of decodes to all query heads.

        All decodes of a head run before those of the next one, which finds their keys in the device's cache
        if this holds them all; else heads of a key share what they read at the same time.
        """
        held = np.minimum(contexts, heads.window) if heads.window else contexts
        size, group = heads.width * float(held.sum()), heads.query / heads.keys
        found = min(FOUND * self.cache_bytes / size, 1.0)
        beside = min(max(RESIDENT * self.processors / len(contexts), 1.0), group)
        return heads.keys * size * (found + (1 - found) * group / beside) / self.bytes_per_s


def _moved(layer: RequestLayer, held: int) -> float:
    changes: dict[str, Any] = {"batch": 1, SEEN: held}
    return float(sum(replace(layer.example, **changes).bytes()))


def with_beside(prediction: Prediction, work: Trace, predictor: Predictor, step: Step) -> Prediction:
    """The prediction of a step, with a row for what attention takes longer than its kernels one by one."""
    decodes = {task.layer: one_each(task.layer) for task in work.tasks}
    layers: dict[bool, dict[str, RequestLayer]] = {True: {}, False: {}}
    for task in work.tasks:
        if (own := decodes[task.layer]) is not None:
            window = work.about.windows.get(task.path, 0)
            layers[own].setdefault(task.path, RequestLayer(task.layer, window, 1.0))
    seconds = {
        own: sum(row.runtime_s for row in prediction.rows if row.layer and decodes.get(row.layer) is own)
        for own in layers
    }
    if not step.contexts:
        return prediction
    laws = Beside.of(layers[False].values(), layers[True].values(), predictor)
    contexts = np.array(step.contexts)
    alone = max(seconds[True], laws.cold_s(contexts))
    whole = laws.mixed_s(contexts, step.chunks, seconds[False], alone) if step.chunks else alone
    return _longer(prediction, whole - sum(seconds.values()), len(layers[True]))


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
