"""Continuous batching, step by step: what requests wait for, and what an engine does meanwhile.

Each step is planned by the engine's policy from the requests that have arrived, and takes what `StepTimes`
says. A request gets its first token at the end of the step that reads the last of its prompt.

    data ranks       have requests of their own each, and make each step together: the slowest sets the pace
    stages           of a pipeline work on as many steps at once; a request is in one of them at a time
    drafted tokens   are verified by the step, and each is accepted with the same probability until one is not
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from neuralpower.errors import InputError
from neuralpower.serving.policies import State, policy_of
from neuralpower.serving.pool import BlockPool
from neuralpower.serving.step_times import StepTimes
from neuralpower.serving.workload import Workload

Array = np.ndarray
MOST_STEPS = 5_000_000


@dataclass(frozen=True)
class Engine:
    """One replica of an engine.

    Args:
        blocks: of its pool.
        block: tokens of a block.
        budget: most new tokens of a step (`max_num_batched_tokens`, `chunked_prefill_size`).
        requests: most requests of a step (`max_num_seqs`, `max_running_requests`).
        policy: "vllm" or "sglang".
        host_s: seconds of the host for each step, and for each request in it.
        pace: times as long as expected that the device takes for each step.
        overlaps: whether the host plans a step while the one before it runs (asynchronous scheduling).
        prefix_hit: share of each prompt that is found in the cache.
        data: ranks with requests of their own, which make each step together.
        stages: of a pipeline.
        draft: tokens that are drafted for each decode, and verified with it.
        acceptance: probability that a drafted token is accepted, if those before it are.
        brings: whether requests bring their prompt's cache, and their first token, from another engine.
    """

    blocks: int
    block: int = 16
    budget: int = 2_048
    requests: int = 256
    policy: str = "vllm"
    host_s: tuple[float, float] = (0.0, 0.0)
    pace: float = 1.0
    overlaps: bool = True
    prefix_hit: float = 0.0
    data: int = 1
    stages: int = 1
    draft: int = 0
    acceptance: float = 0.0
    brings: bool = False

    def __post_init__(self) -> None:
        """Raise InputError for numbers out of their ranges."""
        for name in ("blocks", "block", "budget", "requests", "data", "stages"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: 1 or more")
        if not 0 <= self.prefix_hit < 1:
            raise InputError(f"prefix hit {self.prefix_hit:g}: a share of each prompt, from 0 to below 1")
        if self.draft < 0 or not 0 <= self.acceptance <= 1:
            raise InputError(
                f"draft tokens {self.draft} with an acceptance of {self.acceptance:g}: 0 tokens or more, "
                "accepted with a probability from 0 to 1"
            )
        if self.draft and self.draft + 1 > self.budget:
            raise InputError(f"draft tokens {self.draft}: a step has {self.budget} tokens; draft fewer")


@dataclass(frozen=True)
class Ran:
    """One step as it ran on a rank; of a pipeline, in one of its stages."""

    seconds: float
    device_s: float  # of them
    decodes: int
    context: float  # mean cached tokens of these
    chunks: tuple[tuple[int, int], ...]
    ending: int


@dataclass(frozen=True)
class Served:
    """What became of the requests, each array [requests]; seconds from the first arrival."""

    arrival_s: Array
    prompt: Array
    output: Array
    first_s: Array  # end of the step that made the first token
    last_s: Array
    steps: int
    busy_s: float  # of all steps
    reading_s: float  # of them: steps that read prompts
    tokens: int  # computed
    preemptions: int
    recomputed: int  # tokens
    cache_share: float  # of the pool that requests held, over time
    batch: float  # requests in a step, over time
    reused: int = 0  # tokens of prompts that were found in the cache
    engines: int = 1  # that have served them
    gaps_s: Array = field(
        default_factory=lambda: np.zeros(0)
    )  # between two outputs of a request, all of them
    ran: Sequence[Ran] = ()  # each step

    @property
    def ttft_s(self) -> Array:
        """Time to the first token."""
        return np.asarray(self.first_s - self.arrival_s)

    @property
    def latency_s(self) -> Array:
        """Time to the last token."""
        return np.asarray(self.last_s - self.arrival_s)

    @property
    def itl_s(self) -> Array:
        """Gaps between two outputs of a request: one token, or those that a step has accepted."""
        return self.gaps_s

    @property
    def per_token_s(self) -> Array:
        """Latency over all tokens."""
        return np.asarray(self.latency_s / self.output)

    @property
    def tpot_s(self) -> Array:
        """(latency - TTFT) / (tokens - 1) of requests with two tokens or more."""
        several = self.output > 1
        return np.asarray((self.last_s - self.first_s)[several] / (self.output[several] - 1))

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.last_s.max())


def simulate(workload: Workload, engine: Engine, times: StepTimes, seed: int = 0) -> list[Served]:
    """Serve all requests of a workload on one replica; what became of those of each data rank.

    `seed` is of the drafted tokens that are accepted.

    Raises:
        InputError: a request that the pool, or the tables of `times`, cannot hold.
    """
    longest = int((workload.prompt + workload.output).max())
    room = min(engine.blocks * engine.block, times.longest)
    if longest + engine.draft > room:
        which = int(np.argmax(workload.prompt + workload.output)) + 1
        raise InputError(
            f"request {which} takes {longest + engine.draft:,} tokens, and the cache holds {room:,}; "
            "give shorter requests, fewer weights or more devices"
        )
    parts = workload.shared(engine.data)
    return _Run([_Rank(part, engine, times, seed + i) for i, part in enumerate(parts)]).served()


class _Run:
    """One simulation of a replica's ranks."""

    def __init__(self, ranks: Sequence[_Rank]) -> None:
        self.ranks, self.engine = ranks, ranks[0].engine
        self.flights: deque[tuple[float, float, list[_Flight]]] = deque()  # end, seconds, what each rank has
        self.now = self.free = 0.0  # time; when the first stage takes the next step
        self.steps = 0

    def served(self) -> list[Served]:
        """Run until the last request has its last token."""
        left = sum(rank.workload.count for rank in self.ranks)
        while left:
            for rank in self.ranks:
                rank.arrive(self.now)
            if not self._starts():
                left -= self._waits()
            if self.steps > MOST_STEPS:
                raise InputError(f"more than {MOST_STEPS:,} steps: give fewer requests")
        return [rank.served() for rank in self.ranks]

    def _starts(self) -> bool:
        """Start a step if the first stage is free and there is something to do."""
        if len(self.flights) >= self.engine.stages or self.free > self.now:
            return False
        flights = [rank.plan() for rank in self.ranks]
        if not any(flight.count for flight in flights):
            return False
        seconds = max(flight.seconds for flight in flights)
        last = self.flights[-1][0] if self.flights else 0.0
        self.flights.append((max(self.now + seconds, last), seconds, flights))
        self.free = self.now + seconds / self.engine.stages
        self.steps += 1
        return True

    def _waits(self) -> int:
        """Go to the next event; returns how many requests end with it."""
        events = [self.flights[0][0]] if self.flights else []
        if len(self.flights) < self.engine.stages:
            events += [self.free] if self.free > self.now else []
            events += [rank.coming for rank in self.ranks if rank.coming > self.now]
        nearest = min(events, default=np.inf)
        if not np.isfinite(nearest):
            raise InputError(
                "no request can continue: the pool holds none of those that wait; give it more blocks"
            )
        self.now = max(self.now, nearest)
        if not self.flights or self.flights[0][0] > self.now:
            return 0
        _, seconds, flights = self.flights.popleft()
        return sum(
            rank.ends(flight, self.now, seconds / self.engine.stages)
            for rank, flight in zip(self.ranks, flights, strict=True)
        )


