"""Fresh memory: what a pass on a CPU fetches anew from the system, as part of its time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neuralpower
from neuralpower.data.dataset import Dataset
from neuralpower.errors import DatasetError
from neuralpower.learn.files import predictor_lookup
from neuralpower.learn.train import _agreed as agreed_datasets
from neuralpower.measure.cpu.timer import Timing
from neuralpower.networks.phases import Phase
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.evaluation import evaluate as evaluation
from neuralpower.prediction.evaluation.evaluate import evaluate
from neuralpower.prediction.memory.allocator_replay import PASS, STEP, fetched
from neuralpower.prediction.memory.fresh_memory import SPREAD
from neuralpower.prediction.memory.glibc_allocator import LARGEST, Heap
from neuralpower.prediction.prediction import FRESH, LAUNCHES, Prediction, fresh_memory_of
from neuralpower.prediction.request import Request
from neuralpower.prediction.rows import Interval
from neuralpower.prediction.timeline import memory_bytes, timed
from neuralpower.trace.lifetimes import ACTIVATIONS, INPUTS, WEIGHTS, Storage
from neuralpower.trace.recipe import Recipe

MIB, PAGE = 1 << 20, 4096
BYTE_S = 1e-9


KEPT = Path(neuralpower.__file__).parent.parent / "models" / "amd-epyc-2c.json"  # times of kept memory


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same predictor where fresh memory costs a nanosecond a byte."""
    predictor = json.loads(KEPT.read_text())
    predictor["hardware"]["fresh_s_per_byte"] = BYTE_S
    file = tmp_path_factory.mktemp("models") / "amd-epyc-2c.json"
    file.write_text(json.dumps(predictor))
    return file


