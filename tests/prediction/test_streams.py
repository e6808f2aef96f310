"""Calls on streams of ranks: when each runs, and when all are done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neuralpower.errors import InputError
from neuralpower.learn.launch_overhead import device_end_s
from neuralpower.prediction.streams import At, Plan, Rank, end_s, times_of


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


def step_by_step(issue_s: np.ndarray, seconds: np.ndarray) -> float:
    """One stream and its host, call by call."""
    host = device = 0.0
    for issue, kernel in zip(issue_s, seconds, strict=True):
        host += issue
        device = max(host, device) + kernel
    return device


def test_one_stream_whose_calls_are_there_takes_their_sum() -> None:
    seconds = array(3, 1, 4, 1, 5)
    assert end_s(Plan([Rank(seconds)])) == 14
    (times,) = times_of(Plan([Rank(seconds)]))
    assert times.start_s.tolist() == [0, 3, 4, 8, 9]
    assert times.end_s.tolist() == [3, 4, 8, 9, 14]
    assert end_s(Plan([Rank(array())])) == end_s(Plan([])) == 0


@pytest.mark.parametrize("host", [0.01, 1.0, 100.0], ids=["device-bound", "even", "host-bound"])
def test_one_stream_with_its_host_is_two_clocks(host: float) -> None:
    draw = np.random.default_rng(0)
    seconds, issue = draw.exponential(1e-5, 500), host * draw.exponential(1e-5, 500)
    found = end_s(Plan([Rank(seconds, issue)]))
    assert found == pytest.approx(step_by_step(issue, seconds), rel=1e-12)
    assert found == pytest.approx(device_end_s(issue, seconds), rel=1e-12)
    if host > 1:
        assert found == pytest.approx(issue.sum(), rel=0.01)
    if host < 1:
        assert found == pytest.approx(seconds.sum(), rel=0.01)


def test_the_closed_form_is_what_following_each_call_says() -> None:
    draw = np.random.default_rng(1)
    rank = Rank(draw.exponential(1, 60), draw.exponential(0.5, 60), draw.integers(0, 3, 60))
    (quick,) = times_of(Plan([rank]))
    (alone,) = times_of(Plan([rank], barriers=[[At(0, 0)]]))  # a barrier of one waits for nobody
    assert np.allclose(alone.start_s, quick.start_s) and np.allclose(alone.end_s, quick.end_s)


def test_two_streams_run_beside_each_other_and_an_event_holds_one_back() -> None:
    rank = Rank(array(4, 1, 2), stream=np.array([0, 1, 1]))
    assert end_s(Plan([rank])) == 4
    (times,) = times_of(
        Plan([rank], waits=[(At(0, 2), At(0, 0))])
    )  # the last one reads what the first one writes
    assert times.start_s.tolist() == [0, 0, 4]
    assert times.end_s.tolist() == [4, 1, 6]


def test_the_host_issues_the_calls_of_all_streams_one_after_the_other() -> None:
    rank = Rank(array(1, 1, 1), array(2, 2, 2), np.array([0, 1, 0]))
    (times,) = times_of(Plan([rank]))
    assert times.issued_s.tolist() == [2, 4, 6]
    assert times.end_s.tolist() == [3, 5, 7]


def test_at_a_barrier_the_slower_of_two_ranks_sets_the_pace() -> None:
    ranks = [Rank(array(1, 2, 1)), Rank(array(5, 2, 1))]
    quick, slow = times_of(Plan(ranks, barriers=[[At(0, 1), At(1, 1)]]))
    assert quick.start_s.tolist() == [0, 5, 7]
    assert slow.start_s.tolist() == [0, 5, 7]
    assert end_s(Plan(ranks, barriers=[[At(0, 1), At(1, 1)]])) == 8
    assert end_s(Plan(ranks[:1])) == 4  # alone it waits for nobody


def test_a_slow_host_of_one_rank_holds_the_other_back_at_a_barrier() -> None:
    ranks = [Rank(array(1, 1), array(10, 10)), Rank(array(1, 1), array(1, 1))]
    slow, quick = times_of(Plan(ranks, barriers=[[At(0, 1), At(1, 1)]]))
    assert (slow.start_s[1], quick.start_s[1]) == (20, 20)


def test_barriers_on_streams_of_their_own_may_be_issued_in_another_order() -> None:
    streams = np.array([0, 1])
    ranks = [Rank(array(1, 2), stream=streams), Rank(array(2, 1), stream=streams[::-1])]
    barriers = [[At(0, 0), At(1, 1)], [At(0, 1), At(1, 0)]]
    assert end_s(Plan(ranks, barriers=barriers)) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rank(array(1, 2), array(1)), r"issue_s of shape \(1,\) for 2 calls"),
        (lambda: Rank(array(1, -2)), "seconds holds -2.0: times and streams must be finite"),
        (lambda: Rank(array(1, np.nan)), "seconds holds nan"),
        (lambda: Rank(array(1), array(np.inf)), "issue_s holds inf"),
        (lambda: Rank(array(1), stream=array(0.5)), "streams must be whole numbers"),
        (
            lambda: Plan([Rank(array(1))], waits=[(At(0, 0), At(0, 1))]),
            "call 1 of rank 0 does not exist, but another waits for it",
        ),
        (lambda: Plan([Rank(array(1))], barriers=[[At(1, 0)]]), "call 0 of rank 1"),
        (lambda: Plan([Rank(array(1))], barriers=[[At(0, 0)], [At(0, 0)]]), "at two barriers"),
        (
            lambda: times_of(Plan([Rank(array(1, 1))], waits=[(At(0, 0), At(0, 1))])),
            "wait for one another in a circle",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        make()  # type: ignore[operator]
    assert "\n" not in str(refused.value)


def test_streams_need_no_torch() -> None:
    root = Path(__file__).parents[2]
    program = "import sys, neuralpower.prediction.streams; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)