@dataclass(frozen=True)
class _Flight:
    """What a step does on a rank, each array [requests of the step]."""

    requests: Array
    new: Array
    reads: Array  # which are prompts
    gets: Array | None  # which get a token; None: all of them
    seconds: float
    device_s: float
    context: float
    chunks: tuple[tuple[int, int], ...]
    ending: int  # of the chunks

    @property
    def count(self) -> int:
        """Requests."""
        return len(self.requests)


def _positive(gaps_s: Array) -> Array:
    return np.asarray(gaps_s[gaps_s > 0])


class _Rank:
    """The requests of one rank, and its scheduler."""

    def __init__(self, workload: Workload, engine: Engine, times: StepTimes, seed: int) -> None:
        count = workload.count
        self.workload, self.engine, self.times = workload, engine, times
        prompt = workload.prompt.astype(np.int64)
        self.state = State(
            prompt=prompt,
            made=np.full(count, int(engine.brings), dtype=np.int64),
            computed=np.zeros(count, dtype=np.int64),
            held=np.zeros(count, dtype=np.int64),
            pool=BlockPool(engine.blocks),
            block=engine.block,
            budget=min(engine.budget, times.budget),
            most=min(engine.requests, times.requests),
            prefix=np.floor(prompt * engine.prefix_hit).astype(np.int64),
            draft=engine.draft,
            names=workload.prefixes if workload.named >= engine.block else (),
            named=workload.named // engine.block * engine.block,
            brought=prompt.copy() if engine.brings else None,
        )
        self.policy = policy_of(engine.policy)
        self.random = np.random.default_rng(seed)
        self.first_s, self.last_s = np.full(count, np.nan), np.full(count, np.nan)
        self.arrival_s = workload.arrival_s.copy() if not workload.users else np.full(count, np.inf)
        if workload.users:
            self.arrival_s[: workload.users] = 0.0
        self.latest_s = self.arrival_s.copy()  # of each request: its latest token
        self.next = 0  # request that arrives next
        self.busy_s = self.reading_s = self.cache_s = self.batch_s = 0.0
        self.tokens = 0
        self.gaps: list[Array] = []
        self.ran: list[Ran] = []
        if engine.brings:
            self.first_s[:] = self.arrival_s

    @property
    def coming(self) -> float:
        """When the next request arrives; infinite if none does."""
        return float(self.arrival_s[self.next]) if self.next < len(self.arrival_s) else np.inf

    def arrive(self, now: float) -> None:
        """Let requests in that have arrived."""
        while self.coming <= now:
            self.state.waiting.append(self.next)
            self.next += 1

    def plan(self) -> _Flight:
        """The next step, which may be empty."""
        state = self.state
        planned = self.policy.plan(state)
        requests, new = planned.requests, planned.tokens
        if not len(requests):
            return _Flight(requests, new, requests, None, 0.0, 0.0, 0.0, (), 0)
        held, made = state.computed[requests], state.made[requests]
        left = state.prompt[requests] + made - held
        reads = (made == 0) | (left > 1)
        contexts, gets, chunks, ending = held, None, tuple[tuple[int, int], ...](), 0
        if np.count_nonzero(reads):
            contexts, gets = held[~reads], ~reads | (new == left)
            chunks = tuple(zip(new[reads].tolist(), held[reads].tolist(), strict=True))
            ending = int((gets & reads).sum())
        device = self.engine.pace * self.times.seconds(contexts, chunks, ending)
        host = self.engine.host_s[0] + self.engine.host_s[1] * len(requests)
        seconds = max(device, host) if self.engine.overlaps else device + host
        if self.engine.stages > 1:
            state.flying.update(requests.tolist())
        context = float(contexts.sum()) / max(len(contexts), 1)
        return _Flight(requests, new, reads, gets, seconds, device, context, chunks, ending)

    def ends(self, flight: _Flight, now: float, seconds: float) -> int:
        """Give the requests of a step their tokens; returns how many have their last one."""
        state, requests = self.state, flight.requests
        if not len(requests):
            return 0
        decodes = len(requests) - len(flight.chunks)
        device_s = flight.device_s / self.engine.stages
        self.ran.append(Ran(seconds, device_s, decodes, flight.context, flight.chunks, flight.ending))
        self.busy_s += seconds
        self.reading_s += seconds if flight.chunks else 0.0
        self.cache_s += seconds * (1 - state.pool.free / self.engine.blocks)
        self.batch_s += seconds * len(requests)
        if self.engine.stages > 1:
            state.flying.difference_update(requests.tolist())
        computed, gives = flight.new, np.ones_like(flight.new)
        if self.engine.draft:
            gives[~flight.reads] += self._accepted(decodes)
            gives = np.minimum(gives, self.workload.output[requests] - state.made[requests])
            computed = np.where(flight.reads, flight.new, gives)
        state.computed[requests] += computed
        self.tokens += int(computed.sum())
        if flight.gets is None:
            return self._give(requests, gives, now)
        self._reads(requests[flight.gets & flight.reads], now)
        return self._give(requests[flight.gets], gives[flight.gets], now)

    def _reads(self, requests: Array, now: float) -> None:
        """Note the first tokens of those of some requests that had none."""
        fresh = requests[self.state.made[requests] == 0]
        self.first_s[fresh] = self.latest_s[fresh] = now  # a gap of 0, which does not count
        for request in fresh.tolist() if self.state.names else ():
            self.state.read(request)

    def _accepted(self, count: int) -> Array:
        """[count] drafted tokens that are accepted, one after the other."""
        engine = self.engine
        if engine.acceptance in (0, 1):
            return np.full(count, engine.draft * int(engine.acceptance))
        length = np.floor(np.log(1 - self.random.random(count)) / np.log(engine.acceptance))
        return np.asarray(np.minimum(length, engine.draft).astype(np.int64))

    def _give(self, requests: Array, tokens: Array, now: float) -> int:
        """Give requests their next tokens; those with their last one end."""
        state = self.state
        self.gaps.append(now - self.latest_s[requests])
        self.latest_s[requests] = now
        made = state.made[requests] + tokens
        state.made[requests] = made
        ended = requests[made >= self.workload.output[requests]]
        if len(ended):
            self.last_s[ended] = now
            state.running = state.running[np.isnan(self.last_s[state.running])]
            for request in ended.tolist():
                state.ends(request)
            if self.workload.users:
                waiting = np.flatnonzero(np.isinf(self.arrival_s))[: len(ended)]
                self.arrival_s[waiting] = now
        return len(ended)

    def served(self) -> Served:
        """What became of the requests."""
        state, workload = self.state, self.workload
        return Served(
            arrival_s=self.arrival_s,
            prompt=workload.prompt,
            output=workload.output,
            first_s=self.first_s,
            last_s=self.last_s,
            steps=len(self.ran),
            busy_s=self.busy_s,
            reading_s=self.reading_s,
            tokens=self.tokens,
            preemptions=state.preemptions,
            recomputed=state.recomputed,
            cache_share=self.cache_s / max(self.busy_s, 1e-30),
            batch=self.batch_s / max(self.busy_s, 1e-30),
            reused=state.reused,
            gaps_s=_positive(np.concatenate(self.gaps)) if self.gaps else np.zeros(0),
            ran=self.ran,
        )
