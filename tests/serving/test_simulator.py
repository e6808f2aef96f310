"""Continuous batching: requests, tokens and blocks are never lost, and times are in order."""

from __future__ import annotations

import dataclasses
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuralpower.errors import InputError
from neuralpower.serving import simulator
from neuralpower.serving.pool import BlockPool
from neuralpower.serving.simulator import Engine, Served, simulate
from neuralpower.serving.step_times import StepTimes
from neuralpower.serving.workload import Workload, drawn, looped


class Linear:
    """Steps of 1 ms, 10 us a token and 0.1 us a cached token of a decode."""

    budget, requests, longest = 10_000, 1_000, 100_000

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def seconds(self, contexts: np.ndarray, chunks: list[tuple[int, int]], ending: int) -> float:
        tokens = len(contexts) + sum(new for new, _ in chunks)
        assert ending <= len(chunks)
        self.steps.append((len(contexts) + len(chunks), tokens))
        return 1e-3 + 1e-5 * tokens + 1e-7 * float(contexts.sum())


def served(workload: Workload, engine: Engine, times: Linear | None = None) -> Served:
    (found,) = simulate(workload, engine, cast(StepTimes, times or Linear()))
    return found


def random_case(seed: int) -> tuple[Workload, Engine]:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 60))
    prompt, output = random.integers(1, 400, count), random.integers(1, 60, count)
    arrival = np.sort(random.exponential(1.0, count)) * random.choice([0.0, 0.1, 10.0])
    users = int(random.choice([0, 0, 1, 5]))
    block = int(random.choice([1, 16, 32]))
    least = int(-(-(prompt + output).max() // block))
    engine = Engine(
        blocks=least + int(random.choice([0, 3, 1_000])),
        block=block,
        budget=int(random.choice([16, 64, 2_048])),
        requests=int(random.choice([1, 4, 256])),
        policy=str(random.choice(["vllm", "sglang"])),
        overlaps=bool(random.integers(2)),
        prefix_hit=float(random.choice([0.0, 0.0, 0.5])),
        stages=int(random.choice([1, 1, 3])),
    )
    return Workload(np.zeros(0) if users else arrival, prompt, output, users), engine


@pytest.mark.parametrize("seed", range(60))
def test_no_request_is_lost_and_each_ones_times_are_in_order(seed: int) -> None:
    workload, engine = random_case(seed)
    times = Linear()
    found = served(workload, engine, times)
    assert np.isfinite(found.first_s).all() and np.isfinite(found.last_s).all()
    assert (found.first_s > found.arrival_s).all() and (found.last_s >= found.first_s).all()
    assert ((found.last_s == found.first_s) == (workload.output == 1)).all()
    assert max(requests for requests, _ in times.steps) <= engine.requests
    assert max(tokens for _, tokens in times.steps) <= max(engine.budget, engine.requests)
    least = int((workload.prompt + workload.output - 1).sum())
    if not engine.prefix_hit:  # a preempted request may find its own blocks again
        assert least <= found.tokens <= least + found.recomputed
    assert found.tokens == sum(tokens for _, tokens in times.steps)
    assert 0 <= found.cache_share <= 1


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_a_request_alone_takes_its_prefill_and_its_steps(policy: str) -> None:
    workload = Workload(np.zeros(1), np.array([100]), np.array([3]))
    found = served(workload, Engine(100, policy=policy, host_s=(0.0, 0.0)))
    assert found.ttft_s[0] == pytest.approx(1e-3 + 100e-5)
    assert found.tpot_s[0] == pytest.approx(1e-3 + 1e-5 + 1e-7 * 100.5)
    assert found.steps == 3


def test_a_prompt_longer_than_the_budget_is_read_in_chunks() -> None:
    times = Linear()
    served(Workload(np.zeros(1), np.array([100]), np.array([1])), Engine(100, budget=40), times)
    assert times.steps == [(1, 40), (1, 40), (1, 20)]


def test_the_host_is_added_or_hidden() -> None:
    workload = Workload(np.zeros(1), np.array([10]), np.array([2]))
    alone, hidden, added = (
        served(workload, Engine(10, host_s=(host, 0.0), overlaps=overlaps)).last_s[0]
        for host, overlaps in ((0.0, True), (5e-4, True), (5e-4, False))
    )
    assert hidden == pytest.approx(alone)
    assert added == pytest.approx(alone + 2 * 5e-4)


def test_littles_law_holds_over_a_long_run() -> None:
    workload = drawn(1_500, 64, 32, rate=20.0, spread=0.5, seed=3)
    found = served(workload, Engine(100_000))
    inside = np.concatenate([np.ones(1_500), -np.ones(1_500)])
    events = np.concatenate([found.arrival_s, found.last_s])
    order = np.argsort(events)
    there = np.cumsum(inside[order])[:-1]
    mean = float((there * np.diff(events[order])).sum() / found.duration_s)
    assert mean == pytest.approx(1_500 / found.duration_s * found.latency_s.mean(), rel=0.02)


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    one, again, other = (drawn(200, 64, 16, rate=30.0, spread=0.3, seed=s) for s in (1, 1, 2))
    assert (served(one, Engine(1_000)).last_s == served(again, Engine(1_000)).last_s).all()
    assert not (served(one, Engine(1_000)).last_s == served(other, Engine(1_000)).last_s).all()


@pytest.mark.parametrize("change", [{"budget": 512}, {"blocks": 400}, {"requests": 64}])
def test_more_of_anything_serves_no_fewer(change: dict[str, int]) -> None:
    workload = drawn(300, 100, 40, rate=200.0, spread=0.5, seed=5)
    small = Engine(120, budget=256, requests=32)
    less, more = served(workload, small), served(workload, dataclasses.replace(small, **change))
    assert more.duration_s <= 1.01 * less.duration_s


def test_at_a_rate_of_nearly_0_each_request_is_alone() -> None:
    workload = drawn(20, 50, 10, rate=1e-3)
    found = served(workload, Engine(1_000, host_s=(0.0, 0.0)))
    assert found.ttft_s == pytest.approx(np.full(20, 1e-3 + 50e-5))


def test_users_of_a_closed_loop_wait_for_their_answers() -> None:
    found = served(looped(30, 20, 5, users=3), Engine(1_000))
    order = np.argsort(found.arrival_s, kind="stable")
    last = np.sort(found.last_s)
    assert (found.arrival_s[order][:3] == 0).all()
    assert found.arrival_s[order][3:] == pytest.approx(last[:27])


def test_a_preempted_request_finds_its_first_blocks_again() -> None:
    pool = BlockPool(10)
    assert pool.take(8)
    pool.give(6, name=1)  # 2 blank ones and its 6 are free
    assert pool.take(4)  # the 2 blank ones, and its last 2
    assert pool.found(1) == 4
    assert pool.reuse(1, most=3) == 3
    assert pool.free == 1 and not pool.take(2)


def test_a_request_that_the_cache_cannot_hold_is_named() -> None:
    workload = Workload(np.zeros(2), np.array([10, 400]), np.array([5, 5]))
    with pytest.raises(InputError, match="request 2 takes 405 tokens, and the cache holds 160"):
        served(workload, Engine(10))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"rate": 0.0}, "rate 0"),
        ({"rate": float("nan")}, "rate nan"),
        ({"rate": -1.0}, "rate -1"),
        ({"rate": 1.0, "burstiness": 0.0}, "burstiness 0"),
        ({"rate": 1.0, "spread": 1.0}, "spread 1"),
    ],
)
def test_traffic_that_cannot_be_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        drawn(10, 10, 10, **how)


