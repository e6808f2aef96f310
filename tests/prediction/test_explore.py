"""Formulas of families, sweeps, comparisons, what fits: against single predictions and written-out sums."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neuralpower.ask.texts import sizes
from neuralpower.devices.names import bytes_of
from neuralpower.errors import InputError, ModelError, PredictorError
from neuralpower.files.csv_files import write_csv
from neuralpower.learn.files import predictor_lookup
from neuralpower.learn.predictor import Predictor
from neuralpower.platforms import CPU
from neuralpower.prediction.case import predict_request
from neuralpower.prediction.compose import compose
from neuralpower.prediction.explore.compare import Side, compare
from neuralpower.prediction.explore.forms import Solver
from neuralpower.prediction.explore.space import Explored, Point, explore
from neuralpower.prediction.explore.sweep import Grid, SweepPoint, pareto, sweep
from neuralpower.prediction.fits import probe
from neuralpower.prediction.fits.fit import fit
from neuralpower.prediction.fits.largest import largest
from neuralpower.prediction.memory.peak import forward_memory
from neuralpower.prediction.request import Request
from neuralpower.prediction.rows import Interval
from neuralpower.report.grid import at_most
from neuralpower.report.number_format import binary
from neuralpower.report.results.explored import fit_table, sweep_table
from neuralpower.trace.tracer import trace
from tests.asking import requested
from tests.program import done, run

TINY = (
    "transformers:llama?hidden_size=32&intermediate_size=64&num_attention_heads=4&"
    "num_key_value_heads=2&vocab_size=100"
)
DEEP = TINY + "&num_hidden_layers=9"


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return predictor_lookup.load("amd-epyc-2c")


# ---- forms ----


def test_monomials_and_sums_of_two_are_found_again() -> None:
    fields = np.array([[1, 8, 2], [2, 8, 2], [4, 16, 4], [3, 24, 2], [7, 40, 8], [5, 64, 4]], dtype=float)
    batch, width, heads = fields.T
    solver = Solver(fields)
    wanted = [  # terms: a coefficient, exponents of batch, width and heads
        ({(3, (1, 2, 0))}, 3 * batch * width**2),
        ({(1, (0, 1, -1))}, width / heads),
        ({(5, (0, 0, 0))}, 0 * batch + 5),
        ({(1, (0, 1, 0)), (4, (0, 0, 1))}, width + 4 * heads),
    ]
    for terms, values in wanted:
        form = solver.solve(tuple(values))
        assert form is not None
        assert set(zip(form.coefficients, form.exponents, strict=True)) == terms
        np.testing.assert_allclose(form(fields), values)
    assert solver.solve(tuple(np.sqrt(width))) is None
    assert solver.solve((0, 1, 2, 3, 4, 5)) is None  # a zero stands for another case


def test_what_is_zero_beyond_a_bound_is_known_on_both_its_sides_and_not_between() -> None:
    heads, size = np.array([2, 4, 8, 2, 4, 8, 2, 4]), np.array([8, 8, 8, 16, 16, 16, 32, 64])
    fields = np.stack([heads * size, heads], axis=1).astype(float)
    runs = np.where(size < 16, size // 2, 0)  # of half a head
    form = Solver(fields).solve(tuple(runs))
    assert form is not None
    np.testing.assert_array_equal(form(fields), runs)
    # sizes 4, 6, 16, 128, and 12, of which the examples say nothing
    others = np.array([[8, 2], [24, 4], [96, 6], [256, 2], [48, 4]], dtype=float)
    np.testing.assert_array_equal(form(others), [2, 3, 0, 0, np.nan])
    np.testing.assert_array_equal(form.scaled(2)(others), [4, 6, 0, 0, np.nan])
    # where the large ones are not zero alone, it is another case
    assert Solver(fields).solve(tuple(np.where(size < 32, 0, size))) is None
    assert Solver(fields).solve((4, 4, *(0,) * 6)) is None  # two examples may be chance


# ---- families ----

STEPS = [5, pytest.param(1, marks=pytest.mark.full)]  # from a point that is compared to the next


@pytest.mark.slow
def test_a_family_is_what_each_of_its_members_is_alone(predictor: Predictor) -> None:
    points = [Point(DEEP, b, s) for b in (1, 2, 3, 5, 8) for s in (1, 16, 24, 33, 48)]
    assert assert_each_is_what_it_is_alone(points, predictor, (0, 3, 7, 12, 24)).traces < len(points)


@pytest.mark.slow
def test_convolutions_need_the_library_and_the_work_space_that_they_have_alone(predictor: Predictor) -> None:
    points = [Point("zoo:squeezenet", batch_size) for batch_size in (1, 2, 3)]
    found = explore(points, predictor)
    for i, point in enumerate(points):
        alone, _ = predict_request(requested("zoo:squeezenet", point.batch_size), predictor)
        assert alone.memory is not None
        assert alone.memory.workspace_bytes > 0
        assert found.memory_bytes[i] == alone.memory.needed_bytes
        moving = alone.memory.activations_bytes + alone.memory.workspace_bytes
        tensors = alone.memory.needed_bytes - alone.memory.framework_bytes
        assert found.memory_high_bytes[i] == found.memory_bytes[i] + CPU.framework.margin_bytes(
            "forward", moving, tensors
        )


@pytest.mark.slow
def test_a_depth_that_does_not_repeat_is_traced_in_full(predictor: Predictor) -> None:
    # gemma 3: every sixth block sees everything, the others a window; four blocks are not two and two more
    name = (
        "transformers:gemma3_text?hidden_size=32&intermediate_size=64&num_attention_heads=4&"
        "num_key_value_heads=2"
        "&vocab_size=100&head_dim=8&num_hidden_layers=7&sliding_window=8"
    )
    points = [Point(name, b, 16) for b in (1, 2, 4)]
    assert_each_is_what_it_is_alone(points, predictor)


SMALL = "hidden_size=32&intermediate_size=64&num_attention_heads=4&num_key_value_heads=2&vocab_size=100"
SEVERAL = {  # sorts of blocks: each with depths at which two or three blocks do not show them all
    "cohere2": f"transformers:cohere2?{SMALL}",
    "deepseek": f"transformers:deepseek_v3?{SMALL}&num_key_value_heads=4&moe_intermediate_size=16",
    "switch": "transformers:switch_transformers?d_model=32&d_kv=8&d_ff=64&num_heads=4&vocab_size=100"
    "&num_experts=2",
}


def assert_each_is_what_it_is_alone(
    points: list[Point], predictor: Predictor, some: Sequence[int] | None = None
) -> Explored:
    """What is found of them, which must be what is predicted of each, or of some."""
    found = explore(points, predictor)
    assert not found.errors
    for i in range(len(points)) if some is None else some:
        alone, traced = predict_request(
            requested(points[i].text, points[i].batch_size, points[i].seq_len), predictor
        )
        said = (found.outcomes.runtime_s[i], found.outcomes.low_s[i], found.outcomes.high_s[i])
        assert said == pytest.approx(
            (alone.runtime_s.value, alone.runtime_s.low, alone.runtime_s.high), rel=1e-9
        )
        assert found.parameters[i] == traced.parameters
        assert alone.memory is not None
        assert found.memory_bytes[i] == alone.memory.needed_bytes
        assert found.outcomes.coverage[i] == pytest.approx(alone.coverage)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            model, id=name, marks=[pytest.mark.full] if name == "switch" else []
        )  # takes the longest
        for name, model in SEVERAL.items()
    ],
)
def test_depths_of_blocks_of_several_sorts_are_what_each_is_alone(model: str, predictor: Predictor) -> None:
    points = [Point(model, 1, 16, changes={"num_hidden_layers": depth}) for depth in (2, 4, 6)]
    assert assert_each_is_what_it_is_alone(points, predictor).basis == ("traced",) * 3
    # nothing is to be extrapolated from two and three blocks; each is its own network all the same
    points = [Point(model, 1, 16, changes={"num_hidden_layers": depth}) for depth in (2, 3)]
    assert_each_is_what_it_is_alone(points, predictor, [1])


def test_a_depth_that_no_override_sets_is_left_alone(predictor: Predictor) -> None:
    name = (
        "transformers:funnel?block_sizes=[2,2]&block_repeats=[1,1]&d_model=32&n_head=2&d_head=16&"
        "d_inner=64&vocab_size=100"
    )
    assert_each_is_what_it_is_alone([Point(name, b, 16) for b in (1, 2)], predictor)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_depths_of_blocks_that_are_alike_take_few_traces(step: int, predictor: Predictor) -> None:
    points = [Point(TINY, 1, 16, changes={"num_hidden_layers": depth}) for depth in range(2, 13)]
    found = assert_each_is_what_it_is_alone(points, predictor, range(0, 11, step))
    assert set(found.basis) == {"formula"}
    assert found.traces == 3  # two, three and twelve blocks


@pytest.mark.slow
def test_a_field_that_shows_in_further_blocks_alone_is_looked_at_there(predictor: Predictor) -> None:
    # three blocks have no expert where the first three or more are dense; of six, small ones have none either
    points = [
        Point(
            SEVERAL["deepseek"],
            batch,
            length,
            changes={"num_hidden_layers": 6, "first_k_dense_replace": first},
        )
        for first, sizes_of in ((6, (8, 16)), (3, (32, 64)))
        for batch in sizes_of
        for length in sizes_of
    ]
    assert_each_is_what_it_is_alone(points, predictor)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_form_says_nothing_beyond_the_members_that_it_was_found_from(
    step: int, predictor: Predictor
) -> None:
    # longt5 fills blocks of 128 up: what multiples have in common, 160 and 200 have not
    local = (
        "transformers:longt5?num_layers=2&num_decoder_layers=2&d_model=32&d_kv=8&d_ff=64&"
        "num_heads=4&vocab_size=100"
    )
    lengths = (*range(128, 1025, 128), 160, 200)
    points = [Point(local, 2, length) for length in lengths]
    found = assert_each_is_what_it_is_alone(points, predictor, (*range(0, 8, step), 8, 9))
    assert found.basis == ("formula",) * 8 + ("traced",) * 2
    assert found.traces < len(lengths)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_width_that_is_another_parts_is_a_network_of_its_own(step: int, predictor: Predictor) -> None:
    # between embeddings and blocks of one width Electra has no projection
    electra = (
        "transformers:electra?embedding_size=32&num_attention_heads=2&num_hidden_layers=2&vocab_size=100"
    )
    points = [
        Point(electra, 1, 8, changes={"hidden_size": width, "intermediate_size": inner})
        for width in (8, 16, 24, 32, 40, 48, 56, 64)
        for inner in (16, 32, 48, 64, 80, 96, 112, 128)  # which is as wide as the embeddings in another way
    ]
    found = assert_each_is_what_it_is_alone(points, predictor, range(0, 64, step))
    assert found.traces < len(points) / 2


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_lengths_on_both_sides_of_a_window_have_forms_of_their_own(step: int, predictor: Predictor) -> None:
    window = f"transformers:mistral?{SMALL}&num_hidden_layers=2&sliding_window=64"
    points = [Point(window, batch, length) for length in range(16, 161, 16) for batch in (1, 2, 4)]
    found = assert_each_is_what_it_is_alone(points, predictor, range(0, 30, step))
    assert set(found.basis) == {"formula"}
    assert found.traces < len(points)


@pytest.mark.slow
def test_a_point_that_cannot_be_built_leaves_the_others(predictor: Predictor) -> None:
    found = explore([Point(DEEP, 1, 16), Point("transformers:nothing_of_the_kind", 1, 16)], predictor)
    assert list(found.errors) == [1]
    assert found.basis[1] == "traced"  # no formula speaks for it
    assert np.isfinite(found.outcomes.runtime_s[0])
    assert np.isnan(found.outcomes.runtime_s[1])


def test_a_module_in_hand_is_swept(predictor: Predictor) -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )

    def one(batch: int) -> float:
        return compose(
            trace(module, (torch.zeros(batch, 3, 16, 16),)), predictor, model="", batch_size=batch
        ).runtime_s.value

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x.view(-1, 3, 16, 16))

    found = sweep(Request(Sized()), [predictor], Grid(batch_sizes=(1, 2, 8), lengths=(768,)))
    assert [p.runtime_s for p in found.points] == pytest.approx([one(b) for b in (1, 2, 8)], rel=1e-9)


# ---- sweeps ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", (1,)), ("1:8", (1, 2, 4, 8)), ("3:20", (3, 6, 12)), ("1,5,5", (1, 5)), ("4:8:2,1", (4, 6, 8, 1))],
)
def test_sizes_are_lists_doublings_and_steps(text: str, expected: tuple[int, ...]) -> None:
    assert sizes(text, "batch size") == expected


@pytest.mark.parametrize("text", ["", "0", "8:1", "a", "1:8:0", "-1", "1:", "1:9999999999:1"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="batch size"):
        sizes(text, "batch size")


def test_the_front_is_what_nothing_else_beats_in_both() -> None:
    # (1, 9) and (3, 2) and (2, 4) are beaten by none; (2, 5) by (2, 4); (4, 2) by (3, 2)
    assert pareto(np.array([1.0, 2, 2, 3, 4]), np.array([9.0, 5, 4, 2, 2])) == [0, 2, 3]
    # neither of two equals beats the other
    assert pareto(np.array([1.0, 1, 2, 2]), np.array([9.0, 9, 9, 5])) == [0, 1, 3]
    assert pareto(np.array([]), np.array([])) == []


def test_a_sweep_knows_what_fits_and_writes_its_points(predictor: Predictor, tmp_path: Path) -> None:
    free = sweep(Request("zoo:deep_mnist"), [predictor], Grid(batch_sizes=(1, 64)))
    assert [p.fits for p in free.points] == [None, None]  # no sheet says how much memory this device has
    room = sum(p.memory_high_bytes or 0 for p in free.points) / 2 + CPU.framework.process_bytes
    found = sweep(Request("zoo:deep_mnist"), [predictor], Grid(batch_sizes=(1, 64), memory_bytes=room))
    assert [p.fits for p in found.points] == [True, False]
    assert not any(p.best for p in found.points if not p.fits)
    lines = [SweepPoint.__dataclass_fields__, *(vars(p).values() for p in found.points)]
    write_csv(tmp_path / "s.csv", lines)
    rows = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))
    assert [float(row["runtime_s"]) for row in rows] == [p.runtime_s for p in found.points]
    with pytest.raises(InputError, match="cannot be written"):
        write_csv(tmp_path / "s.csv" / "s.csv", lines)
    with pytest.raises(PredictorError, match="was not trained on dtype 'bfloat16'"):
        sweep(Request(DEEP), [predictor], Grid(dtypes=("bfloat16",)))
    with pytest.raises(InputError, match="points: a sweep takes at most"):
        sweep(Request(DEEP), [predictor], Grid(batch_sizes=range(1, 20_000)))


# ---- comparisons ----


def side(model: nn.Module, predictor: Predictor, name: str, rows: int = 64) -> Side:
    traced = trace(model, (torch.zeros(rows, 64),))
    return Side(name, compose(traced, predictor, model=name, batch_size=rows), predictor)


def test_a_network_compared_with_itself_is_even(predictor: Predictor) -> None:
    one = side(nn.Linear(64, 64), predictor, "one")
    found = compare(one, one)
    assert (found.ratio.value, found.ratio.low, found.ratio.high, found.a_faster) == (1, 1, 1, 0.5)


def test_errors_that_both_have_go_out_of_the_ratio(predictor: Predictor) -> None:
    # the same layers, ten more of them: hardly anything of the interval of either is left in their ratio
    anywhere = replace(predictor, resident=0.0)  # no matter how much of the cache either fills
    ten, eleven = (
        side(nn.Sequential(*(nn.Linear(64, 64) for _ in range(n))), anywhere, str(n)) for n in (10, 11)
    )
    found = compare(ten, eleven)
    assert found.ratio.value == pytest.approx(10 / 11, rel=1e-6)
    alone = ten.runtime_s.high / ten.runtime_s.low
    assert found.ratio.high / found.ratio.low <= alone**1.5
    assert found.a_faster > 0.5


def test_two_predictors_share_no_errors() -> None:
    # half-widths of 10 % each, in logarithms: together sqrt(2) log(1.1); equal times: even
    a = predictor_lookup.load("amd-epyc-2c")
    b = replace(a)
    traced = trace(nn.Linear(4, 4), (torch.zeros(1, 4),))
    even = Interval(1.0, 1 / 1.1, 1.1)
    predicted = replace(compose(traced, a, model="a", batch_size=1), runtime_s=even)
    found = compare(Side("a", predicted, a), Side("b", predicted, b))
    assert found.ratio.high == pytest.approx(1.1 ** (2**0.5))
    assert found.a_faster == pytest.approx(0.5)


def test_what_takes_no_time_is_not_compared(predictor: Predictor) -> None:
    nothing, one = side(nn.Identity(), predictor, "nothing"), side(nn.Linear(64, 64), predictor, "one")
    for pair in ((nothing, nothing), (nothing, one), (one, nothing)):
        with pytest.raises(
            InputError,
            match="nothing: its time is 0 s, a ratio needs more than 0; compare networks with layers",
        ):
            compare(*pair)


# ---- what fits ----


@pytest.mark.parametrize(
    ("bytes_at", "room", "answer"),
    [
        (lambda n: 10 + 3 * n, 100, 30),
        (lambda n: 10 + 3 * n, 12, 0),
        (lambda n: 7 * n + 0.5 * n**2, 1000, 38),
        (lambda n: 5 if n <= 64 else float("inf"), 10, 64),
        (lambda n: n if n <= 1000 else float("inf"), 5000, 1000),
    ],
)
def test_the_largest_size_is_found_with_few_looks(
    bytes_at: Callable[[int], float], room: float, answer: int
) -> None:
    # 10 + 3 x 30 = 100; 10 + 3 > 12; 7 x 38 + 722 = 988, 39: 1033.5; the last two end where sizes end
    looked: list[int] = []

    def counted(size: int) -> float:
        looked.append(size)
        return bytes_at(size)

    assert largest(counted, room) == answer
    assert len(looked) <= 24


def test_beyond_a_hundred_the_answer_is_near_and_on_the_safe_side() -> None:
    found = largest(lambda n: 3.0 * n + 17, 1e6)
    exact = int((1e6 - 17) / 3)
    assert 0.98 * exact <= found <= exact


@pytest.mark.slow
def test_what_fits_has_been_looked_at_and_the_next_does_not() -> None:
    room = 2 * CPU.framework.forward_bytes + 10e6
    found = fit(requested(DEEP, 2, 16), room + CPU.framework.process_bytes)
    assert found.fits
    assert found.memory.high_bytes <= room
    assert found.largest_batch is not None
    assert found.longest is not None

    def high(batch: int, length: int) -> int:
        return predicted(batch, length)

    assert high(found.largest_batch, 16) <= room
    assert high(int(found.largest_batch * 1.03) + 1, 16) > room
    assert high(2, found.longest) <= room


def predicted(batch: int, length: int) -> int:
    from neuralpower.networks.sources import InputRequest, resolve

    source = resolve(DEEP)
    module = source.build("meta")
    inputs = source.inputs(module, InputRequest(batch, length))
    return forward_memory(trace(module, inputs.args, inputs.kwargs)).high_bytes


def test_one_trace_is_no_traces(predictor: Predictor) -> None:
    swept = sweep(Request("zoo:deep_mnist"), [predictor], Grid())
    with at_most(None):
        table = sweep_table(swept, 0)
    assert table.endswith("\n" + "\n".join(f"Note: {note}" for note in swept.notes))
    assert any("allocator" in note for note in swept.notes)
    (point,) = swept.points
    assert binary(point.memory_high_bytes) in table
    request = requested("zoo:deep_mnist")
    found = replace(fit(request, 1e9), traces=1)
    assert "\n1 trace, checked against the memory's upper bound plus " in fit_table(
        found, request, "as given", detailed=True
    )
    assert "trace" not in fit_table(found, request, "as given")


def test_what_is_wrong_with_a_point_ends_at_a_word(predictor: Predictor) -> None:
    swept = sweep(Request("zoo:deep_mnist"), [predictor], Grid())
    failed = replace(
        swept.points[0],
        low_s=None,
        error="hidden_size 7 is no multiple of num_attention_heads 2; choose another",
    )
    assert "of num_attention_heads 2; ..." in sweep_table(replace(swept, points=(failed,)), 0)


def test_positions_end_a_context() -> None:
    name = "transformers:gpt2?n_embd=32&n_head=4&n_layer=2&vocab_size=100&n_positions=200"
    found = fit(requested(name, 1, 16), 1e9)
    assert (found.longest, found.longest_reason) == (200, "the model's positions")
    almost = fit(requested(name, 1, 198), 1e9)
    found = fit(requested(name, 1, 190), almost.memory.high_bytes + almost.process_bytes)
    assert (found.longest, found.longest_reason) == (198, "memory")


class Scan(nn.Module):
    """A step of Python for each number of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(100, 8), nn.RNNCell(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 8, device=x.device)
        for step in self.words(x).unbind(1):
            state = self.cell(step, state)
        return state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "most_calls", "longest", "shorter"),
    [("forward", 1000, 249, 11), pytest.param("training", 3000, 37, 36, marks=pytest.mark.full)],
)  # of 4 calls a number, of 80
def test_a_scan_is_looked_at_as_far_as_its_calls_can_be_traced(
    phase: str, most_calls: int, longest: int, shorter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "MOST_CALLS", most_calls)
    found = [fit(requested(Scan(), seq_len=length, phase=phase), 8e9) for length in (4, 7)]
    assert {(one.longest, one.longest_reason.partition(":")[0]) for one in found} == {
        (longest, "the number of calls")
    }
    less = fit(requested(Scan(), seq_len=shorter, phase=phase), 8e9)
    found[0] = fit(requested(Scan(), seq_len=4, phase=phase), less.memory.high_bytes + less.process_bytes)
    assert (found[0].longest, found[0].longest_reason) == (shorter, "memory")


