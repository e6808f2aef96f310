"""A surface as tables: the time of a step by a few lookups, for simulations of many steps.

    tokens    of every number of new tokens up to the budget
    ends      of every number of requests that get a token
    decodes   of a number of decodes, by their cached tokens
    chunks    of new tokens of a prompt, by its cached tokens

Between grid points attention is linear in the cached tokens. Laws of real steps are added: those of
`neuralpower.prediction.beside`, and ranks that wait for the slowest of them at each exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuralpower.errors import InputError
from neuralpower.layers.collective import Collective
from neuralpower.prediction.beside import Beside
from neuralpower.prediction.explore.outcomes import Outcomes, Pool
from neuralpower.prediction.rows import BOUNDS
from neuralpower.serving.surface import Family, StepSurface, sizes_of

Array = np.ndarray
# instead of a bound: what steps draw, of one device, in that bound
JOULES = {"value": "joules", "low": "joules low", "high": "joules high"}
# The standard deviation of what ranks take between two exchanges, as a share; fitted to served points of
# SGLang 0.5 (Qwen3 32B on 2 to 8 H100s).
SKEW = 0.08
SLOWEST = {
    1: 0.0,
    2: 0.564,
    4: 1.029,
    8: 1.424,
    16: 1.766,
}  # the largest of that number of normal ones, in the mean
SCALE = {"value": "runtime_s", "low": "low_s", "high": "high_s"}
SCALE |= {JOULES["value"]: "energy_j", JOULES["low"]: "energy_low_j", JOULES["high"]: "energy_high_j"}


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
    """The times of steps in one bound: "value", "low" or "high"; or their joules.

    Args:
        surface: of the model on its devices.
        budget: most new tokens of a step.
        requests: most requests of a step.
        longest: most tokens of a request.
        bound: which of them.
        verified: drafted tokens that each decode verifies.
        drafter: the times of the model that drafts them; None: drafting takes no time.
        known: what has been priced, for all bounds.
    """

    def __init__(
        self,
        surface: StepSurface,
        *,
        budget: int,
        requests: int,
        longest: int,
        bound: str = BOUNDS[0],
        verified: int = 0,
        drafter: StepTimes | None = None,
        known: dict[str, Outcomes] | None = None,
    ) -> None:
        """Raise InputError for an unknown bound."""
        if bound not in SCALE:
            raise InputError(f"unknown bound {bound!r}: choose one of {', '.join(SCALE)}")
        self.surface, self.bound = surface, bound
        self.budget, self.requests, self.longest = budget, requests, longest
        self.drafter, self.each = drafter, 1 + verified
        self.known = {} if known is None else known
        ranks = surface.layout.tensor * surface.layout.data
        self.skew = SKEW * float(np.interp(ranks, list(SLOWEST), list(SLOWEST.values())))
        self.laws = Beside.of(surface.prompts.requests, surface.decodes.requests, surface.predictor)

    # ---- tables ----

    @cached_property
    def prompt_tokens_s(self) -> Array:
        """[tokens + 1] what all requests share in a step that reads prompts, but for the ends."""
        return self._shared(self.surface.prompts, self.budget, ends=False)

    @cached_property
    def decode_tokens_s(self) -> Array:
        """[requests + 1] the same in a step of decodes alone."""
        return self._shared(self.surface.decodes, self.requests * self.each, ends=False)

    @cached_property
    def ends_s(self) -> Array:
        """[requests + 1] logits and sampling."""
        return self._shared(self.surface.prompts, self.requests * self.each, ends=True)

    @cached_property
    def decode_ends_s(self) -> Array:
        """[requests + 1] the same in a step of decodes alone."""
        return self._shared(self.surface.decodes, self.requests * self.each, ends=True)

    @cached_property
    def decodes(self) -> Table:
        """Seconds of attention and scans of decodes alone, all with as many cached tokens."""
        counts, cached = _grid(self.requests), _grid(self.longest)
        flat = [(count, 1, held) for count in counts for held in cached]
        seconds = self._requests("decodes", self.surface.decodes, flat)
        return Table(counts, cached, seconds.reshape(len(counts), -1))

    @cached_property
    def chunks(self) -> Table:
        """Seconds of attention and scans of one prompt's chunk."""
        counts, cached = _grid(self.budget), np.concatenate([[0], _grid(self.longest)])
        flat = [(1, new, held) for new in counts for held in cached]
        seconds = self._requests("chunks", self.surface.prompts, flat)
        return Table(counts, cached, seconds.reshape(len(counts), -1))

    # ---- times ----

    def seconds(self, contexts: Array, chunks: Sequence[tuple[int, int]], ending: int) -> float:
        """Seconds of a step, or its joules.

        Args:
            contexts: cached tokens of each request that gets its next token [requests].
            chunks: (new, cached) tokens of each prompt that is read.
            ending: chunks that end their prompts.
        """
        seconds = self._verified(contexts, chunks, ending)
        if self.drafter is not None and self.each > 1:
            seconds += self.drafter.seconds(contexts, chunks, ending)
            if len(contexts):
                seconds += (self.each - 2) * self.drafter.seconds(contexts, (), 0)
        return seconds

    def _verified(self, contexts: Array, chunks: Sequence[tuple[int, int]], ending: int) -> float:
        """The same without drafting."""
        count = len(contexts) * self.each
        if not chunks:
            shared = float(self.decode_tokens_s[count] + self.decode_ends_s[count])
            return shared + (1 + self.skew) * self.decodes_s(contexts)
        tokens = min(count + sum(new for new, _ in chunks), self.budget)
        reading = sum(
            float(np.interp(held, self.chunks.cached, self.chunks.row(new))) for new, held in chunks
        )
        shared = float(self.prompt_tokens_s[tokens] + self.ends_s[count + ending])
        return shared + (1 + self.skew) * (self.beside_s(contexts, reading) if count else reading)

    def decodes_s(self, contexts: Array) -> float:
        """Attention and scans of decodes alone."""
        row = self.decodes.row(len(contexts))
        return max(
            float(np.interp(contexts, self.decodes.cached, row).mean()),
            self.laws.cold_s(contexts) * self._ratio,
        )

    def beside_s(self, contexts: Array, reading_s: float) -> float:
        """Attention and scans of prompts, which take `reading_s` alone, and of decodes next to them."""
        return self.laws.mixed_s(contexts, reading_s, self.decodes_s(contexts), self._ratio)

    @cached_property
    def _ratio(self) -> float:
        """How the bound of attention lies to its value."""
        if self.bound == BOUNDS[0]:
            return 1.0
        pool = Pool(1, graphed=True)
        self.surface.decodes.add_requests(pool, [(0, 1, 1, self.longest, 1.0)])
        found = self._outcomes(pool)
        whole = float(found.runtime_s[0])
        return float(getattr(found, SCALE[self.bound])[0] / whole) if whole else 1.0

    # ---- pricing ----

    def _outcomes(self, pool: Pool) -> Outcomes:
        surface = self.surface
        return pool.work(surface.predictor, surface.dtype).outcomes(surface.predictor)

    def _priced(self, name: str, count: int, add: Callable[[Pool], None]) -> Array:
        """Seconds of all layers; at the exchanges among them the ranks wait for the slowest."""
        exchanges = f"{name}, exchanges"
        if name not in self.known:
            pool = Pool(count, graphed=True)
            add(pool)
            self.known[name] = self._outcomes(pool)
            alone = pool.by_kind().get(Collective.kind)
            if self.skew and alone is not None:
                self.known[exchanges] = self._outcomes(alone)
        whole = np.asarray(getattr(self.known[name], SCALE[self.bound]))
        if exchanges not in self.known:
            return whole
        apart = np.asarray(getattr(self.known[exchanges], SCALE[self.bound]))
        return np.asarray(whole + self.skew * (whole - apart))

    def _shared(self, family: Family, most: int, *, ends: bool) -> Array:
        """[most + 1] seconds of the layers that depend on the tokens, or on the ends alone."""
        counts = np.arange(1, most + 1)
        sizes = np.array(
            [sizes_of(int(n), int(n) if ends else 1, 1 if family.decodes else int(n), 0) for n in counts]
        )
        where, routing = np.arange(len(counts)), self.surface.routing
        name = f"{'decode' if family.decodes else 'prompt'} {'ends' if ends else 'tokens'}"
        seconds = self._priced(
            name, len(counts), lambda pool: family.add_shared(pool, where, sizes, routing, ends=ends)
        )
        return np.concatenate([[0.0], seconds])

    def _requests(self, name: str, family: Family, flat: Sequence[tuple[int, int, int]]) -> Array:
        """Seconds of what works by request, (requests, new tokens, cached tokens) each."""
        rows = [(i, *sizes, 1.0) for i, sizes in enumerate(flat)]
        return self._priced(name, len(flat), lambda pool: family.add_requests(pool, rows))
