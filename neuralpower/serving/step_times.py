"""A surface as tables: the time of a step by a few lookups, for simulations of many steps.

    tokens    of every number of new tokens up to the budget, as they occur
    ends      of every number of requests that get a token
    decodes   of a number of decodes, by their cached tokens
    chunks    of new tokens of a prompt, by its cached tokens

Between grid points attention is linear in the cached tokens. Laws of real steps are added: those of
`neuralpower.prediction.beside`, ranks that wait for the slowest of them at each exchange, and launches: a
graph runs as many tokens as it was captured for, and above the largest one the host's calls count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from neuralpower.layers.collective import Collective
from neuralpower.networks.phases import Step
from neuralpower.prediction.beside import Beside
from neuralpower.prediction.explore.outcomes import Outcomes, Pool
from neuralpower.serving.surface import Family, StepSurface, sizes_of
from neuralpower.trace.passes.fusion import captured_sizes

Array = np.ndarray
Tables = dict[str, dict[str, Array]]  # by what is priced, and by the column of outcomes
# Columns of what steps draw, in a bound.
JOULES = {"value": "energy_j", "low": "energy_low_j", "high": "energy_high_j"}
# The standard deviation of what ranks take between two exchanges, as a share; fitted to served points of
# SGLang 0.5 (Qwen3 32B on 2 to 8 H100s).
SKEW = 0.08
TOGETHER = 512  # numbers of tokens that are priced at once
SLOWEST = {
    1: 0.0,
    2: 0.564,
    4: 1.029,
    8: 1.424,
    16: 1.766,
}  # the largest of that number of normal ones, in the mean


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
    _rows: dict[int, Array] = field(
        default_factory=dict, repr=False, compare=False
    )  # by count, as they occur

    def row(self, count: int) -> Array:
        """[columns] at a count: the mean of the two rows about it, by their distance."""
        if count not in self._rows:
            at = min(int(np.searchsorted(self.counts, count)), len(self.counts) - 1)
            low, high = self.counts[max(at - 1, 0)], self.counts[at]
            share = (count - low) / (high - low) if low < count < high else 1.0
            self._rows[count] = self.values[at - 1] * (1 - share) + self.values[at] * share
        return self._rows[count]


@dataclass(eq=False)
class StepTimes:
    """The times of steps, or what one device draws in them.

    Args:
        surface: of the model on its devices.
        budget: most new tokens of a step.
        requests: most requests of a step.
        longest: most tokens of a request.
        joules: the bound of what they draw, instead of the time: "value", "low" or "high".
        graphs_prompts: whether steps that read prompts are launched as graphs, too.
        verified: drafted tokens that each decode verifies.
        drafter: the times of the model that drafts them; None: drafting takes no time.
        known: what has been priced, for times and joules.
    """

    surface: StepSurface
    budget: int
    requests: int
    longest: int
    joules: str | None = None
    graphs_prompts: bool = True
    verified: int = 0
    drafter: StepTimes | None = None
    known: Tables = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Work out what all steps share. Raises InputError for a device without a sheet."""
        surface, self.each = self.surface, 1 + self.verified
        ranks = surface.layout.tensor * surface.layout.data
        self.skew = SKEW * float(np.interp(ranks, list(SLOWEST), list(SLOWEST.values())))
        self.sizes = np.array(captured_sizes(min(2 * self.requests, surface.captured)), dtype=int)
        largest = int(self.sizes.max(initial=0))
        self.graphed = {
            False: largest,
            True: largest if self.graphs_prompts else 0,
        }  # tokens, by: reads prompts
        self.laws = Beside.of(surface.prompts.requests, surface.decodes.requests, surface.predictor)

    # ---- tables ----

    @cached_property
    def _prompt_tokens_s(self) -> Array:
        """[tokens + 1] as `prompt_tokens_s`; NaN where it was not asked."""
        return np.full(self.budget + 1, np.nan)

    def prompt_tokens_s(self, tokens: int) -> float:
        """What all requests share in a step that reads prompts, but for the ends; priced block by block."""
        if tokens <= self.graphed[True]:
            tokens = min(int(self.sizes[np.searchsorted(self.sizes, tokens)]), self.budget)
        if np.isnan(self._prompt_tokens_s[tokens]):
            first = (tokens - 1) // TOGETHER * TOGETHER + 1
            last = min(first + TOGETHER - 1, self.budget)
            seconds = self._shared(self.surface.prompts, last, ends=False, first=first)
            self._prompt_tokens_s[first : last + 1] = seconds
        return float(self._prompt_tokens_s[tokens])

    @cached_property
    def decode_tokens_s(self) -> Array:
        """[requests + 1] the same in a step of decodes alone."""
        seconds = self._all(self.surface.decodes, ends=False)
        tokens = np.arange(len(seconds))
        fits = (tokens > 0) & (tokens <= self.graphed[False])
        tokens[fits] = self.sizes[np.searchsorted(self.sizes, tokens[fits])]
        return np.asarray(seconds[np.minimum(tokens, len(seconds) - 1)])

    @cached_property
    def calls_s(self) -> float:
        """The least time of a step that is not a graph: what the host takes for its calls."""
        surface, dispatch = self.surface, self.surface.predictor.dispatch
        if self.joules or dispatch is None:
            return 0.0
        compiled = self.graphed[True] > 0  # engines replay pieces of compiled code as graphs
        predictor = replace(surface.predictor, dispatch=dispatch.of_compiled() if compiled else dispatch)
        work = surface.pool([Step(chunks=((self.budget, 0),))], graphed=False).work(predictor, surface.dtype)
        return float(work.outcomes(predictor).calls_s[0])

    @cached_property
    def ends_s(self) -> Array:
        """[requests + 1] logits and sampling."""
        return self._all(self.surface.prompts, ends=True)

    @cached_property
    def decode_ends_s(self) -> Array:
        """[requests + 1] the same in a step of decodes alone."""
        return self._all(self.surface.decodes, ends=True)

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
            return self._launched(count, shared + (1 + self.skew) * self.decodes_s(contexts), reads=False)
        tokens = min(count + sum(new for new, _ in chunks), self.budget)
        reading = sum(
            float(np.interp(held, self.chunks.cached, self.chunks.row(new))) for new, held in chunks
        )
        shared = float(self.prompt_tokens_s(tokens) + self.ends_s[count + ending])
        requests = self.beside_s(contexts, chunks, reading) if count else reading
        return self._launched(tokens, shared + (1 + self.skew) * requests, reads=True)

    def _launched(self, tokens: int, seconds: float, *, reads: bool) -> float:
        """The time of a step: not shorter than the calls of the host, unless it is a graph."""
        return seconds if tokens <= self.graphed[reads] else max(seconds, self.calls_s)

    def decodes_s(self, contexts: Array) -> float:
        """Attention and scans of decodes alone."""
        row = self.decodes.row(len(contexts))
        return max(
            float(np.interp(contexts, self.decodes.cached, row).sum()) / max(len(contexts), 1),
            self.laws.cold_s(contexts) * self._ratio,
        )

    def beside_s(self, contexts: Array, chunks: Sequence[tuple[int, int]], reading_s: float) -> float:
        """Attention and scans of prompts, which take `reading_s` alone, and of decodes next to them."""
        return self.laws.mixed_s(contexts, chunks, reading_s, self.decodes_s(contexts), self._ratio)

    @cached_property
    def _ratio(self) -> float:
        """Joules of a second of attention; 1 for times."""
        if not self.joules:
            return 1.0
        pool = Pool(1, graphed=True)
        self.surface.decodes.add_requests(pool, [(0, 1, 1, self.longest, 1.0)])
        found = self._outcomes(pool)
        whole = float(found.runtime_s[0])
        return float(getattr(found, JOULES[self.joules])[0] / whole) if whole else 1.0

    # ---- pricing ----

    def _outcomes(self, pool: Pool) -> Outcomes:
        surface = self.surface
        return pool.work(surface.predictor, surface.dtype).outcomes(surface.predictor)

    def _priced(self, name: str, count: int, add: Callable[[Pool], None]) -> Array:
        """Seconds of all layers, or joules; at the exchanges among them the ranks wait for the slowest."""
        if name not in self.known:
            pool = Pool(count, graphed=True)
            add(pool)
            work = pool.work(self.surface.predictor, self.surface.dtype)
            whole = work.outcomes(self.surface.predictor)
            apart = work.by_kind(self.surface.predictor).get(Collective.kind) if self.skew else None
            self.known[name] = {}
            for column in ("runtime_s", *JOULES.values()):
                values = getattr(whole, column)
                if apart is not None:
                    values = values + self.skew * (values - getattr(apart, column))
                self.known[name][column] = values.astype(np.float32)  # as they are kept on the disk
        return self.known[name][JOULES[self.joules] if self.joules else "runtime_s"].astype(float)

    def _all(self, family: Family, *, ends: bool) -> Array:
        """[requests + 1] of `_shared`."""
        return np.concatenate([[0.0], self._shared(family, self.requests * self.each, ends=ends)])

    def _shared(self, family: Family, last: int, *, ends: bool, first: int = 1) -> Array:
        """[first to last] seconds of the layers that depend on the tokens, or on the ends alone."""
        counts = np.arange(first, last + 1)
        sizes = np.array(
            [sizes_of(int(n), int(n) if ends else 1, 1 if family.decodes else int(n), 0) for n in counts]
        )
        where, routing = np.arange(len(counts)), self.surface.routing
        name = f"{'decode' if family.decodes else 'prompt'} {'ends' if ends else 'tokens'} from {first}"
        return self._priced(
            name, len(counts), lambda pool: family.add_shared(pool, where, sizes, routing, ends=ends)
        )

    def _requests(self, name: str, family: Family, flat: Sequence[tuple[int, int, int]]) -> Array:
        """Seconds of what works by request, (requests, new tokens, cached tokens) each."""
        rows = [(i, *sizes, 1.0) for i, sizes in enumerate(flat)]
        return self._priced(name, len(flat), lambda pool: family.add_requests(pool, rows))
