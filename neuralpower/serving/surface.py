"""An engine's steps as functions of the requests in them: a few passes are traced, all others follow.

    shared       products, norms, exchanges: sizes follow from the tokens of all requests together
    ends         logits and sampling: from the sequences that end in a token
    requests     attention and scans: from each request's new and cached tokens

Each whole number of a shared layer is a form of these sizes: a constant, a multiple of one size, or a sum of
two or three; it has to give back one traced pass more than it has terms. Attention is priced as one kernel
for all requests at one request's length, in the share of the requests that have that length.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from torch import nn

from neuralpower.devices.cluster import Cluster
from neuralpower.devices.layout import ONE, Layout
from neuralpower.errors import InputError, ModelError
from neuralpower.layers import Layer
from neuralpower.layers.columns import is_number, words_of
from neuralpower.layers.experts import Experts
from neuralpower.layers.rows import field_names, to_row
from neuralpower.learn.predictor import Predictor
from neuralpower.networks.phases import Phase, Step
from neuralpower.networks.source import Source
from neuralpower.networks.sources import resolve
from neuralpower.prediction.beside import Beside
from neuralpower.prediction.compose import check
from neuralpower.prediction.explore.outcomes import Outcomes, Pool, Work
from neuralpower.prediction.kept.sums import Form, Solver
from neuralpower.prediction.parallel import one_micro_batch, pieces_of
from neuralpower.prediction.request import Request
from neuralpower.prediction.weights import with_weights
from neuralpower.trace.follow import follow
from neuralpower.trace.followed import Followed
from neuralpower.trace.lifetimes import WEIGHTS
from neuralpower.trace.parts.by_request import RequestLayer, by_request
from neuralpower.trace.parts.routing import ROUTING, Routing
from neuralpower.trace.parts.stages import cut
from neuralpower.trace.passes.fusion import CAPTURED
from neuralpower.trace.paths import pattern
from neuralpower.trace.question import ENGINE
from neuralpower.trace.records import Trace

Array = np.ndarray
SIZES = ("1", "tokens", "sequences", "length", "tokens x length", "context", "sequences x context")
PROMPTS = ((2, 384), (3, 640), (5, 272), (7, 448))  # (requests, tokens of each) of traced prefills
STEPS = (
    (11, 40),
    (7, 300),
    (13, 1_100),
)  # (requests, tokens beyond the largest window) of traced decode steps
KEY_DTYPE = "key_dtype"  # the field of layers that read a cache
LOADS = ("hit", "fullest")  # numbers of experts that follow from the routing


class NoForm(ModelError):  # noqa: N818  # of the network, which other ways can answer
    """Sizes of a network that no form of its tokens and requests gives."""


@dataclass(frozen=True)
class SharedLayer:
    """A layer whose numbers follow from all requests together."""

    example: Layer
    forms: Mapping[str, Form]
    count: float = 0.0  # calls in a pass

    @property
    def of_ends(self) -> bool:
        """Whether its sizes follow from the requests that get a token alone, as those of logits do."""
        used = {i for form in self.forms.values() for i, part in enumerate(form.coefficients) if part}
        return SIZES.index("sequences") in used and SIZES.index("tokens") not in used

    def numbers(self, sizes: Array, routing: Routing) -> dict[str, Array]:
        """Its numbers [rows] at sizes [rows, sizes]."""
        numbers = {name: form(sizes) for name, form in self.forms.items()}
        if isinstance(self.example, Experts):
            experts = self.example.routed or self.example.experts
            loads = [routing.load(int(pairs), self.example.top_k, experts) for pairs in numbers["pairs"]]
            numbers |= {name: np.array([float(getattr(load, name)) for load in loads]) for name in LOADS}
        return numbers


@dataclass(frozen=True)
class Family:
    """The passes of one phase: their layers, and calls that no kind describes."""

    shared: tuple[SharedLayer, ...]
    requests: tuple[RequestLayer, ...]
    unmodelled: tuple[Form, ...]  # bytes of each call
    decodes: bool  # or prefills

    def add_shared(
        self, pool: Pool, where: Array, sizes: Array, routing: Routing, *, ends: bool | None = None
    ) -> None:
        """Add to the steps `where` [rows] what follows from all of their requests together.

        `sizes` are [rows, sizes]. `ends`: only layers that depend on the requests that get a token, or only
        the others; None: all of them.
        """
        every, given = np.arange(len(where)), np.flatnonzero(sizes[:, SIZES.index("sequences")])
        for layer in self.shared:
            at = given if layer.of_ends else every  # logits need a request that gets a token
            if len(at) and ends in (None, layer.of_ends):
                numbers = layer.numbers(sizes[at], routing)
                pool.add(layer.example, numbers, where[at], np.full(len(at), layer.count))
        for form in () if ends else self.unmodelled:
            pool.unmodelled_bytes[where] += form(sizes)
            pool.unmodelled_calls[where] += 1

    def add_requests(self, pool: Pool, rows: Sequence[tuple[float, ...]]) -> None:
        """Add what works request by request: (step, requests, new tokens, cached tokens, share) each."""
        if rows:
            where, requests, new, cached, shares = np.array(rows, dtype=float).T
            for layer in self.requests:
                numbers = layer.numbers(requests, new, new + cached, decodes=self.decodes)
                pool.add(layer.example, numbers, where.astype(int), layer.count * shares)


@dataclass(frozen=True)
class StepSurface:
    """The steps of a model under an engine on one group of devices.

    Building one traces a few passes; pricing a step traces nothing.
    """

    model: str
    predictor: Predictor = field(repr=False)
    dtype: str
    prompts: Family = field(repr=False)
    decodes: Family = field(repr=False)
    routing: Routing = ROUTING
    layout: Layout = ONE
    traces: int = 0
    module: nn.Module | None = field(default=None, repr=False, compare=False)  # of a rank, on the meta device
    weights_bytes: int = 0  # of a rank
    captured: int = CAPTURED  # most tokens of a step that is launched as a graph

    @property
    def mixes(self) -> bool:
        """Whether it has experts."""
        return any(isinstance(layer.example, Experts) for layer in self.prompts.shared)

    def with_cache(self, dtype: str) -> StepSurface:
        """The same where the cache holds keys and values of another type."""

        def cached(layer: RequestLayer) -> RequestLayer:
            if KEY_DTYPE not in field_names(type(layer.example)):
                return layer
            changes: dict[str, Any] = {KEY_DTYPE: dtype}
            return replace(layer, example=replace(layer.example, **changes))

        prompts, decodes = (
            replace(family, requests=tuple(map(cached, family.requests)))
            for family in (self.prompts, self.decodes)
        )
        return replace(self, prompts=prompts, decodes=decodes)

    @property
    def cache_bytes(self) -> float:
        """Bytes of a token in the caches of all layers without a window."""
        laws = Beside.of(self.prompts.requests, self.decodes.requests, self.predictor)
        return sum(size for size, window in laws.cached_bytes if not window)

    def at(self, steps: Sequence[Step]) -> Outcomes:
        """Seconds with bounds, and joules, of each step [steps]."""
        parts = [(index, work.outcomes(self.predictor)) for index, work in self._works(steps)]
        order = np.argsort(np.concatenate([index for index, _ in parts]))
        return Outcomes.joined([found for _, found in parts]).at(order)

    def by_kind(self, steps: Sequence[Step]) -> dict[str, Array]:
        """Seconds of the layers of each kind, each [steps]."""
        return {kind: part.runtime_s for kind, part in self._pooled(steps).by_kind(self.predictor).items()}

    def with_kinds(self, steps: Sequence[Step]) -> tuple[Outcomes, dict[str, Outcomes]]:
        """All layers and those of each kind, priced once where all steps are launched in the same way."""
        works = list(self._works(steps))
        if len(works) > 1:
            return self.at(steps), self._pooled(steps).by_kind(self.predictor)
        ((_, work),) = works
        return work.outcomes(self.predictor), work.by_kind(self.predictor)

    def _pooled(self, steps: Sequence[Step]) -> Work:
        """The layers of all steps, launched as graphs."""
        return self.pool(steps, graphed=True).work(self.predictor, self.dtype)

    def _works(self, steps: Sequence[Step]) -> Iterator[tuple[Array, Work]]:
        """(places of steps, their layers priced) of those launched as graphs, and of the others."""
        graphed = np.array([step.tokens <= self.captured for step in steps])
        for ways in (True, False):
            if len(index := np.flatnonzero(graphed == ways)):
                pool = self.pool([steps[int(i)] for i in index], graphed=ways)
                yield index, pool.work(self.predictor, self.dtype)

    def together(self, steps: Sequence[Step], weights: Array) -> tuple[float, float, float]:
        """(low, value, high) seconds of a run with each step `weights` times [steps]."""
        work = self._pooled(steps)
        counts, unmodelled_s = (
            csr_array(weights[None] @ work.counts),
            np.atleast_1d(weights @ work.unmodelled_s),
        )
        found = replace(work, counts=counts, unmodelled_s=unmodelled_s).outcomes(self.predictor)
        return float(found.low_s[0]), float(found.runtime_s[0]), float(found.high_s[0])

    def pool(self, steps: Sequence[Step], *, graphed: bool) -> Pool:
        """The layers of each step; `graphed`: all are launched at once."""
        pool = Pool(len(steps), graphed=graphed)
        self.add(pool, steps)
        return pool

    def add(self, pool: Pool, steps: Sequence[Step], first: int = 0) -> None:
        """Add the layers of each step, as those of the pool's networks from `first` on."""
        sizes = np.array(
            [sizes_of(step.tokens, step.sequences, step.positions, step.context) for step in steps]
        )
        reads = np.array([bool(step.chunks) for step in steps])
        for family, where in ((self.decodes, np.flatnonzero(~reads)), (self.prompts, np.flatnonzero(reads))):
            if len(where):
                family.add_shared(pool, first + where, sizes[where], self.routing)
        decodes = [[(1, held) for held in step.contexts] for step in steps]
        self.decodes.add_requests(pool, _kernels(decodes, first))
        self.prompts.add_requests(pool, _kernels([step.chunks for step in steps], first))