def test_a_training_step_takes_more_and_a_larger_optimizer_more_still() -> None:
    room = 1e9
    largest_of = {
        o: fit(requested("zoo:deep_mnist", phase=phase, optimizer=o), room)
        for phase, o in (("training", "sgd"), ("training", "adam"))
    }
    assert largest_of["sgd"].memory.value_bytes < largest_of["adam"].memory.value_bytes
    assert (largest_of["sgd"].largest_batch or 0) >= (largest_of["adam"].largest_batch or 0) > 1


def test_what_cannot_be_asked_of_fit_is_refused() -> None:
    sizes: list[Any] = ["24GB", "1 GiB", "512MiB", "7 B", 7, 8e9, 1e20, np.int64(9), np.float32(0.5)]
    assert [bytes_of(t) for t in sizes] == [24e9, 2**30, 512 * 2**20, 7, 7, 8e9, 1e20, 9, 0.5]
    for text in ("24 parsecs", "", "10", "-1GB", "0GB", 0, -8e9, float("nan")):
        with pytest.raises(InputError, match="write a positive number with a unit"):
            bytes_of(text)
    with pytest.raises(InputError, match="unknown phase 'decoding'"):
        fit(requested(DEEP, phase="decoding"), 1e9)
    with pytest.raises(InputError, match="unknown optimizer 'adamm'"):
        fit(requested(DEEP, phase="training", optimizer="adamm"), 1e9)
    with pytest.raises(ModelError):
        fit(requested("zoo:nothing"), 1e9)