class Maps(nn.Module):
    """Activations of `channels` x 4 x 160 x 160 numbers, one after the other."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(width, channels, 3, padding=1) for width in (3, channels, channels))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution in self.convolutions:
            x = torch.relu(convolution(x))
        return x.mean()


def predicted(predictor: Path, channels: int = 32, **options: Any) -> Prediction:
    inputs = (torch.empty(4, 3, 160, 160),)
    return neuralpower.predict(Maps(channels), inputs, predictor=predictor, **options)


def test_a_heap_counts_what_the_system_gives_it_once_or_again() -> None:
    heap = Heap()
    block = heap.tensor(4 * MIB)
    assert heap.fresh_bytes == pytest.approx(4 * MIB, abs=PAGE)  # mapped
    heap.free(block)  # given back, which raises the threshold: the next one is of the heap
    block = heap.tensor(3 * MIB)
    assert heap.fresh_bytes == pytest.approx(7 * MIB, abs=2 * PAGE)
    heap.free(block)  # less than twice the threshold is free at the end
    block = heap.tensor(2 * MIB)
    assert heap.fresh_bytes == pytest.approx(7 * MIB, abs=2 * PAGE)
    heap.free_all([block, *[heap.tensor(2 * MIB) for _ in range(4)]])  # more than twice it: cut off
    before = heap.fresh_bytes
    heap.tensor(2 * MIB)
    assert heap.fresh_bytes - before > MIB


def test_blocks_above_the_largest_threshold_are_fetched_in_every_pass() -> None:
    size = LARGEST + 8 * MIB
    stored = [Storage(0, None, 64 * MIB, WEIGHTS), Storage(1, 2, size, ACTIVATIONS)]
    found = fetched(stored, PASS)
    assert found.bytes == pytest.approx(size, rel=1e-3)
    assert found.threshold_bytes < LARGEST  # such a block does not raise it


def test_passes_fetch_the_end_of_the_heap_that_was_cut_off_and_raise_the_threshold() -> None:
    stored = [Storage(0, None, 9 * MIB, INPUTS)]
    stored += [Storage(i, i + 3, 8 * MIB, ACTIVATIONS) for i in range(1, 20)]
    found = fetched(stored, PASS)
    assert 8 * MIB < found.bytes < 19 * 8 * MIB
    assert 8 * MIB <= found.threshold_bytes < 9 * MIB
    assert found == fetched(stored, PASS)  # what is drawn is drawn alike
    assert fetched(stored, STEP).bytes > 8 * MIB


def test_passes_of_small_blocks_fetch_next_to_nothing() -> None:
    stored = [Storage(i, i + 1, 64 << 10, ACTIVATIONS) for i in range(1, 40)]
    assert fetched(stored, PASS).bytes < 40 * PAGE


def test_a_pass_takes_its_layers_time_and_that_of_its_fresh_memory(fresh: Path) -> None:
    before, after = predicted(KEPT), predicted(fresh)
    row = fresh_memory_of(after)
    assert row is not None and fresh_memory_of(before) is None
    assert row.bytes > 10 * MIB
    assert row.runtime_s == pytest.approx(row.bytes * BYTE_S)
    assert after.runtime_s.value == pytest.approx(before.runtime_s.value + row.runtime_s)
    assert sum(one.runtime_s for one in after.rows) == pytest.approx(after.runtime_s.value)
    assert [one.kind for one in after.with_launches].count(LAUNCHES) == 0
    # the two parts err apart from each other
    assert after.runtime_s.low < before.runtime_s.value + row.runtime_s / SPREAD
    assert after.runtime_s.high > before.runtime_s.value + row.runtime_s * SPREAD
    assert (after.coverage, after.memory) == (before.coverage, before.memory)


def test_a_pass_with_small_activations_takes_as_long_as_before(fresh: Path) -> None:
    inputs = (torch.empty(32, 784),)
    small = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    before, after = (neuralpower.predict(small, inputs, predictor=one) for one in (KEPT, fresh))
    assert before == after


def test_fresh_memory_is_a_row_of_every_view(fresh: Path) -> None:
    p = predicted(fresh)
    row = fresh_memory_of(p)
    assert row is not None
    for rows in (p.by_kind(), p.by_module(), p.rows):
        assert sum(one.runtime_s for one in rows if one.kind == FRESH) == pytest.approx(row.runtime_s)
    assert "(fresh memory)" in [branch.name for branch in p.tree()]
    assert any(layer["kind"] == FRESH for layer in json.loads(json.dumps(p.to_json()))["layers"])
    table = str(p)
    assert "fresh memory" in table and "MALLOC_TRIM_THRESHOLD_=-1" in table


def test_fresh_memory_has_its_place_at_the_end_of_a_time_line(fresh: Path) -> None:
    predictor = predictor_lookup.load(fresh)
    for phase in ("forward", "training"):
        request = Request("zoo:mobilenet_v2", 2, phase=Phase(phase), recipe=Recipe("sgd"))
        stages: list[Any] = []
        p, _ = predict_request(request, predictor, seen=stages.append)
        calls = timed(stages[0], predictor)
        assert len(memory_bytes(stages[0], calls)) == len(calls) + 1
        assert calls[-1].kind == FRESH
        assert calls[-1].end_s == pytest.approx(p.runtime_s.value, rel=1e-6)


def test_a_steps_parts_are_its_layers_and_fresh_memory_stands_beside_them(fresh: Path) -> None:
    options = {"phase": "training", "optimizer": "sgd"}
    before, after = predicted(KEPT, **options), predicted(fresh, **options)
    assert before.training is not None and after.training is not None
    row = fresh_memory_of(after)
    assert row is not None
    assert after.training.steps == before.training.steps
    parts = sum(one.value for one in after.training.steps.values()) + row.runtime_s
    assert parts == pytest.approx(after.runtime_s.value)


def test_each_of_several_ranks_fetches_what_its_samples_need(fresh: Path) -> None:
    alone, shared = (
        fresh_memory_of(predicted(fresh, phase="training", optimizer="sgd", data_parallel=ranks))
        for ranks in (1, 2)
    )
    assert alone is not None and shared is not None
    assert shared.bytes == alone.bytes


def test_a_sweep_counts_fresh_memory_as_a_prediction_does(fresh: Path) -> None:
    model, batches = Maps(32), (2, 4, 8)
    swept = neuralpower.sweep(
        model, batch_size=batches, inputs=(torch.empty(1, 3, 160, 160),), predictor=fresh
    )
    for batch, point in zip(batches, swept.points, strict=True):
        p = neuralpower.predict(model, (torch.empty(batch, 3, 160, 160),), predictor=fresh)
        assert fresh_memory_of(p) is not None
        assert point.runtime_s == pytest.approx(p.runtime_s.value, rel=0.03)


def test_datasets_of_one_device_may_differ_in_what_was_measured_anew() -> None:
    def dataset(**hardware: float) -> Dataset:
        return Dataset(Path("data"), {"device": "here", "hardware": hardware}, {})

    agreed = agreed_datasets([dataset(cores=2, fresh_s_per_byte=4e-10), dataset(fresh_s_per_byte=5e-10)])
    assert [one.meta["hardware"] for one in agreed] == [
        {"cores": 2, "fresh_s_per_byte": 4e-10},
        {"cores": 2, "fresh_s_per_byte": 5e-10},
    ]
    with pytest.raises(DatasetError, match="cores of 'here' is 4, but another dataset has 2"):
        agreed_datasets([dataset(cores=2), dataset(cores=4)])


# ---- Evaluation: measured as the prediction means it ----


def timing(faults: tuple[int, ...], samples_s: tuple[float, ...]) -> Timing:
    return Timing(samples_s, samples_s[0], 1e-3, 1.0, 0.0, faults, 0.0)


def test_passes_are_compared_at_the_mean_of_their_page_faults() -> None:
    # 10 ms and 1 us a fault; without it a low percentile would be of a pass with few faults
    few_and_many = timing((0, 4000, 2000), (0.010, 0.014, 0.012))
    assert few_and_many.at_mean_faults(1e-6).samples_s == pytest.approx((0.012, 0.012, 0.012))
    assert few_and_many.at_mean_faults(1e-6).faults_per_call == 2000
    assert few_and_many.at_mean_faults(0.0) == few_and_many
    # a fault that is said to take too long makes no pass faster than the fastest
    assert min(few_and_many.at_mean_faults(1e-5).samples_s) == 0.010


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happens: a threshold of the heap, or the number of networks that are timed together."""
    log: list[Any] = []

    def time_calls(calls: list[Any], *_: object, **__: object) -> list[Timing]:
        log.append(f"{len(calls)} together")
        return [timing((0, 3000), (0.010, 0.013)) for _ in calls]

    @contextlib.contextmanager
    def usual_heap(threshold_bytes: int) -> Iterator[None]:
        log.append(threshold_bytes)
        yield
        log.append("over")

    monkeypatch.setattr(evaluation, "usual_heap", usual_heap)
    monkeypatch.setattr(evaluation, "time_calls", time_calls)
    return log


def test_a_network_is_measured_alone_in_the_heap_of_a_plain_loop(fresh: Path, happened: list[Any]) -> None:
    requests = [Request("zoo:mobilenet_v2", 1), Request("zoo:deep_mnist", 1)]
    measured = evaluate(requests, predictor_lookup.load(fresh))
    assert [*happened[1:3], *happened[4:]] == ["1 together", "over"] * 2
    assert happened[0] > happened[3] > MIB  # of bytes: larger activations raise the threshold further
    # the mean is 1,500 faults of 4,096 ns: 6.1 ms more than without, and as much less than with 3,000
    for one in measured:
        assert one.timing.samples_s == pytest.approx((0.010 + 1500 * 4096e-9, 0.010))
    happened.clear()
    first, _ = evaluate(requests, predictor_lookup.load(KEPT))
    assert happened == ["2 together"]
    assert first.timing.samples_s == (0.010, 0.013)


def test_a_sum_of_times_that_err_apart() -> None:
    from neuralpower.prediction.compose import sum_of

    found = sum_of(Interval(10.0, 7.0, 14.0), Interval(5.0, 1.0, 8.0))
    assert (found.value, found.low, found.high) == (15.0, 10.0, 20.0)  # 3 and 4 are 5, twice