def priced(asked: Sequence[tuple[StepSurface, Sequence[Step]]]) -> list[Outcomes]:
    """What steps of several surfaces on one device take, all priced at once and launched as graphs."""
    ends = np.cumsum([len(steps) for _, steps in asked])
    pool, (surface, _) = Pool(int(ends[-1]), graphed=True), asked[0]
    for (each, steps), end in zip(asked, ends, strict=True):
        each.add(pool, steps, int(end) - len(steps))
    whole = pool.work(surface.predictor, surface.dtype).outcomes(surface.predictor)
    return [whole.at(slice(start, end)) for start, end in itertools.pairwise([0, *ends.tolist()])]


def _kernels(asked: Sequence[Sequence[tuple[int, int]]], first: int = 0) -> list[tuple[float, ...]]:
    """(step, requests, new and cached tokens, share) of each length of each step's (new, cached) requests."""
    return [
        (i, len(requests), new, cached, alike / len(requests))
        for i, requests in enumerate(asked, first)
        for (new, cached), alike in Counter(requests).items()
    ]


def surface_of(
    model: str | Source,
    predictor: Predictor,
    *,
    dtype: str,
    layout: Layout = ONE,
    cluster: Cluster | None = None,
    weights: str | None = None,
    routing: Routing = ROUTING,
) -> StepSurface:
    """Trace a language model's passes under an engine, and solve their sizes.

    Raises:
        InputError: pipeline stages, or a model without a cache.
        ModelError: the model cannot be built or traced, or a size follows no form.
    """
    if layout.pipeline > 1:
        raise InputError(
            f"pipeline {layout.pipeline}: steps are priced for ranks that work at once; choose tensor ranks"
        )
    source = resolve(model) if isinstance(model, str) else model
    tracer = _Tracer(source, predictor, dtype, layout, cluster, weights, routing)
    prompts = [tracer.prompt(*size) for size in PROMPTS[:2]]
    decodes = [tracer.decode(*STEPS[0])]
    shared = _shared([*prompts, *decodes])  # most decoders make the same calls in both phases
    if shared is None:  # one form has three terms, or the phases differ
        prompts.append(tracer.prompt(*PROMPTS[2]))
        shared = _shared([*prompts, *decodes])
    known = shared, shared
    if shared is None:
        prompts.append(tracer.prompt(*PROMPTS[3]))
        decodes += [tracer.decode(*size) for size in STEPS[1:]]
        known = _shared(prompts), _shared(decodes)
    families = []
    for phase, layers, passes in zip(("a prefill", "a decode step"), known, (prompts, decodes), strict=True):
        requests = _requests(passes, tracer.windows)
        if layers is None or requests is None:
            raise NoForm(f"{source.name}: the sizes of {phase} follow no form of its tokens and requests")
        families.append(Family(layers[0], requests, layers[1], decodes=passes is decodes))
    return StepSurface(
        model=str(source.name),
        predictor=predictor,
        dtype=dtype,
        prompts=families[0],
        decodes=families[1],
        routing=routing,
        layout=layout,
        traces=len(prompts) + len(decodes),
        module=tracer.module,
        weights_bytes=sum(s.bytes for s in decodes[0].work.storages if s.part == WEIGHTS),
    )