@pytest.mark.parametrize(
    ("sizes_", "message"),
    [
        ({"batch_sizes": (1, 0)}, "batch size 0: must be a list of whole numbers"),
        ({"batch_sizes": (1.5,)}, "batch size 1.5: must"),
        ({"batch_sizes": "1:4"}, "batch sizes '1:4': must be a list"),
        ({"lengths": (16, -1)}, "length -1: must"),
        ({"batch_sizes": ()}, "no point to sweep"),
    ],
)
def test_sizes_that_are_none_are_not_swept(
    sizes_: dict[str, Any], message: str, predictor: Predictor
) -> None:
    with pytest.raises(InputError, match=message):
        sweep(Request("zoo:deep_mnist"), [predictor], Grid(**sizes_))


def test_a_sweep_over_numpys_numbers_can_be_written_as_json(predictor: Predictor) -> None:
    found = sweep(Request("zoo:deep_mnist"), [predictor], Grid(batch_sizes=2 ** np.arange(2)))
    assert [point["batch_size"] for point in json.loads(json.dumps(found.to_json()))["points"]] == [1, 2]


def test_a_sweep_without_a_point_knows_no_energy(predictor: Predictor) -> None:
    found = sweep(Request("zoo:alexnot"), [predictor], Grid(batch_sizes=(1, 2)))
    assert all(point.error and not point.best for point in found.points)
    assert found.front == "throughput and latency"


