"""Continuous batching, step by step: what requests wait for, and what an engine does meanwhile.

Each step is planned by the engine's policy from the requests that have arrived, and takes what `StepTimes`
says. A request gets its first token at the end of the step that reads the last of its prompt.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

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
        overlaps: whether the host plans a step while the one before it runs (asynchronous scheduling).
        prefix_hit: share of each prompt that is found in the cache.
    """

    blocks: int
    block: int = 16
    budget: int = 2_048
    requests: int = 256
    policy: str = "vllm"
    host_s: tuple[float, float] = (1e-3, 30e-6)
    overlaps: bool = True
    prefix_hit: float = 0.0

    def __post_init__(self) -> None:
        """Raise InputError for numbers out of their ranges."""
        for name in ("blocks", "block", "budget", "requests"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: 1 or more")
        if not 0 <= self.prefix_hit < 1:
            raise InputError(f"prefix hit {self.prefix_hit:g}: a share of each prompt, from 0 to below 1")


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

    @property
    def ttft_s(self) -> Array:
        """Time to the first token."""
        return np.asarray(self.first_s - self.arrival_s)

    @property
    def latency_s(self) -> Array:
        """Time to the last token."""
        return np.asarray(self.last_s - self.arrival_s)

    @property
    def tpot_s(self) -> Array:
        """(latency - TTFT) / (tokens - 1) of requests with two tokens or more."""
        several = self.output > 1
        return np.asarray((self.last_s - self.first_s)[several] / (self.output[several] - 1))

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.last_s.max())


def simulate(workload: Workload, engine: Engine, times: StepTimes) -> Served:
    """Serve all requests of a workload on one replica.

    Raises:
        InputError: a request that the pool, or the tables of `times`, cannot hold.
    """
    longest = int((workload.prompt + workload.output).max())
    room = min(engine.blocks * engine.block, times.longest)
    if longest > room:
        which = int(np.argmax(workload.prompt + workload.output)) + 1
        raise InputError(
            f"request {which} takes {longest:,} tokens, and the cache holds {room:,}; "
            "give shorter requests, fewer weights or more devices"
        )
    return _Run(workload, engine, times).served()


class _Run:
    """One simulation."""

    def __init__(self, workload: Workload, engine: Engine, times: StepTimes) -> None:
        count = workload.count
        self.workload, self.engine, self.times = workload, engine, times
        self.state = State(
            prompt=workload.prompt.astype(np.int64),
            made=np.zeros(count, dtype=np.int64),
            computed=np.zeros(count, dtype=np.int64),
            held=np.zeros(count, dtype=np.int64),
            pool=BlockPool(engine.blocks),
            block=engine.block,
            budget=min(engine.budget, times.budget),
            most=min(engine.requests, times.requests),
            prefix=np.floor(workload.prompt * engine.prefix_hit).astype(np.int64),
            waiting=deque(),
        )
        self.policy = policy_of(engine.policy)
        self.first_s, self.last_s = np.full(count, np.nan), np.full(count, np.nan)
        self.arrival_s = workload.arrival_s.copy() if not workload.users else np.full(count, np.inf)
        if workload.users:
            self.arrival_s[: workload.users] = 0.0
        self.next = 0  # request that arrives next
        self.now = self.busy_s = self.reading_s = self.cache_s = self.batch_s = 0.0
        self.steps = self.tokens = 0

    def served(self) -> Served:
        """Run until the last request has its last token."""
        done, count = 0, self.workload.count
        while done < count:
            self._arrive()
            planned = self.policy.plan(self.state)
            if planned.tokens:
                done += self._step(planned.tokens)
            elif self.next < count and np.isfinite(self.arrival_s[self.next]):
                self.now = max(self.now, float(self.arrival_s[self.next]))
            else:
                raise InputError(
                    "no request can continue: the pool holds none of those that wait; give it more blocks"
                )
            if self.steps > MOST_STEPS:
                raise InputError(f"more than {MOST_STEPS:,} steps: give fewer requests")
        state, workload = self.state, self.workload
        return Served(
            arrival_s=self.arrival_s,
            prompt=workload.prompt,
            output=workload.output,
            first_s=self.first_s,
            last_s=self.last_s,
            steps=self.steps,
            busy_s=self.busy_s,
            reading_s=self.reading_s,
            tokens=self.tokens,
            preemptions=state.preemptions,
            recomputed=state.recomputed,
            cache_share=self.cache_s / max(self.busy_s, 1e-30),
            batch=self.batch_s / max(self.busy_s, 1e-30),
        )

    def _arrive(self) -> None:
        """Let requests in that have arrived."""
        while self.next < len(self.arrival_s) and self.arrival_s[self.next] <= self.now:
            self.state.waiting.append(self.next)
            self.next += 1

    def _step(self, tokens: dict[int, int]) -> int:
        """Run one step; returns how many requests end with it."""
        state = self.state
        requests = np.fromiter(tokens, dtype=np.int64, count=len(tokens))
        new = np.fromiter(tokens.values(), dtype=np.int64, count=len(tokens))
        held = state.computed[requests]
        reads = (state.made[requests] == 0) | (new > 1)
        state.computed[requests] += new
        gets = state.computed[requests] == state.prompt[requests] + state.made[requests]
        chunks = list(zip(new[reads].tolist(), held[reads].tolist(), strict=True))
        seconds = self._seconds(held[~reads], chunks, int((gets & reads).sum()))
        self.now += seconds
        self.steps += 1
        self.busy_s += seconds
        self.reading_s += seconds if chunks else 0.0
        self.tokens += int(new.sum())
        self.cache_s += seconds * (1 - state.pool.free / self.engine.blocks)
        self.batch_s += seconds * len(requests)
        return self._give(requests[gets])

    def _seconds(self, contexts: Array, chunks: list[tuple[int, int]], ending: int) -> float:
        """Seconds of a step with the host's part."""
        device = self.times.seconds(contexts, chunks, ending)
        host = self.engine.host_s[0] + self.engine.host_s[1] * (len(contexts) + len(chunks))
        return max(device, host) if self.engine.overlaps else device + host

    def _give(self, requests: Array) -> int:
        """Give requests their next token; those with their last one end."""
        state, output = self.state, self.workload.output
        starts = requests[state.made[requests] == 0]
        self.first_s[starts] = self.now
        state.made[requests] += 1
        ended = requests[state.made[requests] >= output[requests]]
        if len(ended):
            self.last_s[ended] = self.now
            gone = set(ended.tolist())
            state.running = [request for request in state.running if request not in gone]
            for request in gone:
                state.pool.give(int(state.held[request]))
                state.held[request] = 0
            if self.workload.users:
                waiting = np.flatnonzero(np.isinf(self.arrival_s))[: len(gone)]
                self.arrival_s[waiting] = self.now
        return len(ended)
