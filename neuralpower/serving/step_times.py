"""A surface as tables: the time of a step by a few lookups, for simulations of many steps.

    tokens    of every number of new tokens up to the budget
    ends      of every number of requests that get a token
    decodes   of a number of decodes, by their cached tokens
    chunks    of new tokens of a prompt, by its cached tokens

Between grid points attention is linear in the cached tokens. Two laws of real steps are added, which passes
of one phase with one repeated cache do not show:

    cold caches         attention reads no cache faster than memory delivers it
    decodes next to a   run in the prompt's kernel, which reads the keys of a group once for each query head,
    prompt              in a block of threads of its own; the longest block ends last
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from neuralpower.devices.spec import known_spec
from neuralpower.errors import InputError
from neuralpower.layers.attention import Attention
from neuralpower.layers.rows import field_names
from neuralpower.prediction.explore.outcomes import Outcomes, Pool
from neuralpower.prediction.rows import BOUNDS
from neuralpower.serving.surface import Family, RequestLayer, StepSurface, sizes_of

Array = np.ndarray
COLD = 0.8  # share of memory bandwidth at which a step reads caches that were not read just before
# Fitted to 16,000 mixed calls of FlashAttention-2 under vLLM 0.19 on an RTX 4090 and an RTX PRO 6000 with 4
# and eight query heads a key: median error 12 %.
BLOCK_S = 4e-6  # of a block of threads, besides reading its keys
SHARED_READS = 2.1  # times memory bandwidth at which blocks read keys that others have brought into the cache
BESIDE = 1.15  # times as long as alone takes the prompt's part
PACKING = ("GH",)  # chips for which engines' kernel packs the query heads of a key: FlashAttention-3
SCALE = {"value": "runtime_s", "low": "low_s", "high": "high_s"}


def _grid(most: int, first: int = 1) -> Array:
    """Whole numbers up to the most, about eight to a doubling."""
    doubling = np.rint(2 ** np.arange(0, np.log2(max(most, 2)) + 0.125, 0.125)).astype(int)
    return np.unique(np.clip([first, *doubling, most], first, most))


@dataclass(frozen=True)
class Table:
    """Numbers by a count and the cached tokens of each request, linear in the cached tokens."""

    counts: Array  # [rows]
    cached: Array  # [columns]
    values: Array  # [rows, columns]

    def row(self, count: int) -> Array:
        """[columns] at a count: the mean of the two rows about it, by their distance."""
        at = min(int(np.searchsorted(self.counts, count)), len(self.counts) - 1)
        if self.counts[at] == count or not at:
            return np.asarray(self.values[at])
        low, high = self.counts[at - 1], self.counts[at]
        share = (count - low) / (high - low)
        return np.asarray(self.values[at - 1] * (1 - share) + self.values[at] * share)


class StepTimes:
    """The times of steps in one bound: "value", "low" or "high".

    Args:
        surface: of the model on its devices.
        budget: most new tokens of a step.
        requests: most requests of a step.
        longest: most tokens of a request.
        bound: which of them.
    """

    def __init__(
        self, surface: StepSurface, *, budget: int, requests: int, longest: int, bound: str = BOUNDS[0]
    ) -> None:
        """Raise InputError for an unknown bound."""
        if bound not in SCALE:
            raise InputError(f"unknown bound {bound!r}: choose one of {', '.join(SCALE)}")
        self.surface, self.bound = surface, bound
        self.budget, self.requests, self.longest = budget, requests, longest
        spec = surface.predictor.sheet or known_spec(surface.predictor.device)
        if spec is None or spec.get("memory_bytes_per_s") is None:
            raise InputError(
                f"{surface.predictor.device} has no sheet with its memory bandwidth; add --device-spec"
            )
        self.bytes_per_s = float(spec.get("memory_bytes_per_s") or 0)
        self.processors = float(spec.get("cores") or 1)
        self.packs = str(spec.chip or "").startswith(PACKING)

    # ---- tables ----

    @cached_property
    def prompt_tokens_s(self) -> Array:
        """[tokens + 1] what all requests share in a step that reads prompts, but for the ends."""
        return self._shared(self.surface.prompts, np.arange(1, self.budget + 1), ends=False)

    @cached_property
    def decode_tokens_s(self) -> Array:
        """[requests + 1] the same in a step of decodes alone."""
        return self._shared(self.surface.decodes, np.arange(1, self.requests + 1), ends=False)

    @cached_property
    def ends_s(self) -> Array:
        """[requests + 1] logits and sampling."""
        return self._shared(self.surface.prompts, np.arange(1, self.requests + 1), ends=True)

    @cached_property
    def decode_ends_s(self) -> Array:
        """[requests + 1] the same in a step of decodes alone."""
        return self._shared(self.surface.decodes, np.arange(1, self.requests + 1), ends=True)

    @cached_property
    def decodes(self) -> Table:
        """Seconds of attention and scans of decodes alone, all with as many cached tokens."""
        counts, cached = _grid(self.requests), _grid(self.longest)
        flat = [(count, 1, held) for count in counts for held in cached]
        return Table(counts, cached, self._requests(self.surface.decodes, flat).reshape(len(counts), -1))

    @cached_property
    def chunks(self) -> Table:
        """Seconds of attention and scans of one prompt's chunk."""
        counts, cached = _grid(self.budget), np.concatenate([[0], _grid(self.longest)])
        flat = [(1, new, held) for new in counts for held in cached]
        return Table(counts, cached, self._requests(self.surface.prompts, flat).reshape(len(counts), -1))

    # ---- times ----

    def seconds(self, contexts: Array, chunks: Sequence[tuple[int, int]], ending: int) -> float:
        """Seconds of a step.

        Args:
            contexts: cached tokens of each request that gets its next token [requests].
            chunks: (new, cached) tokens of each prompt that is read.
            ending: chunks that end their prompts.
        """
        count = len(contexts)
        if not chunks:
            return float(self.decode_tokens_s[count] + self.decode_ends_s[count] + self.decodes_s(contexts))
        tokens = count + sum(new for new, _ in chunks)
        reading = sum(
            float(np.interp(held, self.chunks.cached, self.chunks.row(new))) for new, held in chunks
        )
        shared = float(self.prompt_tokens_s[tokens] + self.ends_s[count + ending])
        return shared + (self.beside_s(contexts, reading) if count else reading)

    def decodes_s(self, contexts: Array) -> float:
        """Attention and scans of decodes alone."""
        row = self.decodes.row(len(contexts))
        return max(float(np.interp(contexts, self.decodes.cached, row).mean()), self._cold_s(contexts))

    def beside_s(self, contexts: Array, reading_s: float) -> float:
        """Attention and scans of prompts, which take `reading_s` alone, and of decodes next to them."""
        if self.packs or not self._heads:
            return reading_s + self.decodes_s(contexts)
        total = longest = 0.0
        for heads, width, window, layers in self._heads:
            held = np.minimum(contexts, window) if window else contexts
            rate = SHARED_READS * self.bytes_per_s
            blocks = BLOCK_S + width * held * self.processors / rate
            total += layers * heads / self.processors * float(blocks.sum())
            longest += layers * float(blocks.max())
        return max(
            BESIDE * reading_s + total * self._ratio,
            longest * self._ratio,
            reading_s + self._cold_s(contexts),
        )

    def _cold_s(self, contexts: Array) -> float:
        """Least time in which memory delivers the caches."""
        size = sum(
            share * float((np.minimum(contexts, window) if window else contexts).sum())
            for share, window in self._cached_bytes
        )
        return size / (COLD * self.bytes_per_s) * self._ratio

    @cached_property
    def _ratio(self) -> float:
        """How the bound of attention lies to its value."""
        if self.bound == BOUNDS[0]:
            return 1.0
        pool = Pool(1, graphed=True)
        self.surface.decodes.add_requests(pool, [(0, 1, 1, self.longest, 1.0)])
        found = self._outcomes(pool)
        return float(getattr(found, SCALE[self.bound])[0] / found.runtime_s[0]) if found.runtime_s[0] else 1.0

    @cached_property
    def _heads(self) -> list[tuple[int, float, int, float]]:
        """(query heads, bytes of a token's keys and values that each reads, window, layers) of attention."""
        found = []
        for layer in self.surface.prompts.requests:
            example = layer.example
            if isinstance(example, Attention):
                width = 2.0 * example.itemsize * example.head_size
                found.append((example.query_heads, width, layer.window, layer.count))
        return found

    @cached_property
    def _cached_bytes(self) -> list[tuple[float, int]]:
        """(bytes of a token's cache in all such layers, window)."""
        found = []
        for layer in self.surface.decodes.requests:
            if "key_length" in field_names(type(layer.example)):
                sizes = [self._moved(layer, held) for held in (1_000, 2_000)]
                found.append((layer.count * (sizes[1] - sizes[0]) / 1_000, layer.window))
        return found

    @staticmethod
    def _moved(layer: RequestLayer, held: int) -> float:
        changes: dict[str, Any] = {"batch": 1, "key_length": held}
        return float(sum(replace(layer.example, **changes).bytes()))

    # ---- pricing ----

    def _outcomes(self, pool: Pool) -> Outcomes:
        surface = self.surface
        return pool.work(surface.predictor, surface.dtype).outcomes(surface.predictor)

    def _priced(self, count: int, add: Callable[[Pool], None]) -> Array:
        pool = Pool(count, graphed=True)
        add(pool)
        return np.asarray(getattr(self._outcomes(pool), SCALE[self.bound]))

    def _shared(self, family: Family, counts: Array, *, ends: bool) -> Array:
        """[counts + 1] seconds of the layers that depend on the tokens, or on the ends alone."""
        sizes = np.array(
            [sizes_of(int(n), int(n) if ends else 1, 1 if family.decodes else int(n), 0) for n in counts]
        )
        where, routing = np.arange(len(counts)), self.surface.routing
        seconds = self._priced(
            len(counts), lambda pool: family.add_shared(pool, where, sizes, routing, ends=ends)
        )
        return np.concatenate([[0.0], seconds])

    def _requests(self, family: Family, flat: Sequence[tuple[int, int, int]]) -> Array:
        """Seconds of what works by request, (requests, new tokens, cached tokens) each."""
        rows = [(i, *sizes, 1.0) for i, sizes in enumerate(flat)]
        return self._priced(len(flat), lambda pool: family.add_requests(pool, rows))