# ---- commands ----


@pytest.mark.slow
def test_the_commands_answer(tmp_path: Path) -> None:
    chosen = ("--predictor", "amd-epyc-2c")
    swept = json.loads(done("sweep", DEEP, "--batch-size", "1:4", "--seq-len", "8,16", *chosen, "--json"))
    assert [(p["seq_len"], p["batch_size"]) for p in swept["points"]] == [
        (s, b) for s in (8, 16) for b in (1, 2, 4)
    ]
    drawn = done("sweep", "zoo:deep_mnist", "--batch-size", "1,2", *chosen, "--plot", tmp_path / "s.svg")
    assert "samples" in drawn
    assert (tmp_path / "s.svg").read_text().startswith("<?xml")
    assert "is faster with probability" in done("compare", "zoo:deep_mnist", "zoo:sensor_net", *chosen)
    equal = json.loads(done("compare", "zoo:deep_mnist", "@amd-epyc-2c", *chosen, "--json"))
    assert equal["ratio"]["value"] == pytest.approx(1)
    steps = json.loads(
        done(
            "compare",
            f"{DEEP}&max_position_embeddings=64",
            DEEP,
            "--phase",
            "decode",
            "--context",
            16,
            *chosen,
            "--json",
        )
    )
    assert steps["a"]["name"].endswith("b1 decode context 16")
    assert steps["a"]["runtime_s"] == steps["b"]["runtime_s"]
    assert "zoo:sensor_net b1 training" in done(
        "compare", "zoo:deep_mnist", "zoo:sensor_net", "--phase", "training", *chosen
    )


