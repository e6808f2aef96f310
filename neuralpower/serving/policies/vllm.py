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
        planned, budget, preempted = self._running(state)
        entered: dict[int, int] = {}
        while not preempted and state.waiting and budget > 0 and len(state.running) < state.most:
            request = state.waiting[0]
            state.finds(request)
            tokens = min(state.asked(request), budget)
            whole = state.grows(request, state.needed(request))
            if whole > state.pool.free or not state.admits(request, tokens):
                state.leaves(request)
                break
            state.waiting.popleft()
            entered[request] = tokens
            state.reused += int(state.computed[request]) if not state.made[request] else 0
            budget -= tokens
        return planned.with_more(entered)

    def _running(self, state: State) -> tuple[Planned, int, bool]:
        """What running requests get, the budget that is left, and whether one was preempted."""
        running = state.ready
        if not len(running):
            return Planned(), state.budget, False
        made, computed = state.made[running], state.computed[running]
        tokens = state.prompt[running] + made - computed
        if state.draft:
            tokens += state.draft * ((made > 0) & (tokens == 1))
        if short := (needed := int(tokens.sum())) > state.budget:
            tokens = np.clip(state.budget - (np.cumsum(tokens) - tokens), 0, tokens)
        lacking = np.maximum(-(-(computed + tokens) // state.block) - state.held[running], 0)
        if not state.pool.take(int(lacking.sum())):
            return self._one_by_one(state)
        state.held[running] += lacking
        if short:
            running, tokens = running[tokens > 0], tokens[tokens > 0]
        return Planned(running, tokens), max(state.budget - needed, 0), False

    def _one_by_one(self, state: State) -> tuple[Planned, int, bool]:
        """The same where blocks run out."""
        budget, at, preempted = state.budget, 0, False
        planned: dict[int, int] = {}
        while at < len(ready := state.ready) and budget > 0:
            request = int(ready[at])
            tokens = min(state.asked(request), budget)
            while not state.takes(request, tokens):
                last = int(state.ready[-1])
                state.preempts(last)
                preempted = True
                budget += planned.pop(last, 0)
                if last == request:
                    break
            else:
                planned[request] = tokens
                budget -= tokens
                at += 1
        return Planned().with_more(planned), budget, preempted


POLICIES[VLLM.name] = VLLM