def test_a_loop_without_users_is_refused() -> None:
    with pytest.raises(InputError, match="users -3"):
        looped(10, 10, 10, -3)


def test_settings_that_cannot_be_are_refused() -> None:
    for change in ({"blocks": 0}, {"budget": 0}, {"requests": 0}, {"prefix_hit": 1.0}):
        with pytest.raises(InputError):
            Engine(**{"blocks": 10, **change})
    with pytest.raises(InputError, match="unknown policy 'orca'"):
        served(drawn(1, 1, 1, rate=1.0), Engine(10, policy="orca"))


def test_a_constant_rate_is_even_and_bursts_are_not() -> None:
    even, poisson, bursts = (
        np.diff(drawn(2_000, 1, 1, rate=4.0, burstiness=shape).arrival_s) for shape in (np.inf, 1.0, 0.25)
    )
    assert even == pytest.approx(np.full(1_999, 0.25))
    assert poisson.mean() == pytest.approx(0.25, rel=0.1) and bursts.mean() == pytest.approx(0.25, rel=0.2)
    assert bursts.std() > 1.5 * poisson.std()


# ---- shared prompts, drafts, ranks and stages ----


def named(names: list[tuple[int, ...]], tokens: int, **more: Any) -> Workload:
    count = len(names)
    arrival = np.arange(count) * 100.0
    prompt = np.full(count, tokens)
    return Workload(arrival, prompt, np.full(count, 2), prefixes=tuple(names), **more)