def test_commands_say_that_a_predictor_is_of_another_cpu(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = replace(predictor, name="other", dataset={**predictor.dataset, "unlike": ["amx_tile only here"]})
    monkeypatch.setattr(predictor_lookup, "default_predictor", lambda cpu: other)
    candidates = tmp_path / "candidates.jsonl"
    candidates.write_text(
        '{"layers": [{"kind": "linear", "rows": 4, "in_features": 64, "out_features": 64, "bias": true}]}\n'
    )
    for arguments in (
        ("sweep", "zoo:deep_mnist"),
        ("compare", "zoo:deep_mnist", "zoo:sensor_net"),
        ("score", candidates),
    ):
        ran = run(*arguments)
        assert ran.code == 0
        said = "Warning: " if arguments[0] == "compare" else "Warning: other: "
        lines = [
            *ran.err.splitlines(),
            *ran.out.splitlines(),
        ]  # of scores, which are lines of JSON, on stderr
        assert lines[0].startswith(f"{said}this machine has other vector extensions; values are for ")
        assert run(*arguments, "--json").out[0] == "{"


@pytest.mark.slow
def test_fit_ends_with_0_or_1() -> None:
    asked = ("fit", TINY + "&num_hidden_layers=3", "--device", "cpu", "--seq-len", 8)
    assert "fits into 954 MiB" in done(*asked, "--memory", "1GB")
    ran = run(*asked, "--memory", "1MB", "--json")
    answer = json.loads(ran.out)
    assert (ran.code, answer["fits"], answer["largest_batch_size"]) == (1, False, 0)
    assert "T4" in done("fit", "zoo:deep_mnist", "--device", "nvidia-t4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "zoo:alexnet", "--batch-size", "8:1"), "the end must not be below the start"),
        (("sweep", "zoo:alexnet", "--plot", "x.gif"), "the ending must be one of .html, .png, .svg"),
        (("fit", "zoo:alexnet", "--memory", "lots"), "write a positive number with a unit"),
        (("sweep", "zoo:alexnet", "--memory", "10"), "memory '10': write a positive number with a unit"),
        (("fit", "zoo:alexnet", "--device", "nvidia-t5"), "unknown device"),
        (
            ("fit", "zoo:alexnet", "--optimizer", "sgd"),
            "optimizer, accumulation and checkpointing belong to phase training",
        ),
        (("compare", "zoo:alexnet", "zoo:alexnot"), "unknown zoo network"),
        (
            ("sweep", "zoo:alexnot", "--batch-size", "1,2"),
            "unknown zoo network 'alexnot'",
        ),
        (("sweep", "zoo:alexnet", "--seq-len", "3", "--json"), "leave seq_len out"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(arguments: tuple[str, ...], message: str) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
