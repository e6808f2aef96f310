"""Pipeline schedules: which passes a stage runs in which order, and how long a step takes."""

from __future__ import annotations

import itertools

import pytest

from neuralpower.errors import InputError
from neuralpower.prediction.parallel.schedules import Pipeline, ends_s, held, laid_out, orders, step_s

STAGES = 4


def even(schedule: str = "1f1b", pieces: int = 1, stages: int = STAGES, send_s: float = 0.0) -> Pipeline:
    """Equal stages: forward takes 1 s and backward 2 s in all pieces of one."""
    count = stages * pieces
    return Pipeline([1 / pieces] * count, [2 / pieces] * count, [send_s] * count, stages, schedule)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("batches", [1, 2, 4, 9, 40])
def test_equal_stages_wait_for_one_pass_through_all_others(schedule: str, batches: int) -> None:
    assert step_s(even(schedule), batches) == pytest.approx(3 * (batches + STAGES - 1))


@pytest.mark.parametrize("pieces", [2, 3])
def test_pieces_shorten_the_waits_by_their_number(pieces: int) -> None:
    assert step_s(even("interleaved", pieces), 8) == pytest.approx(3 * (8 + (STAGES - 1) / pieces))


def test_one_backward_for_one_forward_keeps_as_many_micro_batches_as_stages_follow() -> None:
    kept = [held(order) for order in orders(even(), 9)]
    assert kept == [{0: STAGES - rank} for rank in range(STAGES)]
    assert all(held(order) == {0: 9} for order in orders(even("gpipe"), 9))
    first = held(orders(even("interleaved", 2), 8)[0])
    # layers of 1 + (stages - 1) / (stages * pieces) networks' first stages: arXiv 2205.05198, section 4.2.3
    assert sum(first.values()) / 2 == STAGES * (1 + (STAGES - 1) / (STAGES * 2))


@pytest.mark.parametrize(("schedule", "pieces"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
def test_each_pass_follows_those_that_it_needs(schedule: str, pieces: int) -> None:
    pipeline = even(schedule, pieces, send_s=0.25)
    when = {}
    for rank, (works, times) in enumerate(laid_out(pipeline, 8)):
        ends = times.end_s[: len(works)]
        begins = times.start_s[: len(works)]
        assert all(a <= b + 1e-9 for a, b in zip(ends, begins[1:], strict=False))
        for work, begin, end in zip(works, begins, ends, strict=True):
            when[work.piece * STAGES + rank, work.batch, work.backward] = begin, end
    last = STAGES * pieces - 1
    assert len(when) == 2 * 8 * STAGES * pieces
    for part, batch in itertools.product(range(last), range(8)):
        assert when[part + 1, batch, False][0] >= when[part, batch, False][1] + 0.25 - 1e-9
        assert when[part, batch, True][0] >= when[part + 1, batch, True][1] + 0.25 - 1e-9
    assert all(when[last, batch, True][0] >= when[last, batch, False][1] - 1e-9 for batch in range(8))


@pytest.mark.parametrize(("schedule", "pieces"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
def test_many_micro_batches_take_what_laying_all_of_them_out_says(schedule: str, pieces: int) -> None:
    forward, backward = [1.0, 1.3, 1.0, 1.6] * pieces, [2.0, 2.2, 2.0, 3.1] * pieces
    pipeline = Pipeline(forward, backward, [0.1] * len(forward), STAGES, schedule)
    for batches in (20, 36):
        whole = [times.end_s[: len(works)].max() for works, times in laid_out(pipeline, batches)]
        assert ends_s(pipeline, batches) == pytest.approx(whole)


def test_forward_passes_alone_go_through_one_after_the_other() -> None:
    pipeline = Pipeline([1.0, 3.0, 1.0], [0.0] * 3, [0.0] * 3, 3)
    assert step_s(pipeline, 1) == pytest.approx(5)
    assert step_s(pipeline, 4) == pytest.approx(5 + 3 * 3)


def test_pieces_need_whole_rounds_of_micro_batches() -> None:
    with pytest.raises(InputError, match="6 micro-batches: interleaved goes over 4 stages in rounds"):
        step_s(even("interleaved", 2), 6)