@dataclass(frozen=True)
class _Traced:
    """A traced pass with its sizes."""

    work: Trace
    requests: int
    new: int
    cached: int

    @property
    def sizes(self) -> Array:
        """The values of `SIZES`."""
        return sizes_of(self.requests * self.new, self.requests, self.new, self.cached)

    @property
    def structure(self) -> tuple[object, ...]:
        """What passes whose numbers correspond have in common."""
        shared = (task for task in self.work.tasks if not by_request(task.layer))
        tasks = tuple(
            (pattern(task.path), task.layer.kind, words_of(to_row(task.layer)), task.share) for task in shared
        )
        return tasks, tuple((call.operator, call.reason) for call in self.work.unmodelled)


@dataclass
class _Tracer:
    """Traces passes of a model under an engine."""

    source: Source
    predictor: Predictor
    dtype: str
    layout: Layout
    cluster: Cluster | None
    weights: str | None
    routing: Routing
    windows: dict[str, int] = field(default_factory=dict)  # by path
    module: nn.Module | None = None

    def prompt(self, requests: int, tokens: int) -> _Traced:
        """A prefill of some prompts of one length."""
        return _Traced(self._followed(Phase.prefill(tokens, batch=requests), requests), requests, tokens, 0)

    def decode(self, requests: int, beyond: int) -> _Traced:
        """A step against a context that no window holds."""
        context = max(self.windows.values(), default=0) + beyond
        phase = Phase.decode(batch=requests, context=context)
        return _Traced(self._followed(phase, requests), requests, 1, context)

    def _followed(self, phase: Phase, requests: int) -> Trace:
        """The work of one rank."""
        request = Request(
            self.source,
            requests,
            dtype=self.dtype,
            phase=phase,
            routing=self.routing,
            run=ENGINE,
            weights=self.weights,
            layout=self.layout,
            cluster=self.cluster,
        )
        question = request.question(self.predictor.platform, knows=self.predictor.knows)
        check(self.predictor, question)
        asked = request.asked(self.source, ENGINE)
        question = with_weights(question, asked.weights, self.predictor, getattr(asked, "module", None))
        alone = question.layout.alone
        found = follow(asked, question if alone else one_micro_batch(question))
        assert isinstance(found, Followed)  # a prefill or a step is one pass
        self.windows.update(found.work.about.windows)
        self.module = found.asked.module
        if alone:
            return found.work
        (piece,) = pieces_of(cut(found.work, self.layout), self.predictor, question)
        return piece.work


