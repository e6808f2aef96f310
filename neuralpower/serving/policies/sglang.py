"""SGLang's scheduler: prompts first, in steps of their own, then decodes.

A prompt enters if the pool holds what all running requests may still make, at a share of their answers
(`new_token_ratio`, 0.7 at first). Where a decode step lacks blocks, requests are retracted, the one with the
fewest made tokens first. (python/sglang/srt/managers/schedule_policy.py, 0.5.)
"""

from __future__ import annotations

import numpy as np

from neuralpower.serving.policies.base import POLICIES, Host, Hosts, Planned, State

RATIO = 0.7  # of an answer's tokens that are expected: init_new_token_ratio
CLIPPED = 4_096  # tokens of an answer that are expected at most: CLIP_MAX_NEW_TOKENS


class SGLang:
    """The policy of SGLang without mixed chunks."""

    name = "sglang"
    graphs_prompts = False
    # Read off eight closed loops of SGLang 0.5.6 that wait for the host (Llama 3.1 8B on 4 and 8 H200s).
    hosts: Hosts = (((0, 0), Host((1e-3, 65e-6), overlaps=True)),)

    def plan(self, state: State) -> Planned:
        """The next step."""
        planned: dict[int, int] = {}
        budget = self._prompts(state, planned, state.budget)
        expected = round(RATIO * CLIPPED) * len(state.running)
        while state.waiting and budget > 0 and len(state.running) < state.most:
            request = state.waiting[0]
            state.finds(request)
            tokens = min(state.asked(request), budget)
            room = state.pool.free * state.block - min(expected, state.pool.blocks * state.block // 4)
            if len(state.running) and state.needed(request) > room or not state.admits(request, tokens):
                state.leaves(request)
                break
            state.waiting.popleft()
            planned[request] = tokens
            state.reused += int(state.computed[request]) if not state.made[request] else 0
            budget -= tokens
        return Planned().with_more(planned) if planned else self._decodes(state)

    @staticmethod
    def _prompts(state: State, planned: dict[int, int], budget: int) -> int:
        """Resume prompts that are read in part."""
        ready = state.ready
        made = state.made[ready]
        needed = state.prompt[ready] + made - state.computed[ready]
        for request in ready[(needed > 1) | (made == 0)].tolist():  # drafts come after the whole prompt
            tokens = min(state.needed(request), budget)
            if budget > 0 and state.takes(request, tokens):
                planned[request] = tokens
                budget -= tokens
        return budget

    @staticmethod
    def _decodes(state: State) -> Planned:
        """One token for each request."""
        each = 1 + state.draft
        while True:
            ready = state.ready
            lacking = np.maximum(-(-(state.computed[ready] + each) // state.block) - state.held[ready], 0)
            if state.pool.take(int(lacking.sum())):
                break
            state.preempts(int(ready[state.made[ready].argmin()]))
        state.held[ready] += lacking
        return Planned(ready, np.full(len(ready), each))


POLICIES[SGLang.name] = SGLang
