"""vLLM's V1 scheduler: one budget of tokens for decodes and chunks of prompts, first come first served.

Running requests come first, in the order of their admission; where blocks run out, the last one is preempted.
Waiting ones follow while budget, requests and blocks allow, unless one was preempted in this step.
(vllm/v1/core/sched/scheduler.py, 0.19; `scheduler_reserve_full_isl`: a prompt enters if all of it fits.)
"""

from __future__ import annotations

import numpy as np

from neuralpower.serving.policies.base import POLICIES, Host, Hosts, Planned, State


class VLLM:
    """The policy of vLLM V1."""

    name = "vllm"
    graphs_prompts = True
    # Fitted to 23 closed loops of vLLM 0.12 (Qwen3 32B on 2 to 8 H100s): TPOT off by 1.9 % in the median.
    hosts: Hosts = (
        ((0, 0), Host((0.75e-3, 55e-6), overlaps=False)),
        ((0, 14), Host((0.75e-3, 55e-6), overlaps=True)),  # asynchronous scheduling is the default
    )

    def plan(self, state: State) -> Planned:
        """The next step."""
        planned = Planned()
        budget, preempted = self._running(state, planned)
        while not preempted and state.waiting and budget > 0 and len(state.running) < state.most:
            request = state.waiting[0]
            state.finds(request)
            tokens = min(state.asked(request), budget)
            whole = state.grows(request, state.needed(request))
            if whole > state.pool.free or not state.admits(request, tokens):
                state.leaves(request)
                break
            state.waiting.popleft()
            planned.tokens[request] = tokens
            state.reused += int(state.computed[request]) if not state.made[request] else 0
            budget -= tokens
        return planned

    def _running(self, state: State, planned: Planned) -> tuple[int, bool]:
        """Plan running requests; returns the budget that is left, and whether one was preempted."""
        ready = state.ready
        running = np.array(ready, dtype=int)
        if not len(running):
            return state.budget, False
        need = state.prompt[running] + state.made[running] - state.computed[running]
        if state.draft:
            need += state.draft * ((state.made[running] > 0) & (need == 1))
        tokens = need
        if need.sum() > state.budget:
            tokens = np.clip(state.budget - (np.cumsum(need) - need), 0, need)
        lacking = np.maximum(-(-(state.computed[running] + tokens) // state.block) - state.held[running], 0)
        if state.pool.take(int(lacking.sum())):
            state.held[running] += lacking
            served = tokens > 0
            planned.tokens = dict(zip(running[served].tolist(), tokens[served].tolist(), strict=True))
            return state.budget - int(tokens.sum()), False
        return self._one_by_one(state, planned)

    def _one_by_one(self, state: State, planned: Planned) -> tuple[int, bool]:
        """The same where blocks run out."""
        budget, at, preempted = state.budget, 0, False
        while at < len(ready := state.ready) and budget > 0:
            request = ready[at]
            tokens = min(state.asked(request), budget)
            while not state.takes(request, tokens):
                last = state.ready[-1]
                state.preempts(last)
                preempted = True
                budget += planned.tokens.pop(last, 0)
                if last == request:
                    break
            else:
                planned.tokens[request] = tokens
                budget -= tokens
                at += 1
        return budget, preempted


POLICIES[VLLM.name] = VLLM