def sizes_of(tokens: int, sequences: int, length: int, context: int) -> Array:
    """The values of `SIZES`."""
    return np.array(
        [1, tokens, sequences, length, tokens * length, context, sequences * context], dtype=float
    )


def _shared(passes: Sequence[_Traced]) -> tuple[tuple[SharedLayer, ...], tuple[Form, ...]] | None:
    """The layers that all passes share, and unmodelled calls; None where a number follows no form."""
    if len({one.structure for one in passes}) > 1:
        return None
    solver = Solver(np.array([one.sizes for one in passes]))
    grouped: dict[tuple[object, ...], SharedLayer] = {}
    kept = [[task for task in one.work.tasks if not by_request(task.layer)] for one in passes]
    for tasks in zip(*kept, strict=True):
        rows = [to_row(task.layer) for task in tasks]
        numbers = {
            name: tuple(row[name] for row in rows)
            for name, value in rows[0].items()
            if is_number(value) and not (name in LOADS and isinstance(tasks[0].layer, Experts))
        }
        key = tasks[0].layer.kind, words_of(rows[0]), tuple(numbers.items())
        if key not in grouped:
            forms = {name: solver.form(values) for name, values in numbers.items()}
            if None in forms.values():
                return None
            solved = {name: form for name, form in forms.items() if form is not None}
            grouped[key] = SharedLayer(tasks[0].layer, solved)
        grouped[key] = replace(grouped[key], count=grouped[key].count + tasks[0].share)
    calls = zip(*(one.work.unmodelled for one in passes), strict=True)
    sizes = [solver.form(tuple(call.work_bytes for call in some)) for some in calls]
    if None in sizes:
        return None
    return tuple(grouped.values()), tuple(form for form in sizes if form is not None)


def _requests(passes: Sequence[_Traced], windows: Mapping[str, int]) -> tuple[RequestLayer, ...] | None:
    """The layers that work request by request; None where a pass has other numbers than they say."""
    found = Counter[RequestLayer]()
    for task in passes[0].work.tasks:
        if by_request(task.layer):
            found[RequestLayer(task.layer, windows.get(task.path, 0))] += 1
    for one in passes:
        told, met = Counter[Layer](), Counter(t.layer for t in one.work.tasks if by_request(t.layer))
        for layer, count in found.items():
            told[layer.at(one.requests, one.new, one.new + one.cached, decodes=one.cached > 0)] += count
        if told != met:
            return None
    return tuple(replace(layer, count=float(count)) for layer, count in found.items())