def test_a_prompt_whose_beginning_others_had_is_read_from_there() -> None:
    workload = named([(1, 2, 3), (1, 2, 4), (5, 2, 3)], 96, named=32)
    times = Linear()
    found = served(workload, Engine(100), times)
    assert [tokens for _, tokens in times.steps if tokens > 1] == [96, 32, 96]
    assert found.reused == 64


def test_what_was_used_least_recently_makes_room() -> None:
    workload = named([(1, 2), (3, 4), (1, 2), (5, 6), (3, 4)], 64, named=32)
    found = served(workload, Engine(10))  # a request takes 5 of 10 blocks
    assert found.reused == 32  # the third finds its first half; of the last nothing is left
    assert served(workload, Engine(100)).reused == 64  # all but the last token, in whole parts


def test_blocks_of_shared_prompts_are_all_free_in_the_end() -> None:
    random = np.random.default_rng(3)
    names = [tuple(random.integers(0, 4, 3).tolist()) for _ in range(60)]
    workload = Workload(
        np.sort(random.uniform(0, 0.2, 60)),
        np.full(60, 96),
        random.integers(1, 30, 60),
        prefixes=tuple(names),
        named=32,
    )
    for policy in ("vllm", "sglang"):
        found = served(workload, Engine(24, policy=policy))
        assert np.isfinite(found.last_s).all() and found.reused > 0


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 1.0])
def test_drafted_tokens_that_are_accepted_take_no_step_of_their_own(acceptance: float) -> None:
    workload = Workload(np.zeros(1), np.array([10]), np.array([4_001]))
    found = served(workload, Engine(1_000, draft=3, acceptance=acceptance))
    expected = sum(acceptance**i for i in range(4))  # tokens of a step
    assert found.steps - 1 == pytest.approx(4_000 / expected, rel=0.03)
    assert found.last_s[0] > found.first_s[0]


def test_data_ranks_go_in_step_and_the_slowest_sets_the_pace() -> None:
    workload = Workload(np.zeros(2), np.array([10, 400]), np.array([1, 1]))
    alone = served(Workload(np.zeros(1), np.array([400]), np.array([1])), Engine(100)).last_s[0]
    both = simulate(workload, Engine(100, data=2), cast(StepTimes, Linear()))
    assert [float(part.last_s[0]) for part in both] == pytest.approx([alone, alone])


def test_stages_take_more_requests_but_none_is_faster() -> None:
    workload = drawn(200, 64, 16, rate=1e5, seed=1)
    one, four = (served(workload, Engine(10_000, budget=64, stages=stages)) for stages in (1, 4))
    assert four.duration_s < 0.7 * one.duration_s
    single = Workload(np.zeros(1), np.array([50]), np.array([9]))
    first, piped = (served(single, Engine(100, stages=stages)) for stages in (1, 4))
    assert piped.last_s == pytest.approx(first.last_s)


def test_requests_that_bring_their_cache_only_decode() -> None:
    times = Linear()
    workload = Workload(np.zeros(3), np.array([100, 200, 300]), np.array([5, 5, 5]))
    found = served(workload, Engine(100, brings=True), times)
    assert times.steps == [(3, 3)] * 4
    assert (found.ttft_s == 0).all()


def test_gaps_are_between_tokens_and_add_up_to_each_answer() -> None:
    found = served(drawn(50, 64, 16, rate=50.0, seed=2), Engine(1_000))
    assert len(found.itl_s) == 50 * 15
    assert found.itl_s.sum() == pytest.approx((found.last_s - found.first_s).sum())


