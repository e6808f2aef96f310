"""What a policy sees and decides."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from neuralpower.errors import InputError, unknown
from neuralpower.serving.pool import BlockPool

Array = np.ndarray
NONE = np.zeros(0, dtype=np.int64)


@dataclass
class State:
    """The engine between two steps; arrays are [requests], lists hold requests by number."""

    prompt: Array  # tokens
    made: Array  # tokens that each has been given
    computed: Array  # tokens in the cache
    held: Array  # blocks
    pool: BlockPool
    block: int  # tokens
    budget: int  # most new tokens of a step
    most: int  # most requests of a step
    prefix: Array  # tokens of each prompt that others have left in the cache
    draft: int = 0  # tokens that a decode verifies besides its own
    names: Sequence[Sequence[int]] = ()  # of each request: what its prompt's parts hold, where that is known
    named: int = 0  # tokens of such a part
    brought: Array | None = None  # tokens of each request that come with it from another engine
    waiting: deque[int] = field(default_factory=deque)
    running: Array = field(default_factory=lambda: NONE)  # in the order of their admission
    flying: set[int] = field(default_factory=set)  # of these: in a step that has not ended
    preemptions: int = 0
    recomputed: int = 0  # tokens
    reused: int = 0  # tokens of prompts that were found in the cache
    _joined: dict[int, list[int]] = field(default_factory=dict)  # request -> names whose blocks it shares

    @property
    def ready(self) -> Array:
        """Running requests that a step may take."""
        if not self.flying:
            return self.running
        return self.running[[one not in self.flying for one in self.running.tolist()]]

    def needed(self, request: int) -> int:
        """Tokens that a request has to compute before it gets the next one."""
        return int(self.prompt[request] + self.made[request] - self.computed[request])

    def asked(self, request: int) -> int:
        """The same, and what a decode verifies besides."""
        needed = self.needed(request)
        return needed + self.draft if self.made[request] and needed == 1 else needed

    def grows(self, request: int, tokens: int) -> int:
        """Blocks that a request lacks for its next tokens."""
        return -(-int(self.computed[request] + tokens) // self.block) - int(self.held[request])

    def takes(self, request: int, tokens: int) -> bool:
        """Take the blocks for the next tokens of a request; False where too few are free."""
        count = max(self.grows(request, tokens), 0)
        if not self.pool.take(count):
            return False
        self.held[request] += count
        return True

    def admits(self, request: int, tokens: int) -> bool:
        """Admit a waiting request that computes `tokens` of those that the cache lacks."""
        if not self.takes(request, tokens):
            return False
        self.running = np.append(self.running, request)
        return True

    def finds(self, request: int) -> None:
        """Let a waiting request find what the cache still holds of it, all but its last token at most."""
        whole = int(self.prompt[request] + self.made[request])
        if self.brought is not None and (tokens := int(self.brought[request])):
            if self.pool.take(blocks := -(-tokens // self.block)):
                self.held[request], self.computed[request] = blocks, tokens
            return
        if self.names:
            self._joins(request, whole)
            return
        shared = min(int(self.prefix[request]), whole - 1) // self.block
        most = max((whole - 1) // self.block - shared, 0)
        own = self.pool.reuse(request, most) if self.pool.found(request) > shared else 0
        lacking = 0 if own else shared
        if lacking and not self.pool.take(lacking):
            lacking = 0
        self.held[request] = own + lacking
        self.computed[request] = self.held[request] * self.block

    def _joins(self, request: int, whole: int) -> None:
        """Share the blocks of a prompt's parts that others have, or had: as many as follow each other."""
        part = self.named // self.block
        joined: list[int] = []
        for name in self.names[request][: min((whole - 1), int(self.prompt[request])) // self.named]:
            if not self.pool.join(_key(name), part):
                break
            joined.append(name)
        self._joined[request] = joined
        self.held[request] = len(joined) * part
        self.computed[request] = self.held[request] * self.block

    def read(self, request: int) -> None:
        """Let others find a prompt that has been read."""
        if self.names:
            joined = self._joined.setdefault(request, [])
            whole = int(self.prompt[request]) // self.named
            for name in self.names[request][len(joined) : whole]:
                if not self.pool.share(_key(name)):
                    break
                joined.append(name)

    def ends(self, request: int, name: int | None = None) -> None:
        """Free all blocks of a request; under a name, what no other shares is found again."""
        part = self.named // self.block if self.names else 0
        joined = self._joined.pop(request, [])
        self.pool.give(int(self.held[request]) - part * len(joined), None if self.names else name)
        for one in reversed(joined):
            self.pool.part(_key(one), part)
        self.held[request] = self.computed[request] = 0

    def leaves(self, request: int) -> None:
        """Take back what `finds` has given: the request stays outside."""
        self.ends(request, request)

    def preempts(self, request: int) -> None:
        """Stop a running request; it waits in front, and computes its tokens again."""
        self.running = self.running[self.running != request]
        self.preemptions += 1
        self.recomputed += int(self.computed[request])
        self.leaves(request)
        if self.brought is not None:
            self.brought[request] = 0
        self.waiting.appendleft(request)


def _key(name: int) -> int:
    """The name of a part among those of requests."""
    return -1 - name


@dataclass(frozen=True)
class Planned:
    """A step: the requests in it, and the new tokens of each."""

    requests: Array = field(default_factory=lambda: NONE)
    tokens: Array = field(default_factory=lambda: NONE)

    def with_more(self, tokens: Mapping[int, int]) -> Planned:
        """The step with further requests, and the new tokens of each."""
        if not tokens:
            return self
        more = np.array(list(tokens.items()))
        return Planned(*np.concatenate([np.stack([self.requests, self.tokens], 1), more]).T)


@dataclass(frozen=True)
class Host:
    """What an engine's host takes for each step."""

    seconds: tuple[float, float]  # for a step, and for each request in it
    overlaps: bool  # whether it plans a step while the one before it runs


Hosts = Sequence[tuple[tuple[int, int], Host]]
"""By the version since which they are so, the oldest first."""


class Policy(Protocol):
    """How an engine chooses what its next step holds."""

    name: str
    graphs_prompts: bool  # whether steps that read prompts are replayed as graphs, too
    hosts: Hosts

    def plan(self, state: State) -> Planned:
        """The next step; requests are admitted and preempted in `state`. An empty one waits for arrivals."""
        ...


POLICIES: dict[str, type[Policy]] = {}
"""By the engine's name."""


def policy_of(name: str) -> Policy:
    """A policy by its engine's name; raises InputError."""
    if name not in POLICIES:
        raise InputError(unknown("policy", name, POLICIES))
    return POLICIES[name]()


def host_of(name: str, version: str | None) -> Host:
    """The host of an engine's version, by default of its newest; raises InputError as `policy_of`."""
    hosts = policy_of(name).hosts
    numbers = re.match(r"v?(\d+)\.(\d+)", str(version or ""))
    if numbers is None:
        return hosts[-1][1]
    known = [host for since, host in hosts if since <= (int(numbers[1]), int(numbers[2]))]
    return known[-1] if known else hosts[0][1]