def test_the_blocks_of_a_pool_are_neither_lost_nor_doubled() -> None:
    pool = BlockPool(8)
    assert pool.take(4) and pool.share(7) and not pool.share(7)
    assert pool.join(7, 4) and not pool.join(8, 4)
    pool.part(7, 4)
    assert pool.free == 4  # another still holds them
    pool.part(7, 4)
    assert pool.free == 8 and pool.found(7) == 4
    assert pool.take(6) and pool.found(7) == 2 and not pool.join(7, 4)


@pytest.mark.parametrize(
    "change", [{"draft": -1}, {"draft": 3, "acceptance": 1.5}, {"draft": 300, "budget": 256}, {"stages": 0}]
)
def test_drafts_and_ranks_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Engine(**{"blocks": 10, **change})


# ---- properties, whatever is asked ----

SOME = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class Watched(BlockPool):
    """A pool that never has fewer blocks than none, nor more than all."""

    def _check(self) -> None:
        assert 0 <= self.free <= self.blocks
        assert self._blank >= 0 and self._blank + sum(self._kept.values()) == self.free

    def take(self, count: int) -> bool:
        found = super().take(count)
        self._check()
        return found

    def give(self, count: int, name: int | None = None) -> None:
        super().give(count, name)
        self._check()


@st.composite
def asked(draw: st.DrawFn, **fixed: Any) -> tuple[Workload, Engine]:
    """Requests and an engine that can serve each of them alone."""
    count = draw(st.integers(1, 40))
    sizes = st.lists(st.integers(1, 300), min_size=count, max_size=count)
    prompt, output = np.array(draw(sizes)), np.array(draw(sizes)) // 6 + 1
    users = draw(st.sampled_from([0, 0, 1, 4]))
    gaps = draw(st.lists(st.sampled_from([0.0, 1e-3, 0.05, 3.0]), min_size=count, max_size=count))
    block, draft = draw(st.sampled_from([1, 16, 32])), draw(st.sampled_from([0, 0, 3]))
    least = int(-(-((prompt + output).max() + draft) // block))
    named = draw(st.sampled_from([0, 0, 32]))
    names = tuple(
        tuple(draw(st.integers(0, 2)) * 10_000 + part for part in range(-(-int(tokens) // named)))
        if named
        else ()
        for tokens in prompt
    )
    settings_: dict[str, Any] = {
        "blocks": least + draw(st.sampled_from([0, 2, 10, 1_000])),
        "block": block,
        "budget": draw(st.sampled_from([8, 64, 2_048])),
        "requests": draw(st.sampled_from([1, 3, 256])),
        "policy": draw(st.sampled_from(["vllm", "sglang"])),
        "overlaps": draw(st.booleans()),
        "host_s": draw(st.sampled_from([(0.0, 0.0), (2e-3, 1e-5)])),
        "draft": draft,
        "acceptance": draw(st.sampled_from([0.0, 0.6, 1.0])) if draft else 0.0,
        "stages": 1 if draft else draw(st.sampled_from([1, 1, 2])),
        "data": draw(st.sampled_from([1, 1, 2])),
        "prefix_hit": 0.0 if named else draw(st.sampled_from([0.0, 0.5])),
    }
    arrival = np.zeros(0) if users else np.cumsum(gaps) - gaps[0]
    return Workload(arrival, prompt, output, users, names, named), Engine(**{**settings_, **fixed})


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_a_prompt_whose_last_chunk_is_one_token_gets_its_first_token(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "MOST_STEPS", 1_000)
    engine = Engine(blocks=10, block=16, budget=8, requests=1, policy=policy, draft=3, acceptance=1.0)
    workload = Workload(np.zeros(1), np.array([9]), np.array([5]))
    (part,) = simulate(workload, engine, cast(StepTimes, Linear()), seed=0)
    assert part.steps == 3  # 8 tokens of the prompt, its last one, and a decode that drafts three
    assert part.tokens == 9 + 4


@SOME
@given(asked())
def test_requests_and_tokens_are_kept_and_the_pool_is_never_overdrawn(case: tuple[Workload, Engine]) -> None:
    workload, engine = case
    times = Linear()
    with patch.object(simulator, "BlockPool", Watched):
        parts = simulate(workload, engine, cast(StepTimes, times), seed=3)
    assert sum(len(part.output) for part in parts) == workload.count  # none lost, none doubled
    for name in ("prompt", "output"):
        of_parts = np.concatenate([getattr(part, name) for part in parts])
        assert sorted(of_parts) == sorted(getattr(workload, name))
    for part in parts:
        assert (part.arrival_s < part.first_s).all() and (part.first_s <= part.last_s).all()
        assert np.isfinite(part.last_s).all() and part.last_s.max() == part.duration_s
        least = int((part.prompt + part.output - 1).sum())
        assert part.tokens >= least - part.reused - part.recomputed
        assert part.tokens + part.reused <= least + part.recomputed  # tokens in = tokens out
        if not part.preemptions:
            assert part.tokens + part.reused == least
        assert 0 <= part.cache_share <= 1
        assert len(part.gaps_s) <= int((part.output - 1).sum()) and (part.gaps_s > 0).all()
        if not engine.draft:  # each token after the first one ends a gap
            assert len(part.gaps_s) == int((part.output - 1).sum())
            assert part.gaps_s.sum() == pytest.approx(float((part.last_s - part.first_s).sum()))


@SOME
@given(asked(), st.integers(0, 5))
def test_the_same_seed_gives_the_same(case: tuple[Workload, Engine], seed: int) -> None:
    runs = [simulate(*case, cast(StepTimes, Linear()), seed=seed) for _ in range(2)]
    for one, again in zip(*runs, strict=True):
        assert (one.last_s == again.last_s).all() and (one.first_s == again.first_s).all()


@SOME
@given(asked(data=1), st.sampled_from(["blocks", "budget", "requests"]))
def test_a_request_alone_waits_for_its_prefill_and_each_step(case: tuple[Workload, Engine], _: str) -> None:
    workload, engine = case
    engine = dataclasses.replace(engine, host_s=(0.0, 0.0), prefix_hit=0.0, draft=0, stages=1)
    apart = Workload(np.arange(workload.count) * 1e4, workload.prompt, workload.output)
    found, times = served(apart, engine), Linear()
    for i, tokens in enumerate(workload.prompt.tolist()):
        chunks = [min(engine.budget, tokens - held) for held in range(0, tokens, engine.budget)]
        prefill = sum(times.seconds(np.zeros(0), [(new, 0)], 0) for new in chunks)
        assert found.ttft_s[i] == pytest.approx(prefill, rel=1e-6)
        steps = [times.seconds(np.array([tokens + j]), [], 0) for j in range(int(workload.output[i]) - 1)]
        assert found.latency_s[i] == pytest.approx(prefill + sum(steps), rel=1e-6)


@settings(SOME, max_examples=8)
@given(
    st.integers(0, 100),
    st.sampled_from([0.3, 0.6, 0.9]),
    st.sampled_from(["vllm", "sglang"]),
    st.sampled_from([0.25, 1.0, np.inf]),
)
def test_littles_law_holds(seed: int, load: float, policy: str, burstiness: float) -> None:
    workload = drawn(600, 64, 16, rate=100.0 * load, spread=0.5, burstiness=burstiness, seed=seed)
    found = served(workload, Engine(100_000, policy=policy))
    events = np.concatenate([found.arrival_s, found.last_s])
    order = np.argsort(events, kind="stable")
    inside = np.cumsum(np.where(order < 600, 1, -1))[:-1]
    mean = float((inside * np.diff(events[order])).sum() / found.duration_s)
    assert mean == pytest.approx(600 / found.duration_s * found.latency_s.mean(), rel=0.02)


@settings(SOME, max_examples=15)
@given(st.integers(0, 1_000), st.sampled_from(["vllm", "sglang"]), st.sampled_from(["blocks", "budget"]))
def test_more_budget_or_pool_never_serves_fewer(seed: int, policy: str, what: str) -> None:
    random = np.random.default_rng(seed)
    workload = drawn(
        300, int(random.integers(20, 200)), int(random.integers(4, 60)), rate=1e4, spread=0.5, seed=seed
    )
    small = Engine(
        int(random.integers(60, 400)), policy=policy, budget=int(random.choice([128, 256])), requests=64
    )
    more = dataclasses.replace(small, **{what: getattr(small, what) * int(random.integers(2, 5))})
    assert served(workload, more).duration_s <= 1.01 * served(workload, small).duration_s
